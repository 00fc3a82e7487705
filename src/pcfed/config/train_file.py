"""train.toml: what is trained, on which data, with which algorithm, for which agents.

`pcfed init` writes an example that shows all keys. Only ``model.kind``, a target and the agents'
data must be given. Paths are relative to the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pcfed.algorithms import Algorithm
from pcfed.algorithms.registry import to_mapping
from pcfed.config.algorithm_field import AlgorithmField, parse_algorithm
from pcfed.config.fields import (
    AgentName,
    AnyKind,
    Constraint,
    Count,
    CountOrZero,
    FileModel,
    Fraction,
    Names,
    NonNegativeNumber,
    NumLocalSteps,
    Portion,
    PositiveNumber,
    Text,
    UnitInterval,
    WrongKey,
    describe_kinds,
    format_constraint,
)
from pcfed.config.overrides import Override, parse_overrides
from pcfed.config.personalization import (
    DEFAULT_COUPLING,
    DEFAULT_PERSONALIZATION,
    Coupling,
    auto_errors,
    center_errors,
    default_center,
)
from pcfed.config.privacy import Budget, format_budget, privacy_errors
from pcfed.config.validation_errors import dotted, read_toml, validate_file
from pcfed.errors import display_path, short_repr
from pcfed.losses.kinds import MODEL_KINDS, TORCH, LinearKind, Output
from pcfed.privacy import Privacy
from pcfed.problem import Center
from pcfed.sets import ConvexSet, WholeSpace

Dtype = Literal["float64", "float32"]
LINEAR_KEYS = ("kind", "intercept", "intercept_bound", "l2")
TORCH_KEYS = ("kind", "module", "loss")
NOT_IN_DIGEST = frozenset(
    {"rounds", "save_every", "eval_every", "max_refusals", "gap", "local_only"}
)
"""Keys of [training] that change no number of any round: a run may be resumed with other values."""


NEW_DATA_KEYS = ("exclude", "categories", "missing", "decimal")
"""Keys of [data] that version 0.1 did not have."""


class Model(FileModel):
    """The table ``[model]``: a linear model, or a PyTorch module of the user."""

    kind: AnyKind = Field(description=f"The model: {describe_kinds(MODEL_KINDS)}.")
    intercept: bool = True
    """Whether a linear model has an intercept; constraints do not apply to it. With an intercept,
    features and numeric targets are centred for the training."""
    intercept_bound: PositiveNumber | None = Field(default=None, examples=[100.0])
    """Largest absolute value of the intercept of the centred data: of a score at the mean of the
    features or, for numbers, of its difference from the mean target. By default 30 for labels, and
    10 times the root mean square of the centred targets for numbers."""
    l2: NonNegativeNumber = 0.0
    """Weight of the l2 term on the coefficients of a linear model."""
    module: Text | None = Field(default=None, examples=["my_models:Net"])
    """With kind = "torch": FILE:NAME, where NAME() in FILE.py beside this file returns a
    torch.nn.Module."""
    loss: Literal["cross-entropy", "mse"] | None = None
    """With kind = "torch": the loss, cross-entropy for labels, mse for numbers."""

    def _errors(self) -> Iterator[WrongKey]:
        """Yield keys of the other kind of model, and a module that is missing or misspelt."""
        for key in type(self).model_fields:
            given = key in self.model_fields_set and getattr(self, key) is not None
            if given and key not in self._valid_keys:
                yield (
                    "",
                    f"has no key {key!r} if kind is {self.kind.name!r}; valid keys are "
                    f"{', '.join(self._valid_keys)}.",
                )
        if not self.is_torch:
            if self.intercept_bound is not None and not self.intercept:
                yield (
                    "intercept_bound",
                    f"must be left out if model.intercept is false, got {self.intercept_bound}; "
                    "remove one of the two.",
                )
            return
        remedy = 'give one such as "my_models:Net", for Net in my_models.py beside this file.'
        if self.module is None:
            yield "module", f"is missing; {remedy}"
        else:
            names = self.module.replace(":", ".", 1).split(".")
            if self.module.count(":") != 1 or not all(name.isidentifier() for name in names):
                yield "module", f'must be "FILE:NAME", got {short_repr(self.module)}; {remedy}'
        if self.loss is None:
            yield "loss", "is missing; give one of cross-entropy, mse."

    @property
    def _valid_keys(self) -> tuple[str, ...]:
        return TORCH_KEYS if self.is_torch else LINEAR_KEYS

    @property
    def is_torch(self) -> bool:
        """Whether the model is a PyTorch module."""
        return not self.kind.is_linear

    @property
    def task(self) -> str:
        """The name of the loss in messages."""
        return self.loss or self.kind.name

    @property
    def output(self) -> Output:
        """What the model predicts: labels or numbers."""
        if isinstance(self.kind, LinearKind):
            return self.kind.output
        return TORCH.outputs[self.loss or "mse"]

    @property
    def file(self) -> Path | None:
        """The file of the module, relative to the folder of train.toml; None for linear models."""
        if self.module is None:
            return None
        return Path(*self.module.partition(":")[0].split(".")).with_suffix(".py")

    def resolved(self) -> dict[str, Any]:
        """Return the table with all defaults that apply to the kind of model."""
        return self.model_dump(include=set(self._valid_keys), exclude_none=True)


class Data(FileModel):
    """The table ``[data]``: what the data of all agents have in common."""

    file: Text | None = Field(default=None, examples=["all.csv"])
    """One data file for all agents (.csv, .npz or .parquet), together with agent; left out if every
    agent has a file of its own."""
    agent: Text | None = Field(default=None, examples=["household"])
    """The column of the file for all that has the name of each row's agent."""
    target: Text | None = Field(default=None, examples=["load"])
    """The column to predict, unless an agent's table has another."""
    features: Names | None = Field(default=None, examples=[["a", "b"]])
    """The columns to predict from; by default all but the target, the agent and what exclude
    names."""
    exclude: Names | None = Field(default=None, examples=[["id", "date"]])
    """Columns that are not used; not together with features."""
    categories: Literal["one-hot"] | None = None
    """"one-hot": columns of text are categories, and each of their levels is a feature that is 0 or
    1; the levels are those of all agents. By default text is an error."""
    missing: Literal["error", "drop", "mean"] = "error"
    """What happens to rows with missing entries: "error" refuses them, "drop" leaves them out, and
    "mean" takes the mean of the column over the rows for training of all agents."""
    decimal: Literal[".", ","] = "."
    """The decimal point of numbers in CSV files; columns are separated by commas, semicolons or
    tabs."""
    held_out: Fraction = 0.2
    """Share of every agent's rows that is held out for testing."""
    dtype: Dtype = "float64"
    """Type of the features and of local steps; float32 needs half the memory."""
    standardize: bool = False
    """Whether to train on columns of scale 1. Constraints still apply to the coefficients of the
    data as given."""

    def _errors(self) -> Iterator[WrongKey]:
        if (self.file is None) != (self.agent is None):
            given, missing = ("agent", "file") if self.file is None else ("file", "agent")
            yield (
                "file",
                f"and data.agent must be given together, got only data.{given}; "
                f"give data.{missing} too, or a file in every agent's table.",
            )
        if self.agent is not None and self.target is None:
            yield "target", "is missing; name the column to predict."
        if self.exclude is not None and self.features is not None:
            yield (
                "exclude",
                "must be left out where data.features is given, got "
                f"{short_repr(list(self.exclude))}; remove one of the two.",
            )
        for name in {self.target, self.agent} & {*(self.exclude or ())}:
            yield (
                "exclude",
                f"must contain neither the target nor the agent, got {short_repr(name)}; leave it "
                "out.",
            )
        for name in {self.target, self.agent} & {*(self.features or ())}:
            yield (
                "features",
                "must contain neither the target nor the agent, got "
                f"{short_repr(name)}; leave it out.",
            )
        if self.target is not None and self.target == self.agent:
            yield (
                "target",
                "and data.agent must be different columns, got "
                f"{short_repr(self.target)} for both; correct one.",
            )


