"""The documentation is true: its code runs and prints what it says, its lists are complete."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_architecture import LAYERS
from tests.test_architecture import ROOT as PACKAGE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
KINDS = {
    "python": "runs, all blocks of a page in one session",
    "sh": "runs, in the folder of that session",
    "output": "what the block before it prints",
    "toml": "a file for that folder, if it has a title",
    "console": "does not run here: it installs, takes long or needs other machines",
    "text": "no code",
}
FENCE = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of a page."""

    kind: str
    title: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = FENCE.finditer(text)
    return [Block(*each.groups(), text.count("\n", 0, each.start()) + 2) for each in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_known_kind(page):
    text = page.read_text(encoding="utf-8")
    assert {block.kind for block in blocks(page)} <= KINDS.keys()
    rest = FENCE.sub("", text)
    assert "```" not in rest, "a fence that the test cannot read"
    if page.stem != "federation":  # its commands are in tests/federation
        assert not re.search(r"\n\n {4}\S", rest), "an indented block: say of which kind it is"


def runnable(page: Path) -> bool:
    return any(block.kind in ("python", "sh") for block in blocks(page))


@pytest.mark.parametrize("page", list(filter(runnable, PAGES)), ids=lambda page: page.stem)
def test_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    space: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                lines = "\n" * (block.line - 1) + block.text  # so that tracebacks name the line
                exec(compile(lines, str(page), "exec", dont_inherit=True), space)
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


def test_blocks_that_print_something_else_are_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```output\n2\n```\n")
    with pytest.raises(AssertionError, match=r"page.md, line 6 has\s+2\s+but it prints\s+1"):
        test_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch)


def test_links_of_the_readme_lead_somewhere():
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


def test_the_sets_page_shows_sets_that_exist():
    from pcfed import sets

    page = (DOCS / "choose-a-set.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(sets/(\w+)\.png\) \| \*\*`\1\(", page)
    assert len(set(shown)) == page.count(".png") >= 21
    assert all(issubclass(getattr(sets, name), sets.ConvexSet) for name in shown)
    assert all((DOCS / "sets" / f"{name}.png").exists() for name in shown)


def test_the_page_of_commands_has_every_command():
    from pcfed.cli import MODULES

    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `pcfed (\w+)", page, re.MULTILINE)) == MODULES.keys()


def test_the_map_of_the_code_has_the_layers_in_their_order():
    page = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == LAYERS
