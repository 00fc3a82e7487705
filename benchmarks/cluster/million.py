"""Seconds and memory of a round of 10⁴, 10⁵ and 10⁶ agents in the actors of a Ray cluster.

    python -m benchmarks.cluster.million [agents ...]
    python -m benchmarks.cluster.million gap [agents]
    python -m benchmarks.cluster.million point 100000 anew

Agents with 100 parameters are read when they take part (``Problem.lazy``): least squares with four
samples from a random stream, and a box [−b, b]¹⁰⁰ of the agent's own, with b from 0.005 to 0.105:
at the optimum nine bounds in ten bind. Data and boxes repeat after 4,096 agents, which every
process makes once, because making an agent and checking its arguments takes longer than its part in
a round; the option ``anew`` in place of ``memory`` or ``files`` shows what that adds. Private state
is that of every single agent. In every round 1 % of them take five local steps of PCFedSplit; there
are 50 rounds in two actors with one thread each, once with private state in memory and once in
files. A round is the time between two calls of the function that gives the local steps, so that
neither the start nor the evaluations count; its median is given. The state is evaluated before the
first and after the last round, by all agents. Memory is the largest sum over the driver, the actors
and Ray's own processes, sampled twice a second; "result" is what collecting all models and states
at the driver adds, which every run does at its end. Every point is measured in a separate process.

``gap`` trains 10⁵ of these agents with 10 % of them in a round until the certified relative gap is
at most 1e-3, evaluated every ten rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pcfed import Gap, Memory, PCFedSplit, Problem, Ray, run
from pcfed.simulation import Evaluation

from .agents import PARAMETERS, bound_of, make_agent, make_anew
from .measure import VARIABLES, MemorySampler, RoundClock

SIZES = (10_000, 100_000, 1_000_000)
ROUNDS, STEPS = 50, 5
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Point:
    """The measurement of one run; bytes are peaks.

    Attributes
    ----------
    agents, memory
        The number of agents, and where their private state is: "memory" or "files"; "anew" is
        in memory, with agents that are made whenever they are read.
    seconds, first : float
        The median round; the first round, in which the loops are loaded.
    start, evaluation, result : float
        Seconds from the call of `run` to the first round, of the last evaluation, and from there
        to the end of the run.
    driver, actors, ray, files : int
        Bytes until the end of the last evaluation.
    peak : int
        Bytes of the whole run.
    binding : float
        Share of the entries of models that are at a bound.
    """

    agents: int
    memory: str
    seconds: float
    first: float
    start: float
    evaluation: float
    result: float
    driver: int
    actors: int
    ray: int
    files: int
    peak: int
    binding: float


class Finish:
    """Notes when the last evaluation has ended."""

    def __init__(self, sampler: MemorySampler) -> None:
        self._sampler, self.end = sampler, 0.0

    def __call__(self, evaluation: Evaluation) -> None:
        """Note the time; what follows is the phase "result"."""
        self.end, self._sampler.phase = time.perf_counter(), "result"


def measured(agents: int, kind: str) -> Point:
    """Measure one run in this process."""
    os.environ.update(VARIABLES)
    clock = RoundClock(STEPS)
    with tempfile.TemporaryDirectory() as folder, MemorySampler() as sampler:
        finish, begin = Finish(sampler), time.perf_counter()
        result = run(
            Problem.lazy(agents, make_anew if kind == "anew" else make_agent),
            PCFedSplit(),
            rounds=ROUNDS,
            local_steps=clock,
            participation=0.01,
            eval_every=ROUNDS,
            callbacks=[finish],
            backend=Ray(actors=2),
            memory=Memory(folder=folder) if kind == "files" else Memory(),
        )
        end = time.perf_counter()
        bounds = np.array([bound_of(i) for i in range(0, agents, 97)])[:, None]
        binding = float(np.mean(np.abs(result.models[::97]) >= bounds * (1 - 1e-9)))
    peak = sampler.peaks["start"]
    return Point(
        *(agents, kind, clock.median(), clock.seconds(warm_up=0)[0]),
        start=clock.begin - begin,
        evaluation=finish.end - clock.end - clock.median(),
        result=end - finish.end,
        driver=peak["driver"],
        actors=peak["actors"],
        ray=peak["ray"],
        files=peak["files"],
        peak=max(each.total() for each in sampler.peaks.values()),
        binding=binding,
    )


def measure(sizes: Sequence[int]) -> list[Point]:
    """Measure all points, one process at a time."""
    points = []
    for agents in sizes:
        for kind in ("memory", "files"):
            command = [sys.executable, "-m", __spec__.name, "point", str(agents), kind]
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            points.append(Point(**json.loads(out.splitlines()[-1])))
            print(points[-1], file=sys.stderr, flush=True)
    return points


def table(points: Sequence[Point]) -> str:
    """Return the measurements as a table."""
    lines = [
        "| agents | private state in | s per round | µs per participant | start, s "
        "| evaluation, s | result, s | driver, MB | actors, MB | Ray, MB | mapped files, MB "
        "| peak with result, MB |",
        "|" + "---|" * 12,
    ]
    for p in points:
        sizes = " | ".join(f"{each / 1e6:,.0f}" for each in (p.driver, p.actors, p.ray, p.files))
        lines.append(
            f"| {p.agents:,} | {p.memory} | {p.seconds:.3g} | {1e8 * p.seconds / p.agents:,.0f} "
            f"| {p.start:,.1f} | {p.evaluation:,.1f} | {p.result:,.1f} | {sizes} "
            f"| {p.peak / 1e6:,.0f} |"
        )
    return "\n".join(lines)


def picture(points: Sequence[Point], path: Path) -> None:
    """Draw seconds per round and memory against the number of agents."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for kind, style in (("memory", "o-"), ("files", "s--")):
        chosen = [p for p in points if p.memory == kind]
        sizes = [p.agents for p in chosen]
        axes[0].loglog(sizes, [p.seconds for p in chosen], style, label=f"state in {kind}")
        used = [(p.driver + p.actors + p.ray) / 1e9 for p in chosen]
        axes[1].loglog(sizes, used, style, label=f"state in {kind}")
    sizes = sorted({p.agents for p in points})
    last = max(points, key=lambda p: (p.agents, p.memory))
    for axis, value in ((axes[0], last.seconds), (axes[1], 24 * PARAMETERS * last.agents / 1e9)):
        label = "slope 1" if axis is axes[0] else "private state of all agents, slope 1"
        line = [value * size / last.agents for size in sizes]
        axis.loglog(sizes, line, ":", color="grey", label=label)
        axis.set(xlabel="agents m, of which 1 % take part in a round")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, loc="upper left" if axis is axes[0] else "lower right")
    axes[0].set(ylabel="seconds per round")
    axes[1].set(ylabel="memory in rounds and evaluations, GB")
    figure.savefig(path, dpi=110)


