"""The result of a run: models, history, status, and the state to continue from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.notebook import bar_chart, html_table, line_chart
from pcfed.simulation.privacy import Spent
from pcfed.storage.saved import Metadata, SavedArchive

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "stopped", "diverged", "interrupted"]
Layout = Mapping[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shape and dtype of every array in a file."""


@dataclass(frozen=True, eq=False)
class Metrics:
    r"""The metrics of a set of models.

    Attributes
    ----------
    objective : float
        The objective of the agents' models and the centre.
    loss : float
        $\frac1m \sum_i f_i(c)$, the average loss at the centre (the average, unless it is free).
    infeasibility : Array
        Per agent, the Euclidean distance of its model from its set.
    distance : Array
        Per agent, $\|x_i - c\|$.
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
class Record(Metrics):
    """One evaluated round: the metrics of its models, and what it cost to get there.

    Attributes
    ----------
    round : int
        Number of rounds done.
    bytes_up, bytes_down : int
        Sent to and by the server since the start, by all agents together.
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
        The ``state_kind`` of the algorithm whose state it is.
    round : int
        Number of rounds done.
    server : mapping of str to Array
        The server's vectors.
    private : mapping of str to Array
        The agents' vectors, stacked, one row per agent.
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
    """An update that was not accepted: its round, its agent and the reason."""

    round: int
    agent: int
    reason: str


