"""The server's side: rounds, sums, and a checkpoint after each of them.

The server tells every agent with each message which of its updates was the last to be counted, and
it knows that from its checkpoint. If it dies after the replies came and before the checkpoint was
written, nobody was counted, and the round is played again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pcfed.algorithms import Algorithm, Round, Sums
from pcfed.algorithms.steps import add_rows
from pcfed.archive import load_arrays, save_arrays
from pcfed.arrays import Array, Float64Array
from pcfed.flower.messages import Counted, Fact, Message, describe, directions, facts_of
from pcfed.result import check_format, group_of

FORMAT = 1
"""Version of the server's checkpoint."""


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
        How often it is repeated at most.
    norm_limit : float
        The largest norm of a vector that an agent sends.
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


class Transport(Protocol):
    """What carries messages."""

    def exchange(self, messages: Mapping[str, Message]) -> Iterable[Message]:
        """Send messages to agents by name and return the replies that came in time."""


@dataclass(frozen=True, eq=False)
class Standing:
    """How far a training is.

    Attributes
    ----------
    round : int
        Number of rounds done.
    attempt : int
        Number of times that the next round has been tried.
    server : mapping of str to Array
        The server's vectors.
    counted : mapping of str to Counted
        Every agent's last update that was counted.
    history : tuple of dict
        For each round: its number, who was counted, who was refused and why.
    """

    round: int
    attempt: int
    server: Mapping[str, Array]
    counted: Mapping[str, Counted]
    history: tuple[dict[str, Any], ...] = ()


class TooFew(RuntimeError):
    """A round had too few agents, again and again."""


