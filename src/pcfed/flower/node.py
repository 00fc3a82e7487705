"""The agent's side: its data, its set and its state, which never leave it.

The state is one file. An update is *pending* from the moment it is computed: the file holds it
before the reply leaves. It becomes part of the agent's state only when the server says that it was
counted, and is dropped when the server has counted another or none. So however often a message is
lost or repeated and wherever the process dies, an update counts on both sides or on neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm, Work
from pcfed.archive import load_arrays, save_arrays
from pcfed.arrays import Array
from pcfed.flower.messages import Counted, Fact, Message, directions, facts_of, method_of, round_of
from pcfed.problem import Agent
from pcfed.result import check_format, group_of
from pcfed.sampling import Batches, batch_size

FORMAT = 1
"""Version of the file of an agent's state."""

GROUPS = ("private", "pending", "sent", "received")


@dataclass(frozen=True, eq=False)
class Memory:
    """What an agent keeps between messages.

    Attributes
    ----------
    training : str
        The training that it is of.
    counted : Counted
        The last of its updates that it knows to be counted.
    private : mapping of str to Array
        Its private vectors, one row.
    facts : mapping
        The facts of the round of the pending update; empty if none is pending.
    pending, sent, received : mapping of str to Array
        What the agent keeps of the pending update, what it sends, and what it had received.
    """

    training: str
    counted: Counted
    private: Mapping[str, Array]
    facts: Mapping[str, Fact]
    pending: Mapping[str, Array]
    sent: Mapping[str, Array]
    received: Mapping[str, Array]

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        about = {
            "what": "the private state of an agent of pcfed",
            "format": FORMAT,
            "training": self.training,
            "counted": vars(self.counted),
            "facts": dict(self.facts),
        }
        arrays: dict[str, Any] = {}
        for group in GROUPS:
            vectors: Mapping[str, Array] = getattr(self, group)
            arrays |= {f"{group}/{name}": vector for name, vector in vectors.items()}
        save_arrays(path, about, arrays)

    @staticmethod
    def load(path: Path) -> Memory:
        """Read it, or raise a ValueError that says why that is impossible."""
        try:
            about, arrays = load_arrays(path)
            check_format(about, FORMAT)
            groups = {group: group_of(arrays, group) for group in GROUPS}
            counted = Counted(**about["counted"])
            return Memory(about["training"], counted, facts=about["facts"], **groups)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be the state of an agent, but {error}; put a copy of it back."
            ) from None


class Node:
    """One agent, as the server knows it: something that answers messages.

    Parameters
    ----------
    name : str
        Its name in the roster.
    agent : Agent
        Its data, set and coupling.
    path : Path
        The file of its state.
    batch : float or int
        Share or number of its rows in a gradient.
    """

    def __init__(self, name: str, agent: Agent, path: Path, *, batch: float | int = 1.0) -> None:
        self.name, self.agent, self.path = name, agent, path
        size = batch_size(batch, agent.loss.size, agent=name)
        self._batches = Batches(agent.loss.size, size)

    def answer(self, message: Message) -> Message:
        """Return the reply to a message; the file has been written before it leaves.

        Raises
        ------
        ValueError
            If the message is not for the state that this agent is in.
        """
        facts = message.facts
        algorithm = method_of(facts)
        memory = self._settled(algorithm, message)
        reply: dict[str, Array] = {}
        if message.kind == "train":
            memory = self._trained(algorithm, memory, message)
            reply = {name: rows[0] for name, rows in memory.sent.items()}
        elif message.kind == "audit":
            reply = self._audited(algorithm, memory, message)
        elif message.kind != "finish":
            raise ValueError(f"{self.name}: there is no message {message.kind!r}.")
        memory.save(self.path)
        said: dict[str, Fact] = {"name": self.name, "n": self.agent.loss.n}
        said |= {key: facts[key] for key in ("training", "round", "attempt")}
        return Message(message.kind, said, reply)

    def model(self, server: Mapping[str, Array], algorithm: Algorithm) -> Array:
        """Return the agent's own model, from the server's last state and its own."""
        rows: Array = np.atleast_2d(algorithm.model(server, Memory.load(self.path).private))
        own: Array = rows[0]
        return own

    def _settled(self, algorithm: Algorithm, message: Message) -> Memory:
        """Return the agent's state once the pending update has been committed or dropped."""
        facts = message.facts
        counted = Counted(*(int(facts[f"counted_{key}"]) for key in ("round", "attempt", "steps")))
        if not self.path.exists():
            if counted.round >= 0:
                raise ValueError(
                    f"{self.name}: its updates have been counted up to round {counted.round}, but "
                    f"there is no state in {self.path}; put it back, or start another training."
                )
            start = algorithm.start(np.zeros((1, self.agent.loss.n)))[1]
            return Memory(str(facts["training"]), counted, start, {}, {}, {}, {})
        memory = Memory.load(self.path)
        if memory.training != facts["training"]:
            raise ValueError(
                f"{self.name}: {self.path} is of the training {memory.training!r}, and the server "
                f"trains {facts['training']!r}; give this training a folder of its own."
            )
        if counted == memory.counted:
            return memory
        pending = memory.facts
        if not pending or (pending["round"], pending["attempt"]) != (
            counted.round,
            counted.attempt,
        ):
            raise ValueError(
                f"{self.name}: the server has counted its update of round {counted.round}, which "
                f"the state in {self.path} does not know; put the newest copy of it back."
            )
        private = algorithm.commit(
            memory.private, memory.pending, memory.received, round_of(pending), counted.steps
        )
        private = {name: np.asarray(rows, np.float64) for name, rows in private.items()}
        return Memory(memory.training, counted, private, {}, {}, {}, {})

    def _trained(self, algorithm: Algorithm, memory: Memory, message: Message) -> Memory:
        """Return the agent's state with the update of the round pending."""
        facts = message.facts
        this = {key: facts[key] for key in ("round", "attempt")}
        if memory.facts and this == {key: memory.facts[key] for key in this}:
            return memory  # the message has come before
        public = round_of(facts)
        work = Work(
            [self.agent],
            [int(facts["position"])],
            int(facts["steps"]),
            [self._batches],
            seed=int(facts["seed"]),
            index=public.index,
        )
        received = {name: vector.astype(np.float64) for name, vector in message.vectors.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            update = algorithm.local(work, received, memory.private, public)
        return Memory(
            memory.training,
            memory.counted,
            memory.private,
            {**facts_of(public), **this},
            update.pending,
            update.sent,
            received,
        )

    def _audited(self, algorithm: Algorithm, memory: Memory, message: Message) -> dict[str, Array]:
        """Return products of audited vectors with public random ones: they tell no entry."""
        public = directions(
            str(message.facts["training"]), int(message.facts["round"]), self.agent.loss.n
        )
        audited = algorithm.audited(message.vectors, memory.private)
        return {name: public @ rows[0] for name, rows in audited.items()}
