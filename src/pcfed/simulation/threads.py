"""Threads: agents in parallel, each with one BLAS thread.

With several BLAS threads, the last bits of a product depend on how many they are. With one, results
are the same on every number of cores, and agents that run in parallel do not compete for them.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Literal

from pcfed.problem import Problem
from pcfed.simulation.plan import Plan
from pcfed.validation import count

Workers = int | Literal["auto"]

MIN_WORK = 2e6
"""Multiplications per round from which on threads are worth their overhead."""


def num_workers(workers: Workers, problem: Problem, plan: Plan) -> int:
    """Return the number of threads: as many as cores for ``"auto"``, or 1 where they do not help.

    Losses and sets of users may not be made for threads, and PyTorch has threads of its own:
    ``"auto"`` is 1 for these.
    """
    if workers != "auto":
        return count("run: workers", workers)
    if problem.is_lazy:  # making agents is Python's work, which threads do not share
        return 1
    safe = all(
        _is_ours(agent.loss, "losses") and _is_ours(agent.feasible_set, "sets")
        for agent in problem.agents
    )
    if not safe or plan.multiplications(0) < MIN_WORK:
        return 1
    return min(_num_cores(), problem.m)


def one_blas_thread() -> AbstractContextManager[object]:
    """Return a context with one BLAS thread, if threadpoolctl is installed."""
    controller = _controller()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


def limit_blas_threads() -> None:
    """Give all BLAS libraries that are loaded by now one thread, for the rest of the process."""
    _controller.cache_clear()
    one_blas_thread().__enter__()


@cache
def _controller() -> Any:
    """Return the controller of the BLAS libraries that are loaded."""
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return None
    return ThreadpoolController()


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_ours(value: object, package: str) -> bool:
    """Return whether an object is from a package of pcfed, and not a PyTorch module."""
    module = type(value).__module__
    return module.startswith(f"pcfed.{package}.") and module != "pcfed.losses.torch_loss"
