"""The process of a range of agents in a Ray cluster, which the driver calls from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, Vectors
from pcfed.algorithms.grid import Grid
from pcfed.problem import Agent
from pcfed.sampling import Sampling
from pcfed.simulation.agent_range import AgentRange
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.plan import Batch, LocalPlan
from pcfed.simulation.privacy import RunPrivacy
from pcfed.simulation.private_state import Memory
from pcfed.simulation.round_socket import RoundListener, SocketClosed
from pcfed.simulation.threads import limit_blas_threads
from pcfed.storage.archive import load_arrays, save_arrays


@dataclass(frozen=True, eq=False)
class RangeSettings:
    """What an actor needs to make its range: the arguments of `LocalPlan` and `AgentRange`."""

    agents: Sequence[Agent]
    first: int
    m: int
    batch: Batch
    sampling: Sampling
    seed: int
    algorithm: Algorithm
    workers: int
    norm_limit: float | None
    grid: Grid | None
    memory: Memory
    privacy: RunPrivacy | None
    torch_threads: int | None
    """The number of threads of PyTorch in the driver, on which the last bits of losses depend."""

    def build(self) -> AgentRange:
        """Return the range."""
        return AgentRange(
            LocalPlan(
                *(self.agents, self.first),
                batch=self.batch,
                sampling=self.sampling,
                seed=self.seed,
                privacy=self.privacy,
            ),
            self.algorithm,
            self.m,
            workers=self.workers,
            norm_limit=self.norm_limit,
            grid=self.grid,
            memory=self.memory,
        )


Call = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""The name of a method of `AgentRange`, and its arguments."""

Snapshot = Mapping[str, NDArray[Any]] | str
"""The state of a range, or the file that has it."""


class RangeActor:
    """A range in a process of its own."""

    def __init__(self, settings: RangeSettings) -> None:
        self._settings = settings
        self._kept: dict[int, Snapshot] = {}
        self._listener: RoundListener | None = None
        limit_blas_threads()
        if settings.torch_threads is not None:
            import_module("torch").set_num_threads(settings.torch_threads)

    @cached_property
    def _range(self) -> AgentRange:
        """The range; it is made in the first call, so that the driver receives its errors."""
        made = self._settings.build()
        limit_blas_threads()  # agents may have loaded further libraries
        return made

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the range."""
        with _portable_errors():
            return getattr(self._range, method)(*arguments, **options)

    def run_round(self, accepted: int, call: RoundCall, server: Vectors) -> RangeSums:
        """Run a round; the server's state is an argument of its own, which machines share."""
        sums: RangeSums = self.call("run_round", accepted, replace(call, server=server))
        return sums

    def listen(self, node: str, path: str) -> bool:
        """Open a socket for rounds if this is the machine, and return whether there is one."""
        ray: Any = import_module("ray")
        if ray.get_runtime_context().get_node_id() != node:
            return False
        with suppress(OSError, AttributeError):  # Windows has no such sockets in Python
            self._listener = RoundListener(path)
        return self._listener is not None

    def answer_rounds(self) -> None:
        """Answer rounds at the socket until the driver pauses them."""
        if self._listener is not None:
            with suppress(SocketClosed, ConnectionError):  # the driver has ended
                self._listener.answer_rounds(self.run_round)

    def snapshot(self, accepted: int, path: str | None) -> tuple[str, Snapshot]:
        """Return this machine and the state of the range, or the path of a file with the state."""
        ray: Any = import_module("ray")
        node, vectors = ray.get_runtime_context().get_node_id(), self.call("snapshot", accepted)
        if path is None:
            return node, vectors
        with _portable_errors():
            save_arrays(Path(path), {}, vectors)
        return node, path

    def recover(self, start: Call, snapshot: Snapshot | None, calls: Sequence[Call]) -> Any:
        """Start, continue from a snapshot, and repeat calls; return the result of the last."""
        if isinstance(snapshot, str):
            snapshot = load_arrays(Path(snapshot))[1]
        result = self.call(start[0], *start[1], **start[2])
        if snapshot is not None:
            self._range.load_snapshot(snapshot)
        for method, arguments, options in calls:
            result = self.call(method, *arguments, **options)
        return result

    def keep(self, k: int, snapshot: Snapshot) -> None:
        """Keep a copy of the snapshot of another range on this machine."""
        self._kept[k] = snapshot


@contextmanager
def _portable_errors() -> Iterator[None]:
    """Replace errors that the driver could not unpickle by built-in ones with the same text."""
    try:
        yield
    except Exception as error:
        pickled: Any = import_module("ray.cloudpickle")
        try:
            pickled.loads(pickled.dumps(error))
        except Exception:  # constructors may raise anything
            raise _as_built_in(error) from None
        raise


def _as_built_in(error: Exception) -> Exception:
    """Return an error of the nearest built-in class with the same text."""
    for kind in type(error).__mro__:
        if kind.__module__ == "builtins":
            with suppress(TypeError):  # it may need other arguments
                plain: Exception = kind(str(error))
                return plain
    return RuntimeError(str(error))
