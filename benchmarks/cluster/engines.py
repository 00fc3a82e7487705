"""Ray, Dask distributed and plain processes driving the same ranges of agents.

    python -m benchmarks.cluster.engines [B C] [--repeats 2]

The engine of pcfed runs FedAvg on the works B and C of ``benchmarks/peers`` with two ranges of
agents on one machine: in actors of Ray (`RayRanges`, with its log of calls, its snapshots, and
rounds at sockets or, as on other machines, by calls of Ray), in actors of Dask, and in two
processes of `multiprocessing` with a pipe each. Beside them, the same agents in this process on two
threads. "Empty" is a call of both ranges that does nothing. Start is
the time until both ranges have answered their first call, the import of pcfed in them and the first
loop of numba included. At the end the process of the first range is killed in the middle of a run,
and one more round is asked for. Every engine is measured in a separate process; Dask in an
environment of its own (``.bench/dask``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.environments import ROOT, Peer, python_of
from benchmarks.peers.workload import SHAPE, STEP, WORKLOADS, Workload, load
from pcfed import Agent, FedAvg, Memory, Problem, Ray
from pcfed.losses import SoftmaxRegression
from pcfed.sets import WholeSpace
from pcfed.simulation import ray_ranges
from pcfed.simulation.agent_range import AgentRange, range_edges
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.engine import Engine
from pcfed.simulation.plan import Plan
from pcfed.simulation.range_actor import RangeActor, RangeSettings
from pcfed.simulation.ranges import LocalRanges, Ranges
from pcfed.simulation.threads import one_blas_thread

from .measure import VARIABLES, descendants

DASK = Peer(
    *("Dask distributed", "engines", (), "dask"),
    (
        "--constraint constraints.txt dask==2026.8.0 distributed==2026.8.0 "
        "numpy scipy quadprog numba threadpoolctl",
    ),
)
ENGINES = ("threads", "ray", "ray calls", "dask", "pipes")
ROUNDS = {"A": 12, "B": 60, "C": 24}
WARM_UP, EMPTY_CALLS, PATIENCE = 3, 200, 30.0
EMPTY = "finish_round"
"""The call that does nothing if there is nothing to commit."""

Send = Callable[..., Any]


class ActorRanges:
    """Ranges in other processes, without snapshots: what any engine needs.

    Parameters
    ----------
    edges : sequence of int
        The first position of every range, and the number of agents.
    send : callable
        Calls a method of `RangeActor`, given the number of the range, the method and its
        arguments; returns a ticket.
    receive : callable
        Returns the answer for a ticket.
    close : callable
        Ends everything.
    """

    is_local = False

    def __init__(
        self,
        edges: Sequence[int],
        send: Send,
        receive: Callable[[Any], Any],
        close: Callable[[], object],
    ) -> None:
        self.edges, self._send, self._receive, self._close = edges, send, receive, close

    def call(self, method: str, accepted: int, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Call a method of every range."""
        send = partial(self._send, **options)
        number = range(len(self.edges) - 1)
        return map(self._receive, [send(k, "call", method, accepted, *arguments) for k in number])

    def change(self, method: str, accepted: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method that changes the state."""
        calls = enumerate(arguments)
        tickets = [self._send(k, "call", method, accepted, *own) for k, own in calls]
        for ticket in tickets:
            self._receive(ticket)

    def run_round(self, accepted: int, calls: Sequence[RoundCall]) -> list[RangeSums]:
        """Run a round."""
        server = calls[0].server
        parts = enumerate(replace(call, server={}) for call in calls)
        tickets = [self._send(k, "run_round", accepted, part, server) for k, part in parts]
        return [self._receive(ticket) for ticket in tickets]

    def close(self) -> None:
        """End everything."""
        self._close()


def _serve(connection: Any, settings: RangeSettings) -> None:
    """Answer calls in a process."""
    actor = RangeActor(settings)
    while True:
        method, arguments, options = connection.recv()
        connection.send(getattr(actor, method)(*arguments, **options))


def pipe_ranges(edges: Sequence[int], settings: Sequence[RangeSettings]) -> ActorRanges:
    """Return ranges in processes with a pipe each."""
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    for each in settings:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, each), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)

    def send(k: int, method: str, *arguments: Any, **options: Any) -> int:
        pipes[k].send((method, arguments, options))
        return k

    def close() -> None:
        for process in processes:
            process.terminate()

    return ActorRanges(edges, send, lambda k: pipes[k].recv(), close)


def dask_ranges(edges: Sequence[int], settings: Sequence[RangeSettings]) -> ActorRanges:
    """Return ranges in actors of Dask, one per worker process."""
    distributed: Any = import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=len(settings), threads_per_worker=1, processes=True, dashboard_address=None
    )
    client = distributed.Client(cluster)
    workers = list(client.scheduler_info()["workers"])
    futures = [
        client.submit(RangeActor, each, actor=True, workers=[worker], pure=False)
        for each, worker in zip(settings, workers, strict=True)
    ]
    actors = [future.result() for future in futures]

    def send(k: int, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(actors[k], method)(*arguments, **options)

    def close() -> None:
        client.close()
        cluster.close()

    return ActorRanges(edges, send, lambda future: future.result(timeout=PATIENCE), close)


class Setup:
    """FedAvg on a work, for any engine."""

    def __init__(self, workload: Workload, path: str, rounds: int) -> None:
        labels = load(path)[1]
        with np.load(path) as file:
            shares = zip(file["images"], labels, strict=True)
        losses = [SoftmaxRegression(x, y, classes=SHAPE[0]) for x, y in shares]
        self.problem = Problem([Agent(f, WholeSpace(), coupling=0.0) for f in losses])
        self.plan = Plan(
            self.problem,
            local_steps=workload.steps,
            batch=workload.batch,
            sampling="blocks",
            participation=1.0,
            seed=0,
        )
        self.algorithm = FedAvg(STEP).resolved(self.problem, self.plan.run_info(range(rounds)))

    def ranges(self, engine: str) -> Ranges:
        """Return the ranges of an engine."""
        options: dict[str, Any] = {"norm_limit": None, "grid": None, "memory": Memory()}
        if engine == "threads":
            m = self.problem.m
            return LocalRanges([AgentRange(self.plan.local, self.algorithm, m, workers=2)])
        if engine.startswith("ray"):
            os.environ.update(VARIABLES)
            if engine == "ray calls":
                ray_ranges.MAX_SOCKET_BYTES = 0
            place = Ray(actors=2), self.problem, self.plan, self.algorithm
            return ray_ranges.RayRanges(*place, workers=1, **options)
        edges = range_edges(self.problem.m, 2)
        settings = [
            RangeSettings(
                agents=self.problem.agents[first:stop],
                first=first,
                m=self.problem.m,
                batch=self.plan.batch,
                sampling=self.plan.sampling,
                seed=self.plan.seed,
                algorithm=self.algorithm,
                workers=1,
                privacy=None,
                torch_threads=None,
                **options,
            )
            for first, stop in pairwise(edges)
        ]
        return (dask_ranges if engine == "dask" else pipe_ranges)(edges, settings)


def measured(engine: str, name: str, path: str) -> dict[str, Any]:
    """Measure an engine in this process."""
    rounds = ROUNDS[name]
    with one_blas_thread():
        setup = Setup(WORKLOADS[name], path, rounds + 2)
        begin = time.perf_counter()
        ranges = setup.ranges(engine)
        driver = Engine(setup.problem, setup.algorithm, setup.plan, ranges)
        driver.start(np.zeros(setup.problem.n))
        start = time.perf_counter() - begin
        times = []
        for index in range(rounds):
            begin = time.perf_counter()
            driver.run_round(index)
            times.append(time.perf_counter() - begin)
        empty = []
        for _ in range(EMPTY_CALLS):
            begin = time.perf_counter()
            list(ranges.call(EMPTY, rounds - 1))
            empty.append(time.perf_counter() - begin)
        total = float(np.abs(driver.server["x"]).sum())
        loss = "" if engine == "threads" else after_loss(driver, rounds)
    if engine != "dask":  # it waits for the lost process
        ranges.close()
    found = {"round": median(times[WARM_UP:]), "empty": median(empty), "start": start}
    return {**found, "total": total, "loss": loss}


def after_loss(driver: Engine, index: int) -> str:
    """Kill the process of a range, and say what the next round does."""
    pids = [pid for pid in descendants(os.getpid()) if _has_range(pid)]
    os.kill(pids[0], signal.SIGKILL)
    begin = time.perf_counter()
    try:
        driver.run_round(index)
    except Exception as error:
        return f"{type(error).__name__} after {time.perf_counter() - begin:.1f} s"
    return f"continues after {time.perf_counter() - begin:.1f} s"


def _has_range(pid: int) -> bool:
    """Return whether a process is the one of a range."""
    command = Path(f"/proc/{pid}/cmdline").read_text()
    return "RangeActor" in command or "spawn_main" in command


def footprint(root: str) -> dict[str, float]:
    """Return the number of packages that a package needs, itself included, and their megabytes."""
    names, waiting = set(), [root]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in names:
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        names.add(name)
        waiting += [re.split(r"[ ;<>=!~\[(]", each)[0] for each in needed if "extra ==" not in each]
    files = [file for name in names for file in metadata.files(name) or ()]
    places = [Path(str(file.locate())) for file in files]
    size = sum(place.stat().st_size for place in places if place.exists())
    return {"packages": len(names), "MB": size / 1e6}


def in_process(engine: str, *arguments: str) -> dict[str, Any]:
    """Run this module in a process of its own; return what it prints."""
    python = python_of(DASK) if engine == "dask" else Path(sys.executable)
    command = [str(python), "-m", __spec__.name, "one", engine, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    out = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def table(works: Sequence[str], repeats: int) -> str:
    """Measure all engines in turn; return the table."""
    from benchmarks.peers.__main__ import exported

    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = exported(works, Path(folder))
        for _ in range(repeats):
            for name in works:
                for engine in ENGINES:
                    one = in_process(engine, name, str(files[name]))
                    found.setdefault((name, engine), []).append(one)
                    print(name, engine, one, file=sys.stderr, flush=True)
    columns = "".join(f" {name}, ms per round | ratio |" for name in works)
    lines = [
        f"| engine |{columns} empty call, ms | start, s | killed | packages | MB |",
        "|---" * (6 + 2 * len(works)) + "|",
    ]
    for engine in ENGINES:
        cells = []
        for name in works:
            runs, base = found[name, engine], found[name, "threads"]
            pairs = zip(runs, base, strict=True)
            cells.append(f"{1e3 * median(run['round'] for run in runs):.1f}")
            cells.append(f"{median(run['round'] / one['round'] for run, one in pairs):.2f}")
        runs = [run for name in works for run in found[name, engine]]
        cells.append(f"{1e3 * median(run['empty'] for run in runs):.2f}")
        cells.append(f"{median(run['start'] for run in runs):.1f}")
        cells.append(runs[-1]["loss"])
        package = {"ray": "ray", "ray calls": "ray", "dask": "distributed"}.get(engine)
        size = in_process(engine, "footprint", package) if package else {"packages": 0, "MB": 0}
        cells += [f"{size['packages']:.0f}", f"{size['MB']:.0f}"]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        engine, name, path = sys.argv[2:]
        if name == "footprint":
            print(json.dumps(footprint(path)))
        else:
            print(json.dumps(measured(engine, name, path)), flush=True)
            os._exit(0)
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.engines")
    parser.add_argument("works", nargs="*", default=["B", "C"])
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    print(table(given.works, given.repeats))


if __name__ == "__main__":
    main()
