"""A run that is stopped and goes on ends at the same bits; what can't be used is refused."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from pcfed import FedAvg, Gap, PCFedAvg, PCFedSplit, Result, read_journal
from pcfed.sets import L1Ball
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.atomic import FileError
from pcfed.storage.locks import exclusive_lock
from tests.federations import ALGORITHMS, classifiers, regressions
from tests.simulation.checkpointed import run
from tests.simulation.test_run import every_algorithm, same

OPTIONS = {
    "local_steps": [1, 3, 2],
    "batch": 0.2,
    "participation": lambda index: [index % 3],
    "seed": 5,
}


class Killed(Exception):
    """As if the process had died."""


def dying_at(number):
    def callback(seen):
        if seen.record.round == number:
            raise Killed

    return callback


def killed(problem, algorithm, path, at, **options):
    """Run until a round and die in it, after the last checkpoint."""
    with pytest.raises(Killed):
        run(problem, algorithm, checkpoint=path, callbacks=[dying_at(at)], **options)


@every_algorithm
@pytest.mark.parametrize("output", ["last", "average", "random"])
def test_going_on_gives_the_bits_of_a_run_without_a_pause(algorithm, output, tmp_path):
    problem = classifiers(held_out=True)
    options = {**OPTIONS, "rounds": 12, "output": output, "every": 3, "eval_every": 2}
    path = tmp_path / "run.ckpt"
    killed(problem, algorithm, path, at=8, **options)
    killed(problem, algorithm, path, at=10, resume=True, **options)
    resumed = run(problem, algorithm, checkpoint=path, resume=True, **options)
    whole = run(problem, algorithm, **options)
    same(resumed, whole)
    assert (resumed.status, resumed.message) == (whole.status, whole.message)
    again = run(problem, algorithm, checkpoint=path, resume=True, **options)  # nothing left to do
    same(again, whole)


def test_more_rounds_may_follow(tmp_path):
    problem, algorithm = classifiers(), PCFedAvg(step=0.1, penalty=1.0)
    path = tmp_path / "run.ckpt"
    run(problem, algorithm, rounds=5, checkpoint=path, **OPTIONS)
    longer = run(problem, algorithm, rounds=9, checkpoint=path, resume=True, **OPTIONS)
    same(longer, run(problem, algorithm, rounds=9, **OPTIONS))


def test_a_rule_that_stops_goes_on_from_what_it_remembers(tmp_path):
    problem = regressions([L1Ball(4.0), L1Ball(6.0), L1Ball(9.0)])
    method = PCFedSplit()
    options = {"rounds": 400, "local_steps": 3, "every": 2}
    whole = run(problem, method, stop=Gap(1e-3), **options)
    assert whole.status == "stopped"
    path = tmp_path / "run.ckpt"
    killed(problem, method, path, at=whole.state.round - 3, stop=Gap(1e-3), **options)
    resumed = run(problem, method, checkpoint=path, resume=True, stop=Gap(1e-3), **options)
    same(resumed, whole)
    assert resumed.status == "stopped"
    again = run(problem, method, checkpoint=path, resume=True, stop=Gap(1e-3), **options)
    same(again, whole)
    further = run(problem, method, checkpoint=path, resume=True, stop=Gap(1e-6), **options)
    assert further.state.round > whole.state.round


def test_journal_holds_the_history_and_survives_a_death(tmp_path):
    problem, algorithm = classifiers(held_out=True), ALGORITHMS["Scaffold"]
    options = {**OPTIONS, "rounds": 11, "every": 4}
    path, journal = tmp_path / "run.ckpt", tmp_path / "history.jsonl"
    killed(problem, algorithm, path, at=7, journal=journal, **options)
    assert len(read_journal(journal)) == 7  # three rounds that are lost, and will be cut off
    result = run(problem, algorithm, checkpoint=path, resume=True, journal=journal, **options)
    whole = run(problem, algorithm, **options)
    assert len(result.history) == 1
    for mine, other in zip(read_journal(journal), whole.history, strict=True):
        assert {**vars(mine), "seconds": 0}.keys() == vars(other).keys()
        for name in set(vars(other)) - {"seconds"}:
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_finish_the_round_and_say_how_to_go_on(number, tmp_path):
    problem, algorithm, path = classifiers(), FedAvg(step=0.1), tmp_path / "run.ckpt"

    def interrupt(seen):
        if seen.record.round == 4:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    stopped = run(problem, algorithm, rounds=9, checkpoint=path, callbacks=[interrupt], **OPTIONS)
    assert signal.getsignal(number) is before
    assert stopped.status == "interrupted"
    assert stopped.state.round == 4
    assert "after 4 of 9 rounds" in stopped.message
    assert f"{path} has the state: resume=True continues" in stopped.message
    resumed = run(problem, algorithm, rounds=9, checkpoint=path, resume=True, **OPTIONS)
    same(resumed, run(problem, algorithm, rounds=9, **OPTIONS))


def test_an_interruption_between_evaluations_leaves_no_trace_in_the_history(tmp_path):
    problem, algorithm, path = classifiers(), FedAvg(step=0.1), tmp_path / "run.ckpt"
    options = {**OPTIONS, "rounds": 9, "eval_every": 4}

    def absent(index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return [index % 3]

    options["participation"] = absent
    stopped = run(problem, algorithm, checkpoint=path, **options)
    assert [record.round for record in stopped.history] == [4, 6]
    options["participation"] = OPTIONS["participation"]
    whole = run(problem, algorithm, **options)
    assert [record.round for record in whole.history] == [4, 8, 9]
    options["participation"] = absent  # the function's name is part of the run
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        same(run(problem, algorithm, checkpoint=path, resume=True, **options), whole)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path):
    problem, algorithm, path = classifiers(), ALGORITHMS["PCFedAvg"], tmp_path / "run.ckpt"
    options = {**OPTIONS, "rounds": 9, "every": 2}
    killed(problem, algorithm, path, at=7, **options)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.warns(UserWarning, match="can't be used: .*; the one before it is used"):
        resumed = run(problem, algorithm, checkpoint=path, resume=True, **options)
    same(resumed, run(problem, algorithm, **options))
    run(problem, algorithm, checkpoint=path, resume=True, **options)  # whole again


def refused(match, path, problem=None, algorithm=None, **options):
    problem = classifiers() if problem is None else problem
    algorithm = PCFedAvg(step=0.1, penalty=1.0) if algorithm is None else algorithm
    with pytest.raises(ValueError, match=match):
        run(problem, algorithm, **{"rounds": 6, "checkpoint": path, "resume": True, **options})


def test_checkpoints_of_another_run_are_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    run(classifiers(), PCFedAvg(step=0.1, penalty=1.0), rounds=3, checkpoint=path)
    refused("it is of a run with seed 0, and this one has 1", path, seed=1)
    refused("with batch 1.0, and this one has 0.5", path, batch=0.5)
    refused("with algorithm PCFedAvg.step=0.1, ", path, algorithm=PCFedAvg(step=0.2, penalty=1.0))
    refused("it is of another problem", path, problem=classifiers(held_out=True))
    refused("it is of another problem", path, problem=classifiers(4))
    refused("exists already and would be overwritten; give resume=True", path, resume=False)
    about, arrays = load_arrays(path)
    for target in (path, path.with_name("run.ckpt.previous")):
        save_arrays(target, {**about, "format": 99}, arrays)
    refused("it has format 99, and this version reads 1; .* start anew", path)
    Result.save(run(classifiers(), FedAvg(step=0.1), rounds=2), path)
    path.with_name("run.ckpt.previous").unlink()
    refused("can't be used: it ", path)


def test_long_arrays_are_told_apart(tmp_path):
    """NumPy prints them without their middle."""
    path, problem = tmp_path / "run.ckpt", regressions([L1Ball(1.0)] * 1200, n=1, samples=1)
    steps = np.ones(1200, int)
    run(problem, FedAvg(step=0.1), rounds=1, local_steps=steps, checkpoint=path)
    steps[600] = 2
    refused("with local_steps", path, problem, FedAvg(step=0.1), local_steps=steps)


def test_a_second_process_is_told(tmp_path):
    path = tmp_path / "run.ckpt"
    with exclusive_lock(tmp_path / "run.ckpt.lock"):
        refused(rf"another process \({os.getpid()}\) is using these files; wait", path)
    assert run(classifiers(), FedAvg(step=0.1), rounds=2, checkpoint=path).status == "finished"


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_done(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="could not be written: File exists; its earlier contents"):
        run(classifiers(), FedAvg(step=0.1), rounds=2, checkpoint=tmp_path / "file" / "run.ckpt")


@contextmanager
def largest_file(size):
    """No file may grow beyond this, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def nobody():
    """Without the right to write; root has it everywhere, so become somebody else."""
    before = os.geteuid()
    os.seteuid(65534 if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)


