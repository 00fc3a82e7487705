"""Messages say how to install an extra in a way that works, with or without a release."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pcfed.errors import install_command

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'pcfed[app]'"),
        ({"url": "https://example.org/pcfed.whl"}, "pip install 'pcfed[app]'"),
        ({"url": "file:///a%20clone", "dir_info": {}}, "pip install '/a clone[app]'"),
        (
            {"url": "file:///clone", "dir_info": {"editable": True}},
            "pip install --editable '/clone[app]'",
        ),
        ({"url": "file:///dist/pcfed.whl"}, "pip install '/dist/pcfed.whl[app]'"),
    ],
)
def test_the_command_names_where_pcfed_came_from(source, command, monkeypatch):
    text = None if source is None else json.dumps(source)
    found = SimpleNamespace(read_text=lambda _: text)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
    assert install_command("app") == command


def test_without_an_installation_the_command_has_the_name(monkeypatch):
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("fast") == "pip install 'pcfed[fast]'"


def test_only_the_page_of_installation_installs_pcfed():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {page.name for page in pages if re.search("pip install", page.read_text("utf-8"))}
    assert found == {"README.md", "installation.md"}
    sources = (ROOT / "src").rglob("*.py")
    literal = [path.name for path in sources if "pip install 'pcfed[" in path.read_text("utf-8")]
    assert literal == ["errors.py"]
