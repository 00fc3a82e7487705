"""Updates on a grid: rounding, sums modulo 2⁶⁴, and `run(..., grid=...)`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcfed import (
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedRep,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    ProxAL,
    Scaffold,
    run,
)
from pcfed.algorithms.grid import Grid, OutsideGrid, add_integers
from tests.federations import classifiers

ALGORITHMS = {
    "PCFedSplit": PCFedSplit(),
    "PCFedAvg": PCFedAvg(step=0.05, penalty=2.0),
    "Scaffold": Scaffold(step=0.05),
    "FedAvg": FedAvg(step=0.05),
    "Ditto": Ditto(step=0.05, prox=0.5),
    "PFedMe": PFedMe(step=0.05, prox=2.0),
    "PerFedAvg": PerFedAvg(step=0.05, hessian_free=True),
    "FedRep": FedRep(step=0.05, own=((-12, None),)),
    "FedMiD": FedMiD(step=0.05),
    "FedDualAvg": FedDualAvg(step=0.05, project_onto="l1(1.5)"),
    "PFedHN": PFedHN(step=0.05, hidden=3),
    "ProxAL": ProxAL(step=0.05, penalty=2.0, prox=0.5, inner_rounds=3),
}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(-38, 10))
def test_numbers_are_rounded_to_the_nearest_multiple(numbers, exponent):
    grid = Grid(2.0**exponent, m=5)
    vector = np.array(numbers)
    found = grid.decode("dz", grid.encode("dz", vector))
    assert (np.abs(found - vector) <= grid.step / 2).all()
    np.testing.assert_array_equal(found / grid.step, np.rint(found / grid.step))
    np.testing.assert_array_equal(grid.decode("dz", grid.encode("dz", found)), found)


@given(st.lists(st.floats(-1e20, 1e20), min_size=1, max_size=20))
def test_wide_numbers_keep_their_digits(numbers):
    grid, vector = Grid(0.5, m=100), np.array(numbers)
    found = grid.decode_wide(grid.encode_wide("gap", vector))
    np.testing.assert_allclose(found, vector, rtol=2e-16, atol=2.0**-85)


@given(st.permutations(range(30)), st.integers(0, 1000))
def test_sums_do_not_depend_on_the_order(order, seed):
    grid = Grid(2.0**-32, m=30)
    rows = np.random.default_rng(seed).standard_normal((30, 4)) * 1e3
    encoded = [grid.encode("dz", row) for row in rows]
    first, second = {}, {}
    for i in range(30):
        add_integers(first, {"dz": encoded[i]})
        add_integers(second, {"dz": encoded[order[i]]})
    np.testing.assert_array_equal(first["dz"], second["dz"])
    exact = grid.decode("dz", np.stack(encoded)).sum(axis=0)
    np.testing.assert_allclose(grid.decode("dz", first["dz"]), exact, rtol=1e-15)


@pytest.mark.parametrize("m", [1, 3, 4, 1000])
def test_the_sum_of_the_largest_numbers_is_right(m):
    grid, total = Grid(2.0**-32, m), {}
    largest = np.array([grid.limit, -grid.limit])
    for _ in range(m):
        add_integers(total, {"dz": grid.encode("dz", largest)})
    np.testing.assert_array_equal(grid.decode("dz", total["dz"]), m * largest)
    with pytest.raises(OutsideGrid, match=r"the numbers of dz must be within ±.*coarser grid"):
        grid.encode("dz", largest * 1.001)
    with pytest.raises(OutsideGrid):
        grid.encode("dz", np.array([np.nan]))
    with pytest.raises(OutsideGrid):
        grid.encode_wide("gap", np.array([np.inf]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_on_a_grid_is_near_the_run_without(name):
    problem, options = classifiers(), {"rounds": 12, "local_steps": 3, "batch": 0.5}
    plain = run(problem, ALGORITHMS[name], **options)
    fine = run(problem, ALGORITHMS[name], grid=2.0**-32, **options)
    coarse = run(problem, ALGORITHMS[name], grid=2.0**-8, **options)
    difference = np.abs(fine.models - plain.models).max()
    assert 0 < difference < 1e-7
    assert np.abs(coarse.models - plain.models).max() > 1e3 * difference


def test_workers_and_resuming_do_not_change_bits(tmp_path):
    from pcfed import Checkpointing

    problem, options = classifiers(), {"local_steps": 3, "batch": 0.5, "grid": 2.0**-20}
    expected = run(problem, PCFedSplit(), rounds=9, **options).models
    found = run(problem, PCFedSplit(), rounds=9, workers=2, **options).models
    np.testing.assert_array_equal(found, expected)
    run(problem, PCFedSplit(), rounds=4, checkpoint=tmp_path / "run", **options)
    more = Checkpointing(tmp_path / "run", resume=True)
    found = run(problem, PCFedSplit(), rounds=9, checkpoint=more, **options).models
    np.testing.assert_array_equal(found, expected)
    options["grid"] = 2.0**-21
    with pytest.raises(ValueError, match="grid"):
        run(problem, PCFedSplit(), rounds=12, checkpoint=more, **options)


def test_what_is_beyond_the_grid_is_refused():
    problem = classifiers()
    result = run(problem, FedAvg(step=0.1), rounds=3, x0=np.full(problem.n, 1.0), grid=2.0**-100)
    assert result.status == "diverged"
    assert "the numbers of delta must be within" in result.refusals[0].reason


@pytest.mark.parametrize("step", [0.0, -1.0, 0.3, float("nan"), 2.0**300, "fine"])
def test_steps_must_be_powers_of_two(step):
    with pytest.raises(ValueError, match="run: grid must be"):
        run(classifiers(), FedAvg(step=0.1), rounds=1, grid=step)
