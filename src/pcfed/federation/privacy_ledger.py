"""What an agent has spent of its privacy budget, in a file that never leaves it.

The budget is that of all trainings of the agent together. At the first message of a training the
agent plans the gradients of all its rounds, which takes what is left of the budget; later rounds
are refused once they are spent. A round is in the file before its gradients are computed, so that
an agent that dies spends nothing unseen. The same question about the same records has the same
answer (`pcfed.privacy.gradients`) and is not counted again.

Whether records can be read for a model, with its labels and features, says something about them.
So the file also has the models for which they have been read: one for every budget.

The file also has the secret from which noise and batches are drawn; nobody else may know it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

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

LOCK_SECONDS = 5.0
"""How long to wait for another training that writes the file."""

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
        for number, least in ((plan.gradients, 1), (contents["spent"], 0)):
            if type(number) is not int or number < least:
                raise ValueError(f"a number of gradients is {number!r}")
        if not plan.noise_multiplier > 0:
            raise ValueError(f"a noise multiplier is {plan.noise_multiplier!r}")
        return cls(**{**contents, **more, "plan": plan})


class BoundModel(NamedTuple):
    """A model for which the records have been read, and the budget at that time.

    ``digest`` is the hash of all that reading them depends on.
    """

    digest: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerFile(SavedJson):
    """The contents of the file."""

    file_kind: ClassVar[str] = "privacy ledger"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "restore the newest copy: an older one forgets what was spent."

    secret: str
    trainings: list[PlannedTraining] = field(default_factory=list)
    models: list[BoundModel] = field(default_factory=list)

    def _to_json(self) -> Metadata:
        trainings = [each.to_json() for each in self.trainings]
        return {"secret": self.secret, "trainings": trainings, "models": self.models}

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        trainings = [PlannedTraining.from_json(each) for each in contents["trainings"]]
        models = [BoundModel(*each) for each in contents["models"]]
        return cls(str(contents["secret"]), trainings, models)


class Charge(NamedTuple):
    """What the gradients of a round are made with.

    Attributes
    ----------
    noise : NoisePlan
        How much noise they have.
    secret : bytes
        The secret of the agent.
    new_plan : Spending or None
        The plan of the training, if it was made now.
    """

    noise: NoisePlan
    secret: bytes
    new_plan: Spending | None


class PrivacyLedger:
    """The budget of one agent, and what is spent of it.

    Parameters
    ----------
    path : Path
        The file; it is made at the first training.
    privacy : Privacy
        The budget.
    """

    def __init__(self, path: Path, privacy: Privacy) -> None:
        self.path, self.privacy = path, privacy

    def bind_model(self, digest: str) -> None:
        """Remember a model for which the records are about to be read, or refuse it.

        Raises
        ------
        ProtocolError
            If they have been read for another model with the same budget.
        """
        model = BoundModel(digest, self.privacy.epsilon, self.privacy.delta)
        with self._locked() as file:
            if any(each.digest == digest for each in file.models):
                return
            if any(each[1:] == model[1:] for each in file.models):
                raise ProtocolError(
                    "its privacy budget belongs to another model, with other features, labels, "
                    "kind or dtype; restore that model, or ask the owner to allow another one by "
                    "changing privacy.epsilon in the agent's file"
                )
            file.models.append(model)
            self._save(file)

    def check_begun(self, training: str) -> None:
        """Raise if a training that has begun is not in the file."""
        if not any(each.training == training for each in self._load().trainings):
            raise ProtocolError(
                "its privacy ledger does not have this training, which has begun; its owner must "
                "restore the newest copy of the ledger, or take part in another training"
            )

    def charge(
        self, training: str, gradients: int, rounds: int, question: str, mechanism: Mechanism
    ) -> Charge:
        """Count the gradients of a round, on the disk, before they are computed.

        Parameters
        ----------
        training : str
            The name of the training.
        gradients : int
            The largest number of gradients of a round.
        rounds : int
            How many rounds are left, with this one.
        question : str
            The digest of all that the gradients depend on.
        mechanism : Mechanism
            The numbers of rows, of the agent and of a batch.

        Raises
        ------
        ProtocolError
            If the budget is spent, or too small for the rounds that are left.
        """
        if gradients < 1:
            raise ProtocolError(f"a round must have at least one gradient, got {gradients}")
        with self._locked() as file:
            k = self._current(file, training, question, gradients, mechanism)
            is_new = k is None
            if k is None:
                file.trainings.append(self._planned(file, training, gradients, rounds, mechanism))
                k = len(file.trainings) - 1
            entry = file.trainings[k]
            if question not in entry.asked:
                asked = (*entry.asked, question)[-KEPT_ROUNDS:]
                spent = entry.spent + gradients
                file.trainings[k] = replace(entry, spent=spent, asked=asked)
                self._save(file)
        noise = NoisePlan(self.privacy, mechanism, entry.plan.noise_multiplier)
        return Charge(noise, bytes.fromhex(file.secret), entry.plan if is_new else None)

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
        self,
        file: LedgerFile,
        training: str,
        question: str,
        gradients: int,
        mechanism: Mechanism,
    ) -> int | None:
        """Return which plan the gradients of a round belong to; None if there is none yet."""
        for k, each in enumerate(file.trainings):
            if each.training != training:
                continue
            if each.plan.mechanism != mechanism:
                raise ValueError(
                    f"{self.path}: the numbers of rows and of rows in a batch must stay as they "
                    f"were planned, {each.plan.mechanism}, got {mechanism}; restore the data "
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
        self,
        file: LedgerFile,
        training: str,
        gradients: int,
        rounds: int,
        mechanism: Mechanism,
    ) -> PlannedTraining:
        """Return a plan for all rounds that are left, or raise if the budget does not allow it."""
        before, privacy = _plans(file), self.privacy
        if self._is_spent(file):
            raise ProtocolError(
                "its privacy budget is spent; its owner can raise privacy.epsilon in the agent's "
                "file"
            )
        number = max(1, rounds) * gradients
        try:
            z = noise_multiplier_for(privacy, mechanism, number, before)
        except BudgetError as error:
            allowed = error.max_gradients // gradients
            advice = "train fewer rounds or local steps"
            if not allowed:
                advice = "its owner can raise privacy.epsilon, or train with more rows"
            raise ProtocolError(
                f"its privacy budget allows at most {allowed:,} rounds of {gradients:,} gradients, "
                f"got {rounds:,}; {advice}"
            ) from None
        return PlannedTraining(training, privacy, Spending(mechanism, z, number))

    @contextmanager
    def _locked(self) -> Iterator[LedgerFile]:
        """Yield the contents of the file, which no other process changes meanwhile."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive_lock(self.path.with_name(self.path.name + ".lock"), LOCK_SECONDS):
            yield self._load()

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
