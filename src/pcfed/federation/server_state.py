"""The server's configuration of a training, its checkpoint, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.algorithms.grid import DEFAULT_STEP, Integers, integers_in
from pcfed.arrays import Array
from pcfed.config.federation_files import ServerFile
from pcfed.federation.norm_limits import Norms
from pcfed.federation.paths import CHECKPOINT, RESULT
from pcfed.federation.row_sums import (
    HeldOutScore,
    Standardization,
    read_scaling,
    scaling_metadata,
)
from pcfed.guarantees.federated_certificate import FederatedCertificate
from pcfed.problem import Center
from pcfed.simulation.result import arrays_in
from pcfed.standardize import Scaling
from pcfed.storage.archive import AnyArray
from pcfed.storage.journal import Extent
from pcfed.storage.saved import Metadata, SavedArchive, SavedJson, Upgrades


class Place(NamedTuple):
    """A place in a training: how often it has gone back, and how many rounds are completed."""

    rollbacks: int
    round: int

    def __str__(self) -> str:
        return f"{self.rollbacks} {self.round}"


@dataclass(frozen=True)
class ServerConfig:
    """What the server needs to know before a training starts.

    Attributes
    ----------
    training : str
        Name of the training.
    roster : tuple of str
        Names of all agents, present or not; m is their number.
    n : int
        Number of parameters.
    algorithm : Algorithm
        The algorithm, with numbers or schedules for its step and penalty.
    center : {"average", "free"}
        What the models are coupled to.
    rounds, local_steps : int
        Numbers of rounds, and of local steps in a round.
    seed : int
        Seed of all random streams.
    minimum : int
        A round with fewer accepted updates is repeated.
    attempts : int
        How often a round is tried before the training stops with an error.
    norm_limit : float
        The largest norm that a vector of an update may have.
    norm_factor : float
        How many times the usual norm it may be at most, see `pcfed.federation.norm_limits`.
    keep_every, keep : int
        The checkpoint of every k-th round is kept, and so many of them, to go back to.
    gap : float or None
        The certified relative gap at which the training stops.
    gap_every : int
        Number of rounds between two certificates of the gap.
    secure : bool
        Whether the server learns sums only, see `pcfed.federation.secure_sums`.
    grid : float
        The step of the grid of a secure sum, a power of two.
    colluders : int
        How many agents may work together with the server, and the others stay private.
    standardization : Standardization or None
        What is standardised with means and scales of all agents' rows; it needs a secure sum.
    identities : mapping of str to str
        The registered public keys of agents, where they are known.
    """

    training: str
    roster: tuple[str, ...]
    n: int
    algorithm: Algorithm
    rounds: int
    local_steps: int = 1
    center: Center = "average"
    seed: int = 0
    minimum: int = 1
    attempts: int = 10
    norm_limit: float = np.inf
    norm_factor: float = 1e4
    keep_every: int = 10
    keep: int = 10
    gap: float | None = None
    gap_every: int = 10
    secure: bool = False
    grid: float = DEFAULT_STEP
    colluders: int = 1
    standardization: Standardization | None = None
    identities: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", self.algorithm.for_center(self.center))

    @classmethod
    def from_file(cls, file: ServerFile) -> Self:
        """Return the configuration of a server's file; a roster that is a number becomes empty."""
        roster = () if isinstance(file.roster, int) else file.roster
        options = file.rounds.model_dump(exclude={"deadline"}, exclude_none=True)
        options |= {
            "center": file.resolved_center,
            "secure": file.resolved_secure,
            "grid": file.grid,
            "colluders": file.resolved_colluders,
        }
        model = file.model
        if model.standardize:
            what = Standardization(len(model.features), model.intercept, model.centers_target)
            options["standardization"] = what
        return cls(file.training, roster, file.model.n, file.algorithm, **options)

    def identity(self) -> dict[str, Any]:
        """Return the part of the configuration that must stay the same when a training resumes."""
        return {
            "training": self.training,
            "roster": list(self.roster),
            "n": self.n,
            "algorithm": repr(self.algorithm),
            "local_steps": self.local_steps,
            "center": self.center,
            "seed": self.seed,
            "secure": self.secure,
            **({"grid": self.grid, "colluders": self.colluders} if self.secure else {}),
            **({"standardize": True} if self.standardization else {}),
        }


