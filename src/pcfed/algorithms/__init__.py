"""Federated methods: one file each, all in the shape of `pcfed.algorithms.base`."""

from pcfed.algorithms.base import Algorithm, Outlook, Round, Sums, Update, Vectors
from pcfed.algorithms.fedavg import FedAvg
from pcfed.algorithms.fedprox import FedProx
from pcfed.algorithms.local import Local
from pcfed.algorithms.pcfedavg import PCFedAvg
from pcfed.algorithms.scaffold import Scaffold
from pcfed.algorithms.schedules import Power, Schedule
from pcfed.algorithms.work import Pool, Work

__all__ = [
    "Algorithm",
    "FedAvg",
    "FedProx",
    "Local",
    "Outlook",
    "PCFedAvg",
    "Pool",
    "Power",
    "Round",
    "Scaffold",
    "Schedule",
    "Sums",
    "Update",
    "Vectors",
    "Work",
]
