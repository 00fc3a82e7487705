"""``pcfed federation``: agents as processes of their own, over Flower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pcfed.cli.app import app, console, errors, say

federation_app = typer.Typer(help="Agents as processes of their own, over Flower.")
app.add_typer(federation_app, name="federation", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Folder of the federation.")]
HERE = Path("federation")


@federation_app.command()
def up(
    agents: Annotated[int, typer.Option(min=2, help="Agents of the example.")] = 4,
    secure: Annotated[bool, typer.Option("--secure", help="TLS, and keys for agents.")] = False,
    folder: Folder = HERE,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, with example data where there is none."""
    from pcfed.flower.local import LocalFederation

    federation = LocalFederation(folder)
    federation.write_example(agents)
    running = federation.up(secure=secure)
    say(
        f"{len(running.processes) - 1} agents and a SuperLink on port {running.port}. Next: "
        f"pcfed federation run --folder {folder}"
    )


@federation_app.command()
def run(folder: Folder = HERE) -> None:
    """Train as the server's file says; the same command goes on after an interruption."""
    from pcfed.flower.local import LocalFederation

    federation = LocalFederation(folder)
    if federation.running is None:
        raise ValueError(f"federation: nothing runs in {folder}; start it with up.")
    with errors.status("training …"):
        finished = federation.run()
    if not finished:
        errors.print(f"[red]The run did not come to its end; look into {folder / 'logs'}.[/red]")
        raise typer.Exit(1)
    _show(folder)


@federation_app.command()
def status(folder: Folder = HERE) -> None:
    """Show which processes run and how far the training is."""
    from pcfed.flower.local import LocalFederation

    table = Table("process", "runs")
    for name, alive in LocalFederation(folder).alive().items():
        table.add_row(name, "yes" if alive else "no")
    console.print(table)
    if (folder / "server.json").exists():
        _show(folder)


@federation_app.command()
def down(folder: Folder = HERE) -> None:
    """Stop all processes of the federation."""
    from pcfed.flower.local import LocalFederation

    say(f"{LocalFederation(folder).down()} processes stopped.")


@federation_app.command()
def keys(
    agents: Annotated[list[str], typer.Argument(help="Names of the agents.")],
    host: Annotated[list[str], typer.Option(help="Names or addresses of the server.")],
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path("keys"),
) -> None:
    """Make an authority, the server's certificate and a key for every agent."""
    from pcfed.flower.keys import make_keys

    make_keys(folder, host, agents)
    say(
        f"{folder}: give every agent ca.crt and its own .key; the server keeps server.crt, "
        "server.key, ca.crt and all .pub files."
    )


def _show(folder: Path) -> None:
    """Show who was counted in each round, and the audit."""
    facts = json.loads((folder / "server.json").read_text("utf-8"))
    table = Table("round", "counted", "refused")
    for entry in facts["history"]:
        refused = "; ".join(f"{name}: {why}" for name, why in entry["refused"].items())
        table.add_row(str(entry["round"]), ", ".join(entry["counted"]), refused)
    console.print(table)
    if "audit" in facts:
        worst = max(facts["audit"].values(), default=0.0)
        say(f"Audit: means of private vectors are off from the server's by {worst:.1e} at most.")
    else:
        say(f"{facts['no_audit']} Start it and run again.")
