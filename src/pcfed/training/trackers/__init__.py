"""The history of a training in other programs: CSV, TensorBoard, MLflow; no point twice."""

from pcfed.training.trackers.tracking import Tracker, Tracking, open_trackers

__all__ = ["Tracker", "Tracking", "open_trackers"]
