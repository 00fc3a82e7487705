"""``pcfed reproduce``: the paper's experiments and ours."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pcfed import data
from pcfed.cli.app import DataDir, app, console, errors
from pcfed.experiments.claims import claims
from pcfed.experiments.exact import CASES, EXACT, METHODS, Course, measure_exact
from pcfed.experiments.exact import QUICK as QUICK_CASES
from pcfed.experiments.figures import write_figures
from pcfed.experiments.presets import NAMES, PARTITIONS, Preset, load_preset
from pcfed.experiments.rates import QUICK, RATES, ROUNDS, measure_rates
from pcfed.experiments.runner import Job, distinct, jobs, results, run_jobs
from pcfed.experiments.summary import comparisons
from pcfed.report import write_report


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help=f"Experiments, of {', '.join((*NAMES, RATES, EXACT))}; without any, "
            f"all but {EXACT}.",
        ),
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
    chosen = names or [*NAMES, RATES]
    presets = [_preset(name, quick, partition) for name in chosen if name not in (RATES, EXACT)]
    sizes = (QUICK if quick else ROUNDS) if RATES in chosen else ()
    cases = (QUICK_CASES if quick else CASES) if EXACT in chosen else ()
    todo = jobs(presets, seeds)
    began = time.perf_counter()
    wanted = [job.setting.data for job in todo] + [case.data for case in cases if case.data]
    for name in dict.fromkeys(wanted):
        data.fetch(name, data_dir=data_dir)
    total = sum(job.setting.rounds for job in distinct(todo)) + seeds * sum(sizes) // RATE_WEIGHT
    total += sum(case.others for case in cases) * len(METHODS)
    with _progress(total) as progress:
        run_jobs(todo, out, data_dir=data_dir, workers=workers, tick=progress.job)
        rates = (
            measure_rates(out, rounds=sizes, seeds=seeds, workers=workers, tick=progress.rates)
            if sizes
            else None
        )
        race = (
            measure_exact(out, cases=cases, data_dir=data_dir, workers=workers, tick=progress.exact)
            if cases
            else None
        )
    finished = comparisons(presets, results(todo, out))
    figures = write_figures(finished, out / "figures", rates, race)
    report = out / "report.html"
    facts = {
        "pcfed": version("pcfed"),
        "Python": platform.python_version(),
        "NumPy": version("numpy"),
        "seeds": str(seeds),
        "runs": str(len(distinct(todo))),
        "seconds (this call)": f"{time.perf_counter() - began:.0f}",
    }
    write_report(finished, report, data_dir=data_dir, facts=facts, rates=rates, race=race)
    table = Table("", "experiment", "claim", "measured", title="Does it hold?")
    marks = {"holds": "[green]✓[/]", "holds, but": "[yellow]≈[/]", "does not hold": "[red]✗[/]"}
    for claim in claims(finished, rates, race):
        table.add_row(marks[claim.verdict], claim.where, claim.claim, claim.measured)
    console.print(table)
    console.print(f"{len(figures)} figures in {out / 'figures'}; open {report}", highlight=False)


def _preset(name: str, quick: bool, partition: str | None) -> Preset:
    """Return a preset as the options want it."""
    preset = load_preset(name, others=(RATES, EXACT))
    if partition is not None:
        preset = preset.partitioned(partition)
    return preset.quick() if quick else preset


RATE_WEIGHT = 100
"""A round of the rates is so much quicker than one of the experiments, for the progress bar."""


class _Tick:
    """Moves the progress bar when a run has done some rounds."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.task = progress.add_task("starting", total=total)

    def job(self, job: Job, rounds: int) -> None:
        """Note that a job has done some rounds."""
        what = f"{job.preset}: {job.setting.name}, {job.method.name}, seed {job.seed}"
        self.progress.update(self.task, advance=rounds, description=what)

    def rates(self, rounds: int) -> None:
        """Note that a run of the rates is done."""
        what = f"{RATES}: {rounds:,} rounds"
        self.progress.update(self.task, advance=rounds / RATE_WEIGHT, description=what)

    def exact(self, course: Course) -> None:
        """Note that a run of the comparison with exact PC-FedAvg is done."""
        what = f"{EXACT}: {course.case.title}, {course.method}"
        self.progress.update(self.task, advance=course.case.others, description=what)


@contextmanager
def _progress(total: int) -> Iterator[_Tick]:
    """Show a bar over the rounds of everything; say how to go on if it is interrupted."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeRemainingColumn())
    try:
        with Progress(*columns, TextColumn("{task.description}"), console=errors) as progress:
            yield _Tick(progress, total)
    except KeyboardInterrupt:
        errors.print("Stopped. Finished runs are kept: the same command goes on from here.")
        raise typer.Exit(130) from None
