"""Compiled code and NumPy give the same bits, whatever x looks like in memory."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from pcfed import kernels
from pcfed.sets import L1Ball, Simplex, WarmStart, compiled, project_l1_balls, project_simplices
from tests.sets.exact_projections import KINDS, exact_simplex, hard_points, long_l1, use_numpy

pytest.importorskip("numba")
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def radii(x):
    size = math.fsum(np.abs(x).tolist())
    falling = np.sort(np.abs(x).astype(np.float64))[::-1]
    on_an_entry = float((falling - falling[x.size // 3]).clip(0).sum())
    whole = float(int(size / 3))
    near = [size * (1 + k * float(np.finfo(x.dtype).eps)) for k in (-4, -1, 0, 2, 4)]
    shares = [size * share for share in (0.999999, 0.5, 0.1, 1e-3, 1e-12, 1e-20)]
    return [r for r in (on_an_entry, whole, *near, *shares) if r > 0]


def projections(x):
    """All that a test compares: both sets, all radii."""
    return b"".join(
        kind(radius).project(x).tobytes() for radius in radii(x) for kind in (L1Ball, Simplex)
    )


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_give_the_same_bits(kind, dtype, monkeypatch):
    rng = np.random.default_rng(0)
    points = [
        hard_points(rng, kind, n).astype(dtype)
        for n in (1, 2, 3, 5, 9, 17, 33, 100, 300, 1_000, 5_000)
        for _ in range(3)
    ]
    fast = [projections(x) for x in points]
    use_numpy(monkeypatch)
    assert [projections(x) for x in points] == fast


@each_dtype
def test_the_kernels_do_the_work(dtype, monkeypatch):
    """Nothing above was left to NumPy on the quiet."""
    rng = np.random.default_rng(1)
    for kind in KINDS:
        x = hard_points(rng, kind, 1_000).astype(dtype)
        for radius in radii(x):
            for target in (compiled.L1_BALL, compiled.SIMPLEX):
                assert compiled.project(x, radius, target, None, None) is not None


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_many_entries_are_accurate(kind, dtype):
    rng = np.random.default_rng(2)
    eps = float(np.finfo(dtype).eps)
    x = hard_points(rng, kind, 200_000).astype(dtype)
    top = float(np.abs(x).max())
    for radius in radii(x)[2:]:
        p = L1Ball(radius).project(x)
        assert math.fsum(np.abs(p).tolist()) <= radius * (1 + 4 * eps)
        if radius < math.fsum(np.abs(x).tolist()):
            assert np.abs(p - long_l1(x, radius)).max() <= 8 * eps * top
        assert L1Ball(radius).project(p).tobytes() == p.tobytes()


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_simplices_are_accurate(kind, dtype):
    rng = np.random.default_rng(3)
    eps = float(np.finfo(dtype).eps)
    for n in (1, 7, 40):
        x = hard_points(rng, kind, n).astype(dtype) - dtype(rng.standard_normal())
        for total in radii(x):
            p = Simplex(total).project(x)
            assert abs(math.fsum(p.tolist()) - total) <= 8 * eps * total
            error = np.abs(p - exact_simplex(x, total)).max()
            assert error <= 8 * eps * max(total, float(np.abs(x).max()))
            assert Simplex(total).project(p).tobytes() == p.tobytes()


@each_dtype
@pytest.mark.parametrize("n", [1, 31, 1_000, 20_000])
def test_memory_layout_changes_no_bit(n, dtype):
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(dtype)
    p = projections(x)
    for offset in range(9):
        moved = np.empty(n + 9, dtype)[offset : offset + n]
        moved[:] = x
        assert projections(moved) == p
    frozen = x.copy()
    frozen.setflags(write=False)
    unaligned = np.frombuffer(b"0" + x.tobytes(), np.uint8)[1:].view(dtype)
    assert not unaligned.flags.aligned
    swapped = x.astype(np.dtype(dtype).newbyteorder())
    for other in (frozen, unaligned, np.repeat(x, 2)[::2], x[::-1].copy()[::-1]):
        assert projections(other) == p
    if dtype is np.float64:
        assert projections(swapped) == p


@each_dtype
def test_out_is_written_to_and_nothing_else_is_needed(dtype):
    x = np.random.default_rng(4).standard_normal(100_000).astype(dtype)
    ball, warm_start, out = L1Ball(1_000.0), WarmStart(), np.empty_like(x)
    p = ball.project(x)
    tracemalloc.start()
    assert ball.project_unchecked(x, out, warm_start) is out
    assert ball.project(x, out=out) is out
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 10
    assert out.tobytes() == p.tobytes()
    both = np.concatenate((x, x[:5]))
    assert ball.project(both[:-5], out=both[5:]) is not None  # they overlap
    assert both[5:].tobytes() == p.tobytes()
    assert ball.project(x, out=x) is x
    assert x.tobytes() == p.tobytes()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("shape", [(5_000,), (3, 5_000)])
def test_points_that_are_refused_leave_out_alone(bad, shape):
    x = np.ones(shape)
    x[..., -7] = bad
    out, before = np.full(shape, 3.0), x.copy()
    for kind in (L1Ball, Simplex):
        for where in (out, x):
            with pytest.raises(ValueError, match=r"must (be finite|have entries of at most)"):
                kind(1.0).project(x, out=where)
    assert (out == 3.0).all()
    np.testing.assert_array_equal(x, before)


def test_large_sums_are_not_refused():
    x = np.array([1e149, -3e149, 2e149])
    np.testing.assert_allclose(L1Ball(1e149).project(x), [0.0, -1e149, 0.0], rtol=1e-15, atol=1e135)


@each_dtype
def test_rows_of_different_radii(dtype):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((20, 300)).astype(dtype)
    totals = rng.uniform(0.01, 1.2, 20) * np.abs(x).sum(axis=1)
    for project, kind in ((project_l1_balls, L1Ball), (project_simplices, Simplex)):
        p = np.stack([kind(float(t)).project(row) for t, row in zip(totals, x, strict=True)])
        warm_start = WarmStart()
        for _ in range(3):
            assert project(x, totals, warm_start=warm_start).tobytes() == p.tobytes()
        assert project(x, totals[::-1].copy()[::-1]).tobytes() == p.tobytes()
        assert project(np.repeat(x, 2, axis=1)[:, ::2], totals).tobytes() == p.tobytes()
        out = x.copy()
        assert project(out, totals, out=out, warm_start=warm_start) is out
        assert out.tobytes() == p.tobytes()
        some = np.where(np.arange(20) == 3, 0.0, totals)  # a radius that no kernel takes
        p[3] = 0.0
        assert project(x, some).tobytes() == p.tobytes()


@pytest.mark.parametrize(
    ("x", "totals", "message"),
    [
        (np.ones((2, 3)), [1.0], r"radii must have shape \(2,\), one .* got shape \(1,\); give"),
        (np.ones((2, 3)), [1.0, -1.0], "radii must be ≥ 0, got -1.0 at index 1; give"),
        (np.ones((2, 3)), [1.0, math.nan], r"radii must be finite, got nan at index \[1\]; remove"),
        (np.ones(3), [1.0], r"x must be .* of shape \(rows, n\), got shape \(3,\); reshape"),
        ([[1.0, math.inf]], [1.0], r"x must be finite, got inf at index \[0, 1\]; remove"),
        (np.array([[1.0, math.inf]]), [1.0], r"x must be finite, got inf at index \[0, 1\]"),
    ],
)
def test_bad_rows(x, totals, message):
    with pytest.raises(ValueError, match=f"project_l1_balls: {message}"):
        project_l1_balls(x, totals)
    with pytest.raises(ValueError, match="out must have the shape"):
        project_l1_balls(np.ones((2, 3)), [1.0, 2.0], out=np.ones((2, 4)))


def test_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(6)
    points = [rng.standard_normal(50_000) for _ in range(16)]
    alone = [projections(x) for x in points]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(projections, points)) == alone


def digest():
    """Describe the bits of many projections."""
    rng = np.random.default_rng(7)
    parts = [
        projections(hard_points(rng, kind, 500).astype(dtype))
        for kind in KINDS
        for dtype in (np.float32, np.float64)
    ]
    rows = project_l1_balls(rng.standard_normal((3, 50)), [1.0, 2.0, 3.0])
    return sha256(b"".join(parts) + rows.tobytes()).hexdigest()


def run(code, **environment):
    """Run code in a new process, in which warnings are errors, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_without_numba_all_is_the_same(pytestconfig):
    code = """
import sys
sys.modules["numba"] = None
import pytest
pytest.importorskip = lambda name: None
from tests.kernels.test_thresholds import digest
print(digest())
assert "llvmlite" not in sys.modules
"""
    assert run(code, PYTHONPATH=str(pytestconfig.rootpath)) == digest()


