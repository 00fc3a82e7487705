"""The file ``config.json`` of a run directory: what is trained there, and with which versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, ClassVar

from pcfed.storage.saved import Metadata, SavedJson


def current_versions() -> dict[str, str]:
    """Return the versions of what a training computes with."""
    return {
        "pcfed": version("pcfed"),
        "Python": platform.python_version(),
        "NumPy": version("numpy"),
        "SciPy": version("scipy"),
    }


@dataclass(frozen=True)
class RunMetadata(SavedJson):
    """The contents of ``config.json``.

    Attributes
    ----------
    digest : str
        The digest of the configuration and the data: the same for the same training.
    config : mapping
        The configuration with all defaults.
    versions : mapping of str to str
        The versions with which the training was started.
    """

    file_kind: ClassVar[str] = "description of a training"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "give another folder."
    max_bytes: ClassVar[int] = 2**28

    digest: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> RunMetadata:
        digest, config, versions = (contents[key] for key in ("digest", "config", "versions"))
        if not (isinstance(digest, str) and isinstance(config, dict)):
            raise TypeError
        return cls(digest, config, {name: str(each) for name, each in versions.items()})
