"""The help of every command has examples, and all of them are valid commands."""

from __future__ import annotations

import shlex
import sys

import click
import pytest
import typer

from pcfed.__main__ import main
from pcfed.cli import MODULES


def all_commands() -> dict[str, click.Command]:
    """Return every command with its full name, such as ``"data list"``."""
    from importlib import import_module

    for module in MODULES.values():
        import_module(f"pcfed.cli.{module}")
    from pcfed.cli.app import app

    found = {}
    groups = [("", typer.main.get_command(app))]
    while groups:
        name, command = groups.pop()
        if hasattr(command, "commands"):
            groups += [
                (f"{name} {each}".strip(), inner) for each, inner in command.commands.items()
            ]
        else:
            found[name] = command
    return found


COMMANDS = all_commands()


def examples_of(command: click.Command) -> list[str]:
    title, *lines = (command.epilog or "").replace("\\[", "[").split("\n\n")
    assert title in ("Examples:", "")
    return lines


def parse(line: str) -> None:
    """Raise an error unless a line is a command with valid options and arguments."""
    program, *words = shlex.split(line)
    assert program == "pcfed"
    length = next(n for n in (3, 2, 1) if n == 1 or " ".join(words[:n]) in COMMANDS)
    command = COMMANDS[" ".join(words[:length])]
    command.make_context(words[0], words[length:])


def test_there_are_all_commands():
    assert {name.split()[0] for name in COMMANDS} == MODULES.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_are_valid(name):
    lines = examples_of(COMMANDS[name])
    assert lines
    for line in lines:
        assert line.startswith(f"pcfed {name}")
        assert len(line) <= 77
        parse(line)


@pytest.mark.parametrize(
    "line", ["pcfed train", "pcfed trains a", "pcfed report a --opn", "pcfed export a --to excel"]
)
def test_wrong_examples_would_be_found(line):
    with pytest.raises((click.ClickException, KeyError)):
        parse(line)


def test_examples_are_on_lines_of_their_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pcfed", "train", "--help"])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert set(examples_of(COMMANDS["train"])) <= set(lines)
