"""Packages import only what the graph allows, and the core needs only NumPy, SciPy and quadprog."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pcfed
from pcfed.errors import install_command

ROOT = Path(pcfed.__file__).parent
BASE = "foundations"
MODULES = {
    "arrays": BASE,
    "validation": BASE,
    "errors": BASE,
    "extras": BASE,
    "notebook": BASE,
    "palette": BASE,
    "standardize": "problem",
    "sampling": "problem",
    "tree_sums": "problem",
    "reference": "simulation",
    "__main__": "cli",
}
"""Modules beside the packages, and the node of the graph that each belongs to."""

GRAPH = {
    BASE: set(),
    "storage": {BASE},
    "kernels": {BASE},
    "sets": {BASE, "kernels"},
    "losses": {BASE, "kernels"},
    "privacy": {BASE, "losses"},
    "problem": {BASE, "kernels", "sets", "losses", "privacy"},
    "algorithms": {BASE, "kernels", "sets", "losses", "privacy", "problem"},
    "simulation": {BASE, "storage", "sets", "losses", "privacy", "problem", "algorithms"},
    "guarantees": {BASE, "sets", "losses", "problem", "simulation"},
    "estimators": {
        *(BASE, "sets", "losses", "problem", "algorithms", "simulation", "guarantees"),
    },
    "data": {BASE, "storage"},
    "config": {BASE, "storage", "sets", "losses", "privacy", "problem", "algorithms", "data"},
    "training": {
        *(BASE, "storage", "sets", "losses", "problem"),
        *("algorithms", "simulation", "guarantees", "data", "config"),
    },
    "experiments": {
        *(BASE, "storage", "sets", "losses", "problem"),
        *("algorithms", "simulation", "guarantees", "data"),
        "config",  # imports the files of users that add methods
    },
    "report": {
        *(BASE, "storage", "sets", "losses", "algorithms", "simulation"),
        *("guarantees", "data", "training", "experiments"),
    },
    "federation": {
        *(BASE, "storage", "sets", "privacy", "problem", "algorithms", "simulation"),
        *("guarantees", "data", "config", "training", "report"),
    },
    "cli": {
        *(BASE, "storage", "problem", "algorithms", "simulation", "guarantees"),
        *("data", "training", "experiments", "report", "federation"),
    },
}
"""For each package, those that it imports from: an import that is not here needs a reason."""


def node(name: str) -> str:
    """Return the node of the graph of a package or module."""
    return MODULES.get(name, name)


def imports(path: Path) -> set[str]:
    """Return the nodes that a file imports from."""
    found = set()
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("pcfed"):
            parts = (each.module or "").split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in each.names]
            found |= {node(name) for name in names}
    return found


def test_packages_import_what_the_graph_says_and_nothing_else():
    found: dict[str, set[str]] = {name: set() for name in GRAPH}
    for path in ROOT.rglob("*.py"):
        name = node(path.relative_to(ROOT).parts[0].removesuffix(".py"))
        if name != "__init__":
            found[name] |= imports(path) - {name}
    assert found == GRAPH


def test_the_graph_has_no_cycle():
    order = list(GRAPH)
    for name, needed in GRAPH.items():
        assert all(order.index(each) < order.index(name) for each in needed), name


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
    assert f"not installed; run {install_command('app')}." in done.stderr
    assert len(done.stderr.splitlines()) == 1
