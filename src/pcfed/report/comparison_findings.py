"""Findings of a comparison as sentences, computed from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pcfed.algorithms import FedAvg, PCFedAvg, Scaffold
from pcfed.experiments.claims import FEASIBLE, PC
from pcfed.experiments.presets import NAMES, load_preset
from pcfed.experiments.summary import Comparison
from pcfed.report.comparison_metrics import AlgorithmMetrics, format_agents
from pcfed.simulation.runner import rounds_text

FALLING = 0.005
"""A loss that fell by this fraction or more in the last tenth of the rounds is still falling."""


def summary(c: Comparison, metrics: Sequence[AlgorithmMetrics]) -> str:
    """Return the most important findings of a comparison."""
    own, others = _split(metrics)
    if own is None or not others:
        return " ".join([_ranking(metrics), *_equal_work(c)])
    return " ".join([_constraint(c, own), _others(others), _loss(own, others)])


def findings(c: Comparison, metrics: Sequence[AlgorithmMetrics]) -> list[str]:
    """Return the findings of a comparison, the most important first."""
    own, others = _split(metrics)
    if own is None or not others:
        return [_ranking(metrics), *_equal_work(c)]
    return [
        _constraint(c, own),
        *_unfinished(c),
        _others(others),
        _loss(own, others),
        _personal(c, own, others),
        *_accuracy(own, others),
        _bytes_sent(own, others),
    ]


def _split(
    metrics: Sequence[AlgorithmMetrics],
) -> tuple[AlgorithmMetrics | None, list[AlgorithmMetrics]]:
    """Return PC-FedAvg and the algorithms with one shared model."""
    own = next((algorithm for algorithm in metrics if algorithm.name == PC), None)
    return own, [algorithm for algorithm in metrics if algorithm.name != PC]


def _constraint(c: Comparison, own: AlgorithmMetrics) -> str:
    """Return whether the constraint was active for PC-FedAvg, and its infeasibility at the end."""
    outside = [
        record.round
        for result in c.results[PC]
        for record in (result.start, *result.history)
        if record.infeasibility.max() > FEASIBLE
    ]
    if outside:
        return (
            f"The constraint binds for {PC}, first in round {min(outside)}; "
            f"at the end it is {_feasibility(own)}."
        )
    use = max((a.norm / a.budget for a in own.agents if a.budget), default=1.0)
    if use >= 1:
        return f"{PC} was feasible in every evaluated round."
    return (
        f"{PC} was feasible in every evaluated round, but its constraint never bound: no agent "
        f"used more than {100 * use:.1f} % of its budget, so the constraint had no effect."
    )


def _feasibility(algorithm: AlgorithmMetrics) -> str:
    """Return which agents' models are infeasible, with their distances from the sets."""
    agents = [i for i, agent in enumerate(algorithm.agents) if agent.infeasibility > FEASIBLE]
    if not agents:
        return "feasible for all agents"
    distances = _join_or_each([_distance(algorithm.agents[i].infeasibility) for i in agents])
    return f"infeasible for {format_agents(agents)}, at distance {distances}"


def _others(others: Sequence[AlgorithmMetrics]) -> str:
    """Return which algorithms with one shared model ended feasible."""
    names_by_text: dict[str, list[str]] = {}
    for algorithm in others:
        names_by_text.setdefault(_feasibility(algorithm), []).append(algorithm.name)
    text = "; ".join(
        f"{_join(names)} {'are' if len(names) > 1 else 'is'} {feasibility}"
        for feasibility, names in names_by_text.items()
    )
    return f"With one shared model, {text}."


def _distance(value: float) -> str:
    """Return a distance with at least two significant digits."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def _unfinished(c: Comparison) -> Iterator[str]:
    """Yield that PC-FedAvg's loss was still falling, if it was, with its step and the others'."""
    history = c.results[PC][0].history
    tenth = max(1, len(history) // 10)
    if len(history) <= tenth:
        return
    before, after = history[-1 - tenth], history[-1]
    fell = 1 - after.loss / before.loss
    if fell < FALLING:
        return
    text = (
        f"{PC} had not converged after the last round: its loss still fell by {100 * fell:.1f} % "
        f"in the last {rounds_text(after.round - before.round)}."
    )
    steps = {
        run.name: run.algorithm.step
        for run in c.setting.runs
        if run.name in c.results
        and isinstance(run.algorithm, PCFedAvg | FedAvg | Scaffold)
        and isinstance(run.algorithm.step, float)
    }
    if PC in steps:
        mean_step = steps.pop(PC) / len(c.setting.constraints)
        faster = [name for name, step in steps.items() if step > mean_step]
        if faster:
            rates = _join(sorted({f"{steps[name]:g}" for name in faster}))
            text += (
                f" Its average moves with step γ/m = {mean_step:g}, "
                f"against {rates} for {_join(faster)}."
            )
    yield text


def _loss(own: AlgorithmMetrics, others: Sequence[AlgorithmMetrics]) -> str:
    """Return PC-FedAvg's loss, and the best and the worst loss of the others."""
    best = min(others, key=lambda algorithm: algorithm.loss)
    worst = max(others, key=lambda algorithm: algorithm.loss)
    change = 100 * (own.loss / best.loss - 1)
    side = "above" if change >= 0 else "below"
    text = f"Loss: {PC} {own.loss:.3f}, {abs(change):.0f} % {side} the best of the others"
    text += f" ({best.name}, {best.loss:.3f})"
    if worst is not best:
        text += f"; the worst of them is {worst.name} with {worst.loss:.3f}"
    return text + "."


