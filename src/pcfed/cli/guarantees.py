"""``pcfed bounds`` and ``pcfed certify``: what is promised, and what is reached."""

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
from pcfed.cli.app import DataDir, app, console, errors, say
from pcfed.experiments.claims import coverage
from pcfed.experiments.presets import NAMES, load_preset
from pcfed.experiments.runner import build_problem, problem_of_run
from pcfed.simulation.result import Result


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
        say(coverage(problem, setting, method))
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
        say(str(known))
        say(str(guarantees.bounds(known, rounds=setting.rounds)))
        needed = guarantees.rounds_for(epsilon, known)
        say(
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
        moved, share = certificate.infeasibility[i], certificate.gap_terms[i]
        table.add_row(problem.names[i], repr(agent.constraint), f"{moved:.3g}", f"{share:.3g}")
    console.print(table)
    say(f"Objective of the feasible models: {certificate.objective:.6g}")
    if certificate.gap is None or certificate.reason is not None:
        say(f"No finite gap: {certificate.reason}")
    else:
        share = certificate.gap / certificate.objective
        say(f"At most {certificate.gap:.3g} above the optimum ({100 * share:.2g} %).")
