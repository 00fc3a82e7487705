"""The command line."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pcfed import data
from pcfed.experiments.claims import claims
from pcfed.experiments.figures import write_figures
from pcfed.experiments.presets import NAMES, PARTITIONS, Preset, load_preset
from pcfed.experiments.runner import Job, distinct, jobs, results, run_jobs
from pcfed.experiments.summary import comparisons
from pcfed.report import write_report

app = typer.Typer(
    help="Federated learning in which every agent keeps its own model inside its own limits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: which there are, fetch them, where they are.")
app.add_typer(data_app, name="data", no_args_is_help=True)
console = Console()
errors = Console(stderr=True)

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="A directory with data sets of your own; used before anything is fetched.",
        envvar="PCFED_DATA",
    ),
]


def main() -> NoReturn:
    """Run the command line; a mistake ends in one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except (ValueError, data.DataError) as mistake:
        errors.print(f"[red]{mistake}[/red]", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("Stopped. Finished runs are kept: the same command goes on from here.")
        sys.exit(130)
    sys.exit(0)


@app.callback(invoke_without_command=True)
def _version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        console.print(f"pcfed {version('pcfed')}", highlight=False)
        raise typer.Exit


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help=f"Experiments, of {', '.join(NAMES)}; else all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="In a minute: small data (digits), fewer rounds.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method: mean and spread.")] = 3,
    partition: Annotated[
        str | None,
        typer.Option(help=f"Share the data out in another way: {', '.join(PARTITIONS)}."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory of runs, figures and report.")] = Path(
        "results"
    ),
    data_dir: DataDir = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 2,
) -> None:
    """Run the paper's experiments and ours; write figures, tables and a report.

    Stop it with Ctrl-C at any time: the same command goes on where it was, and finished runs are
    not run again.
    """
    presets = [_preset(name, quick, partition) for name in names or NAMES]
    todo = jobs(presets, seeds)
    began = time.perf_counter()
    for name in dict.fromkeys(job.setting.data for job in todo):
        data.fetch(name, data_dir=data_dir)
    with _progress(todo) as progress:
        run_jobs(todo, out, data_dir=data_dir, workers=workers, tick=progress)
    finished = comparisons(presets, results(todo, out))
    figures = write_figures(finished, out / "figures")
    report = out / "report.html"
    facts = {
        "pcfed": version("pcfed"),
        "Python": platform.python_version(),
        "NumPy": version("numpy"),
        "seeds": str(seeds),
        "runs": str(len(distinct(todo))),
        "seconds (this call)": f"{time.perf_counter() - began:.0f}",
    }
    write_report(finished, report, data_dir=data_dir, facts=facts)
    table = Table("", "experiment", "claim", "measured", title="Does it hold?")
    marks = {"holds": "[green]✓[/]", "holds, but": "[yellow]≈[/]", "does not hold": "[red]✗[/]"}
    for claim in claims(finished):
        table.add_row(marks[claim.verdict], claim.where, claim.claim, claim.measured)
    console.print(table)
    console.print(f"{len(figures)} figures in {out / 'figures'}; open {report}", highlight=False)


def _preset(name: str, quick: bool, partition: str | None) -> Preset:
    """Return a preset as the options want it."""
    preset = load_preset(name)
    if partition is not None:
        preset = preset.partitioned(partition)
    return preset.quick() if quick else preset


class _Tick:
    """Moves the progress bar when a run has done some rounds."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.task = progress.add_task("starting", total=total)

    def __call__(self, job: Job, rounds: int) -> None:
        what = f"{job.preset}: {job.setting.name}, {job.method.name}, seed {job.seed}"
        self.progress.update(self.task, advance=rounds, description=what)


@contextmanager
def _progress(todo: list[Job]) -> Iterator[_Tick]:
    """Show a bar over the rounds of all jobs."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=errors) as progress:
        yield _Tick(progress, sum(job.setting.rounds for job in distinct(todo)))


@data_app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Show which data sets there are, and which are here already."""
    table = Table("name", "here", "folder", "megabytes")
    for name in data.available():
        status = data.status(name, data_dir=data_dir)
        folder = "comes with scikit-learn" if status.folder is None else str(status.folder)
        here = "yes" if status.ready else "no"
        table.add_row(name, here, folder, f"{status.size / 1e6:.1f}" if status.size else "")
    console.print(table)


@data_app.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Data sets to fetch.")],
    data_dir: DataDir = None,
) -> None:
    """Fetch data sets, checked against their checksums."""
    for name in names:
        folder = data.fetch(name, data_dir=data_dir)
        console.print(f"{name}: {folder or 'comes with scikit-learn'}", highlight=False)


@data_app.command("path")
def path_of_data(
    name: Annotated[str | None, typer.Argument(help="A data set; else the cache.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print the folder of a data set, whether it is there yet or not."""
    print(data.path(name, data_dir=data_dir) or "comes with scikit-learn")