def to_gap(agents: int) -> str:
    """Train agents that are kept to a certified gap; return what it took."""
    os.environ.update(VARIABLES)
    clock, stop = RoundClock(STEPS), Gap(1e-3, relative=True)
    gaps: list[str] = []

    def note(evaluation: Evaluation) -> None:
        record, gap = evaluation.record, stop.relative_gap  # the gap of the evaluation before
        gaps.append(f"{record.round}: {record.seconds:.0f} s, gap before {gap or np.nan:.2g}")
        print(gaps[-1], file=sys.stderr, flush=True)

    begin = time.perf_counter()
    result = run(
        Problem.lazy(agents, make_agent),
        PCFedSplit(),
        rounds=1000,
        local_steps=clock,
        participation=0.1,
        eval_every=10,
        callbacks=[note],
        stop=stop,
        backend=Ray(actors=2),
    )
    total = time.perf_counter() - begin
    models = np.abs(result.models)
    bounds = np.array([bound_of(i) for i in range(agents)])[:, None]
    return (
        f"{agents:,} agents: {result.status} after {result.state.round} rounds with a relative gap "
        f"of {stop.relative_gap or np.nan:.2g}; {result.history[-1].seconds:.0f} s of rounds and "
        f"evaluations, {clock.median():.2g} s per round, {total:.0f} s with start and result; "
        f"{np.mean(models >= bounds * (1 - 1e-9)):.0%} of the "
        "bounds bind."
    )


def main() -> None:
    if sys.argv[1:2] == ["point"]:
        print(json.dumps(asdict(measured(int(sys.argv[2]), sys.argv[3]))))
    elif sys.argv[1:2] == ["gap"]:
        print(to_gap(int(sys.argv[2]) if len(sys.argv) > 2 else 100_000))
    else:
        points = measure([int(each) for each in sys.argv[1:]] or SIZES)
        if {p.agents for p in points} == set(SIZES):
            picture(points, FOLDER / "million.png")
        print(table(points))


if __name__ == "__main__":
    main()
