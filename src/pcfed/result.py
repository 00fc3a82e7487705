"""What a run leaves behind: models, history, status, and the state to go on from."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pcfed.arrays import Array, Float64Array

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "stopped", "diverged"]
FORMAT = 1
"""Version of the file that ``Result.save`` writes."""


@dataclass(frozen=True, eq=False)
class Figures:
    r"""How good a set of models is.

    Attributes
    ----------
    objective : float
        $f(x_1..x_m)$ of the agents' models.
    loss : float
        $\frac1m \sum_i f_i(\bar x)$, the average loss at the population average.
    infeasibility : Array
        Per agent, the Euclidean distance of its model from its set.
    distance : Array
        Per agent, $\|x_i - \bar x\|$.
    test_loss, test_accuracy : Array
        Per agent, of its own model on its held-out data; NaN for agents that have none.
    """

    objective: float
    loss: float
    infeasibility: Float64Array
    distance: Float64Array
    test_loss: Float64Array
    test_accuracy: Float64Array


@dataclass(frozen=True, eq=False)
class Record(Figures):
    """One evaluated round: the figures of its models, and what it took to get there.

    Attributes
    ----------
    round : int
        Number of rounds done.
    bytes_up, bytes_down : int
        Sent to and by the server since the start, all agents together.
    seconds : float
        Since the start.
    """

    round: int
    bytes_up: int
    bytes_down: int
    seconds: float


@dataclass(frozen=True, eq=False)
class State:
    """Everything that the next round depends on.

    Attributes
    ----------
    algorithm : str
        The kind of method whose state it is.
    round : int
        Number of rounds done.
    server : mapping of str to Array
        The server's vectors.
    private : mapping of str to Array
        The agents' vectors, stacked, one row an agent.
    """

    algorithm: str
    round: int
    server: Mapping[str, Array]
    private: Mapping[str, Array]

    def private_of(self, agents: slice | Sequence[int]) -> dict[str, Array]:
        """Return the private vectors of some agents, one row each; a slice gives views."""
        return {name: vectors[agents] for name, vectors in self.private.items()}

    def copy(self) -> State:
        """Return a state that shares no array with this one."""
        server = {name: vector.copy() for name, vector in self.server.items()}
        private = {name: vectors.copy() for name, vectors in self.private.items()}
        return State(self.algorithm, self.round, server, private)


@dataclass(frozen=True)
class Refusal:
    """An update that was not counted: in which round, whose, and why."""

    round: int
    agent: int
    reason: str


@dataclass(frozen=True, eq=False)
class Result:
    r"""What `pcfed.run` returns.

    Attributes
    ----------
    models : Array
        (m, n): the agents' own models $x_i$, one row an agent.
    average : Array
        (n,): the population average $\bar x$.
    history : tuple of Record
        One record per evaluated round; the last round is always there.
    start : Record
        The same of the models that the run began with.
    status : {"finished", "stopped", "diverged"}
        Whether all rounds were done, ``stop`` ended the run, or an update was refused.
    message : str
        What happened, in a sentence.
    refusals : tuple of Refusal
        Updates that were not counted.
    state : State
        The state after the last round; ``run(..., x0=result)`` goes on from it.
    """

    models: Float64Array
    average: Float64Array
    history: tuple[Record, ...]
    start: Record
    status: Status
    message: str
    state: State = field(repr=False)
    refusals: tuple[Refusal, ...] = ()

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else self.start
        return (
            f"Result({self.status} after {self.state.round} rounds, "
            f"objective {last.objective:.6g}, "
            f"largest infeasibility {last.infeasibility.max():.3g})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the history as a data frame, one row a record, one column per agent and quantity.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("to_pandas: needs pandas; run `pip install pandas`.") from None
        rows = []
        for record in self.history:
            row: dict[str, float] = {}
            for item in fields(Record):
                value = getattr(record, item.name)
                if isinstance(value, np.ndarray):
                    row |= {f"{item.name}[{i}]": v for i, v in enumerate(value.tolist())}
                else:
                    row[item.name] = value
            rows.append(row)
        return pd.DataFrame(rows).set_index("round") if rows else pd.DataFrame()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file (a NumPy archive, no pickle), whole or not at all.

        Parameters
        ----------
        path : path
            The file to write; an older one is replaced.
        """
        about = {
            "format": FORMAT,
            "status": self.status,
            "message": self.message,
            "refusals": [[r.round, r.agent, r.reason] for r in self.refusals],
            "algorithm": self.state.algorithm,
            "round": self.state.round,
        }
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        arrays |= {"models": self.models, "average": self.average}
        arrays |= {f"server/{name}": vector for name, vector in self.state.server.items()}
        arrays |= {f"private/{name}": vector for name, vector in self.state.private.items()}
        records = (self.start, *self.history)
        for item in fields(Record):
            arrays[f"record/{item.name}"] = np.array([getattr(r, item.name) for r in records])
        target = Path(path)
        partial = target.with_name(target.name + ".part")
        with partial.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Result:
        """Read what `save` wrote.

        Parameters
        ----------
        path : path
            The file to read.

        Raises
        ------
        ValueError
            If the file is not a saved result, or one of another version.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            about = json.loads(str(arrays["about"]))
            if about["format"] != FORMAT:
                raise ValueError(f"it has format {about['format']}, this version reads {FORMAT}")
            columns = [arrays[f"record/{item.name}"] for item in fields(Record)]
            records = [Record(*map(_plain, row)) for row in zip(*columns, strict=True)]
            return Result(
                models=arrays["models"],
                average=arrays["average"],
                history=tuple(records[1:]),
                start=records[0],
                status=about["status"],
                message=about["message"],
                refusals=tuple(Refusal(*refusal) for refusal in about["refusals"]),
                state=State(
                    about["algorithm"],
                    about["round"],
                    _group(arrays, "server"),
                    _group(arrays, "private"),
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, EOFError) as error:
            raise ValueError(
                f"Result.load: {os.fspath(path)} must be a file that Result.save wrote, but "
                f"{error}; save the result again."
            ) from None


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, and an array as it is."""
    return value.item() if np.ndim(value) == 0 else value


def _group(arrays: Mapping[str, Array], group: str) -> dict[str, Array]:
    """Return the arrays whose names begin with ``group/``, without that."""
    prefix = group + "/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
