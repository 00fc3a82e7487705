"""The private state of an agent, in a file that never leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

from pcfed.algorithms import RoundInfo
from pcfed.algorithms.grid import Integers, integers_in
from pcfed.arrays import Array
from pcfed.federation.protocol import Scalar, read_round_info, round_metadata
from pcfed.simulation.result import arrays_in
from pcfed.storage.archive import AnyArray
from pcfed.storage.saved import Metadata, SavedArchive, Upgrades

NOT_IN_EARLIER_FORMATS: Metadata = {
    "rollbacks": 0,
    "audit": None,
    "secure": False,
    "history": {},
    "terms": {},
    "withheld": False,
    "reported": None,
}
"""What the metadata of earlier formats may lack."""


class Audit(NamedTuple):
    """An audit that an agent has answered.

    ``accepted`` is the round of the agent's last accepted update at that time, and ``digest`` is
    the hash from which the random vectors were drawn.
    """

    accepted: int
    digest: str


@dataclass(frozen=True, eq=False)
class PendingUpdate:
    """An update of a round that the server may accept or not.

    ``kept`` is what the agent needs to commit it, ``sent`` is what it sends to the server, and
    ``received`` are the server's vectors of that round. ``terms`` is the metadata by which it is
    committed, whatever the message says that tells that it was accepted. An update that is
    ``withheld`` could not be computed or sent, and changes nothing when it is committed.
    """

    round_info: RoundInfo
    kept: Mapping[str, Array]
    sent: Mapping[str, Array]
    received: Mapping[str, Array]
    terms: Mapping[str, Scalar] = field(default_factory=dict)
    withheld: bool = False


class Reported(NamedTuple):
    """The metrics that an agent has reported since its last accepted update.

    ``rollbacks`` and ``accepted`` say which update that was.
    """

    rollbacks: int
    accepted: int
    metrics: dict[str, float]


@dataclass(frozen=True, eq=False)
class ClientState(SavedArchive):
    """The private state of an agent, in a file that never leaves it.

    ``accepted`` is the round of its last update that the agent knows to be accepted, ``private``
    has its private vectors as arrays of one row, and ``pending`` is its last update, until it is
    known whether the server accepted it. ``rollbacks`` is how often the training has gone back, and
    ``audit`` says which audit the agent has answered last. ``totals`` has the sums of all accepted
    updates as integers, if the training has a secure sum, which is then ``secure``; ``history`` has
    by the name of each other agent a hash of the sums that both have committed, and ``reported``
    what the agent has sent of its metrics.
    """

    file_kind: ClassVar[str] = "state of an agent"
    format: ClassVar[int] = 7
    upgrades: ClassVar[Upgrades] = dict.fromkeys(
        (3, 4, 5, 6), lambda metadata: {**NOT_IN_EARLIER_FORMATS, **metadata}
    )
    read_by: ClassVar[Mapping[int, str]] = {1: "0.1", 2: "0.1"}
    advice: ClassVar[str] = "restore it from a backup."

    training: str
    accepted: int
    private: Mapping[str, Array]
    pending: PendingUpdate | None = None
    rollbacks: int = 0
    audit: Audit | None = None
    secure: bool = False
    totals: Mapping[str, Integers] = field(default_factory=dict)
    history: Mapping[str, str] = field(default_factory=dict)
    reported: Reported | None = None

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        pending = self.pending
        groups: dict[str, Mapping[str, AnyArray]] = {"private": self.private, "totals": self.totals}
        if pending is not None:
            groups |= {"kept": pending.kept, "sent": pending.sent, "received": pending.received}
        metadata = {
            "training": self.training,
            "accepted": self.accepted,
            "pending": None if pending is None else round_metadata(pending.round_info),
            "rollbacks": self.rollbacks,
            "audit": self.audit,
            "secure": self.secure,
            "history": dict(self.history),
            "terms": {} if pending is None else dict(pending.terms),
            "withheld": pending is not None and pending.withheld,
            "reported": self.reported,
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
            pending = PendingUpdate(
                *(read_round_info(metadata["pending"]), kept, sent, received),
                *(metadata["terms"], metadata["withheld"]),
            )
        audit = None if metadata["audit"] is None else Audit(*metadata["audit"])
        reported = None if metadata["reported"] is None else Reported(*metadata["reported"])
        return cls(
            metadata["training"],
            metadata["accepted"],
            arrays_in(arrays, "private"),
            pending,
            metadata["rollbacks"],
            audit,
            metadata["secure"],
            integers_in(arrays, "totals"),
            metadata["history"],
            reported,
        )
