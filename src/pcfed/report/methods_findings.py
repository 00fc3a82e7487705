"""Findings of the leaderboard as sentences, computed from the scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pcfed.experiments.leaderboard import ALONE, DEFAULTS, LEVEL, OURS, PROXAL, MethodResults

INSIDE = 1e-3
"""A model is inside a set if its distance from it is at most this."""


def method_findings(methods: MethodResults) -> list[str]:
    """Return the findings, the most important first."""
    return [
        *_best_rank(methods),
        *_signed_ranks(methods),
        *_against_alone(methods),
        *_ours(methods),
        *_outside(methods),
        *_shared_inside(methods),
        *_diverged(methods),
    ]


def _best_rank(methods: MethodResults) -> Iterator[str]:
    """Yield which method has the best mean rank, and from which others it is distinguished."""
    ranks = methods.mean_ranks()
    if len(ranks) < 2:
        return
    best, *others = ranks
    limit = ranks[best] + methods.critical_difference
    apart = [name for name in others if ranks[name] > limit]
    near = [name for name in others if ranks[name] <= limit]
    text = f"{best} has the best mean rank, {ranks[best]:.1f} of {len(ranks)}. Nemenyi's test "
    text += f"distinguishes it from {_names(apart) if apart else 'none of the others'}"
    yield text + (f", and not from {_names(near)}." if apart and near else ".")


def _signed_ranks(methods: MethodResults) -> Iterator[str]:
    """Yield from which others Wilcoxon's tests distinguish the method with the best mean rank."""
    if len(methods.mean_ranks()) < 2:
        return
    best, *others = methods.mean_ranks()
    p = methods.holm(best)
    apart = [f"{name} ({p[name]:.2g})" for name in others if p[name] <= LEVEL]
    near = [f"{name} ({p[name]:.2g})" for name in others if p[name] > LEVEL]
    text = f"Wilcoxon's signed-rank tests of {best} against each other method, with Holm's "
    text += "correction (p-values in brackets), distinguish it from "
    text += _names(apart) if apart else "none of the others"
    yield text + (f", and not from {_names(near)}." if near else ".")


def _against_alone(methods: MethodResults) -> Iterator[str]:
    """Yield which methods are better than training alone in most cells."""
    ranked = methods.mean_ranks()
    if ALONE not in ranked or len(ranked) < 2:
        return
    number = len(methods.cells)
    counts = {name: methods.wins(name, ALONE) for name in ranked if name != ALONE}
    texts = {name: f"{name} ({count})" for name, count in counts.items()}
    most = [texts[name] for name, count in counts.items() if 2 * count > number]
    fewer = [texts[name] for name, count in counts.items() if 2 * count <= number]
    text = f"More accurate than training alone in more than half of the {number} cells (their "
    text += f"number in brackets): {_names(most) if most else 'none'}."
    yield text + (f" In half of them or fewer: {_names(fewer)}." if fewer else "")


def _ours(methods: MethodResults) -> Iterator[str]:
    """Yield PCFedSplit beside the best other method, and its defaults beside its search."""
    others = [name for name in methods.mean_ranks() if name not in (OURS, ALONE)]
    if OURS in methods.mean_ranks() and others:
        yield difference(methods, OURS, others[0])
    if {OURS, DEFAULTS} <= set(methods.methods):
        yield difference(methods, DEFAULTS, OURS)


def difference(methods: MethodResults, first: str, second: str) -> str:
    """Return how much more accurate a method is than another, with an interval over cells."""
    found = methods.difference(first, second)
    mean, low, high = (100 * each for each in (found.mean, found.low, found.high))
    more = "less" if round(mean, 1) < 0 else "more"
    text = f"{quoted(first)} is {abs(mean):.1f} points {more} accurate than {quoted(second)}"
    if len(methods.cells) < 2:
        return f"{text}, in one cell."
    text += f" (mean over cells, 95 %: {low:+.1f} to {high:+.1f})"
    return f"{text}, so the cells do not distinguish them." if low <= 0 <= high else f"{text}."


def _outside(methods: MethodResults) -> Iterator[str]:
    """Yield how far models are outside their sets before they are projected."""
    most = {
        name: max(
            methods.infeasibility(cell, name)
            for cell in methods.cells
            if name in methods.methods_in(cell)
        )
        for name in methods.methods
    }
    inside = [name for name, value in most.items() if value <= INSIDE]
    outside = [f"{name} {value:.2g}" for name, value in most.items() if value > INSIDE]
    text = "Before they are projected, "
    if outside:
        text += f"models are outside their sets by up to: {_names(outside)}. "
    if inside:
        text += f"{'T' if outside else 't'}hose of {_names(map(quoted, inside))} are inside, "
        text += f"within {INSIDE:g}."
    yield text.strip()


def _shared_inside(methods: MethodResults) -> Iterator[str]:
    """Yield in how many cells the shared model of ProxAL is inside all sets."""
    if PROXAL not in methods.methods:
        return
    cells = [cell for cell in methods.cells if PROXAL in methods.methods_in(cell)]
    shared = [
        score.shared
        for cell in cells
        for score in methods.of(cell, PROXAL).scores
        if score.shared is not None
    ]
    if not shared:
        return
    inside = [each for each in shared if each.infeasibility <= INSIDE]
    text = (
        f"The shared model of {PROXAL}, which in the limit is inside all sets, is so within "
        f"{INSIDE:g} in {len(inside)} of {len(shared)} trainings"
    )
    if len(inside) < len(shared):
        text += f"; the largest distance is {max(each.infeasibility for each in shared):.2g}"
    if inside:
        mean = 100 * sum(each.accuracy for each in inside) / len(inside)
        text += f". Where it is, its mean accuracy is {mean:.1f} %"
    yield f"{text}."


def _diverged(methods: MethodResults) -> Iterator[str]:
    """Yield in which cells trainings have diverged, and the accuracies of all seeds there."""
    for name in methods.methods:
        for cell in methods.cells if methods.num_diverged(name) else ():
            scores = methods.of(cell, name).scores if name in methods.methods_in(cell) else ()
            if any(not score.course for score in scores):
                found = ", ".join(f"{100 * score.accuracy:.1f}" for score in scores)
                yield (
                    f"Trainings of {name} have diverged and have the score 0, which lowers its "
                    f"mean: in the cell {cell.title} its accuracies are {found} %."
                )


def quoted(name: str) -> str:
    """Return a name, in quotation marks if it has a comma."""
    return f"“{name}”" if "," in name else name


def _names(names: Iterable[str]) -> str:
    """Return names with commas, and "and" before the last one."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
