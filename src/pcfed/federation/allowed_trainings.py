"""The trainings with a secure sum in which an agent takes part, as far as its owner allows.

Every training begins from the same state. If another one with the same data has other agents in its
first sum, the difference of the two sums is due to few agents. So it needs the owner's consent, as
a rollback does.

Whether all rows can be read for a model, with its labels and features, says something about the
rows, too. So a training has one model, which is remembered before the rows are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    models: dict[str, str] = field(default_factory=dict)

    def _to_json(self) -> Metadata:
        return {"trainings": self.trainings, "models": self.models}

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        models = {str(name): str(model) for name, model in contents.get("models", {}).items()}
        return cls([str(name) for name in contents["trainings"]], models)


@dataclass(frozen=True)
class AllowedTrainings:
    """How many trainings with a secure sum an owner allows, and the names of those so far.

    Parameters
    ----------
    path : Path
        The file of the names; it is made at the first message that asks for more than keys.
    number : int
        How many trainings are allowed.
    """

    path: Path
    number: int

    def check(self, training: str, model: str | None) -> None:
        """Remember a training and its model on the disk, or raise if it is one too many.

        Parameters
        ----------
        training : str
            The name of the training.
        model : str or None
            A hash of the model that the server trains; with None, nothing is remembered.

        Raises
        ------
        ProtocolError
            If the owner has not consented to another training, or the training has another model.
        """
        with exclusive_lock(self.path.with_name(self.path.name + ".lock"), wait=WAIT):
            file = _TrainingNames.load(self.path) if self.path.exists() else _TrainingNames()
            known = len(file.trainings)
            if training not in file.trainings and known >= self.number:
                raise ProtocolError(
                    "its owner has not consented to another training with a secure sum; the owner "
                    f"can, with trainings = {known + 1} in the agent's file"
                )
            if model is None:
                return
            if file.models.get(training, model) != model:
                raise ProtocolError(
                    "the training has begun with another model, whose kind, features, labels and "
                    "settings can't change; restore it, or give the training another name, to "
                    f"which its owner consents with trainings = {known + 1} in the agent's file"
                )
            if training not in file.models:
                names = list(dict.fromkeys([*file.trainings, training]))
                _TrainingNames(names, {**file.models, training: model}).save(self.path)
