r"""Can somebody who sees a model tell which of two records was trained on?

From how often a test is wrong follow lower bounds that hold with 95 % confidence (Clopper–Pearson).
With the noise that is accounted for they must be below what is claimed, and with half of the noise
above it. Full batches make a Gaussian mechanism with $\mu = \sqrt{T} / z$ of T gradients, whose
$\mu$ is bounded and converted to $\varepsilon$. For sampled batches the advantage of the test, how
often it is right minus how often it is wrong, is bounded and compared with the largest one that
the mechanism allows.

References
----------
Nasr et al., "Tight auditing of differentially private machine learning" (2023). Balle and Wang,
"Improving the Gaussian mechanism for differential privacy" (2018), theorem 8.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from pcfed import Agent, Local, Privacy, Problem, run
from pcfed.losses import LogisticRegression
from pcfed.sets import WholeSpace
from pcfed.simulation import privacy as run_privacy

EPSILON, DELTA = 4.0, 1e-5
TRIALS = 2000
ROWS = 20
GRADIENTS = 6


def trained(batch, factor, monkeypatch):
    """Return a coefficient of many models, half of them trained on the other canary, and the noise.

    The canary is the only record with the last feature. One canary pulls its coefficient up, the
    other one down, by the clipped norm: no two records can be further apart. The noise is a factor
    times what is accounted for. The latter is returned, as a multiple of how far a record can move
    a gradient.
    """
    planned = run_privacy.noise_multiplier_for
    monkeypatch.setattr(run_privacy, "noise_multiplier_for", lambda *args: factor * planned(*args))
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(ROWS, 3)), np.zeros(ROWS)])
    X[0] = [0, 0, 0, 1e3]
    y = rng.integers(2, size=ROWS)
    agents, budget = [], Privacy(EPSILON, DELTA)
    for label in (0, 1):
        y[0] = label
        agents += [Agent(LogisticRegression(X, y), WholeSpace(), 0.0, privacy=budget)] * TRIALS
    # Every agent trains alone, with noise of its own: a run is many trainings. The step is so small
    # that the gradient of the canary stays at the bound.
    options = {"rounds": 2, "local_steps": 3, "batch": batch, "seed": 2**63 + 1, "eval_every": 2}
    result = run(Problem(agents), Local(step=1e-6), **options)
    z = result.privacy[0].noise_multiplier / factor
    return result.models[:TRIALS, -1], result.models[TRIALS:, -1], z


def right_and_wrong(low, high):
    """Return a lower bound on how often a test is right, and an upper one on how often wrong.

    The test says "high" above a threshold, which is chosen on other models.
    """
    half = TRIALS // 2
    threshold = np.median(np.concatenate([low[:half], high[:half]]))
    right, wrong = (high[half:] > threshold).sum(), (low[half:] > threshold).sum()
    return beta.ppf(0.025, right, half - right + 1), beta.ppf(0.975, wrong + 1, half - wrong)


def gaussian_epsilon(mu):
    """Return the epsilon of a Gaussian mechanism whose means differ by mu deviations."""

    def excess(epsilon):
        second = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return norm.cdf(mu / 2 - epsilon / mu) - second - DELTA

    return brentq(excess, 0.0, 100.0)


def largest_advantage(z, share):
    """Return the advantage of a threshold on the sum of all gradients, for a share of the rows.

    The canary is in k of the batches. The sum then is k/2 or -k/2, plus the noise.
    """
    k = np.arange(GRADIENTS + 1)
    chances = binom.pmf(k, GRADIENTS, share)
    return float(chances @ (2 * norm.cdf(k / (2 * z * math.sqrt(GRADIENTS))) - 1))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_canaries_reveal_no_more_than_is_claimed_unless_there_is_half_of_the_noise(
    factor, monkeypatch
):
    low, high, z = trained(1.0, factor, monkeypatch)
    right, wrong = right_and_wrong(low, high)
    mu = norm.ppf(right) - norm.ppf(wrong)
    found = gaussian_epsilon(mu)
    assert found > 0.6 * EPSILON, "the test sees nothing"
    assert (found < EPSILON) == (factor == 1.0)
    assert (mu < math.sqrt(GRADIENTS) / z) == (factor == 1.0)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_canaries_in_sampled_batches_reveal_half_of_the_noise(factor, monkeypatch):
    low, high, z = trained(0.25, factor, monkeypatch)
    right, wrong = right_and_wrong(low, high)
    largest = largest_advantage(z, 0.25)
    assert 0.4 * largest < right - wrong, "the test sees nothing"
    assert (right - wrong < largest) == (factor == 1.0)
    # Without sampling, a record would be told apart more easily.
    assert largest < 0.3 * largest_advantage(z, 1.0)
