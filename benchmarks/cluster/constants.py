"""The constants of a run on a cluster: calls, messages, snapshots, and the driver's own work.

    python -m benchmarks.cluster.constants

Actors are empty, so that only Ray's part is measured, with as many actors on this machine as are
given. "Call" is one call of every actor and its answer; "with state" also passes a server's state
of 4 × 7,840 numbers, put once, and returns an answer of the same size per actor, by a call of Ray
and at the sockets that rounds use between processes of one machine. A snapshot is
100 MB that an actor returns to the object store, as `RayRanges` does. The driver's work per round
is that of `Plan.present`, of `Plan.steps` and of cutting both into calls for 100 ranges, with 1 %
of the agents in a round. The evaluation is what the driver does with eight numbers of every agent.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from pcfed import Problem
from pcfed.algorithms import RoundInfo, Vectors
from pcfed.simulation.agent_range import range_edges
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.plan import Plan
from pcfed.simulation.round_socket import RoundListener, RoundSocket, SocketClosed, pickled
from pcfed.tree_sums import PartialSums, tree_mean

from .agents import make_agent
from .measure import cluster

ACTORS = (1, 2, 4, 8)
AGENTS = (100_000, 1_000_000, 10_000_000)
STATE, SNAPSHOT = 4 * 7840, 100_000_000
REPEATS = 50
CALL = RoundCall(RoundInfo(0, m=100, max_local_steps=1), {}, [0], [1])


class Empty:
    """An actor that does nothing."""

    def answer(self) -> None:
        """Return nothing."""

    def returned(self, state: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return an array of the size of another one."""
        return state + 1.0

    def listen(self, path: str) -> None:
        """Open a socket."""
        self._listener = RoundListener(path)

    def answer_rounds(self) -> None:
        """Return sums of the size of the state to who calls rounds at the socket."""

        def run_round(accepted: int, call: RoundCall, server: Vectors) -> RangeSums:
            sums = PartialSums(np.zeros(1, np.intp), {"": self.returned(server["x"])[None]})
            return RangeSums(sums, {}, 1, (), 0)

        with suppress(SocketClosed):
            self._listener.answer_rounds(run_round)

    def snapshot(self) -> tuple[bool, np.ndarray[Any, Any]]:
        """Return a snapshot beside a small object."""
        return True, np.ones(SNAPSHOT // 8)


def seconds(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return median(times)


def calls(number: int) -> str:
    """Measure calls of so many actors."""
    ray: Any = import_module("ray")
    actors = [ray.remote(Empty).options(num_cpus=0).remote() for _ in range(number)]
    ray.get([actor.answer.remote() for actor in actors])
    state = np.zeros(STATE)

    def with_state() -> None:
        shared = ray.put(state)
        ray.get([actor.returned.remote(shared) for actor in actors])

    empty = seconds(lambda: ray.get([actor.answer.remote() for actor in actors]), 4 * REPEATS)
    full = seconds(with_state)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{k}" for k in range(number)]
        ray.get([actor.listen.remote(path) for actor, path in zip(actors, paths, strict=True)])
        sockets = [RoundSocket(path) for path in paths]
    for actor in actors:
        actor.answer_rounds.remote()

    def at_sockets() -> None:
        shared = pickled({"x": state})
        for socket in sockets:
            socket.send(shared)
        for socket in sockets:
            socket.send(pickled((0, CALL)))
        for socket in sockets:
            socket.receive()

    direct = seconds(at_sockets, 4 * REPEATS)
    for socket, actor in zip(sockets, actors, strict=True):
        socket.close()
        ray.kill(actor)
    times = (empty, full, full / number, direct, direct / number)
    return f"| {number} | {' | '.join(f'{1e3 * each:.2f}' for each in times)} |"


def snapshot_rate() -> float:
    """Return the megabytes per second of a snapshot."""
    ray: Any = import_module("ray")
    actor = ray.remote(Empty).options(num_cpus=0).remote()
    ray.get(actor.answer.remote())

    def save() -> None:
        is_done, kept = actor.snapshot.options(num_returns=2).remote()
        ray.get(is_done)
        ray.wait([kept])

    return SNAPSHOT / 1e6 / seconds(save, 5)


def driver_work(m: int) -> str:
    """Measure what the driver does by itself for so many agents."""
    problem = Problem.lazy(m, make_agent)
    plan = Plan(
        problem,
        local_steps=5,
        batch=1.0,
        sampling="without_replacement",
        participation=0.01,
        seed=0,
    )
    edges = range_edges(m, 100)

    def cut() -> None:
        present = plan.present(0)
        steps = plan.steps(0, present)
        ends = np.searchsorted(present, edges).tolist()
        for start, end in pairwise(ends):
            present[start:end], steps[start:end]

    def evaluate() -> None:
        parts = [np.ones((8, stop - first)) for first, stop in pairwise(edges)]
        columns = np.concatenate(parts, axis=1)
        tree_mean(columns[5] + columns[6] / 2 * columns[1] ** 2)
        tree_mean(columns[5])

    measured = (
        seconds(partial(plan.present, 0), 3),
        seconds(partial(plan.steps, 0, plan.present(0)), 3),
        seconds(cut, 3),
        seconds(evaluate, 3),
        seconds(lambda: tuple(f"agent {i}" for i in range(m)), 1),
    )
    cells = " | ".join(f"{each:.3g}" for each in measured)
    return f"| {m:,} | {cells} | {64 * m / 1e6:,.0f} | {32 * m / 1e6:,.0f} |"


def main() -> None:
    print(
        "| actors | call, ms | with state, ms | per actor | at sockets, ms | per actor |\n"
        "|---|---|---|---|---|---|"
    )
    with cluster() as start:
        for number in ACTORS:
            print(calls(number), flush=True)
        rate = snapshot_rate()
    print(f"\nstart of Ray {start:.1f} s, snapshots {rate:,.0f} MB/s\n")
    print(
        "| agents | present, s | steps, s | round, s | evaluation, s | names, s "
        "| metrics, MB | record, MB |\n|---|---|---|---|---|---|---|---|"
    )
    for m in AGENTS:
        print(driver_work(m), flush=True)


if __name__ == "__main__":
    main()
