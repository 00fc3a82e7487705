"""The server's checkpoint: it alone decides which updates have been accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from pcfed.arrays import Array
from pcfed.federation.protocol import AcceptedUpdate
from pcfed.simulation.result import arrays_in
from pcfed.storage.archive import AnyArray
from pcfed.storage.journal import Extent
from pcfed.storage.saved import Metadata, SavedArchive


@dataclass(frozen=True, eq=False)
class ServerState(SavedArchive):
    """The state of a training at the server.

    Attributes
    ----------
    config : mapping
        The part of the configuration that must stay the same (`ServerConfig.identity`).
    round : int
        Number of completed rounds.
    vectors : mapping of str to Array
        The server's vectors.
    accepted : mapping of str to AcceptedUpdate
        The last accepted update of each agent.
    history : Extent or None
        The part of the history file that belongs to these rounds; None before the first one.
    """

    file_kind: ClassVar[str] = "checkpoint of a federation's server"
    format: ClassVar[int] = 3
    read_by: ClassVar[Mapping[int, str]] = {1: "0.1", 2: "0.1"}
    advice: ClassVar[str] = "restore it from a backup, or give the training another name."

    config: Mapping[str, Any]
    round: int
    vectors: Mapping[str, Array]
    accepted: Mapping[str, AcceptedUpdate]
    history: Extent | None = None

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        metadata = {
            "config": dict(self.config),
            "round": self.round,
            "accepted": {name: asdict(update) for name, update in self.accepted.items()},
            "history": self.history,
        }
        return metadata, {f"server/{name}": vector for name, vector in self.vectors.items()}

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> Self:
        history = metadata["history"]
        return cls(
            metadata["config"],
            metadata["round"],
            arrays_in(arrays, "server"),
            {name: AcceptedUpdate(**update) for name, update in metadata["accepted"].items()},
            None if history is None else Extent(*history),
        )
