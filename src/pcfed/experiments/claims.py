"""The claims of the paper's numerical section and ours, and whether the results confirm them.

Every number in a sentence is computed from the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from pcfed.experiments import personal as personal_models
from pcfed.experiments.personal import Interval, PersonalResults, half_width
from pcfed.experiments.personal_cells import CELLS, Cell
from pcfed.experiments.presets import RunSpec, Setting
from pcfed.experiments.rates import Fit, Rates
from pcfed.experiments.round_cases import Case
from pcfed.experiments.rounds import OURS, RoundsResults, max_rounds
from pcfed.experiments.summary import Comparison
from pcfed.problem import Problem

PC = "PC-FedAvg"
FEASIBLE = 1e-6
"""Models with at most this infeasibility count as feasible, as local steps run in float32."""

COMPARABLE = 0.1
"""Losses at most this fraction above the best count as comparable."""

SLOPE_TOLERANCE = 0.1
"""A rate "holds, but" if the fitted slope is flatter by at most this."""

SMALLEST_M, LARGEST_RATIO = 10, 2.0
"""The number of rounds does not grow with m if, from this number of agents on, the largest is at
most this multiple of the smallest."""

PERSONAL_SOURCE = "personal"

Verdict = Literal["holds", "holds, but", "does not hold"]


@dataclass(frozen=True)
class Claim:
    """A claim, the measured values, and the verdict."""

    source: str  # whose claim it is
    where: str  # the experiment
    claim: str
    measured: str
    verdict: Verdict


def claims(
    comparisons: Sequence[Comparison],
    rates: Rates | None = None,
    rounds: RoundsResults | None = None,
    personal: PersonalResults | None = None,
) -> list[Claim]:
    """Return the claims that the given results confirm or refute."""
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
    if rounds is not None:
        found.extend(_independent_of_agents(rounds))
        for target in sorted({each for case in rounds.cases for each in case.targets})[::-1]:
            cases = [case for case in rounds.cases if target in case.targets]
            found.extend(_needs_fewest_rounds(rounds, case, target) for case in cases)
    if personal is not None:
        found.extend(_good_for_owners(personal))
    return found


def _good_for_owners(personal: PersonalResults) -> Iterator[Claim]:
    """Yield how the recommended problem compares with others, by accuracy of the own models."""
    ours = personal_models.OURS
    for other, text, verdict in (
        (personal_models.ALONE, "at least as good as training alone", _at_least),
        (personal_models.PAPER, "better than the paper's problem", _better),
        (personal_models.DITTO, "not worse than Ditto", _at_least),
    ):
        claim = f"own models of {ours} are {text}"
        for cell in personal.cells:
            difference = personal.difference(cell, ours, other)
            measured = f"difference of accuracies {difference.signed()}: " + " against ".join(
                f"{personal.accuracy(cell, each).mean:.3f}" for each in (ours, other)
            )
            yield Claim(PERSONAL_SOURCE, cell.title, claim, measured, verdict(difference))
        if len(personal.cells) > 1:
            difference = personal.overall_difference(ours, other)
            measured = f"mean difference over {len(personal.cells)} cells {difference.signed()}"
            yield Claim(PERSONAL_SOURCE, "all cells", claim, measured, verdict(difference))
    yield _best_rank(personal)
    if CELLS[0] in personal.cells:
        yield from _as_measured_before(personal, CELLS[0])


def _at_least(difference: Interval) -> Verdict:
    """Return whether a difference is not negative; it "holds, but" if noise explains the rest."""
    if difference.mean >= 0:
        return "holds"
    return "holds, but" if difference.high >= 0 else "does not hold"


def _better(difference: Interval) -> Verdict:
    """Return whether a difference is positive; it "holds, but" if noise may explain it."""
    if difference.low > 0:
        return "holds"
    return "holds, but" if difference.mean > 0 else "does not hold"


def _best_rank(personal: PersonalResults) -> Claim:
    """Return whether the recommended problem has the best mean rank inside the sets."""
    ranks = personal.mean_ranks()
    best = next(iter(ranks))
    listed = ", ".join(f"{method} {rank:.1f}" for method, rank in ranks.items())
    ours = personal_models.OURS
    return Claim(
        PERSONAL_SOURCE,
        f"{len(personal.cells)} cells",
        f"{ours} has the best mean rank of all methods inside the sets",
        f"mean ranks: {listed}",
        "holds" if ranks[ours] <= ranks[best] else "does not hold",
    )


def _as_measured_before(personal: PersonalResults, cell: Cell) -> Iterator[Claim]:
    """Yield whether a first measurement, with one draw of the data, is within the noise."""
    rows = [
        (method, value, [score.accuracy for score in personal.of(cell, method)])
        for method, value in personal_models.EARLIER.items()
    ]
    centers = [score.center or 0.0 for score in personal.of(cell, personal_models.OURS)]
    rows.append((f"centre of {personal_models.OURS}", personal_models.EARLIER_CENTER, centers))
    for name, value, measured in rows:
        mean, width = float(np.mean(measured)), half_width(measured, single=True)
        # The earlier values have two digits.
        within = abs(value - mean) <= width + 0.005
        yield Claim(
            PERSONAL_SOURCE,
            cell.title,
            "accuracies agree with a first measurement, within the spread of single draws",
            f"{name}: {mean:.3f} ± {width:.3f} against {value:.2f}",
            "holds" if within else "does not hold",
        )


def _needs_fewest_rounds(rounds: RoundsResults, case: Case, target: float) -> Claim:
    """Return whether PCFedSplit reaches a gap in no more rounds than every other algorithm."""
    others = [name for name in rounds.names(case) if name != OURS]
    found = {name: rounds.first(case, name, target) for name in others}
    reached = {name: record.round for name, record in found.items() if record}
    fewest = min(reached.values(), default=math.inf)
    first = ", ".join(name for name, number in reached.items() if number == fewest)
    measured = f"{rounds.text(case, OURS, target)} rounds"
    measured += f" against {fewest:,} ({first})" if reached else "; no other algorithm did"
    ours = rounds.first(case, OURS, target)
    verdict: Verdict = "does not hold" if ours is None or ours.round > fewest else "holds"
    unreached = [name for name in others if name not in reached]
    cut = [name for name in unreached if ours and _ended_before(rounds, case, name, ours.round)]
    if cut:  # it is not known how many rounds they need
        measured += f"; {', '.join(cut)} had only {max_rounds(case, cut[0]):,} rounds"
        verdict = "holds, but" if verdict == "holds" else verdict
    return Claim(
        "rounds",
        case.title,
        f"{OURS} reaches the certified gap {target:g} in no more rounds than every other algorithm",
        measured,
        verdict,
    )


def _ended_before(rounds: RoundsResults, case: Case, name: str, number: int) -> bool:
    """Return whether a run of an algorithm, neither stalled nor diverged, had fewer rounds."""
    runs = [each for each in rounds.of(case, name) if each.status == "finished"]
    return any(each.records[-1].round < number for each in runs)


def _independent_of_agents(rounds: RoundsResults) -> Iterator[Claim]:
    """Yield whether the number of rounds of PCFedSplit does not grow with the number of agents."""
    cases = [case for case in rounds.cases_by_agents if case.agents >= SMALLEST_M]
    if len(cases) < 2:
        return
    target = min(cases[0].targets)
    listed = ", ".join(f"{case.agents:,}: {rounds.text(case, OURS, target)}" for case in cases)
    found = [rounds.first(case, OURS, target) for case in cases]
    numbers = [each.round for each in found if each]
    measured, ratio = f"rounds by m: {listed}", math.inf
    if len(numbers) == len(cases):
        ratio = max(numbers) / min(numbers)
        measured += f"; the largest is {ratio:.2g} times the smallest"
    yield Claim(
        "rounds",
        f"least squares, m = {cases[0].agents:,} to {cases[-1].agents:,}",
        f"the number of rounds of {OURS} to the certified gap {target:g} does not grow with m",
        measured,
        "holds" if ratio <= LARGEST_RATIO else "does not hold",
    )


def coverage(problem: Problem, setting: Setting, spec: RunSpec) -> str:
    """Return a sentence on whether the theorem covers a run of an experiment, and if not, why."""
    infos = [
        spec.algorithm.round_info(r, m=problem.m, max_local_steps=1) for r in range(setting.rounds)
    ]
    penalties, steps = [info.penalty for info in infos], [info.step for info in infos]
    largest = problem.largest_step(max(penalties), spec.local_steps)
    reasons = []
    if max(steps) > largest:
        reasons.append(f"its step {max(steps):g} is above the largest admissible, {largest:.3g}")
    if len(set(penalties)) > 1 or len(set(steps)) > 1:
        reasons.append("its penalty or step changes from round to round")
    if spec.participation != 1.0:
        reasons.append("agents are absent")
    if not reasons:
        return f"The theorem covers {spec.name} as this experiment runs it."
    return f"The theorem does not cover {spec.name} here: {', and '.join(reasons)}."


def _reaches(fit: Fit, rate: float) -> Verdict:
    """Return whether a fitted slope is as steep as a rate, by its confidence interval."""
    if round(fit.low, 6) <= rate:
        return "holds"
    return "holds, but" if fit.slope <= rate + SLOPE_TOLERANCE else "does not hold"


def _theorem(rates: Rates) -> Iterator[Claim]:
    """Yield whether the bounds hold, and whether the rates are at least those of the theorem."""
    low, high = min(p.rounds for p in rates.points), max(p.rounds for p in rates.points)
    where = f"logistic regression, R = {low:,} to {high:,}"
    violations = len(rates.violations)
    yield Claim(
        "the theorem",
        where,
        "suboptimality and infeasibility stay within the bounds",
        f"{len(rates.points) - violations} of {len(rates.points)} runs are within all three bounds",
        "does not hold" if violations else "holds",
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
    """Return the names of the runs with one shared model."""
    return [name for name in comparison.results if name != PC]


def _of_the_paper(c: Comparison) -> Iterator[Claim]:
    """Yield the claims of the paper on its comparison of algorithms."""
    yield _stays_feasible(c)
    if baselines(c):
        yield from _baselines_are_infeasible(c)
        yield _loss_is_comparable(c)
        yield _models_differ(c)


def _paper_claim(c: Comparison, claim: str, measured: str, verdict: Verdict) -> Claim:
    source = "the paper" if c.setting.partition == "label_sorted" else "the paper's, other shards"
    return Claim(source, c.title, claim, measured, verdict)


def _stays_feasible(c: Comparison) -> Claim:
    """Return whether PC-FedAvg is feasible in all rounds; it "holds, but" if nothing binds."""
    worst, norms, limits = c.worst_infeasibility(PC), c.norms(PC), np.array(budgets(c))
    used = f"‖W‖₁ = {norms.max():.1f} of {limits.min():g}"
    binds = worst > FEASIBLE or bool((norms >= limits).any())
    distance = f"largest infeasibility {worst:.3g}" if worst > FEASIBLE else "never infeasible"
    return _paper_claim(
        c,
        f"{PC} stays feasible throughout",
        f"{distance}; {used}: the constraint {'binds' if binds else 'never binds'}",
        "does not hold" if worst > FEASIBLE else "holds" if binds else "holds, but",
    )


def _final_infeasibility(c: Comparison, name: str) -> float:
    """Return the largest infeasibility of an agent in the last round."""
    return c.last(name, lambda r: float(r.infeasibility.max()))


def _baselines_are_infeasible(c: Comparison) -> Iterator[Claim]:
    """Yield whether the baselines end infeasible, and further outside than PC-FedAvg."""
    others = {name: _final_infeasibility(c, name) for name in baselines(c)}
    listed = ", ".join(f"{name} {value:.3g}" for name, value in others.items())
    yield _paper_claim(
        c,
        "the baselines drift to infeasible iterates",
        f"largest infeasibility of an agent in the end: {listed}",
        "holds" if all(value > FEASIBLE for value in others.values()) else "does not hold",
    )
    own, least = _final_infeasibility(c, PC), min(others.values())
    yield _paper_claim(
        c,
        f"{PC} is less infeasible than the baselines",
        f"{own:.3g} against {least:.3g} to {max(others.values()):.3g}",
        "holds" if own < least else "holds, but" if own == least else "does not hold",
    )


def _loss_is_comparable(c: Comparison) -> Claim:
    """Return whether the loss of PC-FedAvg is close to that of the best baseline."""
    losses = {name: c.last(name, lambda r: r.loss) for name in (PC, *baselines(c))}
    best = min(baselines(c), key=lambda name: losses[name])
    excess = losses[PC] / losses[best] - 1
    return _paper_claim(
        c,
        f"{PC}'s loss is comparable to the baselines'",
        f"{losses[PC]:.3f} against {losses[best]:.3f} ({best}), {100 * excess:+.0f} %",
        "holds" if losses[PC] <= losses[best] * (1 + COMPARABLE) else "does not hold",
    )


def _models_differ(c: Comparison) -> Claim:
    """Return whether agents have different models in the end."""
    distance = c.last(PC, lambda r: float(r.distance.max()))
    differ = distance > FEASIBLE
    return _paper_claim(
        c,
        "agents keep different models",
        f"models are up to {distance:.2g} away from the average"
        if differ
        else "all models are identical here: they differ only once a constraint binds",
        "holds" if differ else "does not hold",
    )


def _more_local_steps_help(c: Comparison) -> Claim:
    """Return whether a larger number of local steps gives a smaller loss at the same round."""
    losses = [c.last(name, lambda r: r.loss) for name in c.results]
    steps = [spec.local_steps for spec in c.setting.runs if spec.name in c.results]
    listed = ", ".join(f"{h}: {loss:.3f}" for h, loss in zip(steps, losses, strict=True))
    falls = all(b < a for a, b in pairwise(losses))
    return Claim(
        "the paper",
        c.title,
        "more local steps improve PC-FedAvg",
        f"loss after {c.setting.rounds} rounds by local steps: {listed}",
        "holds" if falls else "does not hold",
    )


def _budgets_bind(c: Comparison) -> Iterator[Claim]:
    """Yield whether personal models help where the budgets differ and are active."""
    loss = c.last(PC, lambda r: r.loss)
    pairs = zip(c.norms(PC), budgets(c), strict=True)
    used = ", ".join(f"{norm:.0f} of {tau:g}" for norm, tau in pairs)
    for name in baselines(c):
        other = c.last(name, lambda r: r.loss)
        shared_norm = c.norms(name)[0]
        yield Claim(
            "ours",
            c.title,
            f"{PC} has a lower loss than {name}, whose one model serves all budgets",
            f"{loss:.3f} with ‖W‖₁ = {used}, against {other:.3f} with ‖W‖₁ = {shared_norm:.0f} "
            "for all",
            "holds" if loss < other else "does not hold",
        )
    own = _final_infeasibility(c, PC)
    others = {name: _final_infeasibility(c, name) for name in baselines(c)}
    listed = ", ".join(f"{name} {value:.3f}" for name, value in others.items())
    if min(own, *others.values()) > FEASIBLE:
        listed += "; no algorithm is feasible for all agents"
    yield Claim(
        "ours",
        c.title,
        f"{PC}'s worst agent is closer to its set than the baselines' worst agent",
        f"{own:.3f} against {listed}",
        "holds" if all(own < value for value in others.values()) else "does not hold",
    )


def budgets(comparison: Comparison) -> list[float]:
    """Return the l1 radius of every agent."""
    return [budget for budget in comparison.setting.budgets if budget is not None]
