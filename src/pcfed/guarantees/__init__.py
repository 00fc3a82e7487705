"""What can be promised of models: a certificate, the theorem's bounds, and reference optima."""

from pcfed.guarantees.bounds import Bound, Bounds, Rounds, bounds, rounds_for
from pcfed.guarantees.certificate import (
    Certificate,
    Gap,
    Slope,
    certify,
    send_model,
    send_share,
    send_slope,
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
    "Optimum",
    "Rounds",
    "Slope",
    "bounds",
    "certify",
    "constants",
    "noise_bound",
    "noise_estimate",
    "optimum",
    "rounds_for",
    "send_model",
    "send_share",
    "send_slope",
]
