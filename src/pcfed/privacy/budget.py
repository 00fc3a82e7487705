"""The privacy budget of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from pcfed.errors import short_repr
from pcfed.validation import positive

MAX_EPSILON = 1000.0
"""With a larger one, nothing is protected."""


@dataclass(frozen=True)
class Privacy:
    r"""A budget of differential privacy for the records of one agent.

    For data sets $D$, $D'$ with the same number of records that differ in one record, and any event
    $E$ of what leaves the agent, its own model included,

    $$ P_D(E) \le e^\varepsilon P_{D'}(E) + \delta. $$

    Every gradient of the agent is the mean over a batch of gradients of single samples, each scaled
    down to a norm of at most ``clip``, plus Gaussian noise. The regulariser is not clipped.

    Parameters
    ----------
    epsilon : float
        $\varepsilon$ in (0, 1000], for the whole training.
    delta : float
        $\delta$ in (0, 1), far below one over the number of records.
    clip : float
        The largest norm of the gradient of one sample.
    feature_norm : float, optional
        The largest norm of a row of features; in gradients, longer rows are scaled down to it. It
        must be chosen without looking at the data. Algorithms that need the curvature of the loss,
        such as PCFedSplit, get a bound that follows from it.

    Examples
    --------
    >>> Privacy(epsilon=2.0, delta=1e-5)
    Privacy(epsilon=2.0, delta=1e-05, clip=1.0, feature_norm=None)
    """

    epsilon: float
    delta: float
    clip: float = 1.0
    feature_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            value = positive(f"Privacy: {name}", getattr(self, name))
            object.__setattr__(self, name, value)
        object.__setattr__(self, "delta", _checked_delta(self.delta))
        if not self.epsilon <= MAX_EPSILON:
            raise ValueError(
                f"Privacy: epsilon must be at most {MAX_EPSILON:g}, got {self.epsilon:g}; a larger "
                "one protects nothing, and leaving the budget out says so."
            )
        if self.feature_norm is not None:
            norm = positive("Privacy: feature_norm", self.feature_norm)
            object.__setattr__(self, "feature_norm", norm)


def _checked_delta(delta: object) -> float:
    """Return a number in (0, 1), or raise."""
    if not (isinstance(delta, Real) and 0 < float(delta) < 1):
        raise ValueError(
            f"Privacy: delta must be a number in (0, 1), got {short_repr(delta)}; give one far "
            "below one over the number of records, such as 1e-5."
        )
    return float(delta)
