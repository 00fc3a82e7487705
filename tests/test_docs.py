"""The documentation is correct: its code runs with the stated output, its lists are complete."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from pydantic import BaseModel

from pcfed.algorithms.registry import algorithm_names, find_algorithm, parameters
from pcfed.config.json_schema import file_model, keys_markdown
from tests.test_architecture import BASE, GRAPH, MODULES, node
from tests.test_architecture import ROOT as PACKAGE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
KINDS = {
    "python": "runs; all blocks of a page share one session",
    "sh": "runs in the working directory of that session",
    "output": "the expected output of the previous block",
    "toml": "is written to a file in that directory if it has a title",
    "console": "does not run: it installs, takes long or needs other machines",
    "text": "is not code",
}
FENCE = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    title: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = FENCE.finditer(text)
    return [Block(*fence.groups(), text.count("\n", 0, fence.start()) + 2) for fence in fences]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_known_kind(page):
    text = page.read_text(encoding="utf-8")
    assert {block.kind for block in blocks(page)} <= KINDS.keys()
    rest = FENCE.sub("", text)
    assert "```" not in rest, "a fence that the test cannot read"
    if page.stem != "federation":  # its commands are in tests/federation
        assert not re.search(r"\n\n {4}\S", rest), "an indented block; use a fence with a kind"


def runnable(page: Path) -> bool:
    return any(block.kind in ("python", "sh") for block in blocks(page))


@pytest.mark.parametrize("page", list(filter(runnable, PAGES)), ids=lambda page: page.stem)
def test_page_runs_with_the_stated_output(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    space: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                code = "\n" * (block.line - 1) + block.text  # keeps the line numbers of the page
                exec(compile(code, str(page), "exec", dont_inherit=True), space)
            printed = stream.getvalue()
        elif block.kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{where}: {done.stderr}"
            printed = done.stdout
        elif block.kind == "output":
            same = OutputChecker().check_output(
                block.text, printed, ELLIPSIS | NORMALIZE_WHITESPACE
            )
            assert same, f"{where} has\n{block.text}but it prints\n{printed}"
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")


def test_a_different_output_is_an_error(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```output\n2\n```\n")
    with pytest.raises(AssertionError, match=r"page.md, line 6 has\s+2\s+but it prints\s+1"):
        test_page_runs_with_the_stated_output(page, tmp_path, monkeypatch)


def test_links_of_the_readme_exist():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert links
    assert not missing


def test_the_reference_has_every_public_name():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("api/*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    packages = [
        path.parent for path in PACKAGE.rglob("__init__.py") if "__all__" in path.read_text()
    ]
    names = {".".join(("pcfed", *path.relative_to(PACKAGE).parts)) for path in packages}
    assert names | {"pcfed.reference", "pcfed.losses.torch_loss.TorchLoss"} <= documented


def test_the_page_of_sets_shows_sets_that_exist():
    from pcfed import sets

    page = (DOCS / "choose-a-set.md").read_text(encoding="utf-8")
    pictured = re.findall(r"\(sets/(\w+)\.png\)", page)
    assert len(set(pictured)) == page.count(".png") >= 21
    assert all(issubclass(getattr(sets, name), sets.ConvexSet) for name in pictured)
    assert all((DOCS / "sets" / f"{name}.png").exists() for name in pictured)


def test_the_page_of_commands_has_every_command():
    from pcfed.cli import MODULES

    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `pcfed (\w+)", page, re.MULTILINE)) == MODULES.keys()


def test_the_architecture_page_lists_the_packages_in_order():
    page = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert set(listed) == {*GRAPH, *MODULES} - {BASE}
    order = [list(GRAPH).index(node(name)) for name in listed]
    assert order == sorted(order)


def test_the_architecture_page_names_modules_that_exist():
    page = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = re.findall(r"`(\w+/\w+\.py)`", page)
    assert len(modules) > 30
    assert not [name for name in modules if not any((at / name).exists() for at in (PACKAGE, ROOT))]


@pytest.mark.parametrize("file", ["train", "server", "agent"])
def test_the_configuration_page_has_every_key(file):
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert f"<!-- keys: {file} -->" in page  # docs/hooks.py replaces it with this table
    table = keys_markdown(file)
    documented = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]*\| [^|]+", table, re.MULTILINE)
    assert sorted(documented) == sorted(keys(file_model(file)))


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield the keys of a model and of the models in it, without the names of tables."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if name == "algorithm":  # its keys are the parameters of the algorithms
            algorithms = map(find_algorithm, algorithm_names())
            yield from {"name", *(each.name for kind in algorithms for each in parameters(kind))}
        elif models:
            yield from keys(models[-1])
        else:
            yield name
