"""Each claim of the paper's numerical section, what was measured, and whether it holds.

Everything here is computed from the results; a sentence that carries a number takes it from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from pcfed.experiments.exact import OURS, PAPER, Case, Race
from pcfed.experiments.presets import Method, Setting
from pcfed.experiments.rates import Fit, Rates
from pcfed.experiments.summary import Comparison
from pcfed.problem import Problem

PC = "PC-FedAvg"
FEASIBLE = 1e-6
"""Infeasibility up to this counts as none; local steps run in float32."""

COMPARABLE = 0.1
"""Losses within this share of the best count as comparable."""

SLACK = 0.1
"""A slope that is flatter than the rate, but by no more than this, holds with a but."""

Verdict = Literal["holds", "holds, but", "does not hold"]


@dataclass(frozen=True)
class Claim:
    """A claim, what was measured, and the verdict."""

    source: str
    where: str
    claim: str
    measured: str
    verdict: Verdict


def claims(
    comparisons: Sequence[Comparison], rates: Rates | None = None, race: Race | None = None
) -> list[Claim]:
    """Return the claims that the given results can speak to.

    Parameters
    ----------
    comparisons : sequence of Comparison
        The finished settings.
    rates : Rates, optional
        The theorem, measured.
    race : Race, optional
        Exact PC-FedAvg and others, measured.
    """
    found: list[Claim] = []
    for each in comparisons:
        if each.preset.name in ("mnist", "cifar10") and PC in each.results:
            found.extend(_of_the_paper(each))
        elif each.preset.name == "local-steps":
            found.append(_more_local_steps_help(each))
        elif each.preset.name == "binding" and PC in each.results:
            found.extend(_budgets_bind(each))
    if rates is not None:
        found.extend(_theorem(rates))
    if race is not None:
        for case in race.cases:
            found.extend(_converges(race, case))
    return found


def _converges(race: Race, case: Case) -> Iterator[Claim]:
    """Yield whether the exact method gets to each gap, and no later than the best of the grid."""
    for target in case.targets:
        ours, paper = (race.first(case, name, target) for name in (OURS, PAPER))
        limits = {OURS: case.rounds, PAPER: case.others}
        said = " against ".join(
            f"{look.round} rounds" if look else f"not in {limits[name]:,} rounds"
            for name, look in ((OURS, ours), (PAPER, paper))
        )
        sooner = ours is not None and (paper is None or ours.round <= paper.round)
        yield Claim(
            "exact",
            case.title,
            f"{OURS} is certainly within {target:g}, no later than the best {PAPER} of a grid",
            said,
            "holds" if sooner else "does not hold",
        )


def coverage(problem: Problem, setting: Setting, method: Method) -> str:
    """Say whether the theorem covers a method as the experiment runs it, and if not, why."""
    algorithm = method.algorithm
    penalties = [
        algorithm.round_info(r, m=problem.m, max_local_steps=1).penalty
        for r in range(setting.rounds)
    ]
    steps = [
        algorithm.round_info(r, m=problem.m, max_local_steps=1).step for r in range(setting.rounds)
    ]
    largest = problem.largest_step(max(penalties), method.local_steps)
    reasons = []
    if max(steps) > largest:
        reasons.append(f"its step {max(steps):g} is above the largest admissible, {largest:.3g}")
    if len(set(penalties)) > 1 or len(set(steps)) > 1:
        reasons.append("its penalty or step changes from round to round")
    if method.participation != 1.0:
        reasons.append("agents are absent")
    if not reasons:
        return f"The theorem covers {method.name} as this experiment runs it."
    return f"The theorem does not cover {method.name} here: {', and '.join(reasons)}."


def _reaches(fit: Fit, rate: float) -> Verdict:
    """Say whether a fitted slope is as steep as a rate, or nearly, by its confidence interval."""
    if round(fit.low, 6) <= rate:
        return "holds"
    return "holds, but" if fit.slope <= rate + SLACK else "does not hold"


def _theorem(rates: Rates) -> Iterator[Claim]:
    """Yield whether the bounds hold and the rates are at least those of the theorem."""
    low, high = min(p.rounds for p in rates.points), max(p.rounds for p in rates.points)
    where = f"logistic regression, R = {low:,} to {high:,}"
    broken = len(rates.broken)
    yield Claim(
        "the theorem",
        where,
        "suboptimality and infeasibility stay within the bounds",
        f"{len(rates.points) - broken} of {len(rates.points)} runs are within all three bounds",
        "does not hold" if broken else "holds",
    )
    for what, quantity, rate in (
        ("suboptimality", lambda p: p.suboptimality, -0.5),
        ("squared infeasibility", lambda p: p.infeasibility, -1.0),
    ):
        fit, tail = rates.fit(quantity), rates.tail.fit(quantity)
        yield Claim(
            "the theorem",
            where,
            f"{what} falls like R to the power {rate:g}, or faster",
            f"fitted slope {fit}; over the longer half of the runs {tail}",
            _reaches(tail, rate),
        )


def baselines(comparison: Comparison) -> list[str]:
    """Return the methods with one shared model."""
    return [name for name in comparison.results if name != PC]


def _of_the_paper(c: Comparison) -> Iterator[Claim]:
    """Yield what the paper says of its comparison: feasibility, drift, loss, personal models."""
    source = "the paper" if c.setting.partition == "label_sorted" else "the paper's, other shards"
    worst = c.worst_infeasibility(PC)
    norms = c.norms(PC)
    limits = np.array(budgets(c))
    binds = bool((norms >= limits).any())
    use = f"‖W‖₁ = {norms.max():.1f} of {limits.min():g}"
    if worst > FEASIBLE:
        said = f"largest infeasibility {worst:.3g}; {use}: the constraint binds"
        yield Claim(source, c.title, f"{PC} stays feasible throughout", said, "does not hold")
    else:
        said = f"never infeasible; {use}: the constraint {'binds' if binds else 'never binds'}"
        verdict: Verdict = "holds" if binds else "holds, but"
        yield Claim(source, c.title, f"{PC} stays feasible throughout", said, verdict)

    if not baselines(c):
        return
    drift = {name: c.last(name, lambda r: float(r.infeasibility.max())) for name in baselines(c)}
    said = ", ".join(f"{name} {value:.3g}" for name, value in drift.items())
    all_drift = all(value > FEASIBLE for value in drift.values())
    yield Claim(
        source,
        c.title,
        "the baselines drift to infeasible iterates",
        f"largest infeasibility of an agent in the end: {said}",
        "holds" if all_drift else "does not hold",
    )

    own = c.last(PC, lambda r: float(r.infeasibility.max()))
    least = min(drift.values())
    lower: Verdict = "holds" if own < least else "holds, but" if own == least else "does not hold"
    yield Claim(
        source,
        c.title,
        f"{PC} is less infeasible than the baselines",
        f"{own:.3g} against {least:.3g} to {max(drift.values()):.3g}",
        lower,
    )

    loss = c.last(PC, lambda r: r.loss)
    best = min(baselines(c), key=lambda name: c.last(name, lambda r: r.loss))
    best_loss = c.last(best, lambda r: r.loss)
    close = loss <= best_loss * (1 + COMPARABLE)
    yield Claim(
        source,
        c.title,
        f"{PC}'s loss is comparable to the baselines'",
        f"{loss:.3f} against {best_loss:.3f} ({best}), {100 * (loss / best_loss - 1):+.0f} %",
        "holds" if close else "does not hold",
    )

    apart = c.last(PC, lambda r: float(r.distance.max()))
    personal = apart > FEASIBLE
    said = f"models are up to {apart:.2g} apart from the average"
    if not personal:
        said = "all models are identical here: they differ only once a constraint binds"
    yield Claim(
        source,
        c.title,
        "agents keep different models",
        said,
        "holds" if personal else "does not hold",
    )


def _more_local_steps_help(c: Comparison) -> Claim:
    """Say whether a larger number of local steps gives a smaller loss at the same round."""
    losses = [c.last(name, lambda r: r.loss) for name in c.results]
    steps = [method.local_steps for method in c.setting.methods if method.name in c.results]
    said = ", ".join(f"{h}: {loss:.3f}" for h, loss in zip(steps, losses, strict=True))
    falls = all(b < a for a, b in pairwise(losses))
    return Claim(
        "the paper",
        c.title,
        "more local steps improve PC-FedAvg",
        f"loss after {c.setting.rounds} rounds by local steps: {said}",
        "holds" if falls else "does not hold",
    )


def _budgets_bind(c: Comparison) -> Iterator[Claim]:
    """Yield what budgets that bind show: one model obeys the tightest, PC-FedAvg need not."""
    loss = c.last(PC, lambda r: r.loss)
    norms = c.norms(PC)
    shown = ", ".join(f"{norm:.0f} of {tau:g}" for norm, tau in zip(norms, budgets(c), strict=True))
    for name in baselines(c):
        other = c.last(name, lambda r: r.loss)
        one = c.norms(name)[0]
        yield Claim(
            "ours",
            c.title,
            f"{PC} has a lower loss than {name}, whose one model serves all budgets",
            f"{loss:.3f} with ‖W‖₁ = {shown}, against {other:.3f} with ‖W‖₁ = {one:.0f} for all",
            "holds" if loss < other else "does not hold",
        )
    own = c.last(PC, lambda r: float(r.infeasibility.max()))
    others = {n: c.last(n, lambda r: float(r.infeasibility.max())) for n in baselines(c)}
    said = ", ".join(f"{name} {value:.3f}" for name, value in others.items())
    if min(own, *others.values()) > FEASIBLE:
        said += "; no method is feasible for all agents"
    yield Claim(
        "ours",
        c.title,
        f"{PC}'s worst agent is closer to its set than the baselines' worst agent",
        f"{own:.3f} against {said}",
        "holds" if all(own < value for value in others.values()) else "does not hold",
    )


def budgets(comparison: Comparison) -> list[float]:
    """Return the l1 radius of every agent."""
    return [budget for budget in comparison.setting.budgets if budget is not None]
