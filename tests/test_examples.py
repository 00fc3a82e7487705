"""Every example runs from the command line, prints a table and draws its picture."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOK = ROOT / "examples" / "memory_budgets.ipynb"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    draws = "--picture" in script.read_text(encoding="utf-8")
    command = [sys.executable, str(script), "--quick"]
    command += ["--picture", "picture.png"] if draws else []
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if sum(c.isdigit() for c in line) >= 6]
    assert len(rows) >= 3, done.stdout
    assert "nan" not in done.stdout
    assert not any(row.split()[-1] == "no" for row in rows), done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"] * draws
    if draws:
        picture = (tmp_path / "picture.png").read_bytes()
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        assert 5_000 < len(picture) < 200_000


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_in_the_documentation(script):
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert f"examples/{script.name}" in page


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebook_runs(capsys):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    space: dict[str, object] = {"__name__": "__main__"}
    code = "\n\n\n".join(cells())
    assert code.count("quick=False") == 1
    for cell in cells():
        exec(cell.replace("quick=False", "quick=True"), space)
    assert "The shared model" in capsys.readouterr().out
    assert len(pyplot.get_fignums()) == 1
    pyplot.close("all")


def test_notebook_equals_the_script():
    make = runpy.run_path(str(ROOT / "docs" / "example_notebook.py"))
    assert cells() == [source for kind, source in make["cells"]() if kind == "code"]
    assert NOTEBOOK.stat().st_size < 200_000
