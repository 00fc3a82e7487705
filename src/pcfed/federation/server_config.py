"""The configuration of a training at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.config.federation_files import ServerFile


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
    gap : float or None
        The certified relative gap at which the training stops.
    gap_every : int
        Number of rounds between two certificates of the gap.
    """

    training: str
    roster: tuple[str, ...]
    n: int
    algorithm: Algorithm
    rounds: int
    local_steps: int = 1
    seed: int = 0
    minimum: int = 1
    attempts: int = 10
    norm_limit: float = np.inf
    gap: float | None = None
    gap_every: int = 10

    @classmethod
    def from_file(cls, file: ServerFile) -> Self:
        """Return the configuration of a server's file.

        The roster is empty if the file has only the number of agents.
        """
        rounds, limit = file.rounds, file.rounds.norm_limit
        return cls(
            training=file.training,
            roster=() if isinstance(file.roster, int) else file.roster,
            n=file.model.n,
            algorithm=file.algorithm,
            rounds=rounds.rounds,
            local_steps=rounds.local_steps,
            seed=rounds.seed,
            minimum=rounds.minimum,
            attempts=rounds.attempts,
            norm_limit=np.inf if limit is None else limit,
            gap=rounds.gap,
            gap_every=rounds.gap_every,
        )

    def identity(self) -> dict[str, Any]:
        """Return the part of the configuration that must stay the same when a training resumes."""
        return {
            "training": self.training,
            "roster": list(self.roster),
            "n": self.n,
            "algorithm": repr(self.algorithm),
            "local_steps": self.local_steps,
            "seed": self.seed,
        }
