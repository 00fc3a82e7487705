"""Results are saved in one file without pickle, and read back whole or refused."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from pcfed import FedAvg, RefusalPolicy, Result, run
from pcfed.storage.archive import load_arrays, save_arrays
from tests.federations import ALGORITHMS, classifiers, regressions
from tests.simulation.test_run import OPTIONS, every_algorithm, same


@every_algorithm
def test_save_and_load_keep_everything(algorithm, tmp_path):
    problem = classifiers(held_out=True)
    result = run(problem, algorithm, rounds=4, **OPTIONS)
    result.save(tmp_path / "run.npz")
    loaded = Result.load(tmp_path / "run.npz")
    same(loaded, result)
    assert loaded.message == result.message
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    again = [run(problem, algorithm, rounds=3, x0=x0, **OPTIONS) for x0 in (result, loaded)]
    same(*again)


def test_refusals_survive(tmp_path):
    from pcfed.sets import WholeSpace

    result = run(regressions([WholeSpace()] * 2), FedAvg(step=1e200), rounds=9, local_steps=2)
    result.save(tmp_path / "run")
    assert Result.load(tmp_path / "run").refusals == result.refusals != ()


def test_a_run_goes_on_from_a_result_with_refusals():
    """They count in the run in which they were."""
    problem = classifiers()
    earlier = run(problem, FedAvg(step=0.1), rounds=3, refusals=RefusalPolicy(99, norm_limit=0.1))
    assert len(earlier.refusals) > 3
    later = run(problem, FedAvg(step=0.1), rounds=2, x0=earlier)
    assert (later.status, later.refusals) == ("finished", earlier.refusals)
    limited = run(
        problem, FedAvg(step=0.1), rounds=2, refusals=RefusalPolicy(1, norm_limit=0.1), x0=earlier
    )
    assert limited.status == "diverged"
    assert limited.message.startswith("Diverged in round 3: the update of agent")


@pytest.mark.parametrize(
    "damage", ["text", "empty", "cut", "flipped", "another archive", "version"]
)
def test_what_is_not_a_result_is_refused_in_a_sentence(damage, tmp_path):
    path = tmp_path / "run.npz"
    run(classifiers(), ALGORITHMS["FedAvg"], rounds=2).save(path)
    whole = path.read_bytes()
    if damage == "text":
        path.write_text("hello")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        at = len(whole) // 3
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif damage == "another archive":
        np.savez(path, a=np.ones(3))
    else:
        about, arrays = load_arrays(path)
        save_arrays(path, {**about, "format": 99}, arrays)
    with pytest.raises(ValueError, match=r"run\.npz is not a valid result: "):
        Result.load(path)


def test_nothing_is_pickled(tmp_path):
    path = tmp_path / "run.npz"
    run(classifiers(), ALGORITHMS["Scaffold"], rounds=2).save(path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                np.lib.format.read_magic(member)
                assert not np.lib.format.read_array_header_1_0(member)[2].hasobject


def test_pandas_has_one_row_a_record_and_one_column_per_agent():
    result = run(classifiers(held_out=True), ALGORITHMS["PCFedAvg"], rounds=6, eval_every=2)
    frame = result.to_pandas()
    assert frame.index.tolist() == [2, 4, 6]
    assert frame.loc[4, "objective"] == result.history[1].objective
    assert frame.loc[6, "infeasibility[2]"] == result.history[2].infeasibility[2]
    assert {"loss", "distance[0]", "bytes_up", "seconds", "test_accuracy[1]"} <= set(frame.columns)


def test_repr_says_what_came_out():
    result = run(classifiers(), ALGORITHMS["PCFedAvg"], rounds=3)
    assert repr(result).startswith("Result(finished after 3 rounds, objective ")
