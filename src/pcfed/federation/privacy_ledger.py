"""What an agent has spent of its privacy budget, in a file that never leaves it.

The budget is that of all trainings of the agent together. At the first message of a training the
agent plans the gradients of all its rounds, which takes what is left of the budget; later rounds
are refused once they are spent. A round is in the file before its gradients are computed, so that
an agent that dies spends nothing unseen. The same question in the same round has the same answer
(`pcfed.privacy.gradients`) and is not counted again.

The file also has the secret from which noise and batches are drawn; nobody else may know it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pcfed.federation.protocol import ProtocolError
from pcfed.privacy import (
    BudgetError,
    Mechanism,
    NoisePlan,
    Privacy,
    Spending,
    epsilon_of,
    noise_multiplier_for,
)
from pcfed.storage.atomic import private_files
from pcfed.storage.locks import exclusive_lock
from pcfed.storage.saved import Metadata, SavedJson

KEPT_ROUNDS = 50
"""The questions of so many rounds are remembered; older ones are counted again."""

LEAST_SHARE = 0.02
"""A training needs at least this share of the budget: with less, there is nothing but noise."""


@dataclass(frozen=True)
class PlannedTraining:
    """The gradients of one training.

    Attributes
    ----------
    training : str
        Its name.
    privacy : Privacy
        The budget when it was planned.
    plan : Spending
        How many gradients it may take, and their noise.
    spent : int
        How many it has taken.
    asked : tuple of str
        The digests of the last questions.
    """

    training: str
    privacy: Privacy
    plan: Spending
    spent: int = 0
    asked: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the contents as JSON has them."""
        plan = {**vars(self.plan), "mechanism": vars(self.plan.mechanism)}
        return {**vars(self), "privacy": vars(self.privacy), "plan": plan}

    @classmethod
    def from_json(cls, contents: dict[str, Any]) -> Self:
        """Read what `to_json` returned."""
        plan = contents["plan"]
        plan = Spending(**{**plan, "mechanism": Mechanism(**plan["mechanism"])})
        more = {"privacy": Privacy(**contents["privacy"]), "asked": tuple(contents["asked"])}
        return cls(**{**contents, **more, "plan": plan})


@dataclass(frozen=True)
class LedgerFile(SavedJson):
    """The contents of the file."""

    file_kind: ClassVar[str] = "privacy ledger"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "restore the newest copy: an older one forgets what was spent."

    secret: str
    trainings: list[PlannedTraining] = field(default_factory=list)

    def _to_json(self) -> Metadata:
        return {"secret": self.secret, "trainings": [each.to_json() for each in self.trainings]}

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        trainings = [PlannedTraining.from_json(each) for each in contents["trainings"]]
        return cls(str(contents["secret"]), trainings)


