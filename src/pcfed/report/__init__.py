"""Reports: one self-contained HTML page on experiments or on trainings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pcfed.report.experiments_report import write_report
    from pcfed.report.training_report import write_training_report

__all__ = ["write_report", "write_training_report"]

_MODULES = {"write_report": "experiments_report", "write_training_report": "training_report"}


def __getattr__(name: str) -> Any:
    """Import a report when it is first used: an agent's report must not load the experiments."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pcfed.report.{_MODULES[name]}"), name)
