"""What a training is about, and what the server needs around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.federation.protocol import Message


@dataclass(frozen=True)
class Terms:
    """What is settled before a training starts.

    Attributes
    ----------
    training : str
        Its name.
    roster : tuple of str
        The agents, by name; m is their number, whoever is present.
    n : int
        Number of parameters.
    algorithm : Algorithm
        The method, with numbers or schedules for its step and penalty.
    rounds, local_steps : int
        Numbers of rounds, and of local steps in a round.
    seed : int
        The seed of all random streams.
    minimum : int
        A round with fewer updates than this is repeated.
    attempts : int
        How often it is tried at most.
    norm_limit : float
        The largest norm of a vector that an agent sends.
    gap : float or None
        The certified relative gap at which to stop.
    gap_every : int
        Rounds from one look at the gap to the next.
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

    def identity(self) -> dict[str, Any]:
        """Return what may not change while a training goes on."""
        facts = asdict(self)
        for key in ("rounds", "minimum", "attempts", "norm_limit", "gap", "gap_every"):
            del facts[key]
        return {**facts, "algorithm": repr(self.algorithm), "roster": list(self.roster)}


class Transport(Protocol):
    """What carries messages."""

    def exchange(self, messages: Mapping[str, Message], least: int) -> Iterable[Message]:
        """Send messages to agents by name and return the replies that came in time.

        Parameters
        ----------
        messages : mapping of str to Message
            What to send to whom.
        least : int
            How many agents to wait for before anything is sent, if they are not here.
        """


class Watcher(Protocol):
    """What is told how a training goes."""

    def __call__(self, **facts: Any) -> None:
        """Take note of some facts."""


def silent(**facts: Any) -> None:
    """Take note of nothing."""
