"""Run the jobs of experiments side by side, keep what is finished, and go on where it was.

A job is one method in one setting with one seed. Its result is one file, written whole or not at
all, whose name holds a digest of everything that the run depends on: a file that is there is
finished, and a changed preset makes a new one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pcfed import data
from pcfed.experiments.presets import Method, Preset, Setting, digest
from pcfed.losses import SoftmaxRegression
from pcfed.problem import Agent, Problem
from pcfed.sets import parse_set
from pcfed.simulation import Checkpointing, Evaluation, run
from pcfed.simulation.result import Result
from pcfed.storage.atomic import write_atomically

DIRICHLET_ALPHA = 0.5


@dataclass(frozen=True)
class Job:
    """One method in one setting of an experiment, with one seed."""

    preset: str
    setting: Setting
    method: Method
    seed: int

    def path(self, out: Path) -> Path:
        """Return where the result is kept below the directory ``out``."""
        algorithm = type(self.method.algorithm).__name__.lower()
        digits = digest(self.setting, self.method, self.seed)
        return out / "runs" / f"{self.setting.data}-{algorithm}-seed{self.seed}-{digits}.npz"

    def facts(self) -> dict[str, Any]:
        """Return what the run was, for the file beside its result."""
        setting = {**asdict(replace(self.setting, methods=())), "methods": []}
        return {
            "experiment": self.preset,
            "setting": setting,
            "method": repr(self.method),
            "seed": self.seed,
        }


def jobs(presets: Iterable[Preset], seeds: int) -> list[Job]:
    """Return all jobs of the presets; a setting may ask for fewer seeds."""
    return [
        Job(preset.name, setting, method, seed)
        for preset in presets
        for setting in preset.settings
        for method in setting.methods
        for seed in range(min(seeds, setting.seeds or seeds))
    ]


def distinct(todo: Iterable[Job]) -> list[Job]:
    """Return the jobs without those that repeat another one under other names."""
    return list({job.path(Path()): job for job in todo}.values())


def run_jobs(
    todo: Sequence[Job],
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int = 2,
    tick: Callable[[Job, int], None] = lambda job, rounds: None,
) -> None:
    """Run the jobs whose results are not there yet.

    Parameters
    ----------
    todo : sequence of Job
        What to run.
    out : Path
        Directory of the results.
    data_dir : Path, optional
        Where the user keeps data sets.
    workers : int
        Jobs side by side; each uses one BLAS thread, so that results do not depend on it.
    tick : callable
        Told of a job and the number of rounds done since the last call.
    """
    halt = threading.Event()

    def one(job: Job) -> None:
        path = job.path(out)
        if halt.is_set():
            return
        if path.exists():
            tick(job, job.setting.rounds)
            return
        done = 0

        def progress(seen: Evaluation) -> None:
            nonlocal done
            tick(job, seen.record.round - done)
            done = seen.record.round

        result = run(
            build_problem(job.setting, job.seed, data_dir),
            job.method.algorithm,
            rounds=job.setting.rounds,
            local_steps=job.method.local_steps,
            batch=job.setting.batch,
            participation=job.method.participation,
            seed=job.seed,
            callbacks=[progress],
            stop=lambda _: halt.is_set(),
            checkpoint=Checkpointing(path.with_suffix(".checkpoint"), every=50, resume=True),
        )
        if not halt.is_set():
            facts = json.dumps(job.facts(), indent=1)
            write_atomically(path.with_suffix(".json"), facts.encode())
            result.save(path)
            for done_with in path.parent.glob(f"{path.stem}.checkpoint*"):
                done_with.unlink()

    with threadpool_limits(1), ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(one, job) for job in distinct(todo)]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
        finally:
            halt.set()


def build_problem(setting: Setting, seed: int, data_dir: Path | None = None) -> Problem:
    """Return the agents of a setting; label-sorted shards are the same for every seed."""
    fixed = 0 if setting.partition == "label_sorted" else seed
    return _build(setting, fixed, data_dir)


@lru_cache(maxsize=2)
def _build(setting: Setting, seed: int, data_dir: Path | None) -> Problem:
    dataset = data.load(setting.data, data_dir=data_dir)
    images, labels = dataset.train_images, dataset.train_labels
    if setting.samples is not None and setting.samples < len(labels):
        # RandomState's streams never change, so the same images are chosen by every NumPy.
        chosen = np.random.RandomState(0).permutation(len(labels))[: setting.samples]
        images, labels = images[chosen], labels[chosen]
    return Problem(
        Agent(
            SoftmaxRegression(
                images[rows], labels[rows], classes=dataset.classes, scale=dataset.scale
            ),
            parse_set(constraint),
            coupling=coupling,
        )
        for rows, constraint, coupling in zip(
            shares(setting, labels, seed), setting.constraints, setting.couplings, strict=True
        )
    )


def shares(setting: Setting, labels: NDArray[np.integer], seed: int) -> list[NDArray[np.intp]]:
    """Return the rows of every agent."""
    agents = len(setting.constraints)
    if setting.partition == "iid":
        return data.iid(labels, agents, seed=seed)
    if setting.partition == "dirichlet":
        return data.dirichlet(labels, agents, alpha=DIRICHLET_ALPHA, seed=seed)
    return data.label_sorted(labels, agents)


def problem_of_run(path: Path, data_dir: Path | None = None) -> Problem:
    """Return the problem that a saved run solved, from the file beside it.

    Parameters
    ----------
    path : Path
        The result, ``results/runs/….npz``.
    data_dir : Path, optional
        Where the user keeps data sets.
    """
    beside = path.with_suffix(".json")
    try:
        facts = json.loads(beside.read_text("utf-8"))
        tuples = {key: tuple(facts["setting"][key]) for key in ("constraints", "couplings")}
        setting = Setting(**{**facts["setting"], **tuples, "methods": ()})
        seed = int(facts["seed"])
    except (OSError, ValueError, KeyError, TypeError) as mistake:
        raise ValueError(
            f"certify: {beside} must say which problem the run solved, but {mistake}; "
            "give a result that pcfed reproduce has written, with the file beside it."
        ) from None
    return build_problem(setting, seed, data_dir)


def results(todo: Sequence[Job], out: Path) -> dict[Job, Result]:
    """Return the finished results of these jobs."""
    return {job: Result.load(path) for job in todo if (path := job.path(out)).exists()}


def slug(name: str) -> str:
    """Return a name as part of a path."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"[.,]", "", name.lower())).strip("-")
