"""Run the jobs of experiments in parallel; finished jobs are kept and interrupted ones resumed.

A job is one run of a setting with one seed. Its result is one file, written atomically, whose name
holds a digest of everything that the result depends on: a job is finished if its file exists, and a
changed preset gives a new file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pcfed import data
from pcfed.experiments.presets import Preset, RunSpec, Setting, digest
from pcfed.losses import SoftmaxRegression
from pcfed.problem import Agent, Problem
from pcfed.sets import parse_set
from pcfed.simulation import Checkpointing, Evaluation, run
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson

DIRICHLET_ALPHA = 0.5
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Job:
    """One run of a setting of an experiment, with one seed."""

    preset: str
    setting: Setting
    spec: RunSpec
    seed: int

    def path(self, out: Path) -> Path:
        """Return the file of the result below the directory ``out``."""
        algorithm = type(self.spec.algorithm).__name__.lower()
        digits = digest(self.setting, self.spec, self.seed)
        return out / "runs" / f"{self.setting.data}-{algorithm}-seed{self.seed}-{digits}.npz"


@dataclass(frozen=True)
class RunDescription(SavedJson):
    """The file beside a result that says which problem was solved, and how."""

    experiment: str  # name of the preset
    setting: Setting  # without its runs
    run: str  # the algorithm and its parameters
    seed: int

    file_kind = "description of a run"
    format = 1
    advice = "give a result of pcfed reproduce, with the JSON file beside it."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        given = dict(contents["setting"])
        tuples = {key: tuple(given[key]) for key in ("constraints", "couplings", "runs")}
        setting = Setting(**{**given, **tuples})
        return cls(contents["experiment"], setting, contents["run"], int(contents["seed"]))


def jobs(presets: Iterable[Preset], seeds: int) -> list[Job]:
    """Return all jobs of the presets; a setting may limit the number of seeds."""
    return [
        Job(preset.name, setting, spec, seed)
        for preset in presets
        for setting in preset.settings
        for spec in setting.runs
        for seed in range(min(seeds, setting.seeds or seeds))
    ]


def distinct(todo: Iterable[Job]) -> list[Job]:
    """Return the jobs without those that are the same run under another name."""
    return list({job.path(Path()): job for job in todo}.values())


def run_jobs(
    todo: Sequence[Job],
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int = 2,
    on_progress: Callable[[Job, int], None] = lambda job, rounds: None,
) -> None:
    """Run the jobs that are not finished yet, ``workers`` of them in parallel.

    Each uses one BLAS thread, so that results do not depend on this number. ``on_progress`` is
    called with a job and the number of its rounds since the last call.
    """
    interrupted = threading.Event()
    with threadpool_limits(1), ThreadPoolExecutor(workers) as pool:
        running = [
            pool.submit(_run_job, job, out, data_dir, interrupted, on_progress)
            for job in distinct(todo)
        ]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
        finally:
            interrupted.set()


def _run_job(
    job: Job,
    out: Path,
    data_dir: Path | None,
    interrupted: threading.Event,
    on_progress: Callable[[Job, int], None],
) -> None:
    """Run a job unless its result exists; resume it from its checkpoint if there is one."""
    path, done = job.path(out), 0
    if interrupted.is_set():
        return
    if path.exists():
        on_progress(job, job.setting.rounds)
        return

    def report(evaluation: Evaluation) -> None:
        nonlocal done
        on_progress(job, evaluation.record.round - done)
        done = evaluation.record.round

    result = run(
        build_problem(job.setting, job.seed, data_dir),
        job.spec.algorithm,
        rounds=job.setting.rounds,
        local_steps=job.spec.local_steps,
        batch=job.setting.batch,
        participation=job.spec.participation,
        seed=job.seed,
        callbacks=[report],
        stop=lambda _: interrupted.is_set(),
        workers=1,  # runs are in parallel
        checkpoint=Checkpointing(path.with_suffix(".checkpoint"), every=50, resume=True),
    )
    if not interrupted.is_set():
        setting = replace(job.setting, runs=())
        description = RunDescription(job.preset, setting, repr(job.spec), job.seed)
        description.save(path.with_suffix(".json"))
        result.save(path)  # last, because its existence means that the job is finished
        for checkpoint in path.parent.glob(f"{path.stem}.checkpoint*"):
            checkpoint.unlink()


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of processes that inherit nothing from this one."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def run_in_pool(
    pool: ProcessPoolExecutor,
    function: Callable[..., Outcome],
    jobs: Iterable[tuple[object, ...]],
    on_result: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Call a function with the arguments in each job, in parallel; return the results in order."""
    running = [pool.submit(function, *job) for job in jobs]
    try:
        for future in as_completed(running):
            on_result(future.result())
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return [future.result() for future in running]


def build_problem(setting: Setting, seed: int, data_dir: Path | None = None) -> Problem:
    """Return the problem of a setting; label-sorted shards are the same for every seed."""
    fixed = 0 if setting.partition == "label_sorted" else seed
    return _build(setting, fixed, data_dir)


@lru_cache(maxsize=2)
def _build(setting: Setting, seed: int, data_dir: Path | None) -> Problem:
    dataset = data.load(setting.data, data_dir=data_dir)
    images, labels = dataset.train_images, dataset.train_labels
    if setting.samples is not None and setting.samples < len(labels):
        # The streams of RandomState are the same in every version of NumPy.
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
            partition(setting, labels, seed), setting.constraints, setting.couplings, strict=True
        )
    )


def partition(setting: Setting, labels: NDArray[np.integer], seed: int) -> list[NDArray[np.intp]]:
    """Return the indices of each agent's samples."""
    agents = len(setting.constraints)
    if setting.partition == "iid":
        return data.iid(labels, agents, seed=seed)
    if setting.partition == "dirichlet":
        return data.dirichlet(labels, agents, alpha=DIRICHLET_ALPHA, seed=seed)
    return data.label_sorted(labels, agents)


def problem_of_run(path: Path, data_dir: Path | None = None) -> Problem:
    """Return the problem that a saved run solved, from the JSON file beside its result."""
    description = RunDescription.load(path.with_suffix(".json"))
    return build_problem(description.setting, description.seed, data_dir)


def results(todo: Sequence[Job], out: Path) -> dict[Job, Result]:
    """Return the results of the finished jobs."""
    return {job: Result.load(path) for job in todo if (path := job.path(out)).exists()}


def slug(name: str) -> str:
    """Return a name in the characters of file names."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"[.,]", "", name.lower())).strip("-")