@dataclass(frozen=True, eq=False)
class Result(SavedArchive):
    r"""What `pcfed.run` returns.

    Attributes
    ----------
    models : Array
        (m, n): the agents' own models $x_i$, one row per agent.
    average : Array
        (n,): the population average $\bar x$.
    center : Array
        (n,): the centre to which the models are coupled, the average unless the centre is free.
    history : tuple of Record
        One record per evaluated round; the last round is always there.
    start : Record
        The record of the models that the run started from.
    status : {"finished", "stopped", "diverged", "interrupted"}
        Whether all rounds were done, ``stop`` ended the run, too many updates were refused, or a
        signal ended a run with checkpoints.
    message : str
        What happened, in a sentence.
    refusals : tuple of Refusal
        Updates that were not accepted.
    state : State
        The state after the last round; ``run(..., x0=result)`` continues from it.
    names : tuple of str
        The agents' names, in the order of the models.
    privacy : tuple of Spent or None
        What the run spends of every agent's privacy budget; None for an agent without one. Empty if
        no agent has one. Models and state are private for the records of these agents, the history
        is not.
    """

    file_kind: ClassVar[str] = "result"
    format: ClassVar[int] = 2
    read_by: ClassVar[Mapping[int, str]] = {}
    advice: ClassVar[str] = "give a file that Result.save wrote."

    models: Float64Array
    average: Float64Array
    center: Float64Array
    history: tuple[Record, ...]
    start: Record
    status: Status
    message: str
    state: State = field(repr=False)
    refusals: tuple[Refusal, ...] = ()
    names: tuple[str, ...] = ()
    privacy: tuple[Spent | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:  # files of version 0.1 have none
            default = tuple(f"agent {i}" for i in range(len(self.models)))
            object.__setattr__(self, "names", default)

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
        rows = list(zip(self.names, *(f.tolist() for f in figures), strict=True))
        columns = ("agent", "infeasibility", "from the center", "held-out loss", "held-out score")
        points = [(record.round, record.objective) for record in (self.start, *self.history)]
        has_test = not np.isnan(last.test_loss).all()
        title = "held-out loss" if has_test else "distance from the center"
        values = (last.test_loss if has_test else last.distance).tolist()
        charts = line_chart("objective by round", points) + bar_chart(title, self.names, values)
        return html_table(repr(self), columns, rows) + charts

    def to_pandas(self) -> pd.DataFrame:
        """Return the history as a data frame, one row per record, one column per agent and metric.

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

    def _to_archive(self) -> tuple[Metadata, Mapping[str, Any]]:
        metadata = {
            "status": self.status,
            "message": self.message,
            "names": list(self.names),
            "own_center": not np.array_equal(self.center, self.average),
            **state_metadata(self.state, self.refusals),
        }
        if self.privacy:
            metadata["privacy"] = [None if each is None else [*each] for each in self.privacy]
        arrays = {"models": self.models, "average": self.average}
        if metadata["own_center"]:
            arrays["center"] = self.center
        return metadata, arrays | state_arrays(self.state, (self.start, *self.history))

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, Any]) -> Result:
        state = read_state(metadata, arrays)
        m, n = len(arrays["models"]), arrays["average"].size
        own: Layout = {"models": ((m, n), np.float64), "average": ((n,), np.float64)}
        has_center = metadata.get("own_center") is True  # files of version 0.1 do not say it
        if has_center:
            own = {**own, "center": ((n,), np.float64)}
        check_arrays(arrays, {**own, **state.layout(m), **records_layout(arrays, m)})
        start, *history = read_records(arrays, state.round)
        status, message = metadata["status"], metadata["message"]
        if not (m and n and history and status in get_args(Status) and isinstance(message, str)):
            raise ValueError("it does not say how the run ended")
        return cls(
            models=arrays["models"],
            average=arrays["average"],
            center=arrays["center" if has_center else "average"],
            history=tuple(history),
            start=start,
            status=status,
            message=message,
            refusals=read_refusals(metadata, m),
            state=state,
            names=read_names(metadata, m),
            privacy=_read_privacy(metadata, m),
        )


def _read_privacy(metadata: Metadata, m: int) -> tuple[Spent | None, ...]:
    """Return what a run has spent of privacy budgets."""
    found = metadata.get("privacy", [])
    if len(found) not in (0, m):
        raise ValueError(f"it has {len(found)} privacy budgets for {m} agents")
    spent = tuple(None if each is None else Spent(*each) for each in found)
    for each in spent:
        if each is not None and not all(isinstance(x, (int, float)) and x >= 0 for x in each):
            raise ValueError("its privacy budgets are not numbers")
    return spent


# -- what the files of results and checkpoints have in common ------------------------------------


def state_metadata(state: State, refusals: Sequence[Refusal]) -> dict[str, Any]:
    """Return a state and refusals, without the arrays, as JSON holds them."""
    return {
        "algorithm": state.algorithm,
        "round": state.round,
        "refusals": [[r.round, r.agent, r.reason] for r in refusals],
    }


def state_arrays(state: State, records: Sequence[Record]) -> dict[str, Any]:
    """Return a state and records as named arrays."""
    arrays: dict[str, Any] = {f"server/{name}": vector for name, vector in state.server.items()}
    arrays |= {f"private/{name}": vectors for name, vectors in state.private.items()}
    for item in fields(Record):
        arrays[f"record/{item.name}"] = np.array([getattr(r, item.name) for r in records])
    return arrays


def check_arrays(arrays: Mapping[str, Any], expected: Layout) -> None:
    """Raise a ValueError if arrays have other names, shapes or dtypes; its text is a clause."""
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


def read_count(metadata: Metadata, name: str) -> int:
    """Return a number of rounds, agents or bytes in a file."""
    value = metadata[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"its {name} is not an integer ≥ 0")
    return value


def read_state(metadata: Metadata, arrays: Mapping[str, Array]) -> State:
    """Return the state in a file."""
    if not isinstance(metadata["algorithm"], str):
        raise TypeError
    groups = (arrays_in(arrays, "server"), arrays_in(arrays, "private"))
    return State(metadata["algorithm"], read_count(metadata, "round"), *groups)


def read_refusals(metadata: Metadata, m: int) -> tuple[Refusal, ...]:
    """Return the refusals in a file."""
    refusals = tuple(Refusal(*refusal) for refusal in metadata["refusals"])
    for each in refusals:
        read_count(vars(each), "round")
        if read_count(vars(each), "agent") >= m or not isinstance(each.reason, str):
            raise ValueError("its refusals are of agents that it does not have")
    return refusals


def read_names(metadata: Metadata, m: int) -> tuple[str, ...]:
    """Return the agents' names in a file; none in files of version 0.1."""
    names = metadata.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError
    if len(names) not in (0, m):
        raise ValueError(f"it has {len(names)} names for {m} agents")
    return tuple(names)


def records_layout(arrays: Mapping[str, Any], m: int) -> Layout:
    """Return the layout of the records in a file."""
    number = len(arrays["record/round"])
    kinds: dict[Any, tuple[tuple[int, ...], type[np.generic]]] = {
        "int": ((number,), np.int64),
        "float": ((number,), np.float64),
        "Float64Array": ((number, m), np.float64),
    }
    return {f"record/{item.name}": kinds[item.type] for item in fields(Record)}


def read_records(arrays: Mapping[str, Any], last: int) -> list[Record]:
    """Return the records in a file, at least one, of rounds up to the last."""
    rounds = [0, *arrays["record/round"].tolist(), last]
    if len(rounds) == 2 or rounds != sorted(rounds):
        raise ValueError("its records are not in the order of the rounds")
    columns = [arrays[f"record/{item.name}"] for item in fields(Record)]
    return [Record(*map(_plain, row)) for row in zip(*columns, strict=True)]


def arrays_in(arrays: Mapping[str, Array], group: str) -> dict[str, Array]:
    """Return the arrays whose names begin with ``group/``, without that prefix."""
    prefix = group + "/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, and an array as it is."""
    return value.item() if np.ndim(value) == 0 else value
