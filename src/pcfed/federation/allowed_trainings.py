"""The trainings with a secure sum in which an agent takes part, as far as its owner allows.

Every training begins from the same state. If another one with the same data has other agents in its
first sum, the difference of the two sums is due to few agents. So it needs the owner's consent, as
a rollback does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from pcfed.federation.protocol import ProtocolError
from pcfed.storage.locks import exclusive_lock
from pcfed.storage.saved import Metadata, SavedJson

WAIT = 10.0
"""Seconds to wait for another training of the agent that uses the file."""


@dataclass(frozen=True)
class _TrainingNames(SavedJson):
    """The names of all trainings, in a file beside that of the agent."""

    file_kind: ClassVar[str] = "list of an agent's trainings"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "restore the newest copy: an older one forgets trainings."

    trainings: list[str] = field(default_factory=list)

    def _to_json(self) -> Metadata:
        return {"trainings": self.trainings}

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls([str(name) for name in contents["trainings"]])


@dataclass(frozen=True)
class AllowedTrainings:
    """How many trainings with a secure sum an owner allows, and the names of those so far.

    Parameters
    ----------
    path : Path
        The file of the names; it is made when the agent first sends something.
    number : int
        How many trainings are allowed.
    """

    path: Path
    number: int

    def check(self, training: str, *, remember: bool) -> None:
        """Raise a ProtocolError if a training is one too many, or remember its name on the disk."""
        with exclusive_lock(self.path.with_name(self.path.name + ".lock"), wait=WAIT):
            file = _TrainingNames.load(self.path) if self.path.exists() else _TrainingNames()
            if training in file.trainings:
                return
            known = len(file.trainings)
            if known >= self.number:
                raise ProtocolError(
                    "its owner has not consented to another training with a secure sum; the owner "
                    f"can, with trainings = {known + 1} in the agent's file"
                )
            if remember:
                replace(file, trainings=[*file.trainings, training]).save(self.path)
