"""Experiments as TOML files: settings (data, shards, constraints) and the methods run on each."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pcfed.algorithms import Algorithm, FedAvg, FedProx, Local, PCFedAvg, Power, Scaffold, Schedule
from pcfed.sets import L1Ball, parse_set

ALGORITHMS = {kind.__name__: kind for kind in (PCFedAvg, FedAvg, FedProx, Scaffold, Local)}
PARTITIONS = ("label_sorted", "iid", "dirichlet")
NAMES = ("mnist", "cifar10", "local-steps", "binding")
"""The presets that come with the package, in the order of the report."""


@dataclass(frozen=True)
class Method:
    """One method in one setting.

    Attributes
    ----------
    name : str
        What figures call it.
    algorithm : Algorithm
        The method with its parameters.
    local_steps : int
        Local steps in a round.
    participation : float or int
        Share or number of agents in a round.
    """

    name: str
    algorithm: Algorithm
    local_steps: int
    participation: float | int


@dataclass(frozen=True)
class Setting:
    """What all methods of a comparison share.

    Attributes
    ----------
    name : str
        What figures call it.
    data : str
        Name of the data set.
    samples : int or None
        How many training samples are used; None for all.
    partition : str
        How samples are shared out: ``label_sorted``, ``iid`` or ``dirichlet``.
    constraints : tuple of str
        One set per agent, as `pcfed.sets.parse_set` reads it.
    couplings : tuple of float
        One coupling per agent.
    rounds : int
        Number of rounds.
    batch : float
        Share of the local data in a gradient.
    seeds : int or None
        At most so many seeds; None for as many as asked for.
    methods : tuple of Method
        What is compared.
    """

    name: str
    data: str
    samples: int | None
    partition: str
    constraints: tuple[str, ...]
    couplings: tuple[float, ...]
    rounds: int
    batch: float
    seeds: int | None
    methods: tuple[Method, ...] = field(repr=False)

    @property
    def budgets(self) -> list[float | None]:
        """The l1 radius of every agent, None for agents with another set."""
        sets = [parse_set(text) for text in self.constraints]
        return [each.radius if isinstance(each, L1Ball) else None for each in sets]


@dataclass(frozen=True)
class Preset:
    """A named experiment: its title and its settings."""

    name: str
    title: str
    settings: tuple[Setting, ...]

    def quick(self) -> Preset:
        """Return the same experiment in small: the digits data, a quarter of the rounds."""
        small = [
            replace(
                each,
                name="all images" if each.samples else each.name,
                data="digits",
                samples=None,
                rounds=each.rounds // 4,
                seeds=1,
            )
            for each in self.settings
        ]
        settings = tuple(dict.fromkeys(small))  # those that differ in size only have become one
        return replace(self, title=f"{self.title} (quick, on digits)", settings=settings)

    def partitioned(self, partition: str) -> Preset:
        """Return the same experiment with the data shared out in another way."""
        if partition not in PARTITIONS:
            raise ValueError(
                f"reproduce: partition must be one of {', '.join(PARTITIONS)}, got {partition!r}; "
                "choose one of them."
            )
        return replace(
            self, settings=tuple(replace(each, partition=partition) for each in self.settings)
        )


def load_preset(name: str, *, others: Sequence[str] = ()) -> Preset:
    """Return a preset that comes with the package, or the one in a TOML file of the same form.

    Parameters
    ----------
    name : str
        One of ``NAMES``, or the path of a file that ends in ``.toml``.
    others : sequence of str
        What else the caller knows by name, for the message.
    """
    if name.endswith(".toml"):
        return _read(Path(name).stem, name, Path(name))
    if name not in NAMES:
        raise ValueError(
            f"There is no experiment {name!r}; choose from {', '.join((*NAMES, *others))}, "
            "or give a .toml file."
        )
    return _read(name, name, files("pcfed.experiments").joinpath(f"{name}.toml"))


def _read(name: str, where: str, file: Path | Traversable) -> Preset:
    """Return the preset in a file, or say in a sentence what is wrong with it."""
    try:
        table = tomllib.loads(file.read_text("utf-8"))
        settings: dict[str, dict[str, Any]] = {}
        for given in table["setting"]:
            like = settings[given["like"]] if "like" in given else {}
            settings[given["name"]] = {**like, **given}
        return Preset(name, table["title"], tuple(_setting(each) for each in settings.values()))
    except OSError as mistake:
        reason = mistake.strerror or str(mistake)
    except KeyError as mistake:
        reason = f"the key {mistake.args[0]!r} is missing or names nothing"
    except (TypeError, ValueError, AttributeError) as mistake:
        reason = str(mistake).rstrip(".")
    raise ValueError(
        f"{where}: it must be an experiment in TOML, but {reason}; "
        "see the presets of pcfed.experiments for the form."
    )


def _setting(table: Mapping[str, Any]) -> Setting:
    """Return the setting that a TOML table describes."""
    return Setting(
        name=table["name"],
        data=table["data"],
        samples=table.get("samples"),
        partition=table["partition"],
        constraints=tuple(table["constraints"]),
        couplings=tuple(table["couplings"]),
        rounds=table["rounds"],
        batch=table["batch"],
        seeds=table.get("seeds"),
        methods=tuple(_method(each, table) for each in table["method"]),
    )


def _method(table: Mapping[str, Any], setting: Mapping[str, Any]) -> Method:
    """Return a method; what its table leaves out is taken from the setting's."""
    known = {"name", "algorithm", "local_steps", "participation"}
    parameters = {key: value for key, value in table.items() if key not in known}
    parameters.setdefault("penalty", setting["penalty"])
    parameters = {key: _schedule(value) for key, value in parameters.items()}
    return Method(
        name=table["name"],
        algorithm=ALGORITHMS[table["algorithm"]](**parameters),
        local_steps=table.get("local_steps", setting.get("local_steps")),
        participation=table.get("participation", 1.0),
    )


def _schedule(value: float | Mapping[str, float]) -> Schedule:
    """Return a number as it is and a table as a power of the round."""
    return Power(**value) if isinstance(value, Mapping) else value


def digest(setting: Setting, method: Method, seed: int) -> str:
    """Return sixteen hexadecimal digits that change with anything that a run depends on.

    Names do not matter: the same run in two experiments is run once.
    """
    names = {"name": None, "seeds": None, "methods": None}
    facts = {**vars(setting), **names, "method": repr(replace(method, name="")), "seed": seed}
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]
