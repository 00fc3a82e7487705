"""Results of the runs of an experiment: curves over rounds with their spread, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.experiments.jobs import Job, slug
from pcfed.experiments.presets import Preset, Setting
from pcfed.simulation.result import Record, Result


@dataclass(frozen=True, eq=False)
class Curve:
    """A quantity over rounds: the mean over seeds, the smallest and the largest."""

    rounds: Float64Array
    mean: Float64Array
    low: Float64Array
    high: Float64Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """One setting of an experiment with the results of every run, one per seed."""

    preset: Preset
    setting: Setting
    results: Mapping[str, tuple[Result, ...]]  # by name of the run, in the order of the preset

    @property
    def title(self) -> str:
        """The title of figures."""
        return f"{self.preset.title}, {self.setting.name}"

    @property
    def slug(self) -> str:
        """The start of file names."""
        return f"{self.preset.name}-{slug(self.setting.name)}"

    def curve(self, name: str, quantity: Callable[[Record], float]) -> Curve:
        """Return a quantity over rounds, from the start to the earliest end of a run."""
        runs = [(result.start, *result.history) for result in self.results[name]]
        shortest = min(map(len, runs))
        runs = [records[:shortest] for records in runs]
        values = np.array([[quantity(record) for record in records] for records in runs])
        rounds = np.array([record.round for record in runs[0]], dtype=np.float64)
        return Curve(rounds, values.mean(axis=0), values.min(axis=0), values.max(axis=0))

    def last(self, name: str, quantity: Callable[[Record], float]) -> float:
        """Return a quantity of the last record, the mean over seeds."""
        return float(np.mean([quantity(result.history[-1]) for result in self.results[name]]))

    def norms(self, name: str) -> Float64Array:
        """Return the l1 norm of every agent's last model, the mean over seeds."""
        models = np.stack([result.models for result in self.results[name]])
        return np.asarray(np.abs(models).sum(axis=2).mean(axis=0))

    def worst_infeasibility(self, name: str) -> float:
        """Return the largest infeasibility of any agent in any evaluated round of any seed."""
        return max(
            float(record.infeasibility.max())
            for result in self.results[name]
            for record in (result.start, *result.history)
        )


def infeasibility_of(agent: int) -> Callable[[Record], float]:
    """Return a function from a record to the infeasibility of an agent."""
    return lambda record: float(record.infeasibility[agent])


def comparisons(presets: Sequence[Preset], finished: Mapping[Job, Result]) -> list[Comparison]:
    """Group finished jobs by setting; settings and runs without results are omitted."""
    grouped = []
    for preset in presets:
        for setting in preset.settings:
            results = {
                spec.name: tuple(
                    result
                    for job, result in finished.items()
                    if (job.preset, job.setting, job.spec) == (preset.name, setting, spec)
                )
                for spec in setting.runs
            }
            results = {name: each for name, each in results.items() if each}
            if results:
                grouped.append(Comparison(preset, setting, results))
    return grouped


def csv_rows(comparison: Comparison) -> Iterator[Sequence[object]]:
    """Yield a header, then one row per evaluated round of every run of a setting."""
    agents = range(len(comparison.setting.constraints))
    header = ("run", "seed", "round", "loss", "objective", "bytes_up", "bytes_down", "seconds")
    yield *header, *(f"infeasibility[{i}]" for i in agents)
    for name, results in comparison.results.items():
        for seed, result in enumerate(results):
            for r in (result.start, *result.history):
                values = (r.round, r.loss, r.objective, r.bytes_up, r.bytes_down, r.seconds)
                yield name, seed, *values, *r.infeasibility.tolist()
