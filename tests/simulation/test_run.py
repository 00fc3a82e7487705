"""The simulator: same bits, going on, output, history, divergence."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from pcfed import (
    Agent,
    FedAvg,
    Local,
    PCFedAvg,
    PCFedSplit,
    Power,
    Problem,
    RefusalPolicy,
    Scaffold,
    run,
)
from pcfed.algorithms import RunInfo
from pcfed.losses import LeastSquares
from pcfed.reference import reference
from pcfed.sets import CustomSet, L1Ball, Simplex, WholeSpace
from pcfed.simulation import output
from tests.federations import ALGORITHMS, CLOSED_FORM, classifiers, regressions

OPTIONS = {"local_steps": [1, 3, 2], "batch": 0.2, "participation": 2, "seed": 5}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def same(a, b) -> None:
    """Two results agree in every bit, times aside."""
    np.testing.assert_array_equal(a.models, b.models)
    np.testing.assert_array_equal(a.average, b.average)
    assert a.status == b.status
    assert len(a.history) == len(b.history)
    for one, other in zip((a.start, *a.history), (b.start, *b.history), strict=True):
        for name in vars(one).keys() - {"seconds"}:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for kind in ("server", "private"):
        ours, theirs = getattr(a.state, kind), getattr(b.state, kind)
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@every_algorithm
@pytest.mark.parametrize("sampling", ["without_replacement", "with_replacement", "blocks"])
def test_same_seed_same_bits(algorithm, sampling):
    problem = classifiers(held_out=True)
    a, b = (run(problem, algorithm, rounds=6, sampling=sampling, **OPTIONS) for _ in range(2))
    same(a, b)
    c = run(problem, algorithm, rounds=6, sampling=sampling, **{**OPTIONS, "seed": 6})
    assert np.abs(a.models - c.models).max() > 0


@every_algorithm
def test_going_on_is_the_same_as_not_stopping(algorithm):
    problem = classifiers()
    whole = run(problem, algorithm, rounds=10, **OPTIONS)
    half = run(problem, algorithm, rounds=4, **OPTIONS)
    same(run(problem, algorithm, rounds=6, x0=half, **OPTIONS), whole)


@every_algorithm
def test_one_round_twice_from_one_state_gives_the_same_bits_and_leaves_it_alone(algorithm):
    problem = classifiers()
    saved = run(problem, algorithm, rounds=3, **OPTIONS)
    before = saved.state.copy()
    same(*(run(problem, algorithm, rounds=1, x0=saved, **OPTIONS) for _ in range(2)))
    for kind in ("server", "private"):
        for name, vector in getattr(before, kind).items():
            np.testing.assert_array_equal(vector, getattr(saved.state, kind)[name])


@every_algorithm
def test_another_number_of_workers_gives_the_same_bits(algorithm):
    problem = classifiers(5)
    options = {"rounds": 5, "local_steps": 3, "batch": 0.2}
    with threadpool_limits(1):
        a, b = (run(problem, algorithm, workers=workers, **options) for workers in (1, 3))
    same(a, b)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_another_number_of_threads_stays_close(dtype, tolerance):
    """BLAS may add in another order; the runs stay together over 100 rounds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, 600, 300)).astype(dtype)
    agents = [
        Agent(LeastSquares(x, (x @ np.ones(300, dtype)) / 20), L1Ball(3.0 + i), coupling=0.1)
        for i, x in enumerate(X)
    ]
    algorithm = PCFedAvg(step=0.2, penalty=2.0)
    models = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            options = {"local_steps": 2, "batch": 0.5, "workers": threads}
            models.append(run(Problem(agents), algorithm, rounds=100, **options).models)
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=tolerance)
    assert np.abs(models[0]).max() > 0.01


def test_float32_data_follows_float64_data():
    algorithm = PCFedAvg(step=0.3, penalty=3.0)
    wide, narrow = (
        run(classifiers(dtype=dtype), algorithm, rounds=50, local_steps=5)
        for dtype in (np.float64, np.float32)
    )
    np.testing.assert_allclose(narrow.models, wide.models, atol=1e-4)
    assert narrow.state.private["w"].dtype == narrow.state.server["C"].dtype == np.float64
    assert narrow.history[-1].bytes_up == wide.history[-1].bytes_up / 2


