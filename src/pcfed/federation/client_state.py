"""The private state of an agent, which is one file that never leaves the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from pcfed.algorithms import RoundInfo
from pcfed.arrays import Array
from pcfed.federation.protocol import AcceptedUpdate, read_round_info, round_metadata
from pcfed.simulation.result import arrays_in
from pcfed.storage.archive import AnyArray
from pcfed.storage.saved import Metadata, SavedArchive


@dataclass(frozen=True, eq=False)
class PendingUpdate:
    """An update that the server may accept or not.

    Attributes
    ----------
    round_info : RoundInfo
        The round that it belongs to.
    kept : mapping of str to Array
        What the agent needs to commit it.
    sent : mapping of str to Array
        What it sends to the server.
    received : mapping of str to Array
        The server's vectors of that round.
    """

    round_info: RoundInfo
    kept: Mapping[str, Array]
    sent: Mapping[str, Array]
    received: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class ClientState(SavedArchive):
    """What an agent keeps from one message to the next.

    Attributes
    ----------
    training : str
        Name of the training.
    accepted : AcceptedUpdate
        The last of its updates that the agent knows to be accepted.
    private : mapping of str to Array
        Its private vectors, as arrays of one row.
    pending : PendingUpdate or None
        Its last update, until it is known whether the server accepted it.
    """

    file_kind: ClassVar[str] = "state of an agent"
    format: ClassVar[int] = 3
    read_by: ClassVar[Mapping[int, str]] = {1: "0.1", 2: "0.1"}
    advice: ClassVar[str] = "restore it from a backup."

    training: str
    accepted: AcceptedUpdate
    private: Mapping[str, Array]
    pending: PendingUpdate | None = None

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        pending = self.pending
        groups = {"private": self.private}
        if pending is not None:
            groups |= {"kept": pending.kept, "sent": pending.sent, "received": pending.received}
        metadata = {
            "training": self.training,
            "accepted": asdict(self.accepted),
            "pending": None if pending is None else round_metadata(pending.round_info),
        }
        arrays = {
            f"{group}/{name}": vector
            for group, vectors in groups.items()
            for name, vector in vectors.items()
        }
        return metadata, arrays

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> Self:
        pending = None
        if metadata["pending"] is not None:
            kept, sent, received = (arrays_in(arrays, g) for g in ("kept", "sent", "received"))
            pending = PendingUpdate(read_round_info(metadata["pending"]), kept, sent, received)
        accepted = AcceptedUpdate(**metadata["accepted"])
        return cls(metadata["training"], accepted, arrays_in(arrays, "private"), pending)