class PrivacyLedger:
    """The budget of one agent, and what is spent of it.

    Parameters
    ----------
    path : Path
        The file; it is made at the first training.
    privacy : Privacy
        The budget.
    mechanism : Mechanism
        The numbers of rows, of the agent and of a batch.
    """

    def __init__(self, path: Path, privacy: Privacy, mechanism: Mechanism) -> None:
        self.path, self.privacy, self.mechanism = path, privacy, mechanism

    def charge(
        self, training: str, gradients: int, rounds: int, question: str
    ) -> tuple[NoisePlan, bytes]:
        """Count the gradients of a round, on the disk; return their noise and the secret.

        Parameters
        ----------
        training : str
            The name of the training.
        gradients : int
            The largest number of gradients of a round.
        rounds : int
            How many rounds are left, with this one.
        question : str
            The digest of all that the gradients depend on, beside the records.

        Raises
        ------
        ProtocolError
            If the budget is spent, or too small for the rounds that are left.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive_lock(self.path.with_name(self.path.name + ".lock")):
            file = self._load()
            k = self._current(file, training, question, gradients)
            if k is None:
                file.trainings.append(self._planned(file, training, gradients, rounds))
                k = len(file.trainings) - 1
            entry = file.trainings[k]
            if question not in entry.asked:
                asked = (*entry.asked, question)[-KEPT_ROUNDS:]
                spent = entry.spent + gradients
                file.trainings[k] = replace(entry, spent=spent, asked=asked)
                self._save(file)
        noise = NoisePlan(self.privacy, self.mechanism, entry.plan.noise_multiplier)
        return noise, bytes.fromhex(file.secret)

    def can_pay(self, training: str, gradients: int) -> bool:
        """Return whether a training may take more gradients, or more can be planned for it."""
        if not self.path.exists():
            return True
        file = self._load()
        found = [each for each in file.trainings if each.training == training]
        if not found or any(each.spent + gradients <= each.plan.gradients for each in found):
            return True
        return self._is_changed(file) and not self._is_spent(file)

    def _current(
        self, file: LedgerFile, training: str, question: str, gradients: int
    ) -> int | None:
        """Return which plan the gradients of a round belong to; None if there is none yet."""
        for k, each in enumerate(file.trainings):
            if each.training != training:
                continue
            if each.plan.mechanism != self.mechanism:
                raise ValueError(
                    f"{self.path}: the numbers of rows and of rows in a batch must stay as they "
                    f"were planned, {each.plan.mechanism}, got {self.mechanism}; restore the data "
                    "and the batch."
                )
            if question in each.asked or each.spent + gradients <= each.plan.gradients:
                if self._is_lowered(file):
                    raise ProtocolError("its privacy budget is spent")
                return k
        return None

    def _is_changed(self, file: LedgerFile) -> bool:
        """Return whether the owner has changed the budget since trainings were planned."""
        now = self.privacy.epsilon, self.privacy.delta
        return any((each.privacy.epsilon, each.privacy.delta) != now for each in file.trainings)

    def _is_lowered(self, file: LedgerFile) -> bool:
        """Return whether the budget is below what is planned already."""
        # Mostly nothing has changed, and the accountant, which takes time, is not asked.
        if not self._is_changed(file):
            return False
        return epsilon_of(_plans(file), self.privacy.delta) > self.privacy.epsilon

    def _is_spent(self, file: LedgerFile) -> bool:
        """Return whether hardly anything of the budget is left for another plan."""
        most = (1 - LEAST_SHARE) * self.privacy.epsilon
        return bool(file.trainings) and epsilon_of(_plans(file), self.privacy.delta) > most

    def _planned(
        self, file: LedgerFile, training: str, gradients: int, rounds: int
    ) -> PlannedTraining:
        """Return a plan for all rounds that are left, or raise if the budget does not allow it."""
        before, privacy = _plans(file), self.privacy
        if self._is_spent(file):
            raise ProtocolError(
                "its privacy budget is spent; its owner can raise privacy.epsilon in the agent's "
                "file"
            )
        number = max(1, rounds * gradients)
        try:
            z = noise_multiplier_for(privacy, self.mechanism, number, before)
        except BudgetError as error:
            allowed = error.max_gradients // max(1, gradients)
            raise ProtocolError(
                f"its privacy budget allows at most {allowed:,} rounds of {gradients:,} gradients, "
                f"got {rounds:,}; train fewer rounds or local steps"
            ) from None
        return PlannedTraining(training, privacy, Spending(self.mechanism, z, number))

    def _load(self) -> LedgerFile:
        if not self.path.exists():
            return LedgerFile(secrets.token_hex(32))
        return LedgerFile.load(self.path)

    def _save(self, file: LedgerFile) -> None:
        """Write the file, which only the owner may read."""
        with private_files():
            file.save(self.path)


def _plans(file: LedgerFile) -> Sequence[Spending]:
    """Return all gradients that trainings may take: they count even if they never will."""
    return [each.plan for each in file.trainings]
