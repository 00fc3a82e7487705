"""What the results say, in sentences: every number, name and direction is computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pcfed.algorithms import FedAvg, PCFedAvg, Scaffold
from pcfed.experiments.claims import FEASIBLE, PC
from pcfed.experiments.presets import NAMES, Setting, load_preset
from pcfed.experiments.summary import Comparison
from pcfed.report.measures import MethodMeasures, agents_named

FALLING = 0.005
"""A loss that fell by more than this share in the last tenth of the rounds is still falling."""


def in_short(c: Comparison, measured: Sequence[MethodMeasures]) -> str:
    """Return what a reader should take away from a comparison.

    Parameters
    ----------
    c : Comparison
        The finished setting.
    measured : sequence of MethodMeasures
        Its measures.
    """
    own, others = _split(measured)
    if own is None or not others:
        return " ".join([_variants(measured), *_equal_work(c)])
    return " ".join([_constraint(c, own), _others(others), _loss(own, others)])


def findings(c: Comparison, measured: Sequence[MethodMeasures]) -> list[str]:
    """Return what a comparison shows, one thing an entry, the most important first.

    Parameters
    ----------
    c : Comparison
        The finished setting.
    measured : sequence of MethodMeasures
        Its measures.
    """
    own, others = _split(measured)
    if own is None or not others:
        return [_variants(measured), *_equal_work(c)]
    return [
        _constraint(c, own),
        *_unfinished(c),
        _others(others),
        _loss(own, others),
        _personal(c, own, others),
        *_accuracy(own, others),
        _sent(own, others),
    ]


def _split(
    measured: Sequence[MethodMeasures],
) -> tuple[MethodMeasures | None, list[MethodMeasures]]:
    """Return PC-FedAvg and the methods with one shared model."""
    own = next((method for method in measured if method.name == PC), None)
    return own, [method for method in measured if method.name != PC]


def _constraint(c: Comparison, own: MethodMeasures) -> str:
    """Say whether the constraint bound for PC-FedAvg, and how far out it ended."""
    outside = [
        record.round
        for result in c.results[PC]
        for record in (result.start, *result.history)
        if record.infeasibility.max() > FEASIBLE
    ]
    if outside:
        return (
            f"The constraint binds for {PC}, first in round {min(outside)}; "
            f"at the end it is {_place(own)}."
        )
    use = max((a.norm / a.budget for a in own.agents if a.budget), default=1.0)
    if use >= 1:
        return f"{PC} was feasible in every evaluated round."
    return (
        f"{PC} was feasible in every evaluated round, but its constraint never bound: no agent "
        f"used more than {100 * use:.1f} % of its budget, so nothing held it back."
    )


def _place(method: MethodMeasures) -> str:
    """Say for which agents a method's models are outside of their sets, and how far."""
    out = [i for i, agent in enumerate(method.agents) if agent.infeasibility > FEASIBLE]
    if not out:
        return "feasible for all agents"
    distances = _each([_distance(method.agents[i].infeasibility) for i in out])
    return f"infeasible for {agents_named(out)}, at distance {distances}"


def _others(others: Sequence[MethodMeasures]) -> str:
    """Say where the methods with one shared model ended."""
    places: dict[str, list[str]] = {}
    for method in others:
        places.setdefault(_place(method), []).append(method.name)
    said = "; ".join(
        f"{_listed(names)} {'are' if len(names) > 1 else 'is'} {place}"
        for place, names in places.items()
    )
    return f"With one shared model, {said}."


