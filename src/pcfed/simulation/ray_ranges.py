"""Ranges of agents as actors of a Ray cluster.

An actor owns the data, the sets and the private state of a range of agents, and answers the calls
of the driver with sums. The driver keeps a snapshot of every range's state, and the calls since
then. If an actor dies, another one begins with the snapshot and repeats these calls: random streams
belong to (seed, agent, round), so that it arrives at the same bits.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm, Vectors
from pcfed.algorithms.grid import Grid
from pcfed.errors import ClusterError, one_line
from pcfed.extras import require
from pcfed.problem import Problem
from pcfed.simulation.agent_range import range_edges
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.plan import Plan
from pcfed.simulation.private_state import Memory
from pcfed.simulation.range_actor import Call, RangeActor, RangeSettings, Snapshot
from pcfed.simulation.ray_connection import check_address, connect, disconnect
from pcfed.simulation.round_socket import AgentError, RoundSocket, SocketClosed, pickled
from pcfed.storage.saved import PathLike
from pcfed.tree_sums import PartialSums
from pcfed.validation import count, is_folder, is_path, positive

MAX_RESTARTS = 3
"""How often an actor is started again for one call."""

END_SECONDS = 1.0
"""How long actors may take to end a round in which a run ends."""

MAX_WAIT = 1e6
"""Seconds of the longest wait for an answer at a deadline; the system cannot wait for years."""

MAX_MISSED = 5
"""Rounds in a row for which an actor may be too late without a warning."""

SNAPSHOT_FACTOR = 20.0
"""Snapshots are so many times as far apart as they take."""

MAX_SOCKET_BYTES = 2**24
"""Larger states of the server are not sent through sockets: the object store copies them less."""

MAX_INLINE_BYTES = 2**20
"""Larger states of the server are sent through the object store, which takes some exchanges."""

MAX_CALL_BYTES = 2**28
"""Bytes of the server's states and of participants that are kept to repeat rounds."""

PARTICIPANT_BYTES = 48
"""Bytes of a participant of a round: its position and its number of steps, in lists."""


@dataclass(frozen=True)
class Ray:
    """Run agents in the actors of a Ray cluster: ``run(..., backend=Ray(actors=8))``.

    Results have the same bits as in one process, for any number of actors.

    Parameters
    ----------
    address : str, optional
        The address of a running cluster as ``"HOST:PORT"``, or ``"auto"`` for the one that this
        machine belongs to; by default a cluster is started on this machine and stopped after the
        run.
    actors : int, optional
        Number of actors; by default as many as the cluster has processors, divided by the number of
        threads of each (``run(..., workers=1)``). There may be fewer, because ranges consist of
        whole groups of agents: at most 24 for 48 agents, and 32 for 1,000.
    folder : path, optional
        A folder that all machines see, for snapshots of private state. By default they are in the
        object store of Ray, with a copy on another machine.
    snapshot_every : int, optional
        Rounds between two snapshots. If an actor dies, at most so many of its rounds are repeated.
        By default, snapshots take about a twentieth of the time.
    deadline : float, optional
        Seconds after which the agents of an actor that has not answered count as absent. By default
        rounds wait for all actors, and results do not depend on their speed. Evaluations always
        wait.

    Examples
    --------
    >>> Ray(actors=8)
    Ray(address=None, actors=8, folder=None, snapshot_every=None, deadline=None)
    """

    address: str | None = None
    actors: int | None = None
    folder: PathLike | None = None
    snapshot_every: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.address is not None:
            check_address(self.address)
        if self.actors is not None:
            count("Ray: actors", self.actors)
        if self.folder is not None:
            is_path("Ray: folder", self.folder)
        if self.snapshot_every is not None:
            count("Ray: snapshot_every", self.snapshot_every)
        if self.deadline is not None:
            positive("Ray: deadline", self.deadline)
        require("pcfed.Ray", "ray", "ray")