class Training(FileModel):
    """The table ``[training]``: the arguments of `pcfed.run`."""

    rounds: Count = 200
    """Number of rounds at most."""
    local_steps: NumLocalSteps = 10
    """Number of local steps of every agent in a round."""
    batch: Portion = 1.0
    """Rows in one gradient: a share of the agent's rows (1.0 is all of them), or a number of
    rows."""
    participation: Portion = 1.0
    """Agents in one round: a share of the agents (1.0 is all of them), or a number."""
    seed: CountOrZero = 0
    """Seed of all random numbers, including the choice of held-out rows."""
    eval_every: Count = 1
    """Rounds from one evaluation of the models to the next."""
    save_every: Count = 10
    """Rounds from one checkpoint to the next."""
    max_refusals: CountOrZero = 100
    """The training ends when more updates than this were refused, because they are not finite or
    longer than norm_limit."""
    gap: PositiveNumber | None = Field(default=None, examples=[0.01])
    """Stop when the certified relative gap to the optimum is at most this; by default never."""
    norm_limit: PositiveNumber | None = Field(default=None, examples=[1e6])
    """Refuse updates whose Euclidean norm is larger; by default there is no limit."""
    local_only: bool = True
    """Whether every agent also trains alone, for comparison."""
    center: Center | None = None
    """What the models are coupled to: "average", the average of all models, as in the paper, or
    "free", a shared model of its own that no constraint limits; "free" by default, and "average"
    with PCFedAvg."""


