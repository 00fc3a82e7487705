"""Write the notebook of the first example, including outputs: python docs/example_notebook.py."""

import ast
import base64
import contextlib
import io
import json
from code import InteractiveInterpreter
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPT = EXAMPLES / "memory_budgets.py"
LAST = ("outcome = solve(quick=False)\nshow(outcome)", "figure = draw(outcome)")
"""The last cells of the notebook, in place of ``main``."""


def cells() -> list[tuple[str, str]]:
    """Return kind and source of every cell: docstring, imports, then one cell per definition."""
    text = SCRIPT.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    about = (ast.get_docstring(tree) or "").split("\n\n")
    title, *rest = [paragraph for paragraph in about if "python examples/" not in paragraph]
    found = [("markdown", "# " + "\n\n".join([title, *rest]))]
    starts = [node.lineno - len(node.decorator_list) for node in tree.body if _definition(node)]
    starts = [tree.body[1].lineno, *starts]  # imports and constants come first
    for first, after in pairwise(starts):  # the last definition is main
        source = "\n".join(lines[first - 1 : after - 1]).strip()
        found.append(("code", source.removeprefix("import argparse\n")))
    return found + [("code", source) for source in LAST]


def _definition(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def outputs(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell and return its printed text and its figure in the notebook format."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        InteractiveInterpreter(space).runsource(source, symbol="exec")
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if source == LAST[-1]:
        picture = io.BytesIO()
        space["figure"].savefig(picture, format="png", dpi=90)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    return found


def main() -> None:
    """Run all cells and write the notebook."""
    space: dict[str, Any] = {"__name__": "__main__"}
    written: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells()):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell["source"] = source.splitlines(keepends=True)
        if kind == "code":
            cell |= {"execution_count": number, "outputs": outputs(source, space)}
        written.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": written, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    SCRIPT.with_suffix(".ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
