"""Whether a training gets worse: from the losses that agents report, and from certified gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

PATIENCE = 5
"""A course is worse than its best for so many rounds before anybody is warned."""

TOLERANCE = 0.1
"""Losses that are above their best by a smaller share do not count as worse."""

NUM_GAPS = 3
"""There is a warning if so many certified gaps in turn are each larger than the one before."""

ADVICE = (
    "see which agents are in these rounds (pcfed federation status), and go back with pcfed "
    "federation rollback if it goes on."
)


class Course:
    """The course of a training, as far as the server knows it.

    Parameters
    ----------
    history : iterable of mappings
        The entries of the rounds that are done, each with ``metrics`` by agent.
    """

    def __init__(self, history: Iterable[Mapping[str, Any]] = ()) -> None:
        self._best: dict[str, float] = {}
        self._worse: list[tuple[float, float]] = []  # the loss and the best one, round by round
        self._gaps: list[float] = []
        for entry in history:
            self.add_round(entry)

    def add_round(self, entry: Mapping[str, Any]) -> None:
        """Add the entry of a round."""
        losses = {
            name: found["loss"] for name, found in entry["metrics"].items() if "loss" in found
        }
        known = [name for name in losses if name in self._best]
        if known:
            # The same agents on both sides: others may be present in other rounds.
            loss = sum(losses[name] for name in known) / len(known)
            best = sum(self._best[name] for name in known) / len(known)
            is_worse = loss > best + TOLERANCE * abs(best)
            self._worse = [*self._worse, (loss, best)] if is_worse else []
        for name, loss in losses.items():
            self._best[name] = min(loss, self._best.get(name, loss))

    def add_gap(self, gap: float | None) -> None:
        """Add a certified gap."""
        if gap is not None and (not self._gaps or gap != self._gaps[-1]):
            self._gaps = [*self._gaps[-NUM_GAPS:], gap]

    @property
    def warning(self) -> str | None:
        """A sentence if the training gets worse; None if it does not, or nothing is known."""
        if len(self._worse) >= PATIENCE and self._worse[-1][0] > self._worse[0][0]:
            loss, best = self._worse[-1]
            return (
                f"The losses that agents report have been getting worse for {len(self._worse)} "
                f"rounds: {loss:.4g} on average, {best:.4g} at best; {ADVICE}"
            )
        last = self._gaps[-NUM_GAPS - 1 :]
        if len(last) > NUM_GAPS and all(a < b for a, b in itertools.pairwise(last)):
            gaps = ", ".join(f"{gap:.3g}" for gap in last)
            return f"The certified gap has been growing: {gaps}; {ADVICE}"
        return None