@dataclass(eq=False)
class Coordinator:
    """Plays the rounds of a training; after a restart, from the last checkpoint on.

    Parameters
    ----------
    terms : Terms
        What was settled.
    transport : Transport
        What carries the messages.
    path : Path
        The file of the checkpoint.
    """

    terms: Terms
    transport: Transport
    path: Path
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.standing = self._load() if self.path.exists() else self._begin()

    def run(self) -> Standing:
        """Play all rounds that are left and say goodbye; return how it stands.

        Raises
        ------
        TooFew
            If a round had too few agents as often as it may be tried; the same call goes on.
        """
        while self.standing.round < self.terms.rounds:
            self.play()
        self.finish()
        return self.standing

    def play(self) -> None:
        """Play one round, as often as it takes to have enough agents."""
        for _ in range(self.terms.attempts):
            if self._attempt():
                return
        raise TooFew(
            f"Round {self.standing.round} had fewer than {self.terms.minimum} agents "
            f"{self.terms.attempts} times; start more agents, then go on."
        )

    def finish(self) -> list[str]:
        """Tell everybody what was counted last; return who has heard it."""
        replies = self.transport.exchange(self._messages("finish"))
        return [str(reply.facts.get("name")) for reply in replies]

    def audit(self) -> dict[str, float]:
        """Return for each audited vector how far its mean over the agents is from the server's.

        Relative to the length of the public random vectors; rounding is all that it should be.

        Raises
        ------
        TooFew
            If an agent of the roster does not answer.
        """
        replies = {
            str(reply.facts.get("name")): reply
            for reply in self.transport.exchange(self._messages("audit"))
        }
        missing = [name for name in self.terms.roster if name not in replies]
        if missing:
            raise TooFew(f"The audit needs all agents, and {', '.join(missing)} did not answer.")
        public = directions(self.terms.training, self.standing.round, self.terms.n)
        found = {}
        for name in replies[self.terms.roster[0]].vectors:
            mean = np.mean([reply.vectors[name] for reply in replies.values()], axis=0)
            off = np.abs(mean - public @ self.standing.server[name])
            found[name] = float((off / np.linalg.norm(public, axis=1)).max())
        return found

    def _attempt(self) -> bool:
        """Try to play a round; say whether enough agents took part."""
        terms, before = self.terms, self.standing
        self.standing = before = Standing(
            before.round, before.attempt + 1, before.server, before.counted, before.history
        )
        replies = self.transport.exchange(self._messages("train"))
        updates, refused = self._checked(replies)
        if len(updates) < max(1, terms.minimum):
            return False
        sums: dict[str, Float64Array] = {}
        present = [name for name in terms.roster if name in updates]
        for name in present:
            for key, vector in updates[name].items():
                add_rows(sums.setdefault(key, np.zeros(terms.n)), vector[None])
        steps = terms.local_steps * len(present)
        total = Sums(sums, len(present), steps)
        server = terms.algorithm.aggregate(before.server, total, self._facts)
        mine = Counted(before.round, before.attempt, steps)
        entry = {"round": before.round, "counted": present, "refused": refused}
        self.standing = Standing(
            before.round + 1,
            0,
            server,
            {**before.counted, **dict.fromkeys(present, mine)},
            (*before.history, entry),
        )
        self._save()
        return True

    @property
    def _facts(self) -> Round:
        """The public facts of the next round."""
        m, longest = len(self.terms.roster), self.terms.local_steps
        return self.terms.algorithm.round(self.standing.round, m=m, longest=longest)

    def _messages(self, kind: str) -> dict[str, Message]:
        """Return the message of a kind to every agent of the roster."""
        terms, standing = self.terms, self.standing
        common: dict[str, Fact] = {
            **describe(terms.algorithm),
            **facts_of(self._facts),
            "training": terms.training,
            "attempt": standing.attempt,
            "steps": terms.local_steps,
            "seed": terms.seed,
        }
        messages = {}
        for position, name in enumerate(terms.roster):
            counted = {f"counted_{key}": n for key, n in vars(standing.counted[name]).items()}
            own = {**common, **counted, "position": position}
            messages[name] = Message(kind, own, standing.server)
        return messages

    def _checked(
        self, replies: Iterable[Message]
    ) -> tuple[dict[str, Mapping[str, Array]], dict[str, str]]:
        """Return the updates that can be counted, and why others can't."""
        updates: dict[str, Mapping[str, Array]] = {}
        refused: dict[str, str] = {}
        for reply in replies:
            name = str(reply.facts.get("name"))
            why = self._fault(reply)
            if name in updates:
                why = "its name is taken"
                del updates[name]  # nobody knows which of the two it is
            if why is None and name not in refused:
                updates[name] = reply.vectors
            else:
                refused[name] = why or refused[name]
        return updates, refused

    def _fault(self, reply: Message) -> str | None:
        """Say why a reply can't be counted, or None if it can."""
        facts, standing = reply.facts, self.standing
        if facts.get("name") not in self.terms.roster:
            return "it is not in the roster"
        if facts.get("training") != self.terms.training:
            return "it is of another training"
        if (facts.get("round"), facts.get("attempt")) != (standing.round, standing.attempt):
            return "it is of another round"
        for vector in reply.vectors.values():
            if vector.shape != (self.terms.n,) or vector.dtype.kind != "f":
                return f"its vectors must be {self.terms.n} floats"
            if not np.isfinite(vector).all():
                return "it is not finite"
            if np.linalg.norm(vector.astype(np.float64)) > self.terms.norm_limit:
                return f"its norm is above the limit {self.terms.norm_limit:g}"
        if set(reply.vectors) != set(self.terms.algorithm.sends):
            return f"it must send {', '.join(self.terms.algorithm.sends) or 'nothing'}"
        return None

    def _begin(self) -> Standing:
        server = self.terms.algorithm.start(np.zeros((1, self.terms.n)))[0]
        return Standing(0, 0, server, dict.fromkeys(self.terms.roster, Counted()))

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must have in common with this training."""
        facts = asdict(self.terms)
        facts["algorithm"] = repr(self.terms.algorithm)
        for key in ("rounds", "minimum", "attempts", "norm_limit"):
            del facts[key]
        return {**facts, "roster": list(self.terms.roster)}

    def _save(self) -> None:
        standing = self.standing
        about = {
            "what": "the server's checkpoint of a training of pcfed",
            "format": FORMAT,
            "terms": self._identity(),
            "round": standing.round,
            "attempt": standing.attempt,
            "counted": {name: vars(each) for name, each in standing.counted.items()},
            "history": list(standing.history),
        }
        save_arrays(self.path, about, {f"server/{k}": v for k, v in standing.server.items()})

    def _load(self) -> Standing:
        try:
            about, arrays = load_arrays(self.path)
            check_format(about, FORMAT)
            if about["terms"] != self._identity():
                raise ValueError("it is of a training with other terms")
            return Standing(
                about["round"],
                about["attempt"],
                group_of(arrays, "server"),
                {name: Counted(**each) for name, each in about["counted"].items()},
                tuple(about["history"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} must be the checkpoint of this training, but {error}; give another "
                "folder, or the terms that it was started with."
            ) from None
