"""Files are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pcfed.storage import atomic
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.atomic import FileError, write_atomically
from pcfed.storage.locks import exclusive_lock


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def replace(source, destination):
        raise OSError("disk gone")

    monkeypatch.setattr(atomic.os, "replace", replace)
    with pytest.raises(
        FileError, match="could not be written: OSError; its earlier contents are unchanged"
    ):
        write_atomically(target, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_a_writer_that_raises_leaves_the_old_file_and_no_draft(tmp_path):
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def write(stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, write)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


ARRAYS = {
    "matrix": np.arange(6.0).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.empty((0, 3), np.float32),
    "number": np.array(7),
    "text": np.array(["a", "bcd"]),
    "not finite": np.array([np.nan, -0.0, np.inf]),
}


def test_arrays_come_back_as_they_were(tmp_path):
    save_arrays(tmp_path / "a.npz", {"what": "a test", "n": 3}, ARRAYS)
    about, arrays = load_arrays(tmp_path / "a.npz")
    assert about == {"what": "a test", "n": 3}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert array.tobytes() == ARRAYS[name].tobytes()
        assert array.flags.writeable
    with np.load(tmp_path / "a.npz") as archive:  # it is an ordinary archive
        assert set(archive.files) == {"metadata", *ARRAYS}


def test_no_bit_can_change_unnoticed(tmp_path):
    """Every bit of the numbers counts; a few of the container's own say nothing."""
    path = tmp_path / "a.npz"
    save_arrays(path, {"n": 3}, ARRAYS)
    whole, (about, arrays) = path.read_bytes(), load_arrays(path)
    rng = np.random.default_rng(0)
    noticed = 0
    for bit in rng.choice(8 * len(whole), 1500, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            seen = load_arrays(path)
        except ValueError:
            noticed += 1
        else:
            assert seen[0] == about
            assert {k: v.tobytes() for k, v in seen[1].items()} == {
                k: v.tobytes() for k, v in arrays.items()
            }
    assert noticed > 1000


def test_the_lock_is_gone_with_the_process_that_had_it(tmp_path):
    lock = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from pcfed.storage.locks import exclusive_lock\n"
        "with exclusive_lock(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "mine\n"
        with (
            pytest.raises(
                ValueError, match=rf"another process \({holder.pid}\) is using these files"
            ),
            exclusive_lock(lock),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    for _ in range(50):
        try:
            with exclusive_lock(lock):
                assert lock.read_text() == f"{os.getpid()}\n"
            break
        except ValueError:  # the system has not yet tidied up
            time.sleep(0.1)
    else:
        pytest.fail("the lock outlived its process")


def test_a_lock_is_waited_for(tmp_path):
    lock, begun = tmp_path / "lock", threading.Event()

    def hold():
        with exclusive_lock(lock):
            begun.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    with exclusive_lock(lock, wait=10.0):
        pass
    thread.join()
