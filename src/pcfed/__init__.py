"""Federated learning in which every agent keeps its own model inside its own private set."""

from pcfed.algorithms import FedAvg, FedProx, Local, PCFedAvg, Power, Scaffold
from pcfed.guarantees import Gap, certify
from pcfed.problem import Agent, Problem
from pcfed.simulation.result import Record, Result
from pcfed.simulation.run import Evaluation, run
from pcfed.storage.journal import read_journal

__all__ = [
    "Agent",
    "Evaluation",
    "FedAvg",
    "FedProx",
    "Gap",
    "Local",
    "PCFedAvg",
    "Power",
    "Problem",
    "Record",
    "Result",
    "Scaffold",
    "certify",
    "read_journal",
    "run",
]
__version__ = "0.2.0"
