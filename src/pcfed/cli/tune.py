"""``pcfed tune``: find personalization, coupling and centre by cross-validation."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pcfed.cli.app import Overrides, app, console, errors, examples, say
from pcfed.cli.progress import ProgressBar
from pcfed.problem import Center
from pcfed.storage.atomic import write_atomically
from pcfed.training import build_setup, load_config
from pcfed.training.modules import user_code_errors
from pcfed.training.tuned_config import (
    TuningCache,
    candidates_for,
    cross_validation,
    default_candidate,
    overridden_text,
    scaled_constraints,
    tuned_text,
)
from pcfed.training.tuning import (
    BUDGET_FACTORS,
    CENTERS,
    BudgetChange,
    Candidate,
    CrossValidation,
    ScaledSets,
    Tuning,
    compare_budgets,
)
from pcfed.training.tuning import tune as search
from pcfed.training.tuning_plot import png_of

FACTORS = {0.5: "Half the budget", 2.0: "Twice the budget"}


@app.command(
    epilog=examples(
        "pcfed tune train.toml",
        "pcfed tune train.toml --personalization 0.5,1 --coupling 0.1,1 --limits",
        "pcfed tune train.toml --set training.seed=1 --write other.toml",
    )
)
def tune(
    config: Annotated[Path, typer.Argument(help="The TOML file that describes the training.")],
    personalization: Annotated[
        str | None, typer.Option(help="Numbers from 0 to 1 to try; by default 0,0.5,1.")
    ] = None,
    coupling: Annotated[
        str | None, typer.Option(help="Numbers ≥ 0 to try; by default 0.01,0.1,1,10.")
    ] = None,
    center: Annotated[
        str | None, typer.Option(help="Centers to try; by default average,free.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of every agent's rows.")] = 4,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of one training; by default as in the file, at most 50."),
    ] = None,
    overrides: Overrides = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Also try half and twice the budgets of all sets.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="The new file, in the same folder; by default FILE.tuned.toml."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change the file itself instead.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the new file if it exists.")
    ] = False,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="Run the Python file that model.module names.")
    ] = False,
) -> None:
    """Find personalization, coupling and center by cross-validation, and write them to a new file.

    Only rows for training are used; held-out rows stay untouched. You can stop the search with
    Ctrl-C at any time; the same command resumes it from FILE.tuning.json. A picture of all scores
    is in FILE.tuning.png. Values of --set are in the new file, too.
    """
    loaded = load_config(config, overrides or ())
    text = overridden_text(config.read_bytes().decode(), loaded.overrides)
    out = _output(config, write, in_place=in_place, overwrite=overwrite)
    candidates = candidates_for(
        loaded,
        _numbers("personalization", personalization, 1.0),
        _numbers("coupling", coupling, math.inf),
        _centers(center),
    )
    setup = build_setup(loaded, allow_import=allow_import)
    validation = cross_validation(loaded, setup, num_folds=folds, rounds=rounds)
    scaled = {factor: scaled_constraints(setup, factor) for factor in BUDGET_FACTORS if limits}
    sets = {factor: each for factor, each in scaled.items() if each is not None}
    cache_path, picture = (out.with_name(f"{config.stem}.tuning.{end}") for end in ("json", "png"))
    cache = _load_cache(cache_path, TuningCache.digest_of(setup, validation))
    default = default_candidate(loaded)
    with user_code_errors(loaded):
        found, changes = _search(validation, candidates, default, sets, cache, cache_path)
    new, notes = tuned_text(text, loaded, setup.problem.names, found.chosen.candidate)
    console.print(_table(found))
    for sentence in (_choice(found), *_limits(changes, found, asked=limits), *notes):
        say(sentence)
    write_atomically(out, new.encode())
    say(f"The setting is in {out}.{_draw(found, picture)} Next:")
    say(f"  pcfed train {shlex.quote(str(out))}")


def _search(
    validation: CrossValidation,
    candidates: Sequence[Candidate],
    default: Candidate,
    sets: ScaledSets,
    cache: TuningCache,
    path: Path,
) -> tuple[Tuning, list[BudgetChange]]:
    """Search the candidates, and try other budgets with the best; Ctrl-C ends the command."""
    folds, known = validation.num_folds, cache.known()
    bar = ProgressBar(errors)
    task = bar.add_task("", total=(len(candidates) + len(sets)) * folds, unit="trainings")
    bar.update(task, advance=folds * sum(each in known for each in candidates))

    def count_fold() -> None:
        bar.update(task, advance=1)

    def save() -> None:
        cache.results.update({(each, 1.0): found for each, found in known.items()})
        cache.save(path)

    try:
        with bar:
            found = search(
                validation,
                candidates,
                default=default,
                known=known,
                on_fold=count_fold,
                on_candidate=save,
            )
            best = found.chosen.candidate
            for factor, constraints in sets.items():
                if (best, factor) not in cache.results:
                    new = validation.evaluate(best, constraints, on_fold=count_fold)
                    cache.results[best, factor] = new
                    cache.save(path)
    except KeyboardInterrupt:
        done = sum(each in known for each in candidates)
        command = escape(shlex.join(["pcfed", *sys.argv[1:]]))
        errors.print(
            f"Stopped after {done} of {len(candidates)} candidates; they are saved in "
            f"{escape(str(path))}. Resume with: {command}",
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    scaled = {factor: cache.results[best, factor] for factor in sets}
    changes = compare_budgets(known[best], scaled, validation.folds_with_rows) if sets else []
    return found, changes


def _draw(found: Tuning, picture: Path) -> str:
    """Draw the scores, and return a sentence that says where."""
    try:
        write_atomically(picture, png_of(found))
    except ImportError:
        return " There is no picture, because matplotlib is not installed."
    return f" The scores are drawn in {picture}."


# -- arguments ------------------------------------------------------------------------------------


def _output(config: Path, write: Path | None, *, in_place: bool, overwrite: bool) -> Path:
    """Return the file to write, or refuse it."""
    if in_place and write is not None:
        raise ValueError("tune: give --write or --in-place, got both; leave one out.")
    if in_place:
        return config
    out = config.with_name(f"{config.stem}.tuned.toml") if write is None else write
    if out.parent.resolve() != config.parent.resolve():
        raise ValueError(
            f"tune: --write must be in the folder of {config}, got {out}: paths in the file are "
            "relative to its folder; give another one."
        )
    if out.exists() and not overwrite:
        raise ValueError(
            f"tune: {out} must not exist, but does; give another file with --write, or replace it "
            "with --overwrite."
        )
    return out


def _numbers(option: str, text: str | None, largest: float) -> list[float] | None:
    """Return numbers that are separated by commas."""
    if text is None:
        return None
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0 <= each <= largest and math.isfinite(each) for each in numbers):
        rule = "numbers ≥ 0" if math.isinf(largest) else f"numbers from 0 to {largest:g}"
        raise ValueError(
            f"tune: --{option} must be {rule}, separated by commas, got {text!r}; give for example "
            "0,0.5,1."
        )
    return numbers


def _centers(text: str | None) -> list[Center] | None:
    """Return centres that are separated by commas."""
    if text is None:
        return None
    names = [each.strip() for each in text.split(",")]
    if not set(names) <= set(CENTERS):
        raise ValueError(
            f"tune: --center must be average, free or average,free, got {text!r}; choose one."
        )
    return [each for each in CENTERS if each in names]


def _load_cache(path: Path, digest: str) -> TuningCache:
    """Return what was computed before; nothing if that was for something else."""
    if path.exists():
        cache = TuningCache.load(path)
        if cache.digest == digest:
            return cache
    return TuningCache(digest)


# -- output ---------------------------------------------------------------------------------------


def _table(found: Tuning) -> Table:
    """Return all candidates, the best first, with the chosen one marked."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("personalization", "coupling", "center"):
        table.add_column(header, no_wrap=True)
    for header in (found.score_name, "below the best", "loss"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in found.ranking:
        candidate = each.candidate
        mark = "→ " if each is found.chosen else "  "
        cells = [f"{mark}{candidate.personalization:g}", f"{candidate.coupling:g}"]
        cells.append(candidate.center)
        if math.isnan(each.score):
            cells += ["diverged", "", ""]
        else:
            cells.append(f"{each.score:.3f} ± {each.error:.3f}")
            is_best = each is found.ranking[0]
            below = f"{each.difference:.3f} ± {each.difference_error:.3f}"
            cells += ["" if is_best else below, f"{each.loss:.3f}"]
        table.add_row(*cells, style="bold" if each is found.chosen else None)
    return table


def _choice(found: Tuning) -> str:
    """Return the choice and its reason as a sentence."""
    best, chosen = found.ranking[0], found.chosen
    setting = chosen.candidate
    text = (
        f"The choice is personalization {setting.personalization:g}, "
        f"coupling {setting.coupling:g}, center {setting.center}"
    )
    if chosen is best:
        return f"{text}, the best score."
    reason = "the default" if _is_default(setting) else "the strongest coupling"
    return f"{text}, {reason} among those within one standard error of the best."


def _is_default(candidate: Candidate) -> bool:
    return (candidate.personalization, candidate.coupling) == (0.5, 0.1)


def _limits(changes: Sequence[BudgetChange], found: Tuning, *, asked: bool) -> list[str]:
    """Return what the limits cost, as sentences."""
    if asked and not changes:
        return ["No agent's set has a radius or a total, so there is no price of limits."]
    if found.score_name == "accuracy":
        numbers = [
            f"{100 * e.change:+.1f} points of accuracy ± {100 * e.error:.1f}" for e in changes
        ]
    else:
        numbers = [f"{e.change:+.3f} {found.score_name} ± {e.error:.3f}" for e in changes]
    pairs = zip(changes, numbers, strict=True)
    return [f"{FACTORS[each.factor]} for all agents: {text}." for each, text in pairs]
