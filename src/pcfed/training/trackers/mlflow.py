"""Records as metrics of an MLflow run; a training that resumes continues its run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from pcfed.errors import install_command
from pcfed.simulation.result import Record
from pcfed.training.trackers.tracking import TrackedRun

try:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient
except ImportError:
    raise ImportError(
        "train: --mlflow needs mlflow-skinny, which is not installed; run "
        f"{install_command('mlflow')}."
    ) from None

TAG = "pcfed.training"
MAX_PARAM_LENGTH = 500
"""Characters of a parameter that every MLflow backend accepts."""

MAX_PARAMS = 100
"""Parameters that MLflow accepts in one request."""


class MlflowTracker:
    """A run with the settings as parameters, and a tag that identifies the training."""

    def __init__(self, tracked: TrackedRun) -> None:
        self._tracked = tracked
        self._client: Any = None
        self._run_id = ""
        self._last_round = 0

    def start(self, earlier: Sequence[Record]) -> None:
        """Find or create the run of this training, and log the records that it does not have."""
        self._client = client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pcfed")
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        # The tag is quoted in a query, so it must not have quotes itself.
        tag = f"{self._tracked.digest[:32]} {self._tracked.name}".replace("'", "_")
        runs = client.search_runs([experiment], f"tags.`{TAG}` = '{tag}'")
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            steps = [metric.step for metric in client.get_metric_history(self._run_id, "loss")]
            self._last_round = max(steps, default=0)
        else:
            run = client.create_run(experiment, tags={TAG: tag}, run_name=self._tracked.name)
            self._run_id = run.info.run_id
            client.log_batch(self._run_id, params=_params(self._tracked))
        for record in earlier:
            self.log(record)

    def log(self, record: Record) -> None:
        """Log the metrics of a round, unless the run has them already."""
        if record.round <= self._last_round:
            return
        now = int(1000 * time.time())
        scalars = self._tracked.scalars(record).items()
        metrics = [Metric(name, value, now, record.round) for name, value in scalars]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, status: str) -> None:
        """Set the status of the run."""
        if self._run_id:
            mlflow_status = {"interrupted": "KILLED", "diverged": "FAILED"}.get(status, "FINISHED")
            self._client.set_terminated(self._run_id, mlflow_status)


def _params(tracked: TrackedRun) -> list[Any]:
    """Return the settings, as many as MLflow accepts at once."""
    pairs = [
        (f"{table}.{key}", str(value)[:MAX_PARAM_LENGTH])
        for table, content in tracked.settings.items()
        if table != "agents"
        for key, value in content.items()
    ]
    return [Param(name, value) for name, value in pairs][:MAX_PARAMS]


def open_tracker(run: TrackedRun, enabled: bool) -> MlflowTracker:
    """Return a tracker, which does not connect to a server before the first record."""
    return MlflowTracker(run)
