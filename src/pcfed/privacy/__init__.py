"""Differential privacy for the records of an agent: budgets, accounting, noise, what is spent.

An agent with a `Privacy` budget computes all gradients with `PrivateGradients`: the gradient of
each sample is clipped, and Gaussian noise is added to their mean. The noise follows from the
budget and the number of gradients (`noise_multiplier_for`), by the accountant of dp-accounting.
"""

from pcfed.losses.probe import loss_digest, records_digest
from pcfed.privacy.accounting import (
    BudgetError,
    Mechanism,
    Spending,
    delta_warning,
    epsilon_of,
    max_gradients,
    noise_multiplier_for,
    noise_warning,
    relative_noise,
)
from pcfed.privacy.budget import Privacy
from pcfed.privacy.gradients import NoisePlan, PrivateGradients
from pcfed.privacy.seeds import MIN_SECRET_SEED, why_not_secret

__all__ = [
    "MIN_SECRET_SEED",
    "BudgetError",
    "Mechanism",
    "NoisePlan",
    "Privacy",
    "PrivateGradients",
    "Spending",
    "delta_warning",
    "epsilon_of",
    "loss_digest",
    "max_gradients",
    "noise_multiplier_for",
    "noise_warning",
    "records_digest",
    "relative_noise",
    "why_not_secret",
]
