"""Draw the graph of packages of ARCHITECTURE.md: python docs/architecture_pictures.py."""

import ast
from pathlib import Path

from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = Path(__file__).parent
PACKAGE = FOLDER.parent / "src" / "pcfed"
SKIPPED = {"__init__", "__main__"}
BASE = "arrays, errors, palette,\nvalidation, notebook"
GROUPED = dict.fromkeys(
    ("arrays", "errors", "extras", "notebook", "palette", "validation"), BASE
) | {
    "sampling": "problem",
    "standardize": "problem",
    "tree_sums": "problem",
    "reference": "simulation",
}
"""Single modules that are drawn together."""
CORE, APPLICATION = "#0072B2", "#D55E00"
Graph = dict[str, set[str]]


def imports(path: Path) -> set[str]:
    """Return the packages of pcfed that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pcfed"):
            parts = (node.module or "").split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            found |= {GROUPED.get(name, name) for name in names}
    return found


def package_graph() -> Graph:
    """Return, for each package or single module, the others that it imports from."""
    graph: Graph = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        name = GROUPED.get(name, name)
        if name not in SKIPPED:
            graph.setdefault(name, set()).update(imports(path))
    return {name: (found & graph.keys()) - {name} for name, found in graph.items()}


def reachable(graph: Graph, start: str) -> set[str]:
    """Return everything that a package imports, directly or through others."""
    found = set(graph[start])
    for name in graph[start]:
        found |= reachable(graph, name)
    return found


def reduced(graph: Graph) -> Graph:
    """Return the graph without the edges that follow from others (its transitive reduction)."""
    return {
        name: {
            each
            for each in found
            if not any(each in reachable(graph, other) for other in found - {each})
        }
        for name, found in graph.items()
    }


def level(graph: Graph, name: str) -> int:
    """Return the length of the longest chain of imports that begins at a package."""
    return 1 + max((level(graph, each) for each in graph[name]), default=-1)


COLUMNS = {
    "cli": 1.5,
    "federation": 1.5,
    "report": 1.5,
    "training": 0,
    "experiments": 4,
    "estimators": -3,
    "guarantees": -1.5,
    "simulation": 0,
    "config": 3,
    "algorithms": -1.5,
    "problem": -1.5,
    "privacy": -3,
    "losses": -3,
    "sets": 0,
    "data": 4.5,
    "kernels": -1.5,
    "storage": 3,
    BASE: 0.75,
}
"""Where packages are drawn from left to right, so that no arrow crosses a box."""


def positions(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return where each package is drawn: in its row by the length of its chain of imports."""
    return {name: (COLUMNS[name], level(graph, name)) for name in graph}


def core() -> set[str]:
    """Return the packages that ``import pcfed`` needs: they depend on NumPy and SciPy only."""
    graph = package_graph()
    found = imports(PACKAGE / "__init__.py") & graph.keys()
    return found.union(*(reachable(graph, name) for name in found))


def main() -> None:
    """Draw the packages as boxes, with arrows to the packages that they import from."""
    graph = package_graph()
    edges = reduced(graph)
    places = positions(edges)
    needed = core()
    height = max(y for _, y in places.values())
    figure, axis = pyplot.subplots(figsize=(7.4, 0.8 * (height + 1)), layout="constrained")
    for name, (x, y) in places.items():
        color = CORE if name in needed else APPLICATION
        style = "round,pad=0.02,rounding_size=0.1"
        half = 1.35 if name == BASE else 0.95
        shape = FancyBboxPatch(
            (x - half, y - 0.3), 2 * half, 0.6, boxstyle=style, fc="white", ec=color
        )
        axis.add_patch(shape)
        axis.text(x, y, name, ha="center", va="center", fontsize=14)
        for each in edges[name]:
            end_x, end_y = places[each]
            start, end = (x, y - 0.32), (end_x, end_y + 0.32)
            arrow = FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=8, color="#888888", zorder=0
            )
            axis.add_patch(arrow)
    across = [x for x, _ in places.values()]
    axis.set(xlim=(min(across) - 1, max(across) + 1), ylim=(-0.5, height + 0.5))
    axis.axis("off")
    figure.savefig(FOLDER / "architecture.png", dpi=110)


if __name__ == "__main__":
    main()
