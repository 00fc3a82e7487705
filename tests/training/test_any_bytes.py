"""Whatever the bytes of a file are, there is a table or a configuration, or one sentence."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pcfed.training import ConfigError, build_setup, load_config, read_config, read_table
from tests.training.folders import (
    FULL_CONFIG,
    NORTH,
    OWN_CONFIG,
    SHARED,
    SHARED_CONFIG,
    folder_with,
)
from tests.training.test_bad_input import check_sentences

FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def attempt(action):
    """Do it; the only error may be sentences of readable length."""
    try:
        return action()
    except ValueError as error:
        caught = error
    assert type(caught) in (ValueError, ConfigError)
    check_sentences(caught)
    return None


def reading(suffix, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{suffix}"
        path.write_bytes(content)
        table = attempt(lambda: read_table(path))
        for name in table.names if table else ():
            attempt(lambda name=name: table.column(name))
            attempt(lambda name=name: table.numbers(name))


def spliced(content):
    """Bytes of a valid file with some of them replaced by others."""
    place = st.integers(0, len(content))
    return st.builds(
        lambda i, j, new: content[: min(i, j)] + new + content[max(i, j) :],
        place,
        place,
        st.binary(max_size=6)
        | st.sampled_from([b"", b"\xff", b'"', b",", b"\n", b"\0", b"]", b"{"]),
    )


def npz():
    stream = io.BytesIO()
    np.savez(stream, X=np.eye(3), y=np.array(["a", "b", "c"]))
    return stream.getvalue()


def npy():
    stream = io.BytesIO()
    np.save(stream, np.arange(6.0))
    return stream.getvalue()


NPZ, NPY = npz(), npy()


@FEW
@given(st.binary(max_size=200) | spliced(NORTH.encode()) | spliced(SHARED.encode()))
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"a,b\r1,2\r")
@example(b'a\n"1"2\n')
def test_any_bytes_as_csv(content):
    reading(".csv", content)


@FEW
@given(st.text(st.sampled_from('ab1,"\n\r \t;-_.e\0é'), max_size=40))
def test_any_text_as_csv(text):
    reading(".csv", text.encode())


@FEW
@given(st.binary(max_size=200) | spliced(NPZ))
def test_any_bytes_as_an_archive(content):
    reading(".npz", content)


@FEW
@given(spliced(NPY) | spliced(NPY[:128]))
def test_any_array_in_an_archive(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", content)
    reading(".npz", stream.getvalue())


@FEW
@given(
    st.binary(max_size=200)
    | spliced(SHARED_CONFIG.encode())
    | spliced(OWN_CONFIG.encode())
    | spliced(FULL_CONFIG.encode())
)
@example(b"a=" + b"[" * 5000)
@example(b"[model]\nkind = 0x" + b"f" * 5000)
@example(b"[model]\nkind = " + b"9" * 5000)
@example(b"['" + b"a" * 1000 + b"']\n['" + b"a" * 1000 + b"']")
def test_any_bytes_as_a_configuration(content):
    with tempfile.TemporaryDirectory() as folder:
        path = folder_with(Path(folder), config=content)
        attempt(lambda: build_setup(load_config(path)))


NUMBERS = [True, -1, 0, 1, 3, 2**70, 0.0, -0.0, 0.5, 1e300, float("nan"), float("inf")]
WORDS = ["", "auto", "theory", "\0", "\ud800", "x" * 999, "float32", "logistic", "least-squares"]
WORDS += [
    "FedAvg",
    "FedProx",
    "PCFedAvg",
    "Local",
    "north.csv",
    "all.csv",
    "..",
    "load",
    "area",
    "rooms",
    "home",
]
WORDS += ["l1(3)", "l1(", "box(0, 1)", "psd(2)", "simplex"]

VALUES = st.recursive(
    st.sampled_from(NUMBERS)
    | st.sampled_from(WORDS)
    | st.integers()
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["l1", "l2", "box", "radius", "set", "intersection", "blocks", "nuclear"]
            )
            | st.sampled_from(["group_l1", "halfspace", "psd", "scaled", "translated", "0:1", "a"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=6,
)

VALID = {
    "model": {"kind": "softmax", "intercept": False, "l2": 0.1},
    "data": {
        "file": "all.csv",
        "agent": "home",
        "target": "load",
        "features": ["area", "rooms"],
        "held_out": 0.4,
        "dtype": "float64",
    },
    "algorithm": {"name": "PCFedSplit", "prox": "auto", "relaxation": 1.8},
    "training": {"rounds": 5, "gap": 0.1, "batch": 1.0, "seed": 0, "norm_limit": 10.0},
    "defaults": {"constraint": "whole_space", "coupling": 0.1},
    "agents": {"north": {"constraint": {"l1": 5}, "coupling": 0.1, "target": "load"}},
}
PLACES = [
    *((section,) for section in VALID),
    *((section, key) for section, table in VALID.items() for key in table),
    *(("agents", "north", key) for key in ("constraint", "coupling", "target", "file")),
    *(("algorithm", key) for key in ("step", "penalty", "exact", "server_step")),
    *(("training", key) for key in ("participation", "local_steps", "eval_every", "other")),
]


@settings(FEW, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_any_value_in_any_place(changes):
    table = json.loads(json.dumps(VALID))
    for place, value in changes:
        inner = table
        for key in place[:-1]:
            inner = inner[key] if isinstance(inner, dict) and key in inner else {}
        if isinstance(inner, dict):
            inner[place[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        path = folder_with(Path(folder))
        config = attempt(lambda: read_config(table, path))
        if config is not None:
            json.dumps(config.resolved(), allow_nan=False)
            attempt(lambda: build_setup(config))


@FEW
@given(VALUES)
def test_any_constraint(value):
    table = json.loads(json.dumps(VALID))
    table["agents"]["north"]["constraint"] = value
    with tempfile.TemporaryDirectory() as folder:
        path = folder_with(Path(folder))
        attempt(lambda: build_setup(read_config(table, path)))
