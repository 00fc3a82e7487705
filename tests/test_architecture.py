"""A module imports only from those above it, and the core needs only NumPy, SciPy and quadprog."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pcfed

ROOT = Path(pcfed.__file__).parent
LAYERS = [
    "arrays",
    "validation",
    "errors",
    "notebook",
    "storage",
    "kernels",
    "sets",
    "losses",
    "problem",
    "sampling",
    "algorithms",
    "simulation",
    "reference",
    "guarantees",
    "data",
    "config",
    "training",
    "experiments",
    "report",
    "federation",
    "cli",
    "__main__",
]


def imports(path: Path) -> set[str]:
    """The layers that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pcfed"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_every_module_is_in_a_layer_and_imports_from_above():
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        allowed = set(LAYERS[: LAYERS.index(layer) + 1])
        assert imports(path) <= allowed, path


def test_the_core_imports_nothing_heavy():
    code = (
        "import sys, pcfed, pcfed.reference; "
        "print(*{name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'flwr', 'matplotlib', 'pandas', 'pydantic', 'sklearn', 'cvxpy', 'numba'})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


@pytest.mark.parametrize("arguments", [["init"], ["--help"], []])
@pytest.mark.parametrize("package", ["typer", "rich", "pydantic"])
def test_without_its_packages_the_command_line_says_what_to_install(package, arguments):
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['pcfed', *{arguments!r}]; "
        "from pcfed.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "not installed; run pip install 'pcfed[app]'." in done.stderr
    assert len(done.stderr.splitlines()) == 1
