"""Federated learning in which every agent keeps its own model inside its own private set."""

from pcfed.algorithms import (
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedProx,
    Local,
    PCFedAvg,
    PCFedSplit,
    PFedHN,
    Power,
    ProxAL,
    Scaffold,
)
from pcfed.guarantees import Gap, certify
from pcfed.problem import Agent, Problem
from pcfed.simulation import (
    Checkpointing,
    Evaluation,
    Record,
    RefusalPolicy,
    Result,
    read_journal,
    run,
)

__all__ = [
    "Agent",
    "Checkpointing",
    "Evaluation",
    "FedAvg",
    "FedDualAvg",
    "FedMiD",
    "FedProx",
    "Gap",
    "Local",
    "PCFedAvg",
    "PCFedSplit",
    "PFedHN",
    "Power",
    "Problem",
    "ProxAL",
    "Record",
    "RefusalPolicy",
    "Result",
    "Scaffold",
    "certify",
    "read_journal",
    "run",
]
__version__ = "0.2.0"
