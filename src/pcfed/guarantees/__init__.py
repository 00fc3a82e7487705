"""Guarantees: certificates of models, the bounds of the theorem, and reference optima."""

from pcfed.guarantees.bounds import Bound, Bounds, Rounds, bounds, rounds_for
from pcfed.guarantees.certificate import (
    Certificate,
    Gap,
    ObjectiveTerms,
    certify,
    feasible_model,
    gap_sentence,
    gap_term,
    objective_terms,
)
from pcfed.guarantees.constants import Constants, constants
from pcfed.guarantees.noise import noise_bound, noise_estimate
from pcfed.guarantees.optimum import Optimum, optimum

__all__ = [
    "Bound",
    "Bounds",
    "Certificate",
    "Constants",
    "Gap",
    "ObjectiveTerms",
    "Optimum",
    "Rounds",
    "bounds",
    "certify",
    "constants",
    "feasible_model",
    "gap_sentence",
    "gap_term",
    "noise_bound",
    "noise_estimate",
    "objective_terms",
    "optimum",
    "rounds_for",
]
