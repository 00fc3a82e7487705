"""Run directories with damaged files: one sentence, or the same numbers as without damage."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcfed import Result
from pcfed.storage.atomic import FileError
from pcfed.training import prepare
from tests.simulation.test_run import same
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 6\nbatch = 0.5\nsave_every = 2")
LONGER = CONFIG.replace("rounds = 6", "rounds = 9")
FILES = [
    "checkpoint.npz",
    "checkpoint.npz.previous",
    "config.json",
    "history.jsonl",
    "lock",
    "result.npz",
]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Path, Result]]:
    """A run directory with six rounds, and the result of nine."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        path = folder_with(folder, config=CONFIG)
        prepare(path, folder / "run").run()
        path.write_text(LONGER)
        yield folder, prepare(path, folder / "whole").run()


def damaged(content: bytes, draw: st.DataObject) -> bytes | None:
    """Return other contents for a file; None to delete it."""
    kind = draw.draw(st.sampled_from(["nothing", "bytes", "cut", "flip", "json", "longer"]))
    if kind == "nothing":
        return None
    if kind == "bytes":
        return draw.draw(st.binary(max_size=80))
    if kind == "json":
        return json.dumps(draw.draw(JSON)).encode()
    if kind == "longer":
        return content + draw.draw(st.binary(max_size=80))
    at = draw.draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut" or not content:
        return content[:at]
    flipped = content[at] ^ 1 << draw.draw(st.integers(0, 7))
    return content[:at] + bytes([flipped]) + content[at + 1 :]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(draw=st.data(), names=st.sets(st.sampled_from(FILES), min_size=1, max_size=3))
def test_damaged_run_directories(trained, draw, names):
    folder, whole = trained
    with tempfile.TemporaryDirectory() as home:
        place = Path(home) / "place"
        shutil.copytree(folder, place)
        for name in names:
            file = place / "run" / name
            content = damaged(file.read_bytes(), draw)
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        outside = {f: f.read_bytes() for f in place.glob("*") if f.is_file()}
        message = ""
        try:
            same(prepare(place / "train.toml", place / "run").run(), whole)
        except (ValueError, FileError) as error:
            message = str(error)
        assert "\n" not in message
        assert len(message) < 600 + 4 * len(home)
        assert {f: f.read_bytes() for f in place.glob("*") if f.is_file()} == outside
        assert [path.name for path in Path(home).iterdir()] == ["place"]