def _personal(c: Comparison, own: AlgorithmMetrics, others: Sequence[AlgorithmMetrics]) -> str:
    """Return whether the agents' models differ, and their norms and budgets."""
    apart = c.last(PC, lambda r: float(r.distance.max()))
    if apart <= FEASIBLE:
        return (
            f"All agents of {PC} have the same model here: models differ only once a constraint "
            "binds, so this setting shows no personalisation."
        )
    norms = [f"{a.norm:.0f} of {a.budget:g}" for a in own.agents if a.budget is not None]
    used = f" Their ‖W‖₁ is {_join_or_each(norms)}." if norms else ""
    shared = _join([f"{each.agents[0].norm:.0f} ({each.name})" for each in others])
    return (
        f"The agents of {PC} have different models, up to {apart:.2g} from their average.{used} "
        f"A shared model has one ‖W‖₁ for all agents: {shared}."
    )


def _accuracy(own: AlgorithmMetrics, others: Sequence[AlgorithmMetrics]) -> Iterator[str]:
    """Yield the test accuracies of the agents' own models, if they are known."""
    if not own.accuracies:
        return
    rest = _join([f"{each.name} {_percentages(each.accuracies)}" for each in others])
    yield (
        f"Test accuracy of the agents' own models, on the whole test set: {PC} "
        f"{_percentages(own.accuracies)}; {rest}."
    )


def _bytes_sent(own: AlgorithmMetrics, others: Sequence[AlgorithmMetrics]) -> str:
    """Return how much PC-FedAvg sent, relative to the others."""
    rest = _join([f"{own.megabytes / each.megabytes:.1f} × {each.name}" for each in others])
    return f"{PC} sent {own.megabytes:.1f} MB, which is {rest}."


def _ranking(metrics: Sequence[AlgorithmMetrics]) -> str:
    """Return the algorithms ranked by loss."""
    ranked = sorted(metrics, key=lambda algorithm: algorithm.loss)
    order = ", ".join(f"{algorithm.name} {algorithm.loss:.3f}" for algorithm in ranked)
    return f"Loss at the end, from the lowest: {order}."


def _equal_work(c: Comparison) -> Iterator[str]:
    """Yield the losses after as many local steps as the shortest run has done, if they differ."""
    steps = {run.name: run.local_steps for run in c.setting.runs}
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


def _join(words: Sequence[str]) -> str:
    """Return words as an enumeration.

    Examples
    --------
    >>> _join(["a"]), _join(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _join_or_each(words: Sequence[str]) -> str:
    """Return words as an enumeration; several equal words are written once.

    Examples
    --------
    >>> _join_or_each(["a", "b"]), _join_or_each(["a", "a"])
    ('a and b', 'a each')
    """
    equal = len(words) > 1 and len(set(words)) == 1
    return f"{words[0]} each" if equal else _join(words)


def _percentages(fractions: Sequence[float]) -> str:
    """Return fractions in percent for each agent, or once if they are all the same.

    Examples
    --------
    >>> print(_percentages([0.5, 0.5]), _percentages([0.5, 0.75]), sep="; ")
    50.0 %; 50.0, 75.0 % (agents 1–2)
    """
    words = [f"{100 * share:.1f}" for share in fractions]
    if len(set(words)) == 1:
        return f"{words[0]} %"
    return f"{', '.join(words)} % ({format_agents(range(len(words)))})"


def differences(c: Comparison) -> list[str]:
    """Return how a setting differs from the packaged experiment of the same name."""
    if c.preset.name not in NAMES:
        return []
    known = {setting.name: setting for setting in load_preset(c.preset.name).settings}
    if c.setting.name not in known:
        return []
    names = ("data", "samples", "partition", "constraints", "couplings", "rounds", "batch")
    values = [(n, getattr(c.setting, n), getattr(known[c.setting.name], n)) for n in names]
    return [
        f"{name} {_format_value(here)} instead of {_format_value(there)}"
        for name, here, there in values
        if here != there
    ]


def _format_value(value: object) -> str:
    if value is None:
        return "all"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
