"""Records as metrics of an MLflow run, the same one when a training goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from pcfed.simulation.result import Record
from pcfed.training.trackers.tracking import Story

try:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient
except ImportError:
    raise ImportError(
        "train: --mlflow needs mlflow-skinny, which is not installed; run "
        "pip install 'pcfed[mlflow]'."
    ) from None

TAG = "pcfed.training"
LONGEST = 500
"""Characters of a parameter that MLflow takes everywhere."""


class MlflowTracker:
    """A run with the settings as parameters; a tag tells which training it is of."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._client: Any = None
        self._run = ""
        self._last = 0

    def begin(self, earlier: Sequence[Record]) -> None:
        """Find the run of this training, or make one, and add what it has not got yet."""
        self._client = client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pcfed")
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        mine = f"{self._story.digest[:32]} {self._story.name}".replace("'", "_")
        runs = client.search_runs([experiment], f"tags.`{TAG}` = '{mine}'")
        if runs:
            self._run = runs[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            steps = [metric.step for metric in client.get_metric_history(self._run, "loss")]
            self._last = max(steps, default=0)
        else:
            made = client.create_run(experiment, tags={TAG: mine}, run_name=self._story.name)
            self._run = made.info.run_id
            client.log_batch(self._run, params=_params(self._story))
        for record in earlier:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add the figures of a round that it has not got."""
        if record.round <= self._last:
            return
        now = int(1000 * time.time())
        figures = self._story.scalars(record).items()
        metrics = [Metric(name, value, now, record.round) for name, value in figures]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, status: str) -> None:
        """Say how it ended."""
        if self._run:
            ended = {"interrupted": "KILLED", "diverged": "FAILED"}.get(status, "FINISHED")
            self._client.set_terminated(self._run, ended)


def _params(story: Story) -> list[Any]:
    """Return the settings, as many as MLflow takes at once."""
    pairs = [
        (f"{table}.{key}", str(value)[:LONGEST])
        for table, content in story.settings.items()
        if table != "agents"
        for key, value in content.items()
    ]
    return [Param(name, value) for name, value in pairs][:100]


def open_tracker(story: Story, wanted: bool) -> MlflowTracker:
    """Return a tracker; nothing is asked of a server before the first record."""
    return MlflowTracker(story)
