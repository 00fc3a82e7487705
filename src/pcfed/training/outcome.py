"""The summary of a finished training: the table at its end, and the file ``outcome.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from pcfed.storage.saved import Metadata, SavedJson, Upgrades

T = TypeVar("T", "AgentOutcome", "Outcome")


@dataclass(frozen=True)
class AgentOutcome:
    r"""The summary of one agent's model, which is feasible.

    Attributes
    ----------
    agent, constraint : str
        The agent's name and its set.
    used, budget : float or None
        How much of its budget the model uses, where the set has one: the radius of a ball, the b
        of a halfspace.
    infeasibility : float
        The distance of the trained model from the set, before it was projected.
    distance : float
        The distance $\|x_i - \bar x\|$ of the model from the average model.
    score, average_score, local_score : float or None
        On the agent's held-out rows: of its own model, of the average model, and of a model that
        the agent trained alone. None where there are no such rows or no such model.
    """

    agent: str
    constraint: str
    used: float | None
    budget: float | None
    infeasibility: float
    distance: float
    score: float | None
    average_score: float | None
    local_score: float | None


def _upgrade_format_1(contents: Metadata) -> Metadata:
    """Rename the keys that had other names in format 1."""
    upgraded = dict(contents)
    upgraded["score_name"] = upgraded.pop("measure")
    upgraded["agents"] = [
        {("infeasibility" if key == "moved" else key): value for key, value in each.items()}
        for each in upgraded["agents"]
    ]
    return upgraded


@dataclass(frozen=True)
class Outcome(SavedJson):
    r"""The summary of a training.

    Attributes
    ----------
    status : str
        How the run ended.
    rounds : int
        The number of rounds.
    score_name : {"accuracy", "R²", "loss"}
        What the scores are.
    agents : tuple of AgentOutcome
        In the order of the roster.
    objective : float or None
        $f$ of the feasible models, in the coordinates of the training.
    gap, relative_gap : float or None
        A bound on its distance from the optimum, and this bound as a share of the objective.
    reason : str or None
        Why there is no gap.
    notes : tuple of str
        Remarks for readers of the table.
    """

    file_kind: ClassVar[str] = "training summary"
    format: ClassVar[int] = 2
    upgrades: ClassVar[Upgrades] = {1: _upgrade_format_1}
    advice: ClassVar[str] = "rerun pcfed train to write it again."
    max_bytes: ClassVar[int] = 2**28

    status: str
    rounds: int
    score_name: str
    agents: tuple[AgentOutcome, ...]
    objective: float | None
    gap: float | None
    relative_gap: float | None
    reason: str | None
    notes: tuple[str, ...] = ()

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Outcome:
        table = dict(contents)
        table["agents"] = tuple(_from_table(AgentOutcome, each) for each in table["agents"])
        table["notes"] = tuple(table["notes"])
        if not all(isinstance(note, str) for note in table["notes"]):
            raise TypeError
        return _from_table(Outcome, table)


ALLOWED_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (float,),
    "float | None": (float, type(None)),
    "tuple[str, ...]": (tuple,),
    "tuple[AgentOutcome, ...]": (tuple,),
}
"""The Python types of the fields in a JSON file, by their annotations."""


def _from_table(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a dataclass from its fields, or raise KeyError or TypeError."""
    for field in fields(kind):
        value = table[field.name]
        if type(value) not in ALLOWED_TYPES[str(field.type)]:
            raise TypeError
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError
    return kind(**table)