def test_without_a_directory_for_machine_code_it_works(tmp_path):
    package = tmp_path / "pcfed"
    shutil.copytree(
        Path(compiled.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__")
    )
    nowhere = package / "kernels" / "__pycache__"
    nowhere.touch()  # a file, so that nobody can make the directory
    code = f"""
import numpy as np, pcfed.kernels.thresholds
assert pcfed.__file__.startswith({str(tmp_path)!r})
p = pcfed.sets.L1Ball(2.0).project(np.array([3.0, -2.0]))
print(p, pcfed.kernels.thresholds.project(p.dtype).stats.cache_path)
"""
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), str(nowhere))
    assert run(code, PYTHONPATH=str(tmp_path), **homes) == "[ 1.5 -0.5] None"


def test_with_a_full_disk_it_works(monkeypatch):
    compiler = import_module("pcfed.kernels.compiler")
    thresholds = kernels.load("thresholds")
    assert thresholds is not None
    compile_it = compiler.numba.njit

    def full(*args, cache=False, **options):
        if cache:
            raise OSError("No space left on device")
        return compile_it(*args, **options)

    monkeypatch.setattr(compiler.numba, "njit", full)
    real = thresholds.types.float64
    entry = compiler.compile_kernel(thresholds._split, (real, real, real))
    assert entry(1.0 + 2.0**-52, 2.0, 1.0) == (1.0, 2.0**-52)
