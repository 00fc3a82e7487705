"""The simulator: all agents of a problem in this process, or in the actors of a cluster."""

from pcfed.simulation.checkpoint import Checkpointing
from pcfed.simulation.history import read_journal
from pcfed.simulation.private_state import Memory
from pcfed.simulation.ray_ranges import Ray
from pcfed.simulation.result import Metrics, Record, Refusal, Result, State
from pcfed.simulation.runner import Evaluation
from pcfed.simulation.simulate import RefusalPolicy, run

__all__ = [
    "Checkpointing",
    "Evaluation",
    "Memory",
    "Metrics",
    "Ray",
    "Record",
    "Refusal",
    "RefusalPolicy",
    "Result",
    "State",
    "read_journal",
    "run",
]
