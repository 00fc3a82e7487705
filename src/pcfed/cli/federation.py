"""``pcfed federation``: agents as processes of their own, over Flower."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pcfed.cli.app import app, console, errors, examples, print_error, say
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.paths import HISTORY, RESULT, STATUS
from pcfed.federation.rollback import roll_back
from pcfed.federation.server_folder import ServerFolder
from pcfed.federation.server_state import ServerResult
from pcfed.federation.status_file import Status, read_history

federation_app = typer.Typer(help="Agents as processes of their own, over Flower.")
app.add_typer(federation_app, name="federation", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Folder of the federation.")]
DEFAULT_FOLDER = Path("federation")
ServerOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Use another value for a key of server.toml, such as rounds.rounds=30; repeatable.",
    ),
]
MAX_ROUNDS_SHOWN = 10


@federation_app.command(
    epilog=examples("pcfed federation up --agents 3", "pcfed federation up --tls --folder heating")
)
def up(
    agents: Annotated[int, typer.Option(min=2, help="Number of agents of the example.")] = 4,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS and keys for agents.")] = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Start a SuperLink and SuperNodes on this machine; write an example if there are no files."""
    federation = LocalFederation(folder)
    federation.write_example(agents)
    processes = federation.up(tls=tls)
    say(
        f"Started {len(processes.pids) - 1} agents and a SuperLink on port {processes.port}. Next: "
        f"pcfed federation run --folder {folder}"
    )


@federation_app.command(
    epilog=examples(
        "pcfed federation run",
        "pcfed federation run --folder heating --set rounds.rounds=30",
        "pcfed federation run --set training=second --set rounds.local_steps=40",
    )
)
def run(folder: Folder = DEFAULT_FOLDER, overrides: ServerOverrides = None) -> None:
    """Train as the server's file says; rerun the command to resume after an interruption.

    Rerun it, too, to reach agents that were offline at the end.
    """
    run_training(LocalFederation(folder, overrides or ()), folder)


def run_training(server: ServerFolder, folder: Path, start: str = "up") -> None:
    """Train, show the progress and the result; ``start`` is the command that starts processes."""
    if server.ended_result() is not None:
        _show_result(server)
        return
    _require_processes(server, folder, start)
    config = server.config
    if (warning := config.algorithm.stability_warning(config.local_steps)) is not None:
        say(warning)
    view = ProgressView(server.training_directory)
    try:
        with view:
            finished = server.run(on_tick=view.refresh)
    except KeyboardInterrupt:
        errors.print(
            "The training continues in the background: see pcfed federation status, or stop it "
            "with pcfed federation down."
        )
        raise typer.Exit(130) from None
    _require_finished(server, finished)
    _show_history(server.training_directory)
    current = _read_status(server.training_directory)
    if current is not None and current.warning:
        say(current.warning)
    _show_result(server)


@federation_app.command(
    epilog=examples("pcfed federation audit", "pcfed federation audit --set training=second")
)
def audit(folder: Folder = DEFAULT_FOLDER, overrides: ServerOverrides = None) -> None:
    """Check that the agents' private vectors add up to the server's averages; trains nothing.

    If a training has ended without a certificate, this also tries to certify the models.
    """
    federation = LocalFederation(folder, overrides or ())
    _require_processes(federation, folder, "up")
    with errors.status("audit …"):
        finished = federation.run("audit")
    _require_finished(federation, finished)
    result = _read_result(federation.training_directory)
    if result is not None:
        _show_certificate(result)
        _show_audit(result)


