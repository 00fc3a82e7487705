"""``pcfed federation``: agents as processes of their own, over Flower."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pcfed.cli.app import app, console, errors, say

if TYPE_CHECKING:
    from pcfed.federation.local_federation import LocalFederation

federation_app = typer.Typer(help="Agents as processes of their own, over Flower.")
app.add_typer(federation_app, name="federation", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Folder of the federation.")]
HERE = Path("federation")
ROUNDS = 10
"""Rounds that are shown at most."""


@federation_app.command()
def up(
    agents: Annotated[int, typer.Option(min=2, help="Agents of the example.")] = 4,
    secure: Annotated[bool, typer.Option("--secure", help="TLS, and keys for agents.")] = False,
    folder: Folder = HERE,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, with example data where there is none."""
    from pcfed.federation.local_federation import LocalFederation

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
    federation = _running(folder)
    view = View(federation.training)
    try:
        with view:
            finished = federation.run(look=view.look)
    except KeyboardInterrupt:
        errors.print("The training goes on without this view; look at status, stop it with down.")
        raise typer.Exit(130) from None
    _end(federation, finished)
    _show_history(federation.training)
    _show_result(federation.training)


@federation_app.command()
def audit(folder: Folder = HERE) -> None:
    """Check, without training, that the agents' private vectors add up to the server's."""
    federation = _running(folder)
    with errors.status("audit …"):
        finished = federation.run("audit")
    _end(federation, finished)
    _show_audit(federation.training)


@federation_app.command()
def status(folder: Folder = HERE) -> None:
    """Show which processes run, how far the training is, who is here and who is late."""
    from pcfed.federation.local_federation import LocalFederation
    from pcfed.federation.paths import PROGRESS
    from pcfed.federation.status_file import read_progress

    federation = LocalFederation(folder)
    table = Table("process", "runs")
    for name, alive in federation.alive().items():
        table.add_row(escape(name), "yes" if alive else "no")
    console.print(table)
    training = federation.training
    if facts := read_progress(training / PROGRESS):
        say("\n".join(told(facts)))
        say(f"This was written {time.time() - facts['updated']:.0f} s ago.")
    _show_history(training)
    _show_result(training)


@federation_app.command()
def down(folder: Folder = HERE) -> None:
    """Stop all processes of the federation."""
    from pcfed.federation.local_federation import LocalFederation

    say(f"{LocalFederation(folder).down()} processes stopped.")


