"""Memory does not grow with the number of rounds."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from pcfed import Checkpointing, FedAvg, run
from pcfed.arrays import Workspace
from pcfed.sets import L1Ball
from tests.federations import ALGORITHMS, regressions


def grown(algorithm, rounds, **options):
    """Return by how many bytes Python's memory grew in the second half of a run."""
    seen = []

    def look(evaluation):
        if evaluation.record.round in (rounds // 2, rounds):
            gc.collect()
            seen.append(tracemalloc.get_traced_memory()[0])

    problem = regressions([L1Ball(0.5), L1Ball(1.0), L1Ball(2.0)])
    first = {key: options[key] for key in options.keys() - {"checkpoint", "journal"}}
    run(problem, algorithm, rounds=20, **first)  # imports, compiles and fills caches
    tracemalloc.start()
    try:
        run(problem, algorithm, rounds=rounds, callbacks=[look], **options)
    finally:
        tracemalloc.stop()
    return seen[1] - seen[0]


def away(index):
    return [index * index % 7 % 3]


@pytest.mark.parametrize("name", ["PCFedSplit", "FedAvg"])
def test_memory_does_not_grow_with_the_rounds(name, tmp_path):
    options = {"local_steps": [1, 2, 2], "participation": away, "batch": 0.5, "eval_every": 20}
    growth = []
    for folder in (tmp_path / "first", tmp_path / "second", tmp_path / "third"):
        checkpoint = Checkpointing(folder / "run", every=200)
        files = {"journal": folder / "history.jsonl", "checkpoint": checkpoint}
        growth.append(grown(ALGORITHMS[name], 400, **options, **files))
    assert min(growth) < 40_000  # caches fill up at random, but a leak grows every time


def test_without_a_journal_the_history_grows():
    """So the measurement measures something."""
    assert grown(FedAvg(step=0.01), 100) > 20_000


def test_a_pool_takes_back_only_what_it_gave_and_can_use():
    pool = Workspace()
    mine = pool.empty((2, 3), np.float64)
    pool.release(mine, np.ones((2, 3)), mine)
    assert pool.empty((2, 3), np.float64) is mine
    assert pool.empty((2, 3), np.float64) is not mine
    pool.release(mine)
    pool.start_round()
    pool.start_round()  # a round without use for it
    assert pool.empty((2, 3), np.float64) is not mine
