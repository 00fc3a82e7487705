"""The history of a training for other programs: CSV, TensorBoard, MLflow; every round once."""

from pcfed.training.trackers.tracking import TrackedRun, Tracker, TrackerGroup, open_trackers

__all__ = ["TrackedRun", "Tracker", "TrackerGroup", "open_trackers"]
