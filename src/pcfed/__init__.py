"""Federated learning in which every agent keeps its own model inside its own private set."""

from pcfed.algorithms import (
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedProx,
    FedRep,
    Local,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    Power,
    ProxAL,
    Scaffold,
)
from pcfed.guarantees import Gap, certify
from pcfed.privacy import Privacy
from pcfed.problem import Agent, Problem
from pcfed.simulation import (
    Checkpointing,
    Evaluation,
    Memory,
    Ray,
    Record,
    RefusalPolicy,
    Result,
    read_journal,
    run,
)

__all__ = [
    "Agent",
    "Checkpointing",
    "Ditto",
    "Evaluation",
    "FedAvg",
    "FedDualAvg",
    "FedMiD",
    "FedProx",
    "FedRep",
    "Gap",
    "Local",
    "Memory",
    "PCFedAvg",
    "PCFedSplit",
    "PFedHN",
    "PFedMe",
    "PerFedAvg",
    "Power",
    "Privacy",
    "Problem",
    "ProxAL",
    "Ray",
    "Record",
    "RefusalPolicy",
    "Result",
    "Scaffold",
    "certify",
    "read_journal",
    "run",
]
__version__ = "0.2.0"