@federation_app.command()
def keys(
    host: Annotated[list[str], typer.Option(help="Names or addresses of the server.")],
    agents: Annotated[
        list[str] | None, typer.Argument(help="Names of agents who do not make their own keys.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path("keys"),
) -> None:
    """Make an authority, the server's certificate and keys for agents."""
    from pcfed.federation.keys import make_keys

    make_keys(folder, host, agents or [])
    say(
        f"{folder}: give every agent ca.crt and its own .key, if there is one; the server keeps "
        "server.crt, server.key, ca.crt and all .pub files."
    )


class View:
    """What is seen of a training while it runs: live on a terminal, else a line a round.

    Parameters
    ----------
    training : Path
        The folder of what the server keeps of it.
    """

    def __init__(self, training: Path) -> None:
        from pcfed.federation.paths import HISTORY, PROGRESS

        self._progress, self._history = training / PROGRESS, training / HISTORY
        self._live = Live(console=errors, transient=True) if errors.is_terminal else None
        self._old = self._progress.stat().st_mtime_ns if self._progress.exists() else 0
        self._seen = 0

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def look(self) -> None:
        """Show what is new."""
        from pcfed.federation.status_file import read_history, read_progress

        if not self._progress.exists() or self._progress.stat().st_mtime_ns == self._old:
            if self._live:
                self._live.update("starting …")
            return
        facts = read_progress(self._progress)
        if self._live:
            self._live.update(Text("\n".join(told(facts, time.time()))))
            return
        self._seen = max(self._seen, facts.get("first", 0))
        for entry in read_history(self._history, ROUNDS):
            if entry["round"] >= self._seen:
                self._seen = entry["round"] + 1
                counted, refused, missing = _who(entry)
                more = "".join(
                    f"; {word} {who}"
                    for word, who in (("refused", refused), ("missing", missing))
                    if who
                )
                say(f"round {entry['round'] + 1} of {facts['rounds']}: counted {counted}{more}")


def told(facts: dict[str, Any], now: float | None = None) -> list[str]:
    r"""Return what a progress file says, as lines for people.

    Parameters
    ----------
    facts : dict
        What the file holds.
    now : float, optional
        The time; that of the file by default.

    Examples
    --------
    >>> facts = {"stage": "training", "round": 3, "rounds": 9, "first": 1, "began": 100.0,
    ...          "since": 160.0, "updated": 170.0, "roster": ["a", "b"], "here": ["a"],
    ...          "late": ["a"]}
    >>> print(*told(facts), sep="\n")
    training: 3 of 9 rounds done, 70 s, about 170 s left
    here: a
    away: b
    late: a
    """
    done, rounds = facts.get("round", 0), facts["rounds"]
    now = facts["updated"] if now is None else now
    spent = now - facts["began"]
    line = f"{facts['stage']}: {done} of {rounds} rounds done, {spent:.0f} s"
    new = done - facts.get("first", done)
    if facts["stage"] == "training" and new:
        pace = (facts["since"] - facts["began"]) / new
        line += f", about {max(0.0, pace * (rounds - done) - now + facts['since']):.0f} s left"
    if facts.get("attempt", 1) > 1 and facts["stage"] == "training":
        line += f", attempt {facts['attempt']}"
    here = facts.get("here", [])
    away = [name for name in facts.get("roster", []) if name not in here]
    refused = [f"{name} ({why})" for name, why in facts.get("refused", {}).items()]
    people = {
        "here": here,
        "away": away,
        "answered": facts.get("answered", []),
        "waiting for": facts.get("waiting", []),
        "late": facts.get("late", []),
        "refused": refused,
    }
    lines = [line, *(f"{word}: {', '.join(names)}" for word, names in people.items() if names)]
    return [*lines, *(str(facts[key]) for key in ("note", "why") if key in facts)]


def _running(folder: Path) -> LocalFederation:
    """Return the federation of a folder, which must run."""
    from pcfed.federation.local_federation import LocalFederation

    federation = LocalFederation(folder)
    if federation.running is None:
        raise ValueError(f"federation: nothing runs in {folder}; start it with up.")
    return federation


def _end(federation: LocalFederation, finished: bool) -> None:
    """Say why a run did not come to its end, and leave."""
    from pcfed.federation.paths import PROGRESS
    from pcfed.federation.status_file import read_progress

    if finished:
        return
    facts = read_progress(federation.training / PROGRESS)
    why = "The run did not come to its end: Flower failed, or another run is at work."
    if facts.get("stage") == "failed":
        why = facts["why"]
    text = f"{why} The same command goes on; more is in {federation.folder / 'logs'}."
    errors.print(f"[red]{escape(text)}[/red]", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


def _show_history(training: Path) -> None:
    """Show who was counted in the last rounds, and what owners allow to be told."""
    from pcfed.federation.paths import HISTORY
    from pcfed.federation.status_file import read_history

    table = Table("round", "counted", "refused", "missing", "told before it")
    for entry in read_history(training / HISTORY, ROUNDS):
        table.add_row(
            str(entry["round"] + 1), *map(escape, (*_who(entry), _figures(entry["told"])))
        )
    if table.row_count:
        console.print(table)


def _show_result(training: Path) -> None:
    """Show what came out, if it has come to an end."""
    from pcfed.federation.certification import Certified
    from pcfed.federation.paths import RESULT
    from pcfed.federation.status_file import read_progress

    facts = read_progress(training / RESULT)
    if "finished" not in facts:
        return
    if facts["told"]:
        say(f"In the end: {_figures(facts['told'])}.")
    if "certificate" in facts:
        say(Certified(**facts["certificate"]).sentence)
    else:
        say(facts["no_certificate"])
    _show_audit(training)
    say(
        f"Ended after {facts['rounds']} rounds. Have confirmed it and now have their own models: "
        f"{', '.join(facts['finished']) or 'nobody'}. Who is missing gets it by another run."
    )


def _show_audit(training: Path) -> None:
    from pcfed.federation.paths import RESULT
    from pcfed.federation.status_file import read_progress

    facts = read_progress(training / RESULT)
    if "audit" in facts:
        worst = max(facts["audit"].values(), default=0.0)
        say(f"Audit: means of private vectors are off from the server's by {worst:.1e} at most.")
    else:
        say(f"{facts['no_audit']} Start what is missing and audit again.")


def _who(entry: dict[str, Any]) -> tuple[str, str, str]:
    """Return who was counted, refused and missing in a round."""
    refused = "; ".join(f"{name}: {why}" for name, why in entry["refused"].items())
    return ", ".join(entry["counted"]), refused, ", ".join(entry["missing"])


def _figures(said: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{name} {', '.join(f'{key} {value:.4g}' for key, value in figures.items())}"
        for name, figures in said.items()
    )
