"""What a run leaves behind: models, history, status, and the state to go on from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.notebook import html_table
from pcfed.storage.archive import load_arrays, save_arrays

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "stopped", "diverged", "interrupted"]
FORMAT = 2
"""Version of the file that ``Result.save`` writes."""

Layout = Mapping[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shape and dtype of every array in a file."""


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

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        vectors = (*self.server.values(), *self.private.values())
        return all(bool(np.isfinite(each).all()) for each in vectors)

    def layout(self, m: int) -> Layout:
        """Return the names and shapes that such a state of ``m`` agents has in a file."""
        shapes = {f"server/{name}": vector.shape for name, vector in self.server.items()}
        for name, vectors in self.private.items():
            shapes[f"private/{name}"] = (m, *vectors.shape[1:])
        return {name: (shape, np.float64) for name, shape in shapes.items()}

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
    status : {"finished", "stopped", "diverged", "interrupted"}
        Whether all rounds were done, ``stop`` ended the run, too many updates were refused, or a
        signal ended a run with checkpoints.
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

    def _repr_html_(self) -> str:
        last = self.history[-1] if self.history else self.start
        figures = (last.infeasibility, last.distance, last.test_loss, last.test_accuracy)
        rows = [(i, *row) for i, row in enumerate(zip(*(f.tolist() for f in figures), strict=True))]
        columns = ("agent", "infeasibility", "from the average", "held-out loss", "held-out score")
        return html_table(repr(self), columns, rows)

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
            **facts_of(self.state, self.refusals),
        }
        arrays = {"models": self.models, "average": self.average}
        arrays |= arrays_of(self.state, (self.start, *self.history))
        save_arrays(Path(path), about, arrays)

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
            return _result_of(*load_arrays(Path(path)))
        except ValueError as error:
            raise ValueError(
                f"Result.load: {os.fspath(path)} must be a file that Result.save wrote, but "
                f"{error}; save the result again."
            ) from None


def _result_of(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> Result:
    """Return the result in a file, or raise half a sentence that says why there is none."""
    try:
        check_format(about, FORMAT)
        state, (m, n) = state_of(about, arrays), (len(arrays["models"]), arrays["average"].size)
        own: Layout = {"models": ((m, n), np.float64), "average": ((n,), np.float64)}
        check_arrays(arrays, {**own, **state.layout(m), **records_layout(arrays, m)})
        start, *history = records_of(arrays, state.round)
        refusals, status, message = refusals_of(about, m), about["status"], about["message"]
    except (KeyError, TypeError):
        raise ValueError("it is something else") from None
    if not (m and n and history and status in get_args(Status) and isinstance(message, str)):
        raise ValueError("it does not say how the run ended")
    return Result(
        models=arrays["models"],
        average=arrays["average"],
        history=tuple(history),
        start=start,
        status=status,
        message=message,
        refusals=refusals,
        state=state,
    )


# -- what results and checkpoints have in common ------------------------------------------------


def facts_of(state: State, refusals: Sequence[Refusal]) -> dict[str, Any]:
    """Return what a file says in words about a state and refusals."""
    return {
        "algorithm": state.algorithm,
        "round": state.round,
        "refusals": [[r.round, r.agent, r.reason] for r in refusals],
    }


def arrays_of(state: State, records: Sequence[Record]) -> dict[str, Any]:
    """Return a state and records as named arrays."""
    arrays: dict[str, Any] = {f"server/{name}": vector for name, vector in state.server.items()}
    arrays |= {f"private/{name}": vectors for name, vectors in state.private.items()}
    for item in fields(Record):
        arrays[f"record/{item.name}"] = np.array([getattr(r, item.name) for r in records])
    return arrays


def check_format(about: Mapping[str, Any], known: int) -> None:
    """Refuse a file of another version."""
    if about["format"] != known:
        raise ValueError(f"it has format {about['format']!r:.20}, this version reads {known}")


def check_arrays(arrays: Mapping[str, Any], expected: Layout) -> None:
    """Refuse arrays of other names, shapes or dtypes, with half a sentence that says which."""
    if odd := arrays.keys() ^ expected.keys():
        there = "an" if min(odd) in arrays else "no"
        raise ValueError(f"it has {there} array {min(odd)[:30]!r}")
    for name, (shape, dtype) in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"its array {name[:30]!r} is {array.dtype.str} of shape {array.shape}, not "
                f"{np.dtype(dtype).str} of shape {shape}"
            )


def whole_number(about: Mapping[str, Any], name: str) -> int:
    """Return a number of rounds or bytes in a file."""
    value = about[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"its {name} is not a whole number")
    return value


def state_of(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> State:
    """Return the state in a file."""
    if not isinstance(about["algorithm"], str):
        raise TypeError
    groups = (group_of(arrays, "server"), group_of(arrays, "private"))
    return State(about["algorithm"], whole_number(about, "round"), *groups)


def refusals_of(about: Mapping[str, Any], m: int) -> tuple[Refusal, ...]:
    """Return the refusals in a file."""
    refusals = tuple(Refusal(*refusal) for refusal in about["refusals"])
    for each in refusals:
        whole_number(vars(each), "round")
        if whole_number(vars(each), "agent") >= m or not isinstance(each.reason, str):
            raise ValueError("its refusals are not of its agents")
    return refusals


def records_layout(arrays: Mapping[str, Any], m: int) -> Layout:
    """Return the layout of as many records as there are in a file."""
    number = len(arrays["record/round"])
    kinds: dict[Any, tuple[tuple[int, ...], type[np.generic]]] = {
        "int": ((number,), np.int64),
        "float": ((number,), np.float64),
        "Float64Array": ((number, m), np.float64),
    }
    return {f"record/{item.name}": kinds[item.type] for item in fields(Record)}


def records_of(arrays: Mapping[str, Any], last: int) -> list[Record]:
    """Return the records in a file, one at least, of rounds up to the last."""
    rounds = [0, *arrays["record/round"].tolist(), last]
    if len(rounds) == 2 or rounds != sorted(rounds):
        raise ValueError("its records are not in the order of the rounds")
    columns = [arrays[f"record/{item.name}"] for item in fields(Record)]
    return [Record(*map(_plain, row)) for row in zip(*columns, strict=True)]


def group_of(arrays: Mapping[str, Array], group: str) -> dict[str, Array]:
    """Return the arrays whose names begin with ``group/``, without that."""
    prefix = group + "/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, and an array as it is."""
    return value.item() if np.ndim(value) == 0 else value