class RayRanges:
    """The ranges of a problem as actors; see `pcfed.simulation.ranges.Ranges`.

    Parameters
    ----------
    backend : Ray
        The cluster.
    problem : Problem
        The agents.
    plan, algorithm, workers, norm_limit, grid, memory
        As for `AgentRange`.
    """

    is_local = False

    def __init__(
        self,
        backend: Ray,
        problem: Problem,
        plan: Plan,
        algorithm: Algorithm,
        *,
        workers: int,
        norm_limit: float | None,
        grid: Grid | None,
        memory: Memory,
    ) -> None:
        if backend.folder is not None:
            is_folder("Ray: folder", backend.folder)
        ray: Any = import_module("ray")
        self._ray, self._backend = ray, backend
        self._sent = {"batch": plan.batch, "algorithm": algorithm, "agents": problem.agents}
        """What users give, by its name in messages."""
        self._ranges: list[_RemoteRange] = []
        self._folder: Path | None = None
        self._has_connected = connect(backend.address)
        try:
            # A node runs so many actors with a processor for every thread.
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            places = sum(int(resources.get("CPU", 0)) // workers for resources in nodes)
            self.edges = range_edges(problem.m, backend.actors or max(1, places))
            # More actors than processors are fine, and so are processors that others use, but Ray
            # would wait for them to become free.
            processors = sum(resources.get("CPU", 0) for resources in nodes)
            are_free = ray.available_resources().get("CPU", 0) >= processors
            fit = are_free and len(self.edges) - 1 <= places
            self._processors = workers if fit else 0
            torch: Any = sys.modules.get("torch")
            self._actor_class = ray.remote(RangeActor)
            for first, stop in pairwise(self.edges):
                settings = RangeSettings(
                    agents=problem.agents[first:stop],
                    first=first,
                    m=problem.m,
                    batch=plan.batch,
                    sampling=plan.sampling,
                    seed=plan.seed,
                    algorithm=algorithm,
                    workers=workers,
                    norm_limit=norm_limit,
                    grid=grid,
                    memory=memory,
                    privacy=plan.privacy,
                    torch_threads=torch and torch.get_num_threads(),
                )
                sent = self._put_settings(settings)
                actor = self._start_actor(sent)
                start: Call = "start", (-1, np.zeros(problem.n)), {}
                self._ranges.append(_RemoteRange(first, stop, sent, actor, start))
            if backend.folder is not None:
                folder = tempfile.mkdtemp(prefix="pcfed-", dir=backend.folder)
                self._folder = Path(folder).absolute()
        except BaseException:
            self.close()
            raise
        self._rounds_since_snapshot, self._kept_bytes = 0, 0
        self._num_snapshots = 0
        self._last_snapshot, self._snapshot_seconds = time.monotonic(), 0.0
        self._is_backed_up = False

    def close(self) -> None:
        """End all actors, and the connection to the cluster if it was made for this run."""
        last = [each.answering for each in self._ranges if each.answering is not None]
        for each in self._ranges:
            each.disconnect()
        if last:  # Ray would report actors that end in a call
            self._ray.wait(last, num_returns=len(last), timeout=END_SECONDS)
        for each in self._ranges:
            self._ray.kill(each.actor)
        if self._has_connected:
            disconnect(self._backend.address)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- calls --------------------------------------------------------------------------------

    def call(self, method: str, accepted: int, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Call a method of every range that does not change its state."""
        shared = [self._put_argument(each) for each in arguments]
        queries: list[Call] = [
            (method, (each.accepted(accepted), *arguments), options) for each in self._ranges
        ]
        answers = [
            self._submit(each, (method, (query[1][0], *shared), options))
            for each, query in zip(self._ranges, queries, strict=True)
        ]
        return map(self._answer, self._ranges, answers, queries)

    def change(self, method: str, accepted: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method that changes the state, with arguments for every range."""
        answers = []
        for each, own in zip(self._ranges, arguments, strict=True):
            call: Call = method, (each.accepted(accepted), *own), {}
            if method in ("start", "load"):
                each.start, each.snapshot, each.copy, each.calls = call, None, None, []
            else:
                each.calls.append(call)
            answers.append(self._submit(each, call))
        if method in ("back_up", "restore"):
            self._is_backed_up = method == "back_up"
        for each, answer in zip(self._ranges, answers, strict=True):
            self._answer(each, answer)

    def _submit(self, each: _RemoteRange, call: Call) -> Any:
        """Send a call to the actor of a range; return where its answer arrives."""
        method, arguments, options = call
        return each.free_actor().call.remote(method, *arguments, **options)

    def run_round(self, accepted: int, calls: Sequence[RoundCall]) -> list[RangeSums]:
        """Run a round: one call for every range."""
        self._read_late_answers()
        if self._is_snapshot_due():
            start = time.monotonic()
            self._save_snapshots(accepted)
            self._last_snapshot = time.monotonic()
            self._snapshot_seconds = self._last_snapshot - start
        self._rounds_since_snapshot += 1
        self._kept_bytes += _bytes_to_repeat(calls)
        self._open_sockets()
        answers = self._submit_round(accepted, calls)
        if self._backend.deadline is not None:
            end = time.monotonic() + self._backend.deadline
            for each, answer in zip(self._ranges, answers, strict=True):
                seconds = max(0.0, end - time.monotonic())
                if answer is not None and not self._has_arrived(answer, seconds):
                    each.late = answer
                self._count(each)
        return [
            self._answer(each, answer) if each.is_counted else NO_SUMS
            for each, answer in zip(self._ranges, answers, strict=True)
        ]

    def _open_sockets(self) -> None:
        """Open a socket to every new actor that is on this machine."""
        new = [each for each in self._ranges if each.is_new and each.late is None]
        if not new:
            return
        here = self._ray.get_runtime_context().get_node_id()
        for each in new:
            each.is_new = False
        try:
            temporary = tempfile.TemporaryDirectory(prefix="pcfed-")
        except OSError:  # rounds are called by Ray
            return
        with temporary as folder:
            paths = [str(Path(folder, str(each.first))) for each in new]
            listen = zip(new, paths, strict=True)
            answers = [each.actor.listen.remote(here, path) for each, path in listen]
            for each, path, answer in zip(new, paths, answers, strict=True):
                # An actor that has died is replaced when it is called.
                with suppress(ConnectionError, FileNotFoundError, *self._losses):
                    if self._ray.get(answer):
                        each.socket = RoundSocket(path)

    def _submit_round(self, accepted: int, calls: Sequence[RoundCall]) -> list[Any]:
        """Call a round of all ranges that are not late; return where the answers arrive."""
        server: Any = calls[0].server
        size = sum(vector.nbytes for vector in server.values())
        sockets = self._broadcast(server) if size <= MAX_SOCKET_BYTES else [None] * len(calls)
        if size > MAX_INLINE_BYTES and not all(sockets):
            server = self._ray.put(server)  # one copy per machine
        answers: list[Any] = []
        for each, socket, call in zip(self._ranges, sockets, calls, strict=True):
            if each.late is not None:
                answers.append(None)
                continue
            index, own = each.accepted(accepted), replace(call, server={})
            each.calls.append(("run_round", (index, call), {}))
            if socket is not None:
                socket.send(pickled((index, own)))
                answers.append(socket)
            else:
                answers.append(each.free_actor().run_round.remote(index, own, server))
        return answers

    def _broadcast(self, server: Vectors) -> list[RoundSocket | None]:
        """Send the server's state to all sockets that can be used; return these, in order."""
        sockets = [each.socket if each.late is None else None for each in self._ranges]
        message = pickled(server) if any(sockets) else []
        for each, socket in zip(self._ranges, sockets, strict=True):
            if socket is not None:
                if each.answering is None:
                    each.answering = each.actor.answer_rounds.remote()
                socket.send(message)
        return sockets

    def _has_arrived(self, answer: Any, seconds: float) -> bool:
        """Return whether an answer arrives within some seconds."""
        seconds = min(seconds, MAX_WAIT)
        if isinstance(answer, RoundSocket):
            return answer.has_answer(seconds)
        # It need not be on this machine yet: it is fetched when it is read.
        return bool(self._ray.wait([answer], timeout=seconds, fetch_local=False)[0])

    def _received(self, answer: Any) -> Any:
        """Return an answer when it arrives."""
        return answer.receive() if isinstance(answer, RoundSocket) else self._ray.get(answer)

    def _count(self, each: _RemoteRange) -> None:
        """Note whether a range was late in this round, and warn if it is again and again."""
        each.is_counted = each.late is None
        each.missed = 0 if each.is_counted else each.missed + 1
        if each.missed == MAX_MISSED:
            warnings.warn(
                f"Ray: {each.name} have been absent in the last {MAX_MISSED} rounds, because their "
                f"actor takes longer than deadline={self._backend.deadline:g}; raise it, or use "
                "more actors with fewer agents each.",
                stacklevel=2,
            )

    def _read_late_answers(self) -> None:
        """Let ranges take part again whose late answers have arrived since."""
        for each in self._ranges:
            if each.late is not None and self._has_arrived(each.late, 0.0):
                self._read_late_answer(each)

    def _read_late_answer(self, each: _RemoteRange) -> None:
        """Forget a late answer, and raise the error of an agent if it is one."""
        answer, each.late = each.late, None
        try:
            self._received(answer)
        except (self._ray.exceptions.RayTaskError, AgentError) as error:
            raise error.cause from None
        except self._losses:  # its next call recovers it
            pass

    # -- failures -----------------------------------------------------------------------------

    def _put_settings(self, settings: RangeSettings) -> Any:
        """Send the agents of a range to the object store."""
        try:
            return self._ray.put(settings)
        except self._ray.exceptions.RayError:
            raise
        except Exception as error:  # agents may raise anything when they are pickled
            raise self._not_picklable(error) from None

    def _not_picklable(self, error: Exception) -> ValueError:
        """Return the error for agents, an algorithm or batches that can't be sent to actors."""
        pickled: Any = import_module("ray.cloudpickle")
        for name, value in self._sent.items():
            try:
                pickled.loads(pickled.dumps(value))
            except Exception as reason:
                return _not_picklable(f"run: {name}", reason)
        return _not_picklable("run: agents, algorithm and batch", error)

    def _put_argument(self, value: Any) -> Any:
        """Send an argument of a call to the object store; those of users are functions."""
        if callable(value):
            try:
                import_module("ray.cloudpickle").dumps(value)
            except Exception as error:  # the objects that it uses may raise anything
                where = "Evaluation.sum_over_agents: function"
                raise _not_picklable(where, error) from None
        return self._ray.put(value)

    def _start_actor(self, settings: Any) -> Any:
        """Start the actor of a range somewhere in the cluster."""
        options = {"num_cpus": self._processors, "scheduling_strategy": "SPREAD"}
        return self._actor_class.options(**options).remote(settings)

    def _answer(self, each: _RemoteRange, answer: Any, query: Call | None = None) -> Any:
        """Return the answer of a range; if its actor has died, that of a new one.

        ``query`` is the call that is answered if it is not the last one that changes the state.
        """
        if each.late is not None:  # an actor answers its calls in order
            self._read_late_answer(each)
        for restarts in range(MAX_RESTARTS + 1):
            try:
                return self._received(answer)
            except AgentError as error:
                raise error.cause from None
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, self._ray.exceptions.ObjectLostError):
                    raise ClusterError(
                        f"Ray: the private state of {each.name} is lost, with all machines that "
                        "had a copy; resume from a checkpoint, and give Ray(folder=...) to keep it "
                        "in files."
                    ) from None
                raise error.cause from None
            except self._losses as error:
                if getattr(error, "actor_init_failed", False):  # it could not read its agents
                    raise self._not_picklable(error) from None
                if restarts < MAX_RESTARTS:
                    answer = self._recover(each, query)
        raise ClusterError(
            f"Ray: the actor of {each.name} has died {MAX_RESTARTS + 1} times in one call; give "
            "its machine more memory, or use more actors with fewer agents each."
        )

    @property
    def _losses(self) -> tuple[type[Exception], ...]:
        """The exceptions after which a range is recovered."""
        errors = self._ray.exceptions
        return (
            *(errors.RayActorError, errors.ObjectLostError),
            *(errors.OutOfMemoryError, errors.NodeDiedError, SocketClosed),
        )

    def _recover(self, each: _RemoteRange, query: Call | None = None) -> Any:
        """Take a range to its present state in a new actor; return where its answer arrives."""
        each.disconnect()
        self._ray.kill(each.actor)  # Ray may only have lost the connection
        self._processors = 0  # the machine of the old actor may be lost for good
        each.actor = self._start_actor(each.settings)
        calls = each.calls if query is None else [*each.calls, query]
        return each.actor.recover.remote(each.start, each.snapshot, calls)

    def _is_snapshot_due(self) -> bool:
        """Return whether the next round should begin with a snapshot."""
        rounds, every = self._rounds_since_snapshot, self._backend.snapshot_every
        if rounds == 0 or self._is_backed_up:
            return False
        if every is not None:
            return rounds >= every
        seconds = time.monotonic() - self._last_snapshot
        return (
            self._kept_bytes > MAX_CALL_BYTES or seconds > SNAPSHOT_FACTOR * self._snapshot_seconds
        )

    def _save_snapshots(self, accepted: int) -> None:
        """Save the state of all ranges, from which new actors then begin."""
        answers = []
        for k, each in enumerate(self._ranges):
            if each.late is None:
                name = f"range-{k}-{self._num_snapshots}.npz"
                path = None if self._folder is None else str(self._folder / name)
                arguments = each.accepted(accepted), path
                snapshot = each.free_actor().snapshot.options(num_returns=2)
                answers.append((each, snapshot.remote(*arguments)))
        self._num_snapshots += 1
        saved: list[_Saved] = []
        for each, (node, snapshot) in answers:
            try:
                saved.append(_Saved(each, self._ray.get(node), snapshot))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._losses:  # the new actor begins with the snapshot before
                self._answer(each, self._recover(each))
        for found in saved if self._folder else self._copied(saved):
            each, earlier = found.range, found.range.snapshot
            each.snapshot, each.calls = found.snapshot, []
            if self._folder is not None and earlier is not None:
                Path(self._ray.get(earlier)).unlink()
        self._rounds_since_snapshot, self._kept_bytes = 0, 0

    def _copied(self, saved: Sequence[_Saved]) -> list[_Saved]:
        """Let snapshots be on two machines, if there are several; return those that are safe.

        Where no other machine has an actor, the one of the driver has a copy: without the driver,
        nobody needs it.
        """
        copies: list[Any] = []
        for k, found in enumerate(saved):
            others = [other.range for other in saved if other.node != found.node]
            if others:
                keeper = others[k % len(others)].free_actor()
                copies.append(keeper.keep.remote(found.range.first, found.snapshot))
            else:
                copies.append(found.snapshot)
        here, safe = self._ray.get_runtime_context().get_node_id(), []
        for found, copy in zip(saved, copies, strict=True):
            try:
                if copy is not found.snapshot:
                    self._ray.get(copy)
                elif found.node != here:
                    found.range.copy = self._ray.get(copy)
            except self._ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, self._losses):
                    raise error.cause from None
            except self._losses:  # one of the two machines has died
                pass
            else:
                safe.append(found)
        return safe


