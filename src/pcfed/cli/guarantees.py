"""``pcfed bounds`` and ``pcfed certify``: the bounds of the theorem, and certificates of runs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from threadpoolctl import threadpool_limits

from pcfed import guarantees
from pcfed.algorithms import PCFedAvg
from pcfed.cli.app import DataDir, app, console, errors, examples, say
from pcfed.experiments.claims import coverage
from pcfed.experiments.jobs import build_problem, problem_of_run
from pcfed.experiments.presets import NAMES, RunSpec, Setting, load_preset
from pcfed.problem import Problem
from pcfed.simulation.result import Result


@app.command(epilog=examples("pcfed bounds mnist --quick", "pcfed bounds mnist --epsilon 0.01"))
def bounds(
    name: Annotated[
        str, typer.Argument(help=f"An experiment, of {', '.join(NAMES)}, or a .toml file.")
    ],
    epsilon: Annotated[
        float, typer.Option(help="The accuracy for which rounds are computed.")
    ] = 0.1,
    tolerance: Annotated[
        float,
        typer.Option(help="Tolerance of the gap and the gradient in the search for the optima."),
    ] = 1e-3,
    quick: Annotated[bool, typer.Option("--quick", help="On small data (digits).")] = False,
    data_dir: DataDir = None,
) -> None:
    """Compute the bounds of the theorem for an experiment, and whether it covers its step.

    The theorem needs penalty √R and a small enough step, so the constants and bounds are for a run
    with these, and with the experiment's data, rounds, local steps and batches.
    """
    preset = load_preset(name).quick() if quick else load_preset(name)
    for setting in preset.settings:
        spec = next(run for run in setting.runs if isinstance(run.algorithm, PCFedAvg))
        problem = build_problem(setting, 0, data_dir)
        console.rule(f"{preset.title}, {setting.name}", align="left")
        say(coverage(problem, setting, spec))
        known = _constants(problem, setting, spec, tolerance)
        say(str(known))
        say(str(guarantees.bounds(known, rounds=setting.rounds)))
        needed = guarantees.rounds_for(epsilon, known)
        say(
            f"Rounds for ε = {epsilon:g}: {needed.upper:,} for f − f* ≤ ε, {needed.lower:,} for "
            f"f − f* ≥ −ε, {needed.infeasibility:,} for squared distances ≤ ε."
        )


def _constants(
    problem: Problem, setting: Setting, spec: RunSpec, tolerance: float
) -> guarantees.Constants:
    """Return the constants of a run with penalty √R, for which both optima are needed."""
    penalty = math.sqrt(setting.rounds)
    errors.print("Computing the constrained and the penalised optimum …")
    find = partial(guarantees.optimum, problem, tolerance=tolerance, iterations=400, progress=True)
    with threadpool_limits(1):  # on a busy machine two threads are much slower than one
        best = find()
        penalised = find(penalty=penalty, x0=best.models)
    return guarantees.constants(
        problem,
        penalty=penalty,
        local_steps=spec.local_steps,
        batch=setting.batch,
        constrained=best,
        penalised=penalised,
    )


@app.command("certify", epilog=examples("pcfed certify results/runs/run.npz"))
def certify_run(
    run: Annotated[Path, typer.Argument(help="A saved run, results/runs/….npz.")],
    data_dir: DataDir = None,
) -> None:
    """Make the models of a saved run feasible and bound their distance from the optimum."""
    if not run.is_file():
        raise ValueError(f"certify: there is no file {run}; give a run such as results/runs/….npz.")
    problem = problem_of_run(run, data_dir)
    certificate = guarantees.certify(problem, Result.load(run))
    table = Table("agent", "set", "distance from its set", "term of the gap")
    for i, agent in enumerate(problem.agents):
        distance, term = certificate.infeasibility[i], certificate.gap_terms[i]
        table.add_row(problem.names[i], repr(agent.constraint), f"{distance:.3g}", f"{term:.3g}")
    console.print(table)
    say(certificate.sentence)
