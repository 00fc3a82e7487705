"""The simulator: all agents of a problem in this process."""

from pcfed.simulation.checkpoint import Checkpointing
from pcfed.simulation.history import read_journal
from pcfed.simulation.result import Metrics, Record, Refusal, Result, State
from pcfed.simulation.runner import Evaluation
from pcfed.simulation.simulate import RefusalPolicy, run

__all__ = [
    "Checkpointing",
    "Evaluation",
    "Metrics",
    "Record",
    "Refusal",
    "RefusalPolicy",
    "Result",
    "State",
    "read_journal",
    "run",
]