def test_history_has_every_kth_round_and_the_last():
    problem = classifiers()
    algorithm = ALGORITHMS["PCFedAvg"]
    assert [r.round for r in run(problem, algorithm, rounds=3).history] == [1, 2, 3]
    result = run(problem, algorithm, rounds=7, eval_every=3)
    assert [r.round for r in result.history] == [3, 6, 7]
    assert result.start.round == 0
    seconds = [r.seconds for r in result.history]
    assert seconds == sorted(seconds)


def test_figures_are_those_of_the_problem():
    problem = classifiers(held_out=True)
    result = run(problem, ALGORITHMS["PCFedAvg"], rounds=30, local_steps=5)
    last = result.history[-1]
    assert last.objective == pytest.approx(problem.objective(result.models), rel=1e-12)
    assert last.loss == pytest.approx(problem.loss(result.average), rel=1e-12)
    np.testing.assert_allclose(last.infeasibility, problem.infeasibility(result.models))
    apart = np.linalg.norm(result.models - result.average, axis=1)
    np.testing.assert_allclose(last.distance, apart)
    assert apart.max() > 0.01
    for i, agent in enumerate(problem.agents):
        assert last.test_loss[i] == pytest.approx(agent.test.value(result.models[i]))
        assert last.test_accuracy[i] == agent.test.accuracy(result.models[i])
    assert last.test_accuracy.min() > 0.4


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        ("PCFedAvg", 2, 2),
        ("FedAvg", 1, 1),
        ("FedProx", 1, 1),
        ("Scaffold", 2, 2),
        ("Local", 0, 0),
        ("Ditto", 1, 1),
        ("PFedMe", 1, 1),
        ("PerFedAvg", 1, 1),
        ("FedRep", 1, 1),
        ("FedMiD", 1, 1),
        ("FedDualAvg", 1, 1),
    ],
)
def test_bytes_are_those_of_the_vectors_that_are_sent(algorithm, up, down):
    problem = classifiers(4)
    result = run(problem, ALGORITHMS[algorithm], rounds=5, participation=3)
    assert result.history[-1].bytes_up == 5 * 3 * up * problem.n * 8
    assert result.history[-1].bytes_down == 5 * 3 * down * problem.n * 8


def test_pcfedsplit_sends_two_vectors_and_a_few_scalars():
    problem = classifiers(4)
    last = run(problem, PCFedSplit(), rounds=5, participation=3).history[-1]
    # Offsets are sent until the round in which the fourth agent joins, the second.
    vectors = 2 * 3 * 3 + 3 * 3 * 2
    assert last.bytes_up == (vectors * problem.n + 5 * 3 * len(PCFedSplit.statistics)) * 8
    assert last.bytes_down == 5 * 3 * (4 * problem.n + 5) * 8


def test_another_algorithm_starts_from_the_models_of_a_result():
    problem = classifiers()
    result = run(problem, PCFedSplit(), rounds=4, local_steps=3)
    other = run(problem, PCFedAvg(0.02, 3.0), rounds=1, x0=result)
    assert other.state.round == 1
    np.testing.assert_allclose(other.start.objective, result.history[-1].objective, rtol=1e-12)


def test_models_stay_identical_until_a_constraint_binds():
    problem = regressions([L1Ball(1e6), L1Ball(2e6), WholeSpace()])
    result = run(problem, PCFedAvg(step=0.1, penalty=3.0), rounds=20, local_steps=3, batch=0.3)
    assert np.ptp(result.models, axis=0).max() < 1e-12
    assert np.abs(result.models).max() > 0.1


def test_offsets_run_apart_while_models_converge():
    """The reason for float64 state: C and w_i grow for ever when constraints bind."""
    problem = regressions([L1Ball(0.2), L1Ball(0.4), WholeSpace()])
    algorithm = PCFedAvg(step=0.1, penalty=1.0)
    early = run(problem, algorithm, rounds=1500, eval_every=1500)
    late = run(problem, algorithm, rounds=1500, eval_every=1500, x0=early)
    np.testing.assert_allclose(late.models, early.models, atol=1e-6)
    growth = np.linalg.norm(late.state.server["C"]) / np.linalg.norm(early.state.server["C"])
    assert growth > 1.5


def test_average_output_is_the_mean_over_rounds():
    problem = classifiers()
    seen = []
    options = {"rounds": 7, "local_steps": 2, "callbacks": [lambda e: seen.append(e.models)]}
    result = run(problem, ALGORITHMS["PCFedAvg"], output="average", **options)
    np.testing.assert_allclose(result.models, np.mean(seen, axis=0), atol=1e-14)
    np.testing.assert_allclose(result.average, result.models.mean(axis=0))
    same_end = run(problem, ALGORITHMS["PCFedAvg"], rounds=7, local_steps=2)
    np.testing.assert_array_equal(result.state.server["C"], same_end.state.server["C"])


