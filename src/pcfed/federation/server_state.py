"""How far a training is, as the server's checkpoint has it: the truth of what counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcfed.arrays import Array
from pcfed.federation.protocol import Counted
from pcfed.simulation.result import check_format, group_of
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.journal import Extent

FORMAT = 2
"""Version of the server's checkpoint."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """How far a training is.

    Attributes
    ----------
    terms : mapping
        What must stay the same in a training.
    round : int
        Number of rounds done.
    server : mapping of str to Array
        The server's vectors.
    counted : mapping of str to Counted
        Every agent's last update that was counted.
    history : Extent or None
        How much of the file of the history belongs to these rounds; None before the first.
    """

    terms: Mapping[str, Any]
    round: int
    server: Mapping[str, Array]
    counted: Mapping[str, Counted]
    history: Extent | None = None

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        about = {
            "what": "the server's checkpoint of a training of pcfed",
            "format": FORMAT,
            "terms": dict(self.terms),
            "round": self.round,
            "counted": {name: vars(each) for name, each in self.counted.items()},
            "history": self.history,
        }
        save_arrays(path, about, {f"server/{k}": v for k, v in self.server.items()})

    @staticmethod
    def load(path: Path) -> ServerState:
        """Read it, or raise a ValueError that says why that is impossible."""
        try:
            about, arrays = load_arrays(path)
            check_format(about, FORMAT)
            history = about["history"]
            return ServerState(
                about["terms"],
                about["round"],
                group_of(arrays, "server"),
                {name: Counted(**each) for name, each in about["counted"].items()},
                None if history is None else Extent(*history),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be the checkpoint of a training, but {error}; put a copy of it back."
            ) from None