@dataclass(eq=False)
class _RemoteRange:
    """A range in an actor, and what another actor needs to arrive at the same state."""

    first: int
    stop: int
    settings: Any
    """Where the object store has its `RangeSettings`."""
    actor: Any
    start: Call
    is_new: bool = True
    """Whether the actor has not been asked to listen at a socket yet."""
    socket: RoundSocket | None = None
    """How its rounds are called, if it is on the machine of the driver."""
    snapshot: Any = None
    """Where the object store has its last snapshot, after which the calls are repeated."""
    copy: Snapshot | None = None
    """The snapshot in the object store of this machine, if no other machine could have a copy."""
    calls: list[Call] = field(default_factory=list)
    """The calls since then that change the state."""
    answering: Any = None
    """The call of Ray's in which the actor answers rounds at the socket, and no other calls."""
    late: Any = None
    """Where the answer to a round arrives that is later than the deadline."""
    is_counted: bool = True
    """Whether the answer to the last round was in time."""
    missed: int = 0
    """In how many rounds it was late since it was last in time."""

    @property
    def name(self) -> str:
        """The agents, for messages."""
        return f"the agents {self.first} to {self.stop - 1}"

    def accepted(self, index: int) -> int:
        """Return the last round that was aggregated, unless the range was too late for it."""
        return index if self.is_counted else -1

    def disconnect(self) -> None:
        """Close the socket of an actor that ends."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.is_new, self.answering = None, True, None

    def free_actor(self) -> Any:
        """Return the actor, which answers calls of Ray."""
        if self.socket is not None and self.answering is not None:
            self.socket.pause()
            self.answering = None
        return self.actor


@dataclass(frozen=True, eq=False)
class _Saved:
    """A new snapshot of a range, and the machine that has it."""

    range: _RemoteRange
    node: str
    snapshot: Any


NO_SUMS = RangeSums(PartialSums(np.empty(0, np.intp), {}), {}, 0, (), 0)
"""The sums of agents that are absent."""


def _bytes_to_repeat(calls: Sequence[RoundCall]) -> int:
    """Return about how many bytes are kept to repeat a round."""
    participants = sum(len(call.positions) for call in calls)
    server = sum(vector.nbytes for vector in calls[0].server.values())
    return server + PARTICIPANT_BYTES * participants


def _not_picklable(what: str, error: Exception) -> ValueError:
    """Return the error for objects of users that can't be sent to actors."""
    lines = str(error).strip().splitlines()
    reason = one_line(lines[-1], 160) if lines else type(error).__name__  # Ray adds a traceback
    return ValueError(
        f"{what} must consist of objects that Ray can pickle, of modules that actors can import, "
        f"got an error: {reason}; move what cannot be pickled into a module, which actors import."
    )


def pickle_by_value(modules: Iterable[ModuleType]) -> None:
    """Send the classes and functions of modules that actors cannot import with the agents."""
    for module in modules:
        import_module("ray.cloudpickle").register_pickle_by_value(module)
