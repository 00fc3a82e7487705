"""The command line."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from pcfed import data, guarantees
from pcfed.algorithms import PCFedAvg
from pcfed.experiments.claims import claims, coverage
from pcfed.experiments.exact import CASES, EXACT, METHODS, Course, measure_exact
from pcfed.experiments.exact import QUICK as QUICK_CASES
from pcfed.experiments.figures import write_figures
from pcfed.experiments.presets import NAMES, PARTITIONS, Preset, load_preset
from pcfed.experiments.rates import QUICK, RATES, ROUNDS, measure_rates
from pcfed.experiments.runner import (
    Job,
    build_problem,
    distinct,
    jobs,
    problem_of_run,
    results,
    run_jobs,
)
from pcfed.experiments.summary import comparisons
from pcfed.report import write_report
from pcfed.result import Result

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


@app.command()
def bounds(
    name: Annotated[
        str, typer.Argument(help=f"An experiment, of {', '.join(NAMES)}, or a .toml file.")
    ],
    epsilon: Annotated[float, typer.Option(help="The accuracy to count rounds for.")] = 0.1,
    tolerance: Annotated[
        float,
        typer.Option(help="For the certified gap and the gradient of the optima that are needed."),
    ] = 1e-3,
    quick: Annotated[bool, typer.Option("--quick", help="On small data (digits).")] = False,
    data_dir: DataDir = None,
) -> None:
    """Compute what the theorem promises for an experiment, and whether it covers its step.

    The constants and bounds are those of the run that the theorem speaks of: penalty √R and the
    largest step that it admits, with the experiment's data, rounds, local steps and batches.
    """
    preset = load_preset(name).quick() if quick else load_preset(name)
    for setting in preset.settings:
        method = next(m for m in setting.methods if isinstance(m.algorithm, PCFedAvg))
        problem = build_problem(setting, 0, data_dir)
        console.rule(f"{preset.title}, {setting.name}", align="left")
        _print(coverage(problem, setting, method))
        penalty = math.sqrt(setting.rounds)
        errors.print("Looking for the constrained and the penalised optimum …")
        find = partial(
            guarantees.optimum, problem, tolerance=tolerance, iterations=400, progress=True
        )
        with threadpool_limits(1):  # two threads on a busy machine are slower than one, by far
            best = find()
            penalised = find(penalty=penalty, x0=best.models)
        known = guarantees.constants(
            problem,
            penalty=penalty,
            local_steps=method.local_steps,
            batch=setting.batch,
            constrained=best,
            penalised=penalised,
        )
        _print(str(known))
        _print(str(guarantees.bounds(known, rounds=setting.rounds)))
        needed = guarantees.rounds_for(epsilon, known)
        _print(
            f"Rounds for ε = {epsilon:g}: {needed.upper:,} for f − f* ≤ ε, {needed.lower:,} for "
            f"f − f* ≥ −ε, {needed.infeasibility:,} for squared distances ≤ ε."
        )


@app.command("certify")
def certify_run(
    run: Annotated[Path, typer.Argument(help="A saved run, results/runs/….npz.")],
    data_dir: DataDir = None,
) -> None:
    """Make the models of a saved run feasible and bound their distance from the optimum."""
    if not run.is_file():
        raise ValueError(f"certify: there is no file {run}; give a run such as results/runs/….npz.")
    problem = problem_of_run(run, data_dir)
    certificate = guarantees.certify(problem, Result.load(run))
    table = Table("agent", "set", "moved to be feasible", "share of the gap")
    for i, agent in enumerate(problem.agents):
        moved, share = certificate.infeasibility[i], certificate.shares[i]
        table.add_row(problem.names[i], repr(agent.constraint), f"{moved:.3g}", f"{share:.3g}")
    console.print(table)
    _print(f"Objective of the feasible models: {certificate.objective:.6g}")
    if certificate.gap is None or certificate.reason is not None:
        _print(f"No finite gap: {certificate.reason}")
    else:
        share = certificate.gap / certificate.objective
        _print(f"At most {certificate.gap:.3g} above the optimum ({100 * share:.2g} %).")


def _print(text: str) -> None:
    """Print without colours that the text does not ask for."""
    console.print(text, highlight=False, markup=False)


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
