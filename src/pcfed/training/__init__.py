"""Training from a file: a configuration and data files become a problem and a method."""

from pcfed.training.agents import AgentSettings, read_agent
from pcfed.training.assemble import Assembled, assemble
from pcfed.training.config import Config, Data, Training, load_config, read_config
from pcfed.training.delivered import Delivered, deliver
from pcfed.training.directory import RunDirectory
from pcfed.training.model import Model
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.tables import Table, read_table
from pcfed.training.train import Job, prepare

__all__ = [
    "AgentOutcome",
    "AgentSettings",
    "Assembled",
    "Config",
    "Data",
    "Delivered",
    "Job",
    "Model",
    "Outcome",
    "RunDirectory",
    "Table",
    "Training",
    "assemble",
    "deliver",
    "load_config",
    "prepare",
    "read_agent",
    "read_config",
    "read_table",
]
