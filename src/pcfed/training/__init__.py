"""Training from a file: a configuration and data files become a problem and a method."""

from pcfed.config.agent_table import AgentSettings, read_agent
from pcfed.config.model_table import Model
from pcfed.config.train_file import Config, Data, Training, load_config, read_config
from pcfed.data.tables import Table, read_table
from pcfed.training.directory import RunDirectory
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.setup import TrainingSetup, assemble
from pcfed.training.train import Job, prepare
from pcfed.training.trained_models import TrainedModels, deliver

__all__ = [
    "AgentOutcome",
    "AgentSettings",
    "Config",
    "Data",
    "Job",
    "Model",
    "Outcome",
    "RunDirectory",
    "Table",
    "TrainedModels",
    "Training",
    "TrainingSetup",
    "assemble",
    "deliver",
    "load_config",
    "prepare",
    "read_agent",
    "read_config",
    "read_table",
]