class Defaults(FileModel):
    """The table ``[defaults]``: for agents whose table does not have the key."""

    constraint: Constraint = Field(
        default=WholeSpace(), json_schema_extra={"default": "whole_space"}
    )
    """The set that contains an agent's coefficients."""
    coupling: Coupling = DEFAULT_COUPLING
    """Strength σ of the pull towards the shared model; 0 for none, "auto" for a number that is
    found by cross-validation before the training."""
    personalization: UnitInterval = DEFAULT_PERSONALIZATION
    """How much of an agent's loss is taken at its own model: 0 takes it at the shared model, as in
    the paper, 1 at the own model."""
    privacy: Budget | None = None
    """A budget of differential privacy for the rows of an agent; the models are then private for
    them, all other files are not. By default there is none."""


class AgentTable(FileModel):
    """A table ``[agents.NAME]``: one agent; with ``data.agent`` only what differs from the rest."""

    file: Text | None = Field(default=None, examples=["north.csv"])
    """The agent's data file (.csv, .npz or .parquet)."""
    target: Text | None = Field(default=None, examples=["load"])
    """The column to predict in the agent's data; by default data.target."""
    constraint: Constraint | None = Field(default=None, examples=[{"l1": 5}])
    """The set that contains the agent's coefficients: {l1 = 5}, "l1(5)" or another set; for a
    module also a set per layer, {blocks = {"conv1.weight" = "l1(5)"}}."""
    coupling: Coupling | None = Field(default=None, examples=[0.1])
    """Strength σ_i of the pull of the agent's model towards the shared model; "auto" is the same
    number for all agents that have it."""
    personalization: UnitInterval | None = Field(default=None, examples=[0.5])
    """How much of the agent's loss is taken at its own model, from 0 to 1."""
    privacy: Budget | None = Field(default=None, examples=[{"epsilon": 2.0, "delta": 1e-5}])
    """A budget of differential privacy for the agent's rows."""


class TrainFile(FileModel):
    """The file train.toml."""

    model: Model
    """What is trained."""
    data: Data = Data()
    """What the data of all agents have in common."""
    algorithm: AlgorithmField = Field(default_factory=lambda: parse_algorithm({}))
    """The federated algorithm and its parameters."""
    training: Training = Training()
    """The number of rounds, batches, evaluation and checkpoints."""
    defaults: Defaults = Defaults()
    """For agents whose table does not have the key."""
    agents: dict[AgentName, AgentTable] = Field(default={})
    """One table [agents.NAME] per agent; with data.agent only for agents that differ from the
    defaults."""

    @model_validator(mode="before")
    @classmethod
    def _name_missing_kind(cls, table: Any) -> Any:
        """Treat a missing [model] as an empty one, so that the error names the missing key."""
        return {"model": {}, **table} if isinstance(table, Mapping) else table

    def _errors(self) -> Iterator[WrongKey]:
        yield from center_errors(self.algorithm, self.training.center, "training.center")
        yield from auto_errors(self.algorithm, self.defaults.coupling, "defaults.coupling")
        yield from privacy_errors(self)
        data = self.data
        if self.model.is_torch and data.standardize:
            yield (
                "data.standardize",
                "must be false for modules, got true; standardize in the first layer of the "
                "module.",
            )
        if self.model.is_torch and self.training.gap is not None:
            yield (
                "training.gap",
                f"must be left out for modules, got {self.training.gap}; there is no certificate "
                "for losses that are not convex.",
            )
        if not self.agents and data.agent is None:
            yield (
                "agents",
                "are missing; give one table [agents.NAME] per agent, or data.file and data.agent, "
                "the column with the agents' names.",
            )
        for name, agent in self.agents.items():
            place = dotted(["agents", name])
            target = agent.target or data.target
            yield from auto_errors(self.algorithm, agent.coupling, f"{place}.coupling")
            if agent.file is None and data.file is None:
                yield f"{place}.file", "is missing; give the agent's data file."
            if target is None:
                yield f"{place}.target", "is missing; give it here or in [data]."
            elif target in (data.features or ()) or target == data.agent:
                yield (
                    f"{place}.target",
                    "must be neither among data.features nor data.agent, got "
                    f"{short_repr(target)}; give another column.",
                )


