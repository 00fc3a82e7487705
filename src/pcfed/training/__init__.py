"""Training from a file: a configuration and data files become a problem and a method."""

from pcfed.config.train_file import (
    AgentSettings,
    Config,
    Data,
    Model,
    Training,
    load_config,
    read_config,
)
from pcfed.config.validation_errors import ConfigError
from pcfed.data.tables import Table, read_table
from pcfed.training.directory import RunDirectory
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.setup import TrainingSetup, build_setup
from pcfed.training.train import Job, prepare
from pcfed.training.trained_models import TrainedModels, deliver

__all__ = [
    "AgentOutcome",
    "AgentSettings",
    "Config",
    "ConfigError",
    "Data",
    "Job",
    "Model",
    "Outcome",
    "RunDirectory",
    "Table",
    "TrainedModels",
    "Training",
    "TrainingSetup",
    "build_setup",
    "deliver",
    "load_config",
    "prepare",
    "read_config",
    "read_table",
]