@federation_app.command(
    epilog=examples(
        "pcfed federation rollback --to-round 20",
        "pcfed federation rollback --folder heating --to-round 0",
    )
)
def rollback(
    to_round: Annotated[
        int | None, typer.Option(help="Number of completed rounds to go back to.", min=0)
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    overrides: ServerOverrides = None,
) -> None:
    """Go back to an earlier round, for example because an update has ruined the training.

    Checkpoints are kept every rounds.keep_every rounds; without --to-round they are listed. Agents
    follow with their next message. It changes the server's folder and needs no running processes.
    """
    before = roll_back(LocalFederation(folder, overrides or ()).training_directory, to_round)
    say(
        f"The training went back from round {before.round} to round {to_round}. Before the next "
        "run, see that the same does not happen again: rounds.norm_factor and rounds.norm_limit "
        f"refuse long updates. Next: pcfed federation run --folder {folder}"
    )
    if before.config.get("secure"):
        say(
            "The server would learn another sum of the same updates, so every owner has to agree: "
            f"rollbacks = {len(before.rollbacks) + 1} in agent.toml."
        )


@federation_app.command(epilog=examples("pcfed federation status --folder heating"))
def status(folder: Folder = DEFAULT_FOLDER, overrides: ServerOverrides = None) -> None:
    """Show the processes, the progress of the training, and which agents are present or late."""
    federation = LocalFederation(folder, overrides or ())
    table = Table("process", "running")
    for name, alive in federation.alive().items():
        table.add_row(escape(name), "yes" if alive else "no")
    console.print(table)
    training = federation.training_directory
    if (current := _read_status(training)) is not None:
        say("\n".join(status_lines(current)))
        say(f"Last update: {time.time() - current.updated_at:.0f} s ago.")
    _show_history(training)
    _show_result(federation)


@federation_app.command(epilog=examples("pcfed federation down"))
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop all processes of the federation."""
    count = LocalFederation(folder).down()
    say(f"Stopped {count} process{'' if count == 1 else 'es'}.")


@federation_app.command(
    epilog=examples(
        "pcfed federation keys --host server.example.org",
        "pcfed federation keys --host 10.0.0.1 north south",
    )
)
def keys(
    host: Annotated[list[str], typer.Option(help="Host name or address of the server.")],
    agents: Annotated[
        list[str] | None, typer.Argument(help="Agents that do not make their own keys.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the keys.")] = Path("keys"),
) -> None:
    """Make a certificate authority, the server's certificate and keys for agents."""
    from pcfed.federation.keys import make_keys  # needs an optional package

    make_keys(folder, host, agents or [])
    say(
        f"Wrote the keys to {folder}. Give ca.crt to every agent, and its .key file to each agent "
        "that has one here; the server keeps ca.crt, server.crt, server.key and all .pub files."
    )


class ProgressView:
    """Shows a training while it runs: live in a terminal, otherwise one line for each round."""

    def __init__(self, training: Path) -> None:
        self._training = training
        self._live = Live(console=errors, transient=True) if errors.is_terminal else None
        # A status that is there already was written by an earlier command.
        self._old_time = self._status_time()
        self._next_round = 0

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def refresh(self) -> None:
        """Show what is new."""
        is_new = self._status_time() != self._old_time
        current = _read_status(self._training) if is_new else None
        if self._live:
            lines = ["starting …"] if current is None else status_lines(current, time.time())
            self._live.update(Text("\n".join(lines)))
        elif current is not None:
            self._print_new_rounds(current)

    def _print_new_rounds(self, current: Status) -> None:
        self._next_round = max(self._next_round, current.first_round)
        for entry in read_history(self._training / HISTORY, MAX_ROUNDS_SHOWN):
            if entry["round"] >= self._next_round:
                self._next_round = entry["round"] + 1
                accepted, refused, missing = _round_columns(entry)
                line = f"round {entry['round'] + 1} of {current.rounds}: accepted {accepted}"
                line += f"; refused {refused}" if refused else ""
                line += f"; missing {missing}" if missing else ""
                say(line)

    def _status_time(self) -> int:
        path = self._training / STATUS
        return path.stat().st_mtime_ns if path.exists() else 0


def status_lines(status: Status, now: float | None = None) -> list[str]:
    r"""Return the status of a training as lines of text; ``now`` is by default its time.

    Examples
    --------
    >>> status = Status("heating", rounds=9, stage="training", first_round=1, round=3,
    ...                 started_at=100.0, round_started_at=160.0, updated_at=170.0,
    ...                 roster=["a", "b"], present=["a"], late=["a"])
    >>> print(*status_lines(status), sep="\n")
    training: 3 of 9 rounds done, 70 s, about 170 s left
    present: a
    absent: b
    late: a
    """
    now = status.updated_at if now is None else now
    line = f"{status.stage}: {status.round} of {status.rounds} rounds done"
    line += f", {now - status.started_at:.0f} s"
    if status.stage == "training":
        if new_rounds := status.round - status.first_round:
            per_round = (status.round_started_at - status.started_at) / new_rounds
            left = per_round * (status.rounds - status.round) - (now - status.round_started_at)
            line += f", about {max(0.0, left):.0f} s left"
        if status.attempt > 1:
            line += f", attempt {status.attempt}"
    groups = {
        "present": status.present,
        "absent": [name for name in status.roster if name not in status.present],
        "answered": status.answered,
        "waiting for": status.waiting,
        "late": status.late,
        "refused": [f"{name} ({reason})" for name, reason in status.refused.items()],
    }
    lines = [line, *(f"{word}: {', '.join(names)}" for word, names in groups.items() if names)]
    return [*lines, *(text for text in (status.note, status.warning, status.error) if text)]


def _require_processes(server: ServerFolder, folder: Path, start: str) -> None:
    """Raise if no process of a folder runs; ``start`` is the command that starts them."""
    if server.processes is None:
        raise ValueError(
            f"federation: no processes run in {folder}; start them with pcfed federation {start}."
        )


def _read_status(training: Path) -> Status | None:
    path = training / STATUS
    return Status.load(path) if path.exists() else None


def _read_result(training: Path) -> ServerResult | None:
    path = training / RESULT
    return ServerResult.load(path) if path.exists() else None


def _require_finished(federation: ServerFolder, finished: bool) -> None:
    """End the command with the reason if a run has no result."""
    if finished:
        return
    current = _read_status(federation.training_directory)
    reason = "The run ended without a result: Flower failed, or another run is active."
    if current is not None and current.stage == "failed":
        refused = [f"{name} was refused: {why}." for name, why in current.refused.items()]
        reason = " ".join([current.error, *refused])
    logs = federation.folder / "logs"
    print_error(f"{reason} Rerun the command to resume; the logs are in {logs}.")
    raise typer.Exit(1)


def _show_history(training: Path) -> None:
    """Show the agents of the last rounds, and the metrics that they reported."""
    table = Table("round", "accepted", "refused", "missing", "metrics before it")
    for entry in read_history(training / HISTORY, MAX_ROUNDS_SHOWN):
        columns = (*_round_columns(entry), _format_metrics(entry["metrics"]))
        table.add_row(str(entry["round"] + 1), *map(escape, columns))
    if table.row_count:
        console.print(table)


def _show_result(federation: ServerFolder) -> None:
    """Show the result of a training that has ended."""
    result = _read_result(federation.training_directory)
    if result is None or result.finished is None:
        return
    if result.metrics:
        say(f"Metrics at the end: {_format_metrics(result.metrics)}.")
    _show_certificate(result)
    _show_audit(result)
    say(
        f"The training has ended after {result.rounds} rounds. These agents have written their "
        f"models: {', '.join(result.finished) or 'none'}."
    )
    say(_next_step(federation, result))


def _next_step(federation: ServerFolder, result: ServerResult) -> str:
    """Return what to do after a training has ended: reach the other agents, or train more."""
    current = _read_status(federation.training_directory)
    roster = [] if current is None else current.roster
    if missing := [name for name in roster if name not in (result.finished or ())]:
        return f"{', '.join(missing)} did not answer at the end: start them and run it again."
    if result.rounds < (rounds := federation.config.rounds):
        if not result.reaches(federation.config.gap):
            return f"Run it again for the remaining {rounds - result.rounds} rounds."
        return "It has reached rounds.gap; to go on, lower rounds.gap and run it again."
    return "To go on, raise rounds.rounds in server.toml and run it again."


def _show_certificate(result: ServerResult) -> None:
    if result.certificate is not None:
        say(result.certificate.sentence)
    elif result.no_certificate is not None:
        say(f"{result.no_certificate} pcfed federation audit tries again.")
    if result.score is not None:
        say(result.score.sentence)


def _show_audit(result: ServerResult) -> None:
    if result.audit is not None:
        largest = max(result.audit.values(), default=0.0)
        say(
            "Audit: the server's averages differ from the means of the agents' private vectors by "
            f"at most {largest:.1e}."
        )
    elif result.no_audit is not None:
        say(f"{result.no_audit} Start the missing agents and audit again.")


def _round_columns(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the accepted, refused and missing agents of a round."""
    refused = "; ".join(f"{name}: {reason}" for name, reason in entry["refused"].items())
    return ", ".join(entry["accepted"]), refused, ", ".join(entry["missing"])


def _format_metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(
        f"{name} {', '.join(f'{key} {value:.4g}' for key, value in values.items())}"
        for name, values in metrics.items()
    )