def _distance(value: float) -> str:
    """Return a distance with at least two digits that count."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def _unfinished(c: Comparison) -> Iterator[str]:
    """Say that PC-FedAvg's loss was still falling, and how its step compares, if it was."""
    history = c.results[PC][0].history
    tenth = max(1, len(history) // 10)
    if len(history) <= tenth:
        return
    before, after = history[-1 - tenth], history[-1]
    fell = 1 - after.loss / before.loss
    if fell < FALLING:
        return
    said = (
        f"{PC} had not arrived when it was stopped: its loss still fell by {100 * fell:.1f} % in "
        f"the last {after.round - before.round} rounds."
    )
    steps = {
        method.name: method.algorithm.step
        for method in c.setting.runs
        if method.name in c.results
        and isinstance(method.algorithm, PCFedAvg | FedAvg | Scaffold)
        and isinstance(method.algorithm.step, float)
    }
    if PC in steps:
        mean_step = steps.pop(PC) / len(c.setting.constraints)
        faster = [name for name, step in steps.items() if step > mean_step]
        if faster:
            rates = _listed(sorted({f"{steps[name]:g}" for name in faster}))
            said += (
                f" Its average moves with step γ/m = {mean_step:g}, "
                f"against {rates} for {_listed(faster)}."
            )
    yield said


def _loss(own: MethodMeasures, others: Sequence[MethodMeasures]) -> str:
    """Compare PC-FedAvg's loss with the best and the worst of the others."""
    best = min(others, key=lambda method: method.loss)
    worst = max(others, key=lambda method: method.loss)
    change = 100 * (own.loss / best.loss - 1)
    side = "above" if change >= 0 else "below"
    said = f"Loss: {PC} {own.loss:.3f}, {abs(change):.0f} % {side} the best of the others"
    said += f" ({best.name}, {best.loss:.3f})"
    if worst is not best:
        said += f"; the worst of them is {worst.name} with {worst.loss:.3f}"
    return said + "."


def _personal(c: Comparison, own: MethodMeasures, others: Sequence[MethodMeasures]) -> str:
    """Say whether the agents' models differ, and how the norms use the budgets."""
    apart = c.last(PC, lambda r: float(r.distance.max()))
    if apart <= FEASIBLE:
        return (
            f"All agents of {PC} have the same model here: models differ only once a constraint "
            "binds, so in this setting there is no personalisation to see."
        )
    norms = [f"{a.norm:.0f} of {a.budget:g}" for a in own.agents if a.budget is not None]
    used = f" Their ‖W‖₁ is {_each(norms)}." if norms else ""
    shared = _listed([f"{method.agents[0].norm:.0f} ({method.name})" for method in others])
    return (
        f"The agents of {PC} have different models, up to {apart:.2g} from their average.{used} "
        f"A shared model has one ‖W‖₁ for all agents: {shared}."
    )


def _accuracy(own: MethodMeasures, others: Sequence[MethodMeasures]) -> Iterator[str]:
    """Compare the test accuracies of the agents' own models."""
    if not own.accuracies:
        return
    rest = _listed([f"{method.name} {_percents(method.accuracies)}" for method in others])
    yield (
        f"Test accuracy of the agents' own models, on the whole test set: {PC} "
        f"{_percents(own.accuracies)}; {rest}."
    )


def _sent(own: MethodMeasures, others: Sequence[MethodMeasures]) -> str:
    """Compare the bytes sent."""
    rest = _listed([f"{own.megabytes / method.megabytes:.1f} × {method.name}" for method in others])
    return f"{PC} sent {own.megabytes:.1f} MB, which is {rest}."


def _variants(measured: Sequence[MethodMeasures]) -> str:
    """Rank methods by their loss."""
    ranked = sorted(measured, key=lambda method: method.loss)
    order = ", ".join(f"{method.name} {method.loss:.3f}" for method in ranked)
    return f"Loss at the end, from the lowest: {order}."


def _equal_work(c: Comparison) -> Iterator[str]:
    """Compare losses after as many local steps as the shortest run has done."""
    steps = {method.name: method.local_steps for method in c.setting.runs}
    if len({steps[name] for name in c.results}) < 2:
        return
    work = min(steps[name] * c.results[name][0].history[-1].round for name in c.results)
    reached = {}
    for name in c.results:
        curve = c.curve(name, lambda r: r.loss)
        reached[name] = float(np.interp(work, steps[name] * curve.rounds, curve.mean))
    ranked = sorted(reached, key=lambda name: reached[name])
    order = ", ".join(f"{name} {reached[name]:.3f}" for name in ranked)
    yield (
        f"At equal work, after {work} local steps of every agent (interpolated between rounds), "
        f"from the lowest: {order}."
    )


def _listed(words: Sequence[str]) -> str:
    """Return words with commas and an "and".

    Examples
    --------
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _each(words: Sequence[str]) -> str:
    """Return words as `_listed` does, or the one that all of them are.

    Examples
    --------
    >>> _each(["a", "b"]), _each(["a", "a"])
    ('a and b', 'a each')
    """
    alike = len(words) > 1 and len(set(words)) == 1
    return f"{words[0]} each" if alike else _listed(words)


def _percents(shares: Sequence[float]) -> str:
    """Return shares in per cent, agent by agent, or one if all are alike.

    Examples
    --------
    >>> print(_percents([0.5, 0.5]), _percents([0.5, 0.75]), sep="; ")
    50.0 %; 50.0, 75.0 % (agents 1–2)
    """
    words = [f"{100 * share:.1f}" for share in shares]
    if len(set(words)) == 1:
        return f"{words[0]} %"
    return f"{', '.join(words)} % ({agents_named(range(len(words)))})"


def differences(c: Comparison) -> list[str]:
    """Return how a comparison differs from the experiment of its name that the package has.

    Parameters
    ----------
    c : Comparison
        The finished setting.
    """
    if c.preset.name not in NAMES:
        return []
    known = {setting.name: setting for setting in load_preset(c.preset.name).settings}
    full = known.get(c.setting.name)
    return [] if full is None else list(_differences(c.setting, full))


def _differences(setting: Setting, full: Setting) -> Iterator[str]:
    for name in ("data", "samples", "partition", "constraints", "couplings", "rounds", "batch"):
        here, there = getattr(setting, name), getattr(full, name)
        if here != there:
            words = [_words(value) for value in (here, there)]
            yield f"{name} {words[0]} instead of {words[1]}"


def _words(value: object) -> str:
    if value is None:
        return "all"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
