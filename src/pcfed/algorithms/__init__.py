"""Federated algorithms: one file each, all with the hooks of `pcfed.algorithms.base`."""

from pcfed.algorithms.base import (
    STATISTICS,
    Algorithm,
    PenaltyAlgorithm,
    RoundInfo,
    RunInfo,
    StepAlgorithm,
    Sums,
    Update,
    Vectors,
)
from pcfed.algorithms.ditto import Ditto
from pcfed.algorithms.fedavg import FedAvg
from pcfed.algorithms.feddualavg import FedDualAvg
from pcfed.algorithms.fedmid import FedMiD
from pcfed.algorithms.fedprox import FedProx
from pcfed.algorithms.fedrep import FedRep
from pcfed.algorithms.local import Local
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.own_models import OwnModelAlgorithm
from pcfed.algorithms.pcfedavg import PCFedAvg
from pcfed.algorithms.pcfedsplit import PCFedSplit
from pcfed.algorithms.perfedavg import PerFedAvg
from pcfed.algorithms.pfedhn import PFedHN
from pcfed.algorithms.pfedme import PFedMe
from pcfed.algorithms.proxal import ProxAL
from pcfed.algorithms.registry import algorithm_names, find_algorithm, register
from pcfed.algorithms.scaffold import Scaffold
from pcfed.algorithms.schedules import Power, Schedule

__all__ = [
    "STATISTICS",
    "Algorithm",
    "Ditto",
    "FedAvg",
    "FedDualAvg",
    "FedMiD",
    "FedProx",
    "FedRep",
    "Local",
    "LocalContext",
    "OwnModelAlgorithm",
    "PCFedAvg",
    "PCFedSplit",
    "PFedHN",
    "PFedMe",
    "PenaltyAlgorithm",
    "PerFedAvg",
    "Power",
    "ProxAL",
    "RoundInfo",
    "RunInfo",
    "Scaffold",
    "Schedule",
    "StepAlgorithm",
    "Sums",
    "Update",
    "Vectors",
    "algorithm_names",
    "find_algorithm",
    "register",
]