@dataclass(frozen=True, eq=False)
class ServerState(SavedArchive):
    """The server's checkpoint: it alone decides which updates have been accepted.

    ``config`` is the part of the configuration that must stay the same (`ServerConfig.identity`),
    ``round`` is the number of completed rounds, ``accepted`` has the round of the last accepted
    update of each agent, ``history`` is the part of the history file that belongs to these rounds,
    ``norms`` are the usual norms of updates, and ``rollbacks`` has for each rollback the rounds
    from which and to which the training went back. ``totals`` are the sums of all accepted updates
    as integers, if the training has a secure sum, and ``sums`` has by round what agents must know
    of the sums of their last accepted updates: the context and the survivors. ``scaling`` has the
    common means and scales of the data, once they are known.
    """

    file_kind: ClassVar[str] = "checkpoint of a federation's server"
    format: ClassVar[int] = 6
    upgrades: ClassVar[Upgrades] = {
        3: lambda metadata: _not_secure({**metadata, "norms": {}, "rollbacks": []}),
        4: lambda metadata: _not_secure(metadata),
        5: lambda metadata: {**metadata, "sums": {}},
    }
    read_by: ClassVar[Mapping[int, str]] = {1: "0.1", 2: "0.1"}
    advice: ClassVar[str] = "restore it from a backup, or give the training another name."

    config: Mapping[str, Any]
    round: int
    vectors: Mapping[str, Array]
    accepted: Mapping[str, int]
    history: Extent | None = None
    norms: Norms = field(default_factory=Norms)
    rollbacks: tuple[tuple[int, int], ...] = ()
    totals: Mapping[str, Integers] = field(default_factory=dict)
    scaling: Scaling | None = None
    sums: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        metadata = {
            "config": dict(self.config),
            "round": self.round,
            "accepted": dict(self.accepted),
            "history": self.history,
            "norms": asdict(self.norms),
            "rollbacks": self.rollbacks,
            "sums": dict(self.sums),
            **({} if self.scaling is None else scaling_metadata(self.scaling)),
        }
        arrays: dict[str, AnyArray] = {
            f"{group}/{name}": vector
            for group, vectors in (("server", self.vectors), ("totals", self.totals))
            for name, vector in vectors.items()
        }
        return metadata, arrays

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> Self:
        history = metadata["history"]
        return cls(
            metadata["config"],
            metadata["round"],
            arrays_in(arrays, "server"),
            metadata["accepted"],
            None if history is None else Extent(*history),
            Norms(**metadata["norms"]),
            tuple((before, after) for before, after in metadata["rollbacks"]),
            integers_in(arrays, "totals"),
            read_scaling(metadata),
            metadata["sums"],
        )


def _not_secure(metadata: Metadata) -> Metadata:
    """Return the metadata of an earlier format, in which no training had a secure sum."""
    return {**metadata, "config": {**metadata["config"], "secure": False}, "sums": {}}


@dataclass(frozen=True)
class ServerResult(SavedJson):
    """What the server knows about a training after its last round.

    Attributes
    ----------
    rounds : int
        Number of completed rounds.
    finished : list of str or None
        The agents that have written their models; None if the training has not ended yet.
    metrics : mapping of str to mapping
        The metrics that agents report, by agent.
    certificate : FederatedCertificate or None
        The certificate of the feasible models.
    audit : mapping of str to float or None
        For each audited vector, the distance of the server's average from the agents'.
    no_certificate, no_audit : str or None
        Why there is no certificate or no audit: a sentence.
    score : HeldOutScore or None
        How good the models are on held-out rows of all agents, if there are any.
    """

    file_kind: ClassVar[str] = "result of a training"
    format: ClassVar[int] = 1

    rounds: int
    finished: list[str] | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    certificate: FederatedCertificate | None = None
    no_certificate: str | None = None
    audit: Mapping[str, float] | None = None
    no_audit: str | None = None
    score: HeldOutScore | None = None

    def reaches(self, gap: float | None) -> bool:
        """Return whether the certificate has at most this relative gap; None is no gap at all."""
        return gap is not None and self.certificate is not None and self.certificate.within(gap)

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        found = contents["certificate"]
        certificate = None if found is None else FederatedCertificate(**found)
        score = contents.get("score")
        more = {"certificate": certificate, "score": score and HeldOutScore(**score)}
        return cls(**{**contents, **more})


def ended_result(folder: Path, config: ServerConfig) -> ServerResult | None:
    """Return the result of a training that has nothing left to do; None if it has.

    Then all rounds are done or the gap is reached, every agent has confirmed the end and has
    written its model, and there is an audit. ``folder`` is the server's folder of the training.
    """
    if not (folder / CHECKPOINT).exists() or not (folder / RESULT).exists():
        return None
    state, result = ServerState.load(folder / CHECKPOINT), ServerResult.load(folder / RESULT)
    # A result of fewer rounds is older than the checkpoint: the training was continued.
    if result.rounds != state.round or not (
        state.round >= config.rounds or result.reaches(config.gap)
    ):
        return None
    confirmed = set(result.finished or ()) == set(state.config["roster"])
    return result if confirmed and result.audit is not None else None