@dataclass(frozen=True)
class AgentSettings:
    r"""One agent of a training, with the defaults filled in.

    Attributes
    ----------
    name : str
        Its name.
    file : str or None
        Its data file, relative to the folder of train.toml; None if its rows are in the file for
        all agents.
    target : str
        The column to predict.
    constraint : ConvexSet
        The private set $X_i$.
    coupling : float or "auto"
        $\sigma_i$, the pull of the agent's model towards the shared model; `Trainer` finds the
        number for ``"auto"``.
    personalization : float
        $\theta_i$, how much of its loss is taken at its own model.
    privacy : Privacy or None
        The budget of differential privacy for its rows.
    """

    name: str
    file: str | None
    target: str
    constraint: ConvexSet
    coupling: Coupling
    personalization: float
    privacy: Privacy | None = None

    def resolved(self) -> dict[str, Any]:
        """Return everything but the name, in the form of an agent's table."""
        table = {**vars(self), "constraint": format_constraint(self.constraint)}
        del table["name"]
        if self.privacy is not None:
            table["privacy"] = format_budget(self.privacy)
        return _without_none(table)


@dataclass(frozen=True)
class Config:
    """A training, as train.toml describes it.

    Attributes
    ----------
    path : Path
        The file; data files are relative to its folder.
    model, data, training, defaults : Model, Data, Training, Defaults
        The tables of the same names.
    algorithm : Algorithm
        The algorithm; ``"auto"`` is still a keyword in it.
    agents : tuple of AgentSettings
        The agents that have a table, with the defaults filled in.
    overrides : tuple of Override
        The values that were not taken from the file.
    """

    path: Path
    model: Model
    data: Data
    algorithm: Algorithm
    training: Training
    defaults: Defaults
    agents: tuple[AgentSettings, ...]
    overrides: tuple[Override, ...] = ()

    @property
    def where(self) -> str:
        """The name of the file in messages, with the values that were not taken from it."""
        where = display_path(self.path)
        if not self.overrides:
            return where
        # More options would leave no space for the error.
        options = " ".join(each.option for each in self.overrides[:2])
        number = len(self.overrides)
        return f"{where} with {options if number <= 2 else f'{number} values of --set'}"

    @property
    def is_private(self) -> bool:
        """Whether an agent has a privacy budget."""
        return any([self.defaults.privacy, *(agent.privacy for agent in self.agents)])

    @property
    def center(self) -> Center:
        """What the models are coupled to."""
        return self.training.center or default_center(self.algorithm)

    def with_coupling(self, coupling: float) -> Config:
        """Return the configuration with a number for every coupling that is ``"auto"``."""
        defaults = self.defaults
        if defaults.coupling == "auto":
            defaults = defaults.model_copy(update={"coupling": coupling})
        agents = (
            replace(agent, coupling=coupling) if agent.coupling == "auto" else agent
            for agent in self.agents
        )
        return replace(self, defaults=defaults, agents=tuple(agents))

    def located(self, file: str) -> Path:
        """Return the path of a data file, which is relative to the folder of train.toml."""
        return self.path.parent / file

    def agent(self, name: str) -> AgentSettings:
        """Return the settings of an agent, whether it has a table or not."""
        settings = self._agents_by_name.get(name)
        return settings or _settings(name, AgentTable(), self.data, self.defaults)

    @cached_property
    def _agents_by_name(self) -> dict[str, AgentSettings]:
        return {agent.name: agent for agent in self.agents}

    def with_intercept_bound(self, bound: float | None) -> Config:
        """Return the configuration with the bound that was computed from the data, if it was."""
        if bound is None:
            return self
        return replace(self, model=self.model.model_copy(update={"intercept_bound": bound}))

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Return the file with all defaults filled in, ready for JSON and TOML.

        `read_config` makes the same configuration of it. Keys without a value are left out.
        """
        tables: dict[str, dict[str, Any]] = {
            "model": self.model.resolved(),
            "data": self.data.model_dump(),
            "algorithm": to_mapping(self.algorithm),
            "training": {**self.training.model_dump(), "center": self.center},
            "defaults": self.defaults.model_dump(),
            "agents": {agent.name: agent.resolved() for agent in self.agents},
        }
        if self.data.agent is None:  # then every agent's table is complete
            del tables["defaults"], tables["data"]["target"]
        return {name: _without_none(table) for name, table in tables.items()}

    def digest(self, files: Mapping[str, str]) -> str:
        """Return 64 hexadecimal digits that change with everything that affects the numbers.

        They are the SHA-256 of ``resolved()`` in which every file is replaced by the SHA-256 of its
        bytes: the names of files do not matter, the names and order of agents do. Keys that change
        no number of any round (``NOT_IN_DIGEST``) are left out. ``files`` has the SHA-256 of every
        file of the training, by its name in train.toml.
        """
        tables = self.resolved()
        for key in NOT_IN_DIGEST - {"eval_every"}:
            tables["training"].pop(key, None)
        # Digests of earlier versions have this key: those with its default stay valid.
        tables["training"]["eval_every"] = 1
        # Version 0.1 had no such keys and only the paper's problem; its trainings can be resumed.
        for key, field in Data.model_fields.items():
            if key in NEW_DATA_KEYS and getattr(self.data, key) == field.default:
                tables["data"].pop(key, None)
        if self.center == "average":
            del tables["training"]["center"]
        for table in (tables.get("defaults", {}), *tables["agents"].values()):
            if table.get("personalization") == 0:
                del table["personalization"]
        if not self.model.is_torch and self.model.intercept:
            # Checkpoints of version 0.1 are of data that were not centred.
            tables["model"]["centred"] = True
        if self.model.file is not None:
            tables["model"]["file"] = str(self.model.file)
        for table in (tables["model"], tables["data"], *tables["agents"].values()):
            if "file" in table:
                table["file"] = files[table["file"]]
        return hashlib.sha256(json.dumps(tables, allow_nan=False).encode()).hexdigest()


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read train.toml, but not the data files that it names.

    Parameters
    ----------
    path : str or Path
        The file.
    overrides : iterable of str
        Values that replace those of the file, such as ``"training.rounds=30"``.

    Raises
    ------
    ValueError
        If it cannot be read or is not TOML; a `ConfigError` with one sentence per error if keys or
        values in it are not valid.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> home = tempfile.TemporaryDirectory()
    >>> path = Path(home.name) / "train.toml"
    >>> _ = path.write_text('''
    ... model.kind = "least-squares"
    ... data.target = "load"
    ... agents.north = {file = "north.csv", constraint = {l1 = 5}}
    ... agents.south = {file = "south.csv"}
    ... ''')
    >>> config = load_config(path)
    >>> config.algorithm
    PCFedSplit(prox='auto', relaxation=1.8)
    >>> [(agent.name, agent.constraint) for agent in config.agents]
    [('north', L1Ball(radius=5.0)), ('south', WholeSpace())]
    >>> home.cleanup()
    """
    parsed = parse_overrides(overrides)
    return read_config(read_toml(Path(path)), Path(path), parsed)


def read_config(
    table: Mapping[str, Any], path: Path, overrides: tuple[Override, ...] = ()
) -> Config:
    """Return the configuration that tables describe, as TOML or JSON has them.

    They are from the file ``path``, whose folder has the data. Errors are those of `load_config`.
    """
    file = validate_file(TrainFile, table, path, overrides)
    tables = (file.model, file.data, file.algorithm, file.training, file.defaults)
    agents = [_settings(name, each, file.data, file.defaults) for name, each in file.agents.items()]
    return Config(path, *tables, tuple(agents), overrides)


def _settings(name: str, agent: AgentTable, data: Data, defaults: Defaults) -> AgentSettings:
    """Return an agent's table with the defaults filled in."""
    return AgentSettings(
        name=name,
        file=agent.file,
        target=agent.target or data.target or "",
        constraint=defaults.constraint if agent.constraint is None else agent.constraint,
        coupling=defaults.coupling if agent.coupling is None else agent.coupling,
        personalization=(
            defaults.personalization if agent.personalization is None else agent.personalization
        ),
        privacy=defaults.privacy if agent.privacy is None else agent.privacy,
    )


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
