"""Kernels that call others by their address, and machine code that is kept on disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pcfed import arrays
from pcfed.kernels import compiler

types = pytest.importorskip("numba").types


@compiler.helper()
def reciprocal_one(x, factor, out):
    for i in range(x.size):
        if x[i] == 0:
            raise ZeroDivisionError
        out[i] = factor / x[i]
    return x.size, factor


def signature(x, *_):
    read, write = types.Array(x.dtype, 1, "C", readonly=True), types.Array(x.dtype, 1, "C")
    return types.Tuple((types.intp, types.float64))(read, types.float64, write)


reciprocal_at = compiler.call_by_address(signature)


@compiler.helper()
def reciprocal_rows(start, x, out):
    total = 0.0
    for i in range(x.shape[0]):
        size, factor = reciprocal_at(start, x[i], i + 1, out[i])
        total += size * factor
    return total


@pytest.fixture(scope="module")
def kernels():
    number = types.float32
    one = compiler.compile_kernel(reciprocal_one, signature(types.Array(number, 1, "C")))
    matrix = types.Array(number, 2, "C")
    return one, compiler.compile_kernel(reciprocal_rows, (types.intp, matrix, matrix))


def test_a_loop_calls_an_entry_by_its_address(kernels):
    one, rows = kernels
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    out = np.zeros_like(x)
    assert rows(compiler.address_of(one), x, out) == 3 * 1 + 3 * 2
    np.testing.assert_array_equal(out, np.array([[1], [2]], np.float32) / x)


def test_what_an_entry_raises_goes_through_the_loop(kernels):
    one, rows = kernels
    x = np.array([[1, 0, 2]], np.float32)
    with pytest.raises(ZeroDivisionError):
        rows(compiler.address_of(one), x, np.zeros_like(x))


def test_an_entry_takes_arrays_that_may_not_be_written_to_and_no_other_types(kernels):
    one, _ = kernels
    x, out = np.ones(3, np.float32), np.zeros(3, np.float32)
    x.flags.writeable = False
    assert one(x, 2.0, out) == (3, 2.0)
    with pytest.raises(TypeError):
        one(x.astype(np.float64), 2.0, np.zeros(3))
    assert len(one.overloads) == 1


def test_machine_code_is_as_old_as_the_source_of_all_kernels(kernels, tmp_path):
    one, _ = kernels
    assert one._cache._cache_file._source_stamp == compiler.source_digest()
    package = tmp_path / "pcfed"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(compiler.__file__).parents[1], package, ignore=ignored)

    def stamp() -> str:
        code = (
            "from pcfed.kernels import compiler; print(compiler.__file__, compiler.source_digest())"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        where, digest = done.stdout.split()
        assert where.startswith(str(tmp_path))
        return digest

    assert stamp() == compiler.source_digest()
    with (package / "kernels" / "thresholds.py").open("a") as file:
        file.write("# changed\n")
    assert stamp() != compiler.source_digest()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (2, 3, 4), (300, 1000)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_to_work_in_begin_with_a_line_of_the_cache(shape, dtype):
    for _ in range(20):
        array = arrays.aligned_empty(shape, dtype)
        assert array.size == 0 or array.ctypes.data % arrays.CACHE_LINE == 0
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.flags.carray
