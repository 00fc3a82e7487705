"""Whatever a checkpoint, a result or a journal holds, it is read or refused in one sentence."""

from __future__ import annotations

import io
import json
import tempfile
import tracemalloc
import warnings
import zipfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pcfed import Gap, PCFedSplit, Result, read_journal
from pcfed.sets import L1Ball
from pcfed.storage.archive import load_arrays, read_members, save_arrays
from tests.federations import regressions
from tests.simulation.checkpointed import run
from tests.simulation.test_checkpoint import Killed, dying_at

FEW = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
PROBLEM = regressions([L1Ball(2.0), L1Ball(3.0)], n=3, samples=4)
METHOD = PCFedSplit()


def going_on(folder, **options):
    """Go on from the checkpoint in a folder."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* can't be used")
        return run(
            PROBLEM,
            METHOD,
            **{"rounds": 5, "output": "average", "stop": Gap(1e-9), "resume": True, **options},
            checkpoint=folder / "run.ckpt",
            journal=folder / "history.jsonl",
        )


def starting_from(folder):
    """Load a result, look at it and go on from it."""
    result = Result.load(folder / "result.npz")
    assert repr(result)
    return run(PROBLEM, METHOD, rounds=1, x0=result)


READ = {
    "run.ckpt": going_on,
    "result.npz": starting_from,
    "history.jsonl": lambda folder: read_journal(folder / "history.jsonl"),
}
every_file = pytest.mark.parametrize("name", READ)
every_archive = pytest.mark.parametrize("name", ["run.ckpt", "result.npz"])


@cache
def originals():
    """The bytes of a checkpoint after three rounds, of its journal, and of a result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with pytest.raises(Killed):
            going_on(folder, every=3, callbacks=[dying_at(4)])
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        going_on(folder).save(folder / "result.npz")
        return contents | {"result.npz": (folder / "result.npz").read_bytes()}


@contextmanager
def folder_with(name=None, content=b""):
    """A folder with the three files, one of them replaced; nothing beside it may change."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "inside"
        folder.mkdir()
        (Path(parent) / "beside").write_bytes(b"not ours")
        for each in READ:
            (folder / each).write_bytes(originals()[each])
        if name is not None:
            (folder / name).write_bytes(content)
        yield folder
        assert sorted(path.name for path in Path(parent).iterdir()) == ["beside", "inside"]
        assert (Path(parent) / "beside").read_bytes() == b"not ours"
        allowed = {*READ, "run.ckpt.lock", "run.ckpt.previous"}
        assert {path.name for path in folder.iterdir()} <= allowed


def attempt(read, folder):
    """Read it; the only error may be one line. Return what was read, None if it was refused."""
    try:
        found = read(folder)
    except ValueError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        assert len(message) < 800
        assert message.endswith("."), message
        return None
    return found


def trying(name, content):
    with folder_with(name, content) as folder:
        return attempt(READ[name], folder)


@every_file
def test_the_originals_are_read(name):
    assert trying(name, originals()[name]) is not None


@every_file
@settings(FEW, max_examples=40)
@given(content=st.binary(max_size=300))
@example(content=b"")
@example(content=b"[" * 100_000 + b"\n")
@example(content=b"9" * 5000 + b"\n")
@example(content=b"\xff\xfe{\x00}\x00\n\x00")
def test_any_bytes(name, content):
    trying(name, content)


@every_file
@FEW
@given(data=st.data())
def test_bytes_that_are_cut_off_or_changed(name, data):
    content = bytearray(originals()[name])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for bit in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), max_size=3)):
            content[bit // 8] ^= 1 << bit % 8
    trying(name, bytes(content))


VALUES = (
    st.sampled_from([None, True, -1, 0, 1, 3, 10**30, 10**400, 0.5, -0.5, 1e308, np.nan, np.inf])
    | st.sampled_from(["", "finished", "stopped", "FedAvg", "\0\n", "\ud800", "x" * 999])
    | st.sampled_from([[], [[0, 9, "no"]], [[0, 0, "no"]], [[0.5, 0, "no"]], [[0, 0]]])
    | st.sampled_from([{}, {"a": 1}, {"seed": "0\n0"}])
)

CHANGES = {
    "gone": lambda array, draw: None,
    "empty": lambda array, draw: array[..., :0] if array.ndim else np.empty(0),
    "longer": lambda array, draw: np.concatenate([array, array]) if array.ndim else array[None],
    "shorter": lambda array, draw: array[1:] if array.ndim else array[None],
    "turned": lambda array, draw: np.ascontiguousarray(array.T),
    "flat": lambda array, draw: array.reshape(-1),
    "a number": lambda array, draw: np.array(1.0),
    "retyped": lambda array, draw: array.astype(draw(st.sampled_from(["f4", ">f8", "i4", "c16"]))),
    "text": lambda array, draw: array.astype("U8"),
    "fields": lambda array, draw: np.zeros(array.shape, [("a", "f8"), ("b\n", "i4")]),
    "times": lambda array, draw: np.zeros(array.shape, "M8[s]"),
    "not finite": lambda array, draw: array * draw(st.sampled_from([np.nan, np.inf])),
    "negative": lambda array, draw: -array - 1,
    "huge": lambda array, draw: array * 0 + np.asarray(2**62, array.dtype),
}
ALWAYS_REFUSED = {"gone", "longer", "retyped", "text", "fields", "times"}


def resigned(name, change):
    """Bytes of an archive with other contents and a checksum that is right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(originals()[name])
        about, arrays = load_arrays(path)
        change(about, arrays)
        save_arrays(path, about, arrays)
        return path.read_bytes()


