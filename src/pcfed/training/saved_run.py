"""Reading a run directory, of a training that is finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcfed.config.train_file import Config, read_config
from pcfed.data.readers import read_bytes
from pcfed.errors import display_path, one_line, short_repr
from pcfed.simulation import read_journal
from pcfed.simulation.result import Record
from pcfed.training.directory import RunMetadata
from pcfed.training.modules import load_module
from pcfed.training.outcome import Outcome
from pcfed.training.trained_models import TrainedModels

MAX_LOG_BYTES = 100_000
"""Only the end of a longer log is read."""


@dataclass(frozen=True, eq=False)
class SavedRun:
    """The contents of a run directory; there is no outcome until the training is finished."""

    path: Path
    config: Config  # without the data
    versions: Mapping[str, str]  # with which the training was started
    history: tuple[Record, ...]  # the evaluated rounds
    outcome: Outcome | None
    models: TrainedModels | None
    log: str  # the end of the log
    known_names: tuple[str, ...] = ()  # the agents, if a running training has given them

    @property
    def names(self) -> tuple[str, ...]:
        """The agents; numbered if no file in the run directory has their names yet."""
        if self.models is not None:
            return self.models.names
        if self.outcome is not None:
            return tuple(each.agent for each in self.outcome.agents)
        if self.config.data.agent is None:
            return tuple(agent.name for agent in self.config.agents)
        if self.known_names:
            return self.known_names
        num_agents = len(self.history[-1].infeasibility) if self.history else 0
        return tuple(f"agent {i + 1}" for i in range(num_agents))


def open_run(path: Path) -> SavedRun:
    """Read a run directory."""
    metadata = _load_metadata(path)
    outcome, models, history = (
        path / name for name in ("outcome.json", "models.npz", "history.jsonl")
    )
    run = SavedRun(
        path=path,
        config=_read_config(path, metadata),
        versions=metadata.versions,
        history=read_journal(history) if history.exists() else (),
        outcome=Outcome.load(outcome) if outcome.exists() else None,
        models=TrainedModels.load(models) if models.exists() else None,
        log=_read_log(path / "log.txt"),
    )
    _check_number_of_agents(run)
    return run


def open_models(path: Path) -> TrainedModels:
    """Return the models of a training, from its run directory or from the file ``models.npz``."""
    if path.is_file():
        return TrainedModels.load(path)
    _load_metadata(path)  # refuses another directory
    if not (path / "models.npz").exists():
        raise ValueError(
            f"{display_path(path)}: the training must be finished, got one without models.npz; "
            "rerun pcfed train until it ends."
        )
    return TrainedModels.load(path / "models.npz")


def open_module(path: Path, folder: Path) -> Any:
    """Return the PyTorch module of a run directory; its file in a folder is run."""
    tables = dict(_load_metadata(path).config)
    tables.pop("algorithm", None)  # it may be one that this version does not have
    config = read_config(tables, folder / "config.json")
    return load_module(config, allow_import=True)[0]


def _load_metadata(path: Path) -> RunMetadata:
    """Return the description of the training in a run directory."""
    file = path / "config.json"
    if not file.is_file() and (path / "status.json").is_file():
        raise ValueError(
            f"{display_path(path)} must have models, but is the folder of a federation's server, "
            "which has none; give the folder of an agent, or write a page with pcfed report."
        )
    if not file.is_file() and (path / "state.npz").is_file():
        raise ValueError(
            f"{display_path(path)} must have models, but the training of this agent has not ended; "
            "run it at the server until it ends."
        )
    if not file.is_file():
        raise ValueError(
            f"{display_path(path)} must be the run directory of a training, but has no "
            "config.json; give the one that pcfed train printed, such as runs/train."
        )
    return RunMetadata.load(file)


def _read_config(path: Path, metadata: RunMetadata) -> Config:
    """Return the configuration of a training; version 0.1 had other keys."""
    tables = _with_paper_problem(metadata.config)
    algorithm = tables.get("algorithm")
    if isinstance(algorithm, dict) and "exact" in algorithm:
        algorithm = dict(algorithm)
        if algorithm.pop("exact") is not False:
            raise ValueError(
                f"{display_path(path)}: the algorithm must be one of this version, got PCFedAvg "
                "with exact = true, which PCFedSplit replaces; train again for a report, or only "
                "predict and export."
            )
        tables["algorithm"] = algorithm
    return read_config(tables, path / "config.json")


def _with_paper_problem(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a training; version 0.1 had only the paper's problem."""
    tables = dict(config)
    if isinstance(training := tables.get("training"), dict) and "center" not in training:
        tables["training"] = {**training, "center": "average"}
        if isinstance(agents := tables.get("agents"), dict):
            tables["agents"] = {
                name: {"personalization": 0.0, **each} if isinstance(each, dict) else each
                for name, each in agents.items()
            }
        if isinstance(defaults := tables.get("defaults"), dict):
            tables["defaults"] = {"personalization": 0.0, **defaults}
    return tables


def _read_log(file: Path) -> str:
    """Return the end of the log; nothing if there is none."""
    if not file.exists():
        return ""
    return read_bytes(display_path(file), file)[-MAX_LOG_BYTES:].decode("utf-8", "replace")


def _check_number_of_agents(run: SavedRun) -> None:
    """Refuse a directory whose files are of different numbers of agents."""
    numbers = {len(record.infeasibility) for record in run.history}
    numbers |= {len(run.outcome.agents)} if run.outcome else set()
    numbers |= {len(run.models.names)} if run.models else set()
    if len(numbers) > 1:
        raise ValueError(
            one_line(
                f"{display_path(run.path)}: all files must have the same number of agents, got "
                f"{short_repr(sorted(numbers))}; train again in another folder."
            )
        )
