"""The report on a training while it runs."""

from __future__ import annotations

import threading
from dataclasses import replace

from pcfed.report.live_server import LiveServer
from pcfed.report.page import render_page
from pcfed.report.training_report import run_page
from pcfed.simulation import Evaluation
from pcfed.simulation.result import Record
from pcfed.training.saved_run import SavedRun, open_run
from pcfed.training.trainer import Trainer


class LiveTraining:
    """What the page of a running training shows: its rounds so far, then its results.

    The training calls `show_round` and the others; the server calls `render` in another thread,
    which reads only the run directory and these records.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._records: list[Record] = []
        self._status = "The training starts."
        self._is_running = True
        self._version = 0
        self._lock = threading.Lock()

    def server(self) -> LiveServer:
        """Return a server for the page."""
        return LiveServer(lambda: self._version, self.render)

    def show_search(self, done: int, total: int) -> None:
        """Show how many trainings of the search of a coupling are done."""
        self._show(f"A coupling is searched: {done} of {total} trainings are done.")

    def show_round(self, evaluation: Evaluation) -> None:
        """Show an evaluated round of the federated training."""
        record = evaluation.record
        with self._lock:
            if self._records and record.round <= self._records[-1].round:
                self._records.clear()  # the training has restarted with a smaller step
            self._records.append(record)
        rounds = self._trainer.config.training.rounds
        self._show(f"The training runs: {record.round} of {rounds} rounds are done.")

    def show_alone(self, done: int, total: int) -> None:
        """Show how far the training of every agent alone has come."""
        self._show(f"Every agent trains alone, for comparison: {done} of {total}.")

    def end(self, message: str) -> None:
        """Show the results of the training, which has ended."""
        self._show(f"The training has ended. {message}", is_running=False)

    def render(self) -> str:
        """Return the page."""
        # The training may end meanwhile: a page that says so must have the results, too.
        with self._lock:
            is_running, status = self._is_running, self._status
        run, name = self._run(is_running), self._trainer.directory.path.resolve().name
        state = "running" if is_running else "ended"
        return render_page(replace(run_page(name, run, status), live=state))

    def _show(self, status: str, *, is_running: bool = True) -> None:
        with self._lock:
            self._status, self._is_running = status, is_running
            self._version += 1

    def _run(self, is_running: bool) -> SavedRun:
        """Return the training so far; results in its directory may be those of fewer rounds."""
        directory = self._trainer.directory
        if not directory.metadata.exists():
            return SavedRun(directory.path, self._trainer.config, {}, (), None, None, "")
        saved = open_run(directory.path)
        if not is_running:
            return saved
        with self._lock:
            records = list(self._records)
        first = records[0].round if records else 0
        # The file is behind: it is written when a checkpoint is.
        before = [record for record in saved.history if record.round < first or not records]
        names = self._trainer.setup.problem.names
        history = (*before, *records)
        return replace(saved, history=history, outcome=None, models=None, known_names=names)