FAULTS = {
    "no room": (lambda: largest_file(3000), "could not be written: File too large"),
    "no right": (nobody, "could not be written: Permission denied"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_saved_survives_a_disk_that_fails(fault, tmp_path):
    problem, algorithm = classifiers(), ALGORITHMS["PCFedAvg"]
    folder = tmp_path / "private"
    folder.mkdir()
    options = {**OPTIONS, "rounds": 9, "every": 1, "checkpoint": folder / "run.ckpt"}
    failing, expected = FAULTS[fault]
    saved = {}

    with ExitStack() as broken:

        def fail(seen):
            if seen.record.round == 5:
                saved.update({path: path.read_bytes() for path in folder.iterdir()})
                folder.chmod(0o500)
                broken.enter_context(failing())

        with pytest.raises(FileError, match=expected):
            run(problem, algorithm, callbacks=[fail], **options)
    folder.chmod(0o700)
    assert {path: path.read_bytes() for path in folder.iterdir()} == saved
    resumed = run(problem, algorithm, resume=True, **options)
    del options["checkpoint"]
    same(resumed, run(problem, algorithm, **options))


def test_journals_that_do_not_fit_are_refused(tmp_path):
    path, journal = tmp_path / "run.ckpt", tmp_path / "history.jsonl"
    options = {"rounds": 4, "checkpoint": path, "journal": journal}
    run(classifiers(), FedAvg(step=0.1), **options)
    with pytest.raises(ValueError, match=r"journal .* exists already and would be overwritten"):
        run(classifiers(), FedAvg(step=0.1), rounds=2, journal=journal)
    whole = journal.read_text()
    for damaged in ("", whole[:-1], whole.replace("1", "2", 1)):
        journal.write_text(damaged)
        with pytest.raises(ValueError, match=r"must begin with the [0-9]+ bytes that the check"):
            run(classifiers(), FedAvg(step=0.1), resume=True, **options)
        assert journal.read_text() == damaged
    journal.write_text("hello\n")
    with pytest.raises(ValueError, match="one record per line, but line 1 is not a record"):
        read_journal(journal)
    with pytest.raises(ValueError, match="must be a readable file"):
        read_journal(tmp_path / "nowhere")


def test_runs_without_checkpoints_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(classifiers(), FedAvg(step=0.1), rounds=2)
    assert list(tmp_path.iterdir()) == []