def test_random_output_is_the_iterate_of_the_m_block_algorithm():
    """K* is uniform over all local steps; the models are the mean over agents at that step."""
    problem = regressions([CLOSED_FORM["l1"](np.random.default_rng(i)) for i in range(3)])
    algorithm = PCFedAvg(step=0.1, penalty=3.0)
    rounds, steps = 3, 4
    every_step = []  # the m-block iterate after k local steps of round r, for all r and k
    for r in range(rounds):
        for k in range(steps):
            cut = reference(
                problem,
                algorithm,
                rounds=r + 1,
                local_steps=lambda index, r=r, k=k: k if index == r and k else steps,
                batch=0.3,
            )
            every_step.append(cut[-1] if k else cut[-2])
    hits = np.zeros(len(every_step))
    for seed in range(60):
        options = {"rounds": rounds, "local_steps": steps, "batch": 0.3, "eval_every": 3}
        probe = _with_output_seed(problem, algorithm, seed, **options)
        errors = [np.abs(probe - x).max() for x in every_step]
        assert min(errors) < 1e-12
        hits[int(np.argmin(errors))] += 1
    assert (hits > 0).sum() >= 10, "60 draws of 12 must reach nearly all of them"


def _with_output_seed(problem, algorithm, seed, **options):
    """Run with batches of seed 0 but K* of another seed."""
    original = output.random_stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "random_stream", lambda _, purpose: original(seed, purpose))
        return run(problem, algorithm, output="random", **options).models


def test_stop_and_callbacks_see_each_evaluated_round():
    problem = classifiers()
    seen = []
    result = run(
        problem,
        ALGORITHMS["PCFedAvg"],
        rounds=50,
        eval_every=2,
        callbacks=[lambda e: seen.append(e.record.round)],
        stop=lambda e: e.record.round >= 6 and e.models.shape == (3, 48),
    )
    assert seen == [2, 4, 6]
    assert (result.status, result.state.round, result.history[-1].round) == ("stopped", 6, 6)


def test_divergence_names_round_and_agent_and_keeps_the_last_good_state():
    problem = regressions([WholeSpace()] * 3)
    result = run(problem, FedAvg(step=1e200), rounds=50, local_steps=2)
    assert result.status == "diverged"
    refusal = result.refusals[-1]
    assert f"round {refusal.round}" in result.message
    assert f"agent {refusal.agent}" in result.message
    assert "smaller step" in result.message
    assert np.isfinite(result.models).all()
    assert result.state.round == refusal.round == result.history[-1].round


@pytest.mark.parametrize("eval_every", [1, 7, 1000])
def test_a_run_that_grows_without_limit_ends_as_diverged(eval_every):
    """Models of 1e200 are finite, but no longer projected or evaluated with sense."""
    result = run(classifiers(), PCFedAvg(1.0, 20.0), rounds=1000, eval_every=eval_every)
    assert result.status == "diverged"
    assert "try a smaller step" in result.message


def test_refused_updates_count_as_absent():
    """One agent's set fails from round 2 on; with max_refusals the others go on without it."""
    calls = []

    def fails(x):
        calls.append(1)
        return x if len(calls) < 4 else np.full_like(x, np.nan)

    def problem() -> Problem:
        calls.clear()
        good = regressions([L1Ball(0.5), L1Ball(1.0)])
        bad = Agent(good.agents[0].loss, CustomSet(project=fails), coupling=0.1, name="bad")
        return Problem([*good.agents, bad])

    algorithm = PCFedAvg(step=0.1, penalty=1.0)
    stopped = run(problem(), algorithm, rounds=10, eval_every=10)
    assert (stopped.status, len(stopped.refusals)) == ("diverged", 1)
    assert "bad" in stopped.message
    gone_on = run(problem(), algorithm, rounds=10, eval_every=10, refusals=RefusalPolicy(100))
    assert gone_on.status == "finished"
    assert {r.agent for r in gone_on.refusals} == {2}
    first = gone_on.refusals[0].round
    absent = [[]] * first + [[2]] * (10 - first)
    expected = reference(problem(), algorithm, rounds=10, participation=absent)
    np.testing.assert_allclose(gone_on.models, expected[-1], atol=1e-12)


