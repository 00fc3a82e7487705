"""Guarantees: certificates of models, the bounds of the theorem, and reference optima."""

from pcfed.guarantees.bounds import Bound, Bounds, Rounds, bounds, rounds_for
from pcfed.guarantees.certificate import (
    Certificate,
    ObjectiveTerms,
    certify,
    feasible_model,
    gap_sentence,
    gap_term,
    objective_terms,
)
from pcfed.guarantees.constants import Constants, constants
from pcfed.guarantees.federated_certificate import FederatedCertificate, certificate_of
from pcfed.guarantees.gap import Gap
from pcfed.guarantees.noise import noise_bound, noise_estimate
from pcfed.guarantees.optimum import Optimum, optimum

__all__ = [
    "Bound",
    "Bounds",
    "Certificate",
    "Constants",
    "FederatedCertificate",
    "Gap",
    "ObjectiveTerms",
    "Optimum",
    "Rounds",
    "bounds",
    "certificate_of",
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
