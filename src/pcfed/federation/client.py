"""The agent's side: its data, its set and its state, which never leave it.

The state is one file. An update is *pending* from the moment it is computed: the file holds it
before the reply leaves. It becomes part of the agent's state only when the server says that it was
counted, and is dropped when the server has counted another or none. An agent computes its update of
a round once, however often it is asked. So however often a message is lost, late or repeated and
wherever the process dies, an update counts on both sides or on neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm, LocalContext
from pcfed.arrays import Array
from pcfed.federation.agent_report import local_metrics, save_model_and_report
from pcfed.federation.certification import STEPS, part_of
from pcfed.federation.paths import LOCK, STATE
from pcfed.federation.protocol import (
    Counted,
    Fact,
    Message,
    directions,
    facts_of,
    method_of,
    round_of,
)
from pcfed.problem import Agent
from pcfed.sampling import BatchSampler, resolve_batch_size
from pcfed.simulation.result import check_format, group_of
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.locks import exclusive_lock

FORMAT = 2
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
    folder : Path
        Where its state is, and its model and its report at the end.
    batch : float or int
        Share or number of its rows in a gradient.
    certificate : bool
        Whether its owner agrees to take part in certificates.
    report : sequence of str
        Which of ``MEASURES`` its owner allows to be told.
    about : mapping, optional
        Facts to keep with its model, such as the names of features.
    """

    def __init__(
        self,
        name: str,
        agent: Agent,
        folder: Path,
        *,
        batch: float | int = 1.0,
        certificate: bool = False,
        report: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.agent, self.folder = name, agent, folder
        self._certificate, self._report, self._about = certificate, report, about or {}
        size = resolve_batch_size(batch, agent.loss.size, agent=name)
        self._batches = BatchSampler(agent.loss.size, size)

    @property
    def path(self) -> Path:
        """The file of its state."""
        return self.folder / STATE

    def answer(self, message: Message) -> Message:
        """Return the reply to a message; the file has been written before it leaves.

        Raises
        ------
        ValueError
            If the message is not for the state that this agent is in.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it is nobody else's
        with exclusive_lock(self.folder / LOCK):
            return self._answer(message)

    def _answer(self, message: Message) -> Message:
        facts, kind = message.facts, message.kind
        algorithm = method_of(facts)
        memory = self._settled(algorithm, message)
        model = _model(algorithm, message.vectors, memory)
        reply: dict[str, Array] = {}
        said: dict[str, Fact] = {
            "name": self.name,
            "training": facts["training"],
            "round": facts["round"],
            "certificate": self._certificate,
        }
        if kind == "train":
            memory = self._trained(algorithm, memory, message)
            reply = {name: rows[0] for name, rows in memory.sent.items()}
        elif kind == "audit":
            reply = self._audited(algorithm, memory, message)
        elif kind == "finish":
            average = algorithm.average(message.vectors)
            save_model_and_report(
                self.folder, self.name, self.agent, model, average, facts, self._about
            )
        elif kind not in STEPS:
            raise ValueError(f"{self.name}: there is no message {kind!r}.")
        elif self._certificate:
            m = int(facts["m"])
            reply, numbers = part_of(kind, self.agent, model, message.vectors, m)
            said |= numbers
        if kind in ("train", "finish"):
            figures = local_metrics(self.agent, model, self._report)
            said |= {f"told_{key}": figure for key, figure in figures.items()}
        memory.save(self.path)
        return Message(kind, said, reply)

    def model(self, server: Mapping[str, Array], algorithm: Algorithm) -> Array:
        """Return the agent's own model, from the server's last state and its own."""
        return _model(algorithm, server, Memory.load(self.path))

    def _settled(self, algorithm: Algorithm, message: Message) -> Memory:
        """Return the agent's state once the pending update has been committed or dropped."""
        facts = message.facts
        counted = Counted(int(facts["counted_round"]), int(facts["counted_steps"]))
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
        if counted.round < memory.counted.round:
            raise ValueError(
                f"{self.name}: its update of round {memory.counted.round} was counted, and the "
                f"server knows them up to round {counted.round}: the message is old, or the server "
                "began anew; it must then give the training another name."
            )
        if not pending or pending["round"] != counted.round:
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
        facts, public = message.facts, round_of(message.facts)
        last = int(memory.facts.get("round", -1))
        if last == public.index:
            return memory  # it has been asked before
        if last > public.index:
            raise ValueError(
                f"{self.name}: a message of round {public.index} came after one of round {last}: "
                "it is old, or the server began anew; it must then give the training another name."
            )
        work = LocalContext(
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
        return replace(
            memory,
            facts=facts_of(public),
            pending=update.pending,
            sent=update.sent,
            received=received,
        )

    def _audited(self, algorithm: Algorithm, memory: Memory, message: Message) -> dict[str, Array]:
        """Return products of audited vectors with public random ones: they tell no entry."""
        public = directions(
            str(message.facts["training"]), int(message.facts["round"]), self.agent.loss.n
        )
        audited = algorithm.audited(message.vectors, memory.private)
        return {name: public @ rows[0] for name, rows in audited.items()}


def _model(algorithm: Algorithm, server: Mapping[str, Array], memory: Memory) -> Array:
    """Return an agent's own model."""
    rows: Array = np.atleast_2d(algorithm.model(server, memory.private))
    own: Array = rows[0]
    return own
