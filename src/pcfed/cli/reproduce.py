"""``pcfed reproduce``: run the paper's experiments and ours."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pcfed import data
from pcfed.cli.app import DataDir, app, console, errors, examples
from pcfed.cli.progress import ProgressBar
from pcfed.errors import display_path
from pcfed.experiments import leaderboard
from pcfed.experiments.claims import Claim, claims
from pcfed.experiments.figures import write_figures
from pcfed.experiments.jobs import Job, distinct, jobs, results, run_jobs
from pcfed.experiments.leaderboard import METHODS, MethodResults
from pcfed.experiments.personal import (
    PERSONAL,
    QUICK_SEEDS,
    SEEDS,
    CellScores,
    num_rounds,
    run_personal,
)
from pcfed.experiments.personal_cells import CELLS, QUICK_CELLS
from pcfed.experiments.presets import NAMES, PARTITIONS, Preset, load_preset
from pcfed.experiments.rates import LENGTHS, QUICK_LENGTHS, RATES, measure_rates
from pcfed.experiments.round_cases import CASES, QUICK_CASES
from pcfed.experiments.rounds import (
    ROUNDS,
    GapHistory,
    max_rounds,
    run_rounds,
    total_rounds,
)
from pcfed.experiments.summary import Comparison, comparisons
from pcfed.report import write_report

METHODS_FILE = f"{METHODS}.json"
"""The file of all scores of the leaderboard in the directory of an experiment."""

OTHERS = (RATES, ROUNDS, PERSONAL, METHODS)
"""The experiments that are not presets."""


@app.command(
    epilog=examples("pcfed reproduce --quick", "pcfed reproduce mnist --workers 4 --out results")
)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help=f"Experiments, of {', '.join((*NAMES, *OTHERS))}; by default all but {ROUNDS}, "
            f"{PERSONAL} and {METHODS}.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="In a minute: small data (digits), fewer rounds.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help=f"Seeds per run: mean and spread; {PERSONAL} takes {SEEDS} or more."
        ),
    ] = 3,
    partition: Annotated[
        str | None,
        typer.Option(help=f"Another partition of the data: {', '.join(PARTITIONS)}."),
    ] = None,
    method: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help=f"A Python file that adds a method of yours to {METHODS}; may be repeated.",
        ),
    ] = None,
    saved: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help=f"Results of {METHODS} from an earlier run, {METHODS_FILE}: build the report from "
            "them instead of running it.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory of runs, figures and report.")] = Path(
        "results"
    ),
    data_dir: DataDir = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel runs.")] = 2,
) -> None:
    """Run the paper's experiments and ours; write figures, tables and a report.

    Ctrl-C stops it at any time. Rerun the command to resume; finished runs are kept.
    """
    chosen = names or [*NAMES, RATES]
    presets = [_preset(name, quick, partition) for name in chosen if name not in OTHERS]
    sizes = (QUICK_LENGTHS if quick else LENGTHS) if RATES in chosen else ()
    cases = (QUICK_CASES if quick else CASES) if ROUNDS in chosen else ()
    cells = (QUICK_CELLS if quick else CELLS) if PERSONAL in chosen else ()
    draws = QUICK_SEEDS if quick else max(seeds, SEEDS)
    methods = _saved_methods(saved, chosen, quick=quick, method=method)
    board = (leaderboard.QUICK_CELLS if quick else leaderboard.CELLS) if METHODS in chosen else ()
    board = () if methods else board
    todo = jobs(presets, seeds)
    start = time.perf_counter()
    needed = [job.setting.data for job in todo] + [case.data for case in cases if case.data]
    _fetch_data([*needed, *(cell.data for cell in (*cells, *board))], data_dir)
    total = sum(job.setting.rounds for job in distinct(todo)) + seeds * sum(sizes) // RATE_WEIGHT
    total += total_rounds(cases) + draws * sum(map(num_rounds, cells))
    board_seeds = QUICK_SEEDS if quick else seeds
    leaderboard.import_methods(method or ())
    total += leaderboard.total_rounds(board, board_seeds)
    try:
        with _RunProgress(total) as bar:
            options: dict[str, Any] = {"data_dir": data_dir, "workers": workers}
            run_jobs(todo, out, on_progress=bar.job, **options)
            rates = rounds = personal = None
            if sizes:
                lengths: dict[str, Any] = {"rounds": sizes, "seeds": seeds, "workers": workers}
                rates = measure_rates(out, on_progress=bar.rates, **lengths)
            if cases:
                rounds = run_rounds(out, cases=cases, on_progress=bar.rounds, **options)
            if cells:
                personal = run_personal(
                    out, cells=cells, seeds=draws, on_progress=bar.personal, **options
                )
            if board:
                methods = leaderboard.run_leaderboard(
                    out,
                    cells=board,
                    seeds=board_seeds,
                    files=method or (),
                    on_progress=bar.methods,
                    **options,
                )
                methods = replace(methods, command=_command(quick, seeds, method))
                methods.save(out / METHODS_FILE)
    except KeyboardInterrupt:
        errors.print("Interrupted. Finished runs are kept: rerun the command to resume.")
        raise typer.Exit(130) from None
    runs = len(distinct(todo)) + sum(len(each.runs) for each in (rounds, personal) if each)
    # The leaderboard's is in its results, which may be those of another machine.
    has_others = todo or rates or rounds or personal
    seconds = time.perf_counter() - start
    _write_results(
        comparisons(presets, results(todo, out)),
        out,
        data_dir,
        _provenance(seeds, runs, seconds) if has_others else {},
        {"rates": rates, "rounds": rounds, "personal": personal, "methods": methods},
    )


def _saved_methods(
    saved: Path | None, chosen: Sequence[str], *, quick: bool, method: Sequence[Path] | None
) -> MethodResults | None:
    """Return the results of a file, or None if there is none."""
    if saved is None:
        return None
    if METHODS not in chosen:
        raise ValueError(
            f"--from: {METHODS} must be among the experiments, got {', '.join(chosen)}; run pcfed "
            f"reproduce {METHODS} --from {display_path(saved)}."
        )
    if quick or method:
        given = "--quick" if quick else "--method"
        raise ValueError(
            f"--from: its results are not computed again, got {given} beside it; leave one of the "
            "two out."
        )
    return MethodResults.load(saved)


def _command(quick: bool, seeds: int, method: Sequence[Path] | None) -> str:
    """Return the command of a leaderboard, without where its files are."""
    options = [f"--seeds {seeds}"] if not quick else ["--quick"]
    options += [f"--method {each.name}" for each in method or ()]
    return " ".join([f"pcfed reproduce {METHODS}", *options])


def _fetch_data(names: Sequence[str], data_dir: Path | None) -> None:
    """Download the data sets that are not there yet."""
    for name in dict.fromkeys(names):
        data.fetch(name, data_dir=data_dir)


def _write_results(
    finished: Sequence[Comparison],
    out: Path,
    data_dir: Path | None,
    provenance: dict[str, str],
    others: dict[str, Any],
) -> None:
    """Write figures and the report, and print which claims hold."""
    figures = write_figures(finished, out / "figures", **others)
    report = out / "report.html"
    write_report(finished, report, data_dir=data_dir, provenance=provenance, **others)
    if found := claims(finished, *(others[name] for name in (RATES, ROUNDS, PERSONAL))):
        _print_claims(found)
    console.print(f"{len(figures)} figures in {out / 'figures'}; open {report}", highlight=False)


def _provenance(seeds: int, runs: int, seconds: float) -> dict[str, str]:
    """Return how the results were produced, for the end of the report."""
    return {
        "pcfed": version("pcfed"),
        "Python": platform.python_version(),
        "NumPy": version("numpy"),
        "seeds": str(seeds),
        "runs": str(runs),
        "seconds (this call)": f"{seconds:.0f}",
    }


def _preset(name: str, quick: bool, partition: str | None) -> Preset:
    """Return a preset, changed by the options."""
    preset = load_preset(name, others=OTHERS)
    if partition is not None:
        preset = preset.partitioned(partition)
    return preset.quick() if quick else preset


def _print_claims(found: Sequence[Claim]) -> None:
    """Print a table of the claims and whether they hold."""
    table = Table("", "experiment", "claim", "measured", title="Does it hold?")
    marks = {"holds": "[green]✓[/]", "holds, but": "[yellow]≈[/]", "does not hold": "[red]✗[/]"}
    for claim in found:
        table.add_row(marks[claim.verdict], claim.where, claim.claim, claim.measured)
    console.print(table)


RATE_WEIGHT = 100
"""Rounds of the rates experiment that take as long as one round of the others."""


class _RunProgress(ProgressBar):
    """The progress bar over the rounds of all runs."""

    def __init__(self, total: int) -> None:
        super().__init__(errors)
        self._task = self.add_task("starting", total=total)

    def job(self, job: Job, rounds: int) -> None:
        text = f"{job.preset}: {job.setting.name}, {job.spec.name}, seed {job.seed}"
        self.update(self._task, advance=rounds, description=text)

    def rates(self, rounds: int) -> None:
        text = f"{RATES}: {rounds:,} rounds"
        self.update(self._task, advance=rounds / RATE_WEIGHT, description=text)

    def rounds(self, run: GapHistory) -> None:
        text = f"{ROUNDS}: {run.case.title}, {run.name}"
        self.update(self._task, advance=max_rounds(run.case, run.name), description=text)

    def personal(self, scores: CellScores) -> None:
        text = f"{PERSONAL}: {scores.cell.title}, seed {scores.seed}"
        self.update(self._task, advance=num_rounds(scores.cell), description=text)

    def methods(self, scores: leaderboard.MethodScores) -> None:
        text = f"{METHODS}: {scores.cell.title}, {scores.method}"
        rounds = leaderboard.num_rounds(scores.cell, len(scores.scores), scores.num_trials)
        self.update(self._task, advance=rounds, description=text)