def test_random_start_is_feasible_for_every_agent():
    problem = regressions([L1Ball(0.3), L1Ball(1.0), Simplex(0.2)])
    one = run(problem, FedAvg(step=1e-9), rounds=1, x0="random", seed=1)
    assert one.start.infeasibility.max() < 1e-12
    assert np.abs(one.models).max() > 1e-3
    other = run(problem, FedAvg(step=1e-9), rounds=1, x0="random", seed=2)
    assert np.abs(one.models - other.models).max() > 1e-3


def test_random_start_is_every_agents_own_where_sets_do_not_meet():
    problem = regressions([Simplex(1.0), Simplex(2.0)])
    result = run(problem, PCFedAvg(step=1e-9, penalty=1.0), rounds=1, x0="random")
    assert result.start.infeasibility.max() < 1e-12


def test_theory_is_root_of_rounds_and_the_largest_admissible_step():
    problem = classifiers()
    algorithm = PCFedAvg("theory", "theory").resolved(problem, RunInfo(400, 9))
    L = (problem.L_f + 0.05 * 2) / 3 + 20
    assert algorithm.penalty == 20
    assert algorithm.step == pytest.approx(min(1 / (6 * L), 1 / (5 * L * 8)))
    one = PCFedAvg("theory", 2.0).resolved(problem, RunInfo(400, 1))
    assert one.step == pytest.approx(1 / (6 * problem.L_G(2.0)))
    growing = PCFedAvg("theory", Power(exponent=0.5)).resolved(problem, RunInfo(9, 1))
    assert growing.step == pytest.approx(1 / (6 * problem.L_G(3.0)))
    result = run(problem, PCFedAvg("theory", "theory"), rounds=100, local_steps=4)
    assert result.history[-1].objective < result.start.objective


def test_schedules_are_functions_of_the_round():
    problem = classifiers()
    steps = [0.1, 0.2, 0.3, 0.4]
    whole = run(problem, FedAvg(step=lambda r: steps[r]), rounds=4)
    x = None
    for r, step in enumerate(steps):
        x = run(problem, FedAvg(step=step), rounds=1, x0=None if x is None else x)
        assert x.state.round == r + 1
    np.testing.assert_allclose(whole.models, x.models, atol=1e-15)


def test_another_method_starts_from_the_models_of_a_result():
    problem = classifiers()
    local = run(problem, Local(step=0.3, penalty=3.0), rounds=5, local_steps=5)
    result = run(problem, PCFedAvg(step=0.1, penalty=3.0), rounds=1, x0=local)
    np.testing.assert_allclose(result.start.objective, problem.objective(local.models))
    assert result.state.round == 1
    shared = run(problem, Scaffold(step=0.1), rounds=1, x0=local)
    assert shared.start.objective == pytest.approx(problem.loss(local.models.mean(axis=0)))


def test_progress_line_says_where_the_run_is(capsys):
    run(classifiers(), ALGORITHMS["PCFedAvg"], rounds=3, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/3 rounds" in err
    assert "objective" in err
    assert err.endswith("\n")


def test_intercept_is_free_unless_told_otherwise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X @ np.array([2.0, 0.0, -1.0]) + 7.0
    loss = LeastSquares(X, y, intercept=True)

    def trained(**options) -> np.ndarray:
        problem = Problem([Agent(loss, L1Ball(0.5), coupling=0.1, **options)])
        step = 1 / problem.L_G(50.0)
        return run(problem, PCFedAvg(step, 50.0), rounds=3000, eval_every=3000).models[0]

    free = trained()
    assert np.abs(free[:3]).sum() == pytest.approx(0.5, abs=0.1)
    assert free[3] > 6
    assert np.abs(trained(constrain_intercept=True)).sum() == pytest.approx(0.5, abs=0.3)


def test_memory_is_linear_in_the_number_of_agents():
    """2,000 agents with 200 parameters would need 6 GB in the m-block form."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 4, 200)), rng.normal(size=(2000, 4))
    agents = [
        Agent(LeastSquares(X[i], y[i]), L1Ball(0.001 * (i + 1)), coupling=0.1) for i in range(2000)
    ]
    problem = Problem(agents)
    tracemalloc.start()
    algorithm = PCFedAvg(step=1.0, penalty=1.0)
    result = run(problem, algorithm, rounds=2, local_steps=2, workers=1)  # threads have buffers
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * result.models.nbytes
    assert result.status == "finished"
    assert result.models.shape == (2000, 200)