@every_archive
@pytest.mark.parametrize("kind", CHANGES)
@settings(FEW, max_examples=20)
@given(data=st.data())
def test_other_arrays_under_a_right_checksum(name, kind, data):
    def change(about, arrays):
        which = data.draw(st.sampled_from(sorted(arrays)))
        changed = CHANGES[kind](arrays.pop(which), data.draw)
        if changed is not None:
            arrays[which] = changed

    with warnings.catch_warnings(action="ignore"):  # of the changes: NaN as an integer
        content = resigned(name, change)
    assert trying(name, content) is None or kind not in ALWAYS_REFUSED


@every_archive
@FEW
@given(data=st.data())
def test_arrays_that_are_renamed_or_swapped(name, data):
    def change(about, arrays):
        names = st.sampled_from(sorted(arrays))
        one, other = data.draw(names), data.draw(names | st.sampled_from(["server/", "../../up"]))
        arrays[one], arrays[other] = arrays.get(other, np.zeros(3)), arrays.pop(one)

    trying(name, resigned(name, change))


@every_archive
@FEW
@given(data=st.data())
def test_other_facts_under_a_right_checksum(name, data):
    def change(about, arrays):
        for _ in range(data.draw(st.integers(1, 2))):
            key = data.draw(st.sampled_from([*sorted(about), "other"]))
            about[key] = data.draw(VALUES)

    trying(name, resigned(name, change))


@FEW
@given(data=st.data())
def test_other_records_in_a_journal(data):
    line, *rest = originals()["history.jsonl"].splitlines()
    row = json.loads(line)
    key = data.draw(st.sampled_from([*row, "other"]))
    row[key] = data.draw(
        VALUES | st.sampled_from([[1.0], [1, 2], [True, 2.0], ["1", "2"], [[1.0]], [None, 1.0]])
    )
    found = trying("history.jsonl", b"\n".join([json.dumps(row).encode(), *rest]))
    for record in found or ():
        assert type(record.round) is int
        assert record.distance.dtype == np.float64


def not_finite(about, arrays):
    arrays["server/z"][0] = np.nan


def not_finite_in_private(about, arrays):
    arrays["private/U"][1, 2] = np.inf


def of_another_method(about, arrays):
    about["algorithm"] = "PCFedAvg"


def of_another_size(about, arrays):
    for name in list(arrays):
        if name.startswith(("server/", "private/")) and arrays[name].shape[-1] == 3:
            arrays[name] = arrays[name][..., :2].copy()


def shorter(about, arrays):
    arrays["private/U"] = arrays["private/U"][:1]


def rounder(about, arrays):
    arrays["server/y_mean"] = arrays["server/y_mean"].astype(np.float32)


WHY = {
    not_finite: "its state is not finite",
    not_finite_in_private: "its state is not finite",
    of_another_method: "its state is not one of PCFedSplit for this problem",
    of_another_size: "its state is not one of PCFedSplit for this problem",
    shorter: r"its array 'private/U' is <f8 of shape \(1, 3\), not <f8 of shape \(2, 3\)",
    rounder: r"its array 'server/y_mean' is <f4 of shape \(3,\), not <f8 of shape \(3,\)",
}


@pytest.mark.parametrize("change", WHY)
def test_a_checkpoint_that_cannot_be_says_why(change):
    content = resigned("run.ckpt", change)
    refused = pytest.raises(ValueError, match=f"run.ckpt can't be used: {WHY[change]}; give the")
    with folder_with("run.ckpt", content) as folder, refused:
        going_on(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (not_finite, "must have a finite state"),
        (of_another_size, "must have a state of PCFedSplit"),
    ],
)
def test_a_result_that_nothing_can_go_on_from_can_still_be_looked_at(change, why):
    with folder_with("result.npz", resigned("result.npz", change)) as folder:
        assert Result.load(folder / "result.npz").status == "finished"
        with pytest.raises(ValueError, match=f"x0 {why}"):
            starting_from(folder)


@pytest.mark.parametrize("dtype", ["<f8", "|S0", "<U0", "|V0", "|S1", "|O", "(9,)<f8"])
@pytest.mark.parametrize("shape", ["(1000000000000,)", "(1000000, 1000000)", "(-1,)", "(10**12,)"])
def test_a_header_that_claims_too_much_takes_no_memory(dtype, shape):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", member)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r" in 'a'$"):
            list(read_members(stream))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_header_that_is_too_long_is_refused_in_one_line():
    text = b"{" + b" " * 20_000 + b"\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ValueError, match=r"^Header info length .* in 'a'$"):
        list(read_members(stream))
