"""Compare projections onto the l1 ball: ours and those of other packages, as ratios in one run.

All methods project the same points, in turn, again and again; a ratio is the median over those
rounds of the time of a method divided by the time of ours in the same round, so that what else the
machine does hits all of them. Ours is ``L1Ball(radius).project(x)`` with no warm start: it checks x
and makes a new array. "warm" keeps a warm start and an array to write to. "pass" reads x and
writes it negated to an array that is there: what the hardware allows. Methods that only know a
simplex get |x| and have the signs put back; jaxopt is compiled and gets JAX arrays, chop gets torch
tensors.

Reported besides: the error, the largest difference from the exact projection (in extended
precision) over ε max|x|, of ours and of the worst of all. pyproximal bisects up to a tolerance,
which is the worst in float64.

    make bench-projections
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.table import machine
from pcfed.sets import L1Ball, Simplex, WarmStart, project_l1_balls

Vector = NDArray[np.floating[Any]]
Thunk = Callable[[], Any]
"""A projection that is ready to run."""

SIZES = (1_000, 7_840, 10_000, 100_000, 1_000_000, 10_000_000)
DTYPES = ("float32", "float64")
INPUTS = ("dense, 10 % of the norm", "dense, 90 % of the norm", "dense, 1 % survive", "90 % zeros")
SECONDS = 0.5
"""For how long the rounds of one input go on, at least three of them."""


@dataclass(frozen=True)
class Case:
    """A point and the radius of the ball."""

    x: Vector
    radius: float


@dataclass(frozen=True)
class Row:
    """What was measured of one method on one input."""

    n: int
    dtype: str
    input: str
    method: str
    milliseconds: float
    ratio: float
    """Time divided by that of ours; the median of the rounds."""
    error: float
    """Largest difference from the exact projection, over ε max|x|; NaN if it is none."""


# -- inputs ---------------------------------------------------------------------------------------


def case(kind: str, n: int, dtype: str) -> Case:
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n)
    if kind == "90 % zeros":
        x *= rng.random(n) < 0.1
    x = x.astype(dtype)
    a = np.abs(x).astype(np.float64)
    if kind == "dense, 1 % survive":
        threshold = np.partition(a, n - n // 100 - 1)[n - n // 100 - 1]
        return Case(x, float(np.maximum(a - threshold, 0.0).sum()))
    return Case(x, float(a.sum()) * (0.9 if kind == "dense, 90 % of the norm" else 0.1))


def exact(x: Vector, radius: float) -> NDArray[np.longdouble]:
    """Project by sorting, in extended precision."""
    a = np.abs(x).astype(np.longdouble)
    falling = np.sort(a)[::-1]
    excess = np.cumsum(falling) - np.longdouble(radius)
    k = int(np.count_nonzero(falling * np.arange(1, a.size + 1) > excess))
    p: NDArray[np.longdouble] = np.copysign(np.maximum(a - excess[k - 1] / k, 0), x)
    return p


# -- methods --------------------------------------------------------------------------------------


def ours(c: Case) -> Thunk:
    return lambda: L1Ball(c.radius).project(c.x)


def ours_warm(c: Case) -> Thunk:
    ball, warm_start, out = L1Ball(c.radius), WarmStart(), np.empty_like(c.x)
    ball.project(c.x, warm_start=warm_start)
    return lambda: ball.project(c.x, out=out, warm_start=warm_start)


def bare_pass(c: Case) -> Thunk:
    out = np.empty_like(c.x)
    return lambda: np.negative(c.x, out=out)


def by_sorting(x: Vector, radius: float) -> Vector:
    a = np.abs(x)
    if a.sum() <= radius:
        return x
    falling = np.sort(a)[::-1]
    excess = np.cumsum(falling) - radius
    k = np.count_nonzero(falling * np.arange(1, a.size + 1) > excess)
    p: Vector = np.sign(x) * np.maximum(a - excess[k - 1] / k, 0.0)
    return p


def numpy_sort(c: Case) -> Thunk:
    return lambda: by_sorting(c.x, c.radius)


def pot(c: Case) -> Thunk:
    project = importlib.import_module("ot.utils").proj_simplex
    return lambda: np.sign(c.x) * project(np.abs(c.x), c.radius)


def proxop(c: Case) -> Thunk:
    ball = importlib.import_module("proxop").L1Ball(c.radius)
    return lambda: ball.prox(c.x)


def pyproximal(c: Case) -> Thunk:
    ball = importlib.import_module("pyproximal.projection").L1BallProj(c.x.size, c.radius)
    return lambda: ball(c.x)


def chop(c: Case) -> Thunk:
    # chop imports torchvision for data sets that nobody needs here.
    with mock.patch.dict(sys.modules, {"torchvision": mock.MagicMock()}):
        project = importlib.import_module("chop.constraints").euclidean_proj_l1ball
    tensor = importlib.import_module("torch").from_numpy(c.x)
    return lambda: project(tensor, c.radius)


def jaxopt(c: Case) -> Thunk:
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    project = jax.jit(importlib.import_module("jaxopt.projection").projection_l1_ball)
    x = jax.numpy.asarray(c.x)
    return lambda: project(x, c.radius).block_until_ready()


Method = Callable[[Case], Thunk]
METHODS: dict[str, Method] = {
    "ours": ours,
    "ours, warm": ours_warm,
    "pass": bare_pass,
    "NumPy sort": numpy_sort,
    "POT": pot,
    "proxop": proxop,
    "pyproximal": pyproximal,
    "chop": chop,
    "jaxopt": jaxopt,
}


def available() -> dict[str, Method]:
    """Return the methods that can be run here, and say in a sentence which ones cannot."""
    found = {}
    for name, method in METHODS.items():
        try:
            method(Case(np.array([3.0, -1.0]), 1.0))()
        except ImportError as reason:
            print(f"{name} is left out, since it cannot be imported ({reason}).", file=sys.stderr)
        else:
            found[name] = method
    return found


# -- measuring ------------------------------------------------------------------------------------


def seconds_of(thunk: Thunk, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        thunk()
    return (time.perf_counter() - start) / calls


def rounds(thunks: dict[str, Thunk], seconds: float) -> dict[str, list[float]]:
    """Time all of them in turn, at least three times; short ones several calls at a time."""
    calls = dict.fromkeys(thunks, 1)
    for name, thunk in thunks.items():
        if seconds_of(thunk, 1) < 0.1:
            calls[name] = max(1, min(100, int(1e-3 / seconds_of(thunk, 2))))
    times: dict[str, list[float]] = {name: [] for name in thunks}
    end = time.perf_counter() + seconds
    while len(times["ours"]) < 3 or time.perf_counter() < end:
        for name, thunk in thunks.items():
            times[name].append(seconds_of(thunk, calls[name]))
    return times


def compared(
    label: tuple[int, str, str], thunks: dict[str, Thunk], best: Any, scale: float, seconds: float
) -> Iterator[Row]:
    """Yield a row for each method; ``best`` is what it should return."""
    errors = {
        name: float(np.abs(np.asarray(thunk()) - best).max()) / scale
        for name, thunk in thunks.items()
    }
    times = rounds(thunks, seconds)
    for name, error in errors.items():
        ratio = statistics.median(
            t / base for t, base in zip(times[name], times["ours"], strict=True)
        )
        milliseconds = 1e3 * statistics.median(times[name])
        yield Row(*label, name, milliseconds, ratio, float("nan") if name == "pass" else error)


def measure(
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[str] = DTYPES,
    inputs: Sequence[str] = INPUTS,
    seconds: float = SECONDS,
) -> list[Row]:
    """Measure every method on every input: l1 balls, and for 7,840 entries simplices and rows.

    Parameters
    ----------
    sizes, dtypes, inputs : sequences
        What to measure.
    seconds : float
        For how long to repeat each input.
    """
    methods = available()
    found: list[Row] = []
    for n in sizes:
        for dtype in dtypes:
            eps = float(np.finfo(dtype).eps)
            for kind in inputs:
                c = case(kind, n, dtype)
                scale = eps * float(np.abs(c.x).max())
                thunks = {name: method(c) for name, method in methods.items()}
                best = exact(c.x, c.radius)
                found += compared((n, dtype, kind), thunks, best, scale, seconds)
                print(f"{n:,} {dtype}, {kind}: done", file=sys.stderr, flush=True)
    for dtype in dtypes:
        found += compared((7_840, dtype, "simplex"), *simplex(dtype, "POT" in methods), seconds)
        found += compared((7_840, dtype, "100 rows"), *rows(dtype), seconds)
    return found


def simplex(dtype: str, with_pot: bool) -> tuple[dict[str, Thunk], Any, float]:
    """Return the projections onto a simplex, the right one, and the scale of its errors."""
    x = np.abs(case(INPUTS[0], 7_840, dtype).x)
    total = 0.1 * float(x.sum())
    thunks: dict[str, Thunk] = {
        "ours": lambda: Simplex(total).project(x),
        "NumPy sort": lambda: by_sorting(x, total),
    }
    if with_pot:
        project = importlib.import_module("ot.utils").proj_simplex
        thunks["POT"] = lambda: project(x, total)
    return thunks, exact(x, total), float(np.finfo(dtype).eps * x.max())


def rows(dtype: str) -> tuple[dict[str, Thunk], Any, float]:
    """Return the projections of 100 rows onto balls of different radii, and so on as above."""
    x = np.random.default_rng(0).standard_normal((100, 7_840)).astype(dtype)
    radii = np.linspace(0.05, 0.9, 100) * np.abs(x).sum(axis=1, dtype=np.float64)

    def sort() -> Any:
        a = np.abs(x)
        falling = np.sort(a, axis=1)[:, ::-1]
        excess = np.cumsum(falling, axis=1) - radii[:, None]
        k = np.count_nonzero(falling * np.arange(1, a.shape[1] + 1) > excess, axis=1)
        theta = np.take_along_axis(excess, k[:, None] - 1, axis=1) / k[:, None]
        return np.sign(x) * np.maximum(a - theta, 0.0)

    thunks: dict[str, Thunk] = {"ours": lambda: project_l1_balls(x, radii), "NumPy sort": sort}
    best = np.stack([exact(row, radius) for row, radius in zip(x, radii, strict=True)])
    return thunks, best, float(np.finfo(dtype).eps * np.abs(x).max())


# -- the table ------------------------------------------------------------------------------------


def table(measured: Sequence[Row]) -> str:
    """Return a Markdown table: a line for each input, a column for each method."""
    names = {r.method for r in measured} - {"ours"}
    others = [name for name in METHODS if name in names]
    heads = ["n", "dtype", "input", "ours, ms", *others, "error of ours", "worst error"]
    lines = [heads, ["---:", "---", "---", *["---:"] * (len(heads) - 3)]]
    for label in dict.fromkeys((r.n, r.dtype, r.input) for r in measured):
        line = {r.method: r for r in measured if (r.n, r.dtype, r.input) == label}
        ratios = [
            f"{float(f'{line[name].ratio:.2g}'):g} ×" if name in line else "" for name in others
        ]
        own = line["ours"]
        worst = max(r.error for r in line.values() if not np.isnan(r.error))
        start = [f"{own.n:,}", own.dtype, own.input, f"{own.milliseconds:.3g}"]
        lines.append([*start, *ratios, f"{own.error:.2g}", f"{worst:.2g}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure with those methods that are there; write the table if that is all of them."""
    warnings.simplefilter("ignore")
    measured = measure()
    about = "\n".join(line for line in (__doc__ or "").splitlines() if line[:4] != "    ").strip()
    text = f"# Projections\n\n{about}\n\nBy `make bench-projections` on {machine()}.\n\n"
    text += table(measured) + "\n"
    if {row.method for row in measured} == set(METHODS):
        Path(__file__).with_name("PROJECTIONS.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
