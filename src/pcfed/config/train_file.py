"""The file that describes a training: its form, its defaults and its checks.

    [model]
    kind = "softmax"            # softmax | logistic | least-squares | torch
    intercept = false
    l2 = 0.0
    # of kind torch, in place of these two:
    # module = "my_models:Net"  # Net() in my_models.py, beside this file, makes a torch.nn.Module
    # loss = "cross-entropy"    # or mse

    [data]                      # what is the same for all agents
    file = "all.csv"            # one file for all, with `agent`; left out if every agent has one
    agent = "household"         # the column that says whose row it is
    target = "load"
    features = ["a", "b"]       # by default all columns but the target and the agent
    held_out = 0.2              # share of every agent's rows that is kept for testing
    dtype = "float64"           # or float32
    standardize = false         # true: train on columns of one size; sets stay those of the models
                                # that are delivered (`pcfed.training.standardize`)

    [algorithm]                 # by default exact PCFedAvg
    name = "PCFedAvg"           # PCFedAvg | FedAvg | FedProx | Scaffold | Local
    exact = true
    step = "auto"               # all methods know "auto"; it is worked out when the run begins
    penalty = "auto"            # by default 0 for the other methods

    [training]
    rounds = 200
    gap = 0.01                  # stop at this certified relative gap; by default never
    local_steps = 10
    batch = 1.0                 # a share, with its point, or a number of rows
    participation = 1.0         # likewise, of the agents
    seed = 0
    eval_every = 1
    save_every = 10             # rounds from one checkpoint to the next
    max_refusals = 100
    norm_limit = 1e6            # by default none
    local_only = true           # whether agents train alone as well, for comparison

    [defaults]                  # for agents that say nothing else
    constraint = "whole_space"
    coupling = 0.1

    [agents.north]              # one table an agent; with `data.agent` only for what differs
    file = "north.csv"
    target = "load"
    constraint = {l1 = 5}       # or "l1(5)"; see `pcfed.sets.parse_set`; of kind torch also
                                # {blocks = {"conv1.weight" = "l1(5)"}}, a set per parameter
    coupling = 0.1

Only ``model.kind``, a target and the agents' data must be given. Paths are relative to the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pcfed.algorithms import Algorithm
from pcfed.config.agent_table import AgentSettings, checked_name, read_agent
from pcfed.config.algorithm_table import read_algorithm
from pcfed.config.model_table import Model, read_model
from pcfed.config.section import Section, read_toml
from pcfed.data.readers import read_bytes
from pcfed.errors import display_path, one_line, short_repr
from pcfed.sets import WholeSpace

DTYPES = ("float64", "float32")
DURATION = ("rounds", "gap", "save_every", "max_refusals", "local_only")
"""Keys of ``[training]`` that change no number of any round."""

SECTIONS = ("model", "data", "algorithm", "training", "defaults", "agents")


@dataclass(frozen=True)
class Data:
    """What the data of all agents have in common: ``[data]``.

    Attributes
    ----------
    file, agent : str or None
        One file for all, and the column that says whose row it is; both or neither.
    target : str or None
        The column to predict, unless an agent says otherwise.
    features : tuple of str or None
        The columns to predict from; None for all but targets and ``agent``.
    held_out : float
        Share of every agent's rows that is kept for testing, in [0, 1).
    dtype : {"float64", "float32"}
        The dtype of features and local steps.
    standardize : bool
        Whether columns are brought to one size by common means and scales before training.
    """

    file: str | None
    agent: str | None
    target: str | None
    features: tuple[str, ...] | None
    held_out: float
    dtype: str
    standardize: bool


@dataclass(frozen=True)
class Training:
    """How the run goes: ``[training]``, as the arguments of `pcfed.run`.

    Attributes
    ----------
    rounds, local_steps : int
        Numbers of rounds, and of local steps in a round.
    eval_every, save_every : int
        Rounds from one evaluation to the next, and from one checkpoint to the next.
    batch, participation : float or int
        Share (float) or number (int) of rows in a gradient and of agents in a round.
    seed : int
        The seed of all random streams, those of held-out rows included.
    gap : float or None
        The certified relative gap at which to stop.
    max_refusals : int
        How many updates that are not finite may be refused.
    norm_limit : float or None
        The longest update that is not refused.
    local_only : bool
        Whether every agent trains alone as well, to compare with.
    """

    rounds: int
    local_steps: int
    batch: float | int
    participation: float | int
    seed: int
    eval_every: int
    save_every: int
    max_refusals: int
    gap: float | None
    norm_limit: float | None
    local_only: bool


@dataclass(frozen=True)
class Config:
    """A training, as a configuration describes it.

    Attributes
    ----------
    path : Path
        The file; data are looked for relative to its folder.
    model, data, training : Model, Data, Training
        The tables of the same names.
    algorithm : Algorithm
        The method; ``"auto"`` is still a word in it.
    defaults : AgentSettings
        What holds for agents that say nothing else.
    agents : tuple of AgentSettings
        The agents that have a table, with the defaults filled in.
    """

    path: Path
    model: Model
    data: Data
    algorithm: Algorithm
    training: Training
    defaults: AgentSettings
    agents: tuple[AgentSettings, ...]

    @property
    def where(self) -> str:
        """What messages call the file."""
        return display_path(self.path)

    def located(self, file: str) -> Path:
        """Return the path of a data file, which is relative to the configuration's folder."""
        return self.path.parent / file

    def agent(self, name: str) -> AgentSettings:
        """Return the settings of an agent, whether it has a table or not."""
        return self._tables.get(name) or replace(self.defaults, name=name)

    @cached_property
    def _tables(self) -> dict[str, AgentSettings]:
        return {agent.name: agent for agent in self.agents}

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Return the configuration with all defaults filled in, ready for JSON and TOML.

        `read_config` makes the same configuration of it. Keys without a value are left out.
        """
        method = {key.name: getattr(self.algorithm, key.name) for key in fields(self.algorithm)}
        tables: dict[str, dict[str, Any]] = {
            "model": self.model.resolved(),
            "data": {**vars(self.data), "features": self.data.features and [*self.data.features]},
            "algorithm": {"name": type(self.algorithm).__name__, **method},
            "training": vars(self.training),
            "defaults": self.defaults.resolved(),
            "agents": {agent.name: agent.resolved() for agent in self.agents},
        }
        if self.data.agent is None:  # then every agent has a table, and says it all
            del tables["defaults"], tables["data"]["target"]
        else:
            del tables["defaults"]["target"]  # it is that of the data
        return {name: _without_none(table) for name, table in tables.items()}

    def digest(self) -> str:
        """Return 64 hexadecimal digits that change with anything that the numbers depend on.

        They are the SHA-256 of ``resolved()`` in which every data file is replaced by the SHA-256
        of its bytes: the names of files do not matter, the names and order of agents do. How long
        the training goes on and how often it is saved do not count (``DURATION``).

        Raises
        ------
        ValueError
            If a data file cannot be read.
        """
        facts = self.resolved()
        for key in DURATION:
            facts["training"].pop(key, None)
        if self.model.file is not None:
            facts["model"]["file"] = str(self.model.file)
        for table in (facts["model"], facts["data"], *facts["agents"].values()):
            if "file" in table:
                path = self.located(table["file"])
                content = read_bytes(display_path(path), path)
                table["file"] = hashlib.sha256(content).hexdigest()
        return hashlib.sha256(json.dumps(facts, allow_nan=False).encode()).hexdigest()


def load_config(path: str | Path) -> Config:
    """Read the configuration of a training from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file, in the form that this module's description shows.

    Raises
    ------
    ValueError
        If it cannot be read, is no TOML, or something in it is not valid: one sentence that names
        the key. Data files are not read yet.

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
    PCFedAvg(step='auto', penalty='auto', exact=True)
    >>> [(agent.name, agent.constraint) for agent in config.agents]
    [('north', L1Ball(radius=5.0)), ('south', WholeSpace())]
    >>> home.cleanup()
    """
    return read_config(read_toml(Path(path)), Path(path))


def read_config(table: Mapping[str, object], path: Path) -> Config:
    """Return the configuration that tables describe.

    Parameters
    ----------
    table : mapping
        The tables, as TOML or JSON has them.
    path : Path
        The file that they are from, for messages and for the folder of the data.

    Raises
    ------
    ValueError
        If something is not valid: one sentence that names the key.
    """
    where = display_path(path)
    try:
        Section(where, "", table, SECTIONS)
        data = _data(where, table.get("data", {}))
        section = Section(where, "defaults", table.get("defaults", {}), ("constraint", "coupling"))
        usual = AgentSettings("", target=data.target, constraint=WholeSpace(), coupling=0.1)
        defaults = read_agent(section, "defaults").completed(usual)
        model = read_model(where, table.get("model", {}))
        training = _training(where, table.get("training", {}))
        model.check(where, standardize=data.standardize, gap=training.gap)
        return Config(
            path=path,
            model=model,
            data=data,
            algorithm=read_algorithm(where, table.get("algorithm", {})),
            training=training,
            defaults=defaults,
            agents=_agents(where, table.get("agents", {}), data, defaults),
        )
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _data(where: str, table: object) -> Data:
    section = Section(where, "data", table, [key.name for key in fields(Data)])
    data = Data(
        file=section.text("file"),
        agent=section.text("agent"),
        target=section.text("target"),
        features=section.names("features"),
        held_out=section.share("held_out", 0.2),
        dtype=section.choice("dtype", DTYPES, "float64"),
        standardize=section.flag("standardize", False),
    )
    if (data.file is None) != (data.agent is None):
        given, missing = ("agent", "file") if data.file is None else ("file", "agent")
        raise ValueError(
            f"{where}: data.file and data.agent must be given together, got only data.{given}; "
            f"give data.{missing} too, or a file in every agent's table."
        )
    if data.agent is not None and data.target is None:
        raise ValueError(f"{where}: data.target is missing; name the column to predict.")
    for name in (data.target, data.agent):
        if name is not None and name in (data.features or ()):
            raise ValueError(
                f"{where}: data.features must contain neither the target nor the agent, got "
                f"{short_repr(name)}; leave it out."
            )
    if data.target is not None and data.target == data.agent:
        raise ValueError(
            f"{where}: data.target and data.agent must differ, got {short_repr(data.target)} for both; "
            "correct one."
        )
    return data


def _training(where: str, table: object) -> Training:
    section = Section(where, "training", table, [key.name for key in fields(Training)])
    return Training(
        rounds=section.count("rounds", 200),
        local_steps=section.count("local_steps", 10),
        batch=section.part("batch", 1.0),
        participation=section.part("participation", 1.0),
        seed=section.count("seed", 0, minimum=0),
        eval_every=section.count("eval_every", 1),
        save_every=section.count("save_every", 10),
        max_refusals=section.count("max_refusals", 100, minimum=0),
        gap=section.optional_number("gap"),
        norm_limit=section.optional_number("norm_limit"),
        local_only=section.flag("local_only", True),
    )


def _agents(
    where: str, table: object, data: Data, defaults: AgentSettings
) -> tuple[AgentSettings, ...]:
    """Return the agents that have a table; without a column that names them, all must have one."""
    if not isinstance(table, Mapping):
        raise ValueError(
            f"{where}: agents must be tables, got {short_repr(table)}; write [agents.north] and keys."
        )
    if not table and data.agent is None:
        raise ValueError(
            f"{where}: agents are missing; give a table [agents.NAME] each, or data.file and "
            "data.agent, the column that says whose row it is."
        )
    keys = ("file", "target", "constraint", "coupling")
    agents = []
    for name, given in table.items():
        section = Section(where, f"agents.{checked_name(where, name)}", given, keys)
        agent = read_agent(section, name).completed(defaults)
        if agent.file is None and data.file is None:
            raise ValueError(f"{section.path('file')} is missing; give the agent's data file.")
        if agent.target is None:
            raise ValueError(f"{section.path('target')} is missing; give it here or in [data].")
        if agent.target in (data.features or ()) or agent.target == data.agent:
            raise ValueError(
                f"{section.path('target')} must be neither among data.features nor data.agent, got "
                f"{short_repr(agent.target)}; give another column."
            )
        agents.append(agent)
    return tuple(agents)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
