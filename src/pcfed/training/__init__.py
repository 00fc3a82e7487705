"""Training from files: a configuration and data files become trained models."""

from pcfed.config.agent_table import AgentSettings, read_agent
from pcfed.config.model_table import Model
from pcfed.config.train_file import Config, Data, Training, load_config, read_config
from pcfed.data.tables import Table, read_table
from pcfed.training.directory import RunDirectory
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.setup import TrainingSetup, assemble
from pcfed.training.trained_models import TrainedModels
from pcfed.training.trainer import Trainer, prepare

__all__ = [
    "AgentOutcome",
    "AgentSettings",
    "Config",
    "Data",
    "Model",
    "Outcome",
    "RunDirectory",
    "Table",
    "TrainedModels",
    "Trainer",
    "Training",
    "TrainingSetup",
    "assemble",
    "load_config",
    "prepare",
    "read_agent",
    "read_config",
    "read_table",
]
