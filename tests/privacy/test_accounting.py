"""The noise that a budget needs, against the exact Gaussian mechanism and known bounds."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtr

from pcfed import Privacy
from pcfed.errors import install_command
from pcfed.privacy import (
    BudgetError,
    Mechanism,
    Spending,
    epsilon_of,
    max_gradients,
    noise_multiplier_for,
)

FULL = Mechanism(200, 200, is_sampled=False)
SAMPLED = Mechanism(1000, 50, is_sampled=True)


def exact_delta(epsilon: float, mu: float) -> float:
    """Return the δ of a Gaussian mechanism whose two means are mu standard deviations apart.

    Balle, Wang, "Improving the Gaussian mechanism for differential privacy" (2018), theorem 5.
    """
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_full_batches_are_the_gaussian_mechanism(epsilon):
    z = noise_multiplier_for(Privacy(epsilon, 1e-5), FULL, 100)
    mu = math.sqrt(100) / z
    assert exact_delta(epsilon, mu) <= 1e-5
    assert exact_delta(epsilon, 1.25 * mu) > 1e-5


@pytest.mark.parametrize("mechanism", [FULL, SAMPLED])
def test_the_noise_just_meets_the_budget(mechanism):
    budget = Privacy(2.0, 1e-5)
    z = noise_multiplier_for(budget, mechanism, 60)
    assert 0.98 * 2.0 <= epsilon_of([Spending(mechanism, z, 60)], 1e-5) <= 2.0
    assert epsilon_of([Spending(mechanism, 0.99 * z, 60)], 1e-5) > 2.0
    most = max_gradients(budget, mechanism, z)
    assert most >= 60
    assert epsilon_of([Spending(mechanism, z, most + 1)], 1e-5) > 2.0


def test_sampling_amplifies_and_blocks_do_not():
    z = {
        kind: noise_multiplier_for(Privacy(1.0, 1e-5), Mechanism.of(1000, 50, kind), 60)
        for kind in ("without_replacement", "blocks")
    }
    full = noise_multiplier_for(Privacy(1.0, 1e-5), Mechanism.of(1000, 1000, "blocks"), 60)
    assert 2 * z["without_replacement"] < z["blocks"] == full


@pytest.mark.parametrize("batch", [500, 700, 900, 999])
def test_large_batches_that_are_sampled_cost_no_more_than_those_that_are_not(batch):
    budget = Privacy(2.0, 1e-5)
    sampled, plain = (
        noise_multiplier_for(budget, Mechanism.of(1000, batch, kind), 100)
        for kind in ("without_replacement", "blocks")
    )
    assert sampled <= plain


@pytest.mark.parametrize("budget", [Privacy(0.1, 0.3), Privacy(1.0, 0.9), Privacy(1000.0, 1e-5)])
def test_the_ends_of_what_budgets_may_be(budget):
    z = noise_multiplier_for(budget, FULL, 3)
    assert 0 < z < 5
    assert epsilon_of([Spending(FULL, z, 3)], budget.delta) <= budget.epsilon


def test_what_was_spent_before_counts():
    budget = Privacy(1.0, 1e-5)
    z = noise_multiplier_for(budget, FULL, 50)
    half = [Spending(FULL, 2 * z, 50)]
    assert noise_multiplier_for(budget, FULL, 50, half) > 1.1 * z
    with pytest.raises(BudgetError):
        noise_multiplier_for(budget, FULL, 50, [Spending(FULL, 0.99 * z, 50)])


def test_a_budget_that_cannot_be_met_says_how_many_gradients_it_allows():
    with pytest.raises(BudgetError, match="allows 0 gradients, got 10") as caught:
        noise_multiplier_for(Privacy(1e-4, 1e-5), FULL, 10)
    assert caught.value.max_gradients == 0
    with pytest.raises(BudgetError, match=r"epsilon 0\.01 .* allows [\d,]+ gradients") as caught:
        noise_multiplier_for(Privacy(0.01, 1e-5), FULL, 10**6)
    most = caught.value.max_gradients
    assert 1 <= most < 10**6
    assert noise_multiplier_for(Privacy(0.01, 1e-5), FULL, most) <= 1000


def test_batches_with_replacement_are_refused():
    with pytest.raises(ValueError, match="sampling must be 'without_replacement' or 'blocks'"):
        Mechanism.of(100, 10, "with_replacement")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0.0, 1e-5), "epsilon"),
        ((math.nan, 1e-5), "epsilon"),
        ((1e300, 1e-5), "epsilon must be at most 1000"),
        ((1.0, 0.0), r"delta must be a number in \(0, 1\), got 0.0; give one far below"),
        ((1.0, math.nan), r"delta must be a number in \(0, 1\), got nan; give one far below"),
        ((1.0, "1e-5"), r"delta must be a number in \(0, 1\), got '1e-5'; give one far below"),
        ((1.0, 1.0), r"delta must be a number in \(0, 1\)"),
        ((1.0, 1e-5, -1.0), "clip"),
        ((1.0, 1e-5, 1.0, 0.0), "feature_norm"),
    ],
)
def test_budgets_are_checked(arguments, rule):
    with pytest.raises(ValueError, match=f"Privacy: {rule}"):
        Privacy(*arguments)


def test_without_the_accountant_a_sentence_says_what_to_install():
    code = (
        "import sys; sys.modules['dp_accounting'] = None\n"
        "from pcfed.privacy import Mechanism, Spending, epsilon_of\n"
        "try:\n    epsilon_of([Spending(Mechanism(9, 9, False), 1.0, 1)], 1e-5)\n"
        "except ImportError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip().endswith(f"not installed; run {install_command('privacy')}.")


def test_other_accountants_are_not_far_off():
    # Rényi divergence of order 8 of one sampled gradient, by theorem 27 of Wang et al. in plain
    # numbers, without the terms that only tighten it.
    z, q, order = 4.0, 0.05, 8
    total = 1.0
    for j in range(2, order + 1):
        term = 2 * math.exp(j * (j - 1) / (2 * z**2))
        if j == 2:
            term = min(4 * math.expm1(1 / z**2), term)
        total += math.comb(order, j) * q**j * term
    plain = math.log(total) / (order - 1)
    found = epsilon_of([Spending(SAMPLED, z, 1000)], 1e-5)
    bound = 1000 * plain + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
    assert 0.5 * bound < found <= bound
    assert np.isfinite(found)
