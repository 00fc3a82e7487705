"""Can somebody who sees a model tell which of two records was trained on?

From how often a test is wrong follows a lower bound on epsilon that holds with 95 % confidence
(Clopper–Pearson). With the noise that is accounted for it must be below the epsilon that is
claimed; with too little noise it must be above it.

References
----------
Jagielski, Ullman, Oprea, "Auditing differentially private machine learning: how private is private
SGD?" (2020).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

from pcfed import Agent, Local, Privacy, Problem, run
from pcfed.losses import LogisticRegression
from pcfed.sets import WholeSpace

DELTA = 1e-5
TRIALS = 2000
ROWS = 20


def trained(privacy, batch, seed):
    """Return a coefficient of many models, half of them trained on the other canary.

    The canary is the only record with the last feature. One canary pulls its coefficient up, the
    other one down, by the clipped norm: no two records can be further apart.
    """
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(ROWS, 3)), np.zeros(ROWS)])
    X[0] = [0, 0, 0, 1e3]
    y = rng.integers(2, size=ROWS)
    agents = []
    for label in (0, 1):
        y[0] = label
        agents += [Agent(LogisticRegression(X, y), WholeSpace(), 0.0, privacy=privacy)] * TRIALS
    # Every agent trains alone, with noise of its own: a run is many trainings. The step is so small
    # that the gradient of the canary stays at the bound.
    result = run(Problem(agents), Local(step=1e-6), rounds=2, local_steps=3, batch=batch, seed=seed)
    return result.models[:TRIALS, -1], result.models[TRIALS:, -1]


def bound(low, high, threshold):
    """Return a lower bound on epsilon from how often a threshold is wrong, 95 % confidence."""
    wrong = (low > threshold).sum(), (high <= threshold).sum()
    upper = [beta.ppf(0.975, k + 1, len(low) - k) if k < len(low) else 1.0 for k in wrong]
    return math.log(max(1e-9, 1 - upper[1] - DELTA) / upper[0])


def lower_bound(low, high):
    """Return a lower bound on epsilon; the threshold is chosen on other models."""
    half = TRIALS // 2
    grid = np.quantile(np.concatenate([low[:half], high[:half]]), np.linspace(0.02, 0.98, 97))
    best = max(grid, key=lambda each: bound(low[:half], high[:half], each))
    return bound(low[half:], high[half:], best)


@pytest.mark.parametrize(("epsilon", "batch"), [(4.0, 1.0), (4.0, 0.25)])
def test_canaries_reveal_no_more_than_is_claimed(epsilon, batch):
    found = lower_bound(*trained(Privacy(epsilon, DELTA), batch, seed=1))
    assert found < epsilon
    if batch == 1.0:  # the test is strong enough to see something
        assert found > 0.5


@pytest.mark.parametrize("batch", [1.0, 0.25])
def test_canaries_reveal_too_little_noise(batch):
    # The noise of a budget of 60, which somebody claims to be one of 1.
    assert lower_bound(*trained(Privacy(60.0, DELTA), batch, seed=1)) > 1.0
