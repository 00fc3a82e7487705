"""What came of a training, in figures: the table at its end, and the file ``outcome.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pcfed.data.readers import read_bytes
from pcfed.errors import display_path
from pcfed.storage.atomic import write_atomically

T = TypeVar("T", "AgentOutcome", "Outcome")

FORMAT = 1
"""Version of the file."""

MOST_BYTES = 2**28
"""Bytes of the file at most."""


@dataclass(frozen=True)
class AgentOutcome:
    r"""What came of one agent; its model is the one that is delivered, which is in its set.

    Attributes
    ----------
    agent, constraint : str
        Its name and its set.
    used, budget : float or None
        How much of its budget the model uses, where the set has one: the radius of a ball, the b
        of a halfspace.
    moved : float
        The distance of the trained model from the set, before it was made feasible.
    distance : float
        The distance $\|x_i - \bar x\|$ of the model from the average of all.
    score, average_score, local_score : float or None
        On the agent's held-out rows: of its own model, of the average of all models, and of the
        one that it gets by training alone. None where there is no such row or no such model.
    """

    agent: str
    constraint: str
    used: float | None
    budget: float | None
    moved: float
    distance: float
    score: float | None
    average_score: float | None
    local_score: float | None


@dataclass(frozen=True)
class Outcome:
    r"""What came of a training.

    Attributes
    ----------
    status : str
        How the run ended.
    rounds : int
        How many there were.
    measure : {"accuracy", "R²", "loss"}
        What the scores are.
    agents : tuple of AgentOutcome
        In the order of the roster.
    objective : float or None
        $f$ of the models that are delivered, in the coordinates of the training.
    gap, relative_gap : float or None
        By how much it can be above the optimum at most, and as a share of the objective.
    reason : str or None
        Why there is no gap.
    notes : tuple of str
        What a reader of the table should know.
    """

    status: str
    rounds: int
    measure: str
    agents: tuple[AgentOutcome, ...]
    objective: float | None
    gap: float | None
    relative_gap: float | None
    reason: str | None
    notes: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False)
        write_atomically(path, text.encode())

    @staticmethod
    def load(path: Path) -> Outcome:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file cannot be read or holds something else.
        """
        content = read_bytes(display_path(path), path, MOST_BYTES)
        try:
            table: Any = json.loads(content)
            if table.pop("format") != FORMAT:
                raise TypeError
            table["agents"] = tuple(_read(AgentOutcome, each) for each in table["agents"])
            table["notes"] = tuple(table["notes"])
            return _read(Outcome, table)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(
                f"{display_path(path)}: the file must say what came of a training, and does not; repeat "
                "pcfed train to write it again."
            ) from None


KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (float,),
    "float | None": (float, type(None)),
    "tuple[str, ...]": (tuple,),
    "tuple[AgentOutcome, ...]": (tuple,),
}
"""What JSON makes of the fields."""


def _read(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a dataclass from its fields, or raise a TypeError."""
    for field in fields(kind):
        value = table[field.name]
        if type(value) not in KINDS[str(field.type)]:
            raise TypeError
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError
    if not all(isinstance(note, str) for note in table.get("notes", ())):
        raise TypeError
    return kind(**table)
