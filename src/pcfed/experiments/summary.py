"""What the runs of an experiment came to: curves over rounds with their spread, and tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.experiments.presets import Preset, Setting
from pcfed.experiments.runner import Job, slug
from pcfed.simulation.result import Record, Result
from pcfed.storage.atomic import write_atomically


@dataclass(frozen=True, eq=False)
class Curve:
    """A quantity over rounds: the mean over seeds, the smallest and the largest."""

    rounds: Float64Array
    mean: Float64Array
    low: Float64Array
    high: Float64Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """One setting of an experiment with the results of every method, one per seed.

    Attributes
    ----------
    preset : Preset
        The experiment.
    setting : Setting
        The setting.
    results : mapping of str to tuple of Result
        By the name of the method, in the order of the preset.
    """

    preset: Preset
    setting: Setting
    results: Mapping[str, tuple[Result, ...]]

    @property
    def title(self) -> str:
        """What figures are headed with."""
        return f"{self.preset.title}, {self.setting.name}"

    @property
    def slug(self) -> str:
        """What files are called."""
        return f"{self.preset.name}-{slug(self.setting.name)}"

    def curve(self, method: str, quantity: Callable[[Record], float]) -> Curve:
        """Return a quantity of the records of a method over the rounds, the start included.

        If a run ended early, the curve ends there.
        """
        runs = [(result.start, *result.history) for result in self.results[method]]
        shortest = min(map(len, runs))
        runs = [records[:shortest] for records in runs]
        values = np.array([[quantity(record) for record in records] for records in runs])
        rounds = np.array([record.round for record in runs[0]], dtype=np.float64)
        return Curve(rounds, values.mean(axis=0), values.min(axis=0), values.max(axis=0))

    def last(self, method: str, quantity: Callable[[Record], float]) -> float:
        """Return a quantity of the last record, the mean over seeds."""
        return float(np.mean([quantity(result.history[-1]) for result in self.results[method]]))

    def norms(self, method: str) -> Float64Array:
        """Return the l1 norm of every agent's last model, the mean over seeds."""
        models = np.stack([result.models for result in self.results[method]])
        return np.asarray(np.abs(models).sum(axis=2).mean(axis=0))

    def worst_infeasibility(self, method: str) -> float:
        """Return the largest infeasibility of any agent in any evaluated round of any seed."""
        return max(
            float(record.infeasibility.max())
            for result in self.results[method]
            for record in (result.start, *result.history)
        )


def comparisons(presets: Sequence[Preset], finished: Mapping[Job, Result]) -> list[Comparison]:
    """Group finished jobs by setting; settings and methods without results are left out."""
    grouped = []
    for preset in presets:
        for setting in preset.settings:
            results = {
                method.name: tuple(
                    result
                    for job, result in finished.items()
                    if (job.preset, job.setting, job.method) == (preset.name, setting, method)
                )
                for method in setting.methods
            }
            results = {name: each for name, each in results.items() if each}
            if results:
                grouped.append(Comparison(preset, setting, results))
    return grouped


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write every evaluated round of every run of a setting, one row each."""
    agents = range(len(comparison.setting.constraints))
    header = ["method", "seed", "round", "loss", "objective", "bytes_up", "bytes_down", "seconds"]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*header, *(f"infeasibility[{i}]" for i in agents)])
    for method, results in comparison.results.items():
        for seed, result in enumerate(results):
            for r in (result.start, *result.history):
                facts = [r.round, r.loss, r.objective, r.bytes_up, r.bytes_down, r.seconds]
                writer.writerow([method, seed, *facts, *r.infeasibility.tolist()])
    write_atomically(path, text.getvalue().encode())
