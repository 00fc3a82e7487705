"""The settings of a training at the server, recorded in its folder: settings.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

from pcfed.config.federation_files import ServerFile
from pcfed.config.json_schema import toml_value
from pcfed.errors import display_path, one_line
from pcfed.federation.paths import SETTINGS
from pcfed.storage.saved import Metadata, SavedJson

MAY_CHANGE = frozenset(
    {
        "imports",
        "rounds.rounds",
        "rounds.gap",
        "rounds.gap_every",
        "rounds.minimum",
        "rounds.attempts",
        "rounds.deadline",
        "rounds.norm_limit",
        "rounds.norm_factor",
    }
)
"""Keys that may have other values when a training is resumed."""

MAX_VALUE_LENGTH = 60
"""Longer values are cut in messages."""


@dataclass(frozen=True)
class ServerSettings(SavedJson):
    """server.toml with all defaults, the values of ``--set`` and the names of all agents.

    Keys are dotted, such as ``rounds.local_steps``; keys without a value are left out.
    """

    file_kind: ClassVar[str] = "settings of a training"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "restore it from a backup, or give the training another name."

    settings: Mapping[str, Any]
    version: str  # of pcfed

    @classmethod
    def of(cls, file: ServerFile, roster: Sequence[str]) -> Self:
        """Return the settings of a file and a roster."""
        return cls({**_flat(file), "roster": list(roster)}, version("pcfed"))

    def _to_json(self) -> Metadata:
        return vars(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(dict(contents["settings"]), str(contents["version"]))


def check_settings(folder: Path, file: ServerFile) -> None:
    """Raise an error that names the keys by which a file differs from the training of a folder."""
    if not (folder / SETTINGS).exists():
        return
    old, new = ServerSettings.load(folder / SETTINGS).settings, _flat(file)
    old = {"secure": False, **old}  # earlier versions had no secure sum
    if new["roster"] == len(old["roster"]):  # the first agents that connected are the roster
        new["roster"] = old["roster"]
    changes = [
        f"{key} was {_text(old.get(key))} and is {_text(new.get(key))}"
        for key in dict.fromkeys([*old, *new])
        if key not in MAY_CHANGE and old.get(key) != new.get(key)
    ]
    if changes:
        raise ValueError(
            one_line(
                f"{display_path(folder)} contains a training with other settings: "
                f"{', '.join(changes)}; change them back, or give the training another name, for "
                "example with --set training=second."
            )
        )


def _flat(file: ServerFile) -> dict[str, Any]:
    """Return the settings of a file by their dotted keys."""
    tables = json.loads(file.model_dump_json(exclude={"roster"}, exclude_none=True))
    tables["roster"] = file.roster if isinstance(file.roster, int) else list(file.roster)
    tables |= {"center": file.resolved_center, "secure": file.resolved_secure}
    tables["colluders"] = file.resolved_colluders
    if not file.resolved_secure:
        del tables["grid"], tables["colluders"]
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            flat[name] = value
    return flat


def _text(value: object) -> str:
    text = "not given" if value is None else toml_value(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 1] + "…"
