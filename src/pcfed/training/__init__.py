"""Training from files: a configuration and data files become trained models."""

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
from pcfed.training.comparison import Comparison
from pcfed.training.directory import RunDirectory
from pcfed.training.outcome import AgentOutcome, LimitUsage, Outcome
from pcfed.training.run_warnings import RunWarning
from pcfed.training.setup import TrainingSetup, build_setup
from pcfed.training.trained_models import TrainedModels
from pcfed.training.trainer import Trainer, prepare
from pcfed.training.tuning import Candidate, CandidateScore, CrossValidation, Tuning, grid, tune

__all__ = [
    "AgentOutcome",
    "AgentSettings",
    "Candidate",
    "CandidateScore",
    "Comparison",
    "Config",
    "ConfigError",
    "CrossValidation",
    "Data",
    "LimitUsage",
    "Model",
    "Outcome",
    "RunDirectory",
    "RunWarning",
    "Table",
    "TrainedModels",
    "Trainer",
    "Training",
    "TrainingSetup",
    "Tuning",
    "build_setup",
    "grid",
    "load_config",
    "prepare",
    "read_config",
    "read_table",
    "tune",
]
