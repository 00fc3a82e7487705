"""Experiments as TOML files: settings (data, partition, constraints) and the runs in each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pcfed.algorithms import Algorithm, Power
from pcfed.algorithms.registry import from_mapping
from pcfed.sets import L1Ball, parse_set
from pcfed.storage.reading import parse_toml, read_file

PARTITIONS = ("label_sorted", "iid", "dirichlet")
NAMES = ("mnist", "cifar10", "local-steps", "binding")
"""The presets that come with the package, in the order of the report."""
MAX_BYTES = 2**20
"""Bytes of the file of an experiment at most."""


@dataclass(frozen=True)
class RunSpec:
    """One run of a setting: an algorithm with its parameters."""

    name: str  # its label in figures
    algorithm: Algorithm
    local_steps: int
    participation: float | int  # fraction or number of agents in a round


@dataclass(frozen=True)
class Setting:
    """What all runs of a comparison have in common."""

    name: str  # its label in figures
    data: str
    samples: int | None  # number of training samples; None for all
    partition: str  # one of `PARTITIONS`
    constraints: tuple[str, ...]  # one per agent, in the format of `pcfed.sets.parse_set`
    couplings: tuple[float, ...]  # one per agent
    rounds: int
    batch: float  # fraction of the local data in a gradient
    seeds: int | None  # maximal number of seeds; None for no limit
    runs: tuple[RunSpec, ...] = field(repr=False)

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
        """Return a small version of the experiment: the digits data, a quarter of the rounds."""
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
        settings = tuple(dict.fromkeys(small))  # settings that differ only in size are equal now
        return replace(self, title=f"{self.title} (quick, on digits)", settings=settings)

    def partitioned(self, partition: str) -> Preset:
        """Return the same experiment with another partition of the data."""
        if partition not in PARTITIONS:
            raise ValueError(
                f"reproduce: partition must be one of {', '.join(PARTITIONS)}, got {partition!r}; "
                "choose one of them."
            )
        return replace(
            self, settings=tuple(replace(each, partition=partition) for each in self.settings)
        )


def load_preset(name: str, *, others: Sequence[str] = ()) -> Preset:
    """Return a preset of the package, or the one in a ``.toml`` file of the same format.

    The error message also lists ``others``, experiments that are not presets.
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
    """Return the preset in a file; raise a sentence if it is not valid."""
    try:
        # A file of the package may be in an archive.
        content = read_file(file, MAX_BYTES) if isinstance(file, Path) else file.read_bytes()
        table = parse_toml(content.decode("utf-8"))
        settings: dict[str, dict[str, Any]] = {}
        for given in table["setting"]:
            like = settings[given["like"]] if "like" in given else {}
            settings[given["name"]] = {**like, **given}
        return Preset(name, table["title"], tuple(_setting(each) for each in settings.values()))
    except OSError as error:
        reason = error.strerror or str(error)
    except KeyError as error:
        reason = f"the key or the setting {error.args[0]!r} is missing"
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).rstrip(".")
    raise ValueError(
        f"{where} is not a valid experiment: {reason}; "
        "see the TOML files of pcfed.experiments for the format."
    )


def _setting(table: Mapping[str, Any]) -> Setting:
    """Return the setting that a TOML table describes."""
    if "method" in table:
        raise ValueError("[[setting.method]] is now called [[setting.run]]")
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
        runs=tuple(_run_spec(each, table) for each in table["run"]),
    )


def _run_spec(table: Mapping[str, Any], setting: Mapping[str, Any]) -> RunSpec:
    """Return a run; keys that are missing in its table are taken from that of the setting."""
    own_keys = {"name", "algorithm", "local_steps", "participation"}
    parameters = {key: value for key, value in table.items() if key not in own_keys}
    parameters.setdefault("penalty", setting["penalty"])
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            parameters[key] = Power(**value)
    return RunSpec(
        name=table["name"],
        algorithm=from_mapping({"name": table["algorithm"], **parameters}),
        local_steps=table.get("local_steps", setting.get("local_steps")),
        participation=table.get("participation", 1.0),
    )


def digest(setting: Setting, spec: RunSpec, seed: int) -> str:
    """Return sixteen hexadecimal digits that identify a run.

    They depend on everything that the result depends on, and not on labels, so that a run that
    occurs in two experiments is run once.
    """
    ignored = {"name": None, "seeds": None, "runs": None}
    key = {**vars(setting), **ignored, "run": repr(replace(spec, name="")), "seed": seed}
    return hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:16]
