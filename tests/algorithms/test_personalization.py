"""Losses at own models and a free centre: oracles, reductions, rounds, bits."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, Gap, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.guarantees import optimum
from pcfed.losses import LeastSquares
from pcfed.reference import reference
from pcfed.sets import Box, L1Ball, L2Ball, LinfBall, Simplex, WholeSpace
from tests.algorithms.douglas_rachford import douglas_rachford, free_douglas_rachford
from tests.algorithms.test_pcfedsplit import FAMILIES, MANY
from tests.federations import N, classifiers, regressions
from tests.personal import VARIANTS, personalized

AVERAGE = [theta for theta, center in VARIANTS if center == "average"]
SETS = [L1Ball(0.5), Box(-0.5, 0.2), L2Ball(1.0), Simplex(3.0)]


# -- oracles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", AVERAGE)
@pytest.mark.parametrize(
    "options",
    [{"local_steps": 4}, {"local_steps": [1, 3, 5, 2], "participation": 2, "batch": 0.3}],
    ids=["all agents", "absences and batches"],
)
def test_pcfedavg_equals_the_m_block_reference(theta, options):
    problem = personalized(regressions(SETS), theta, "average")
    algorithm, seen = PCFedAvg(step=0.05, penalty=3.0), []
    blocks = reference(problem, algorithm, rounds=8, **options)
    run(problem, algorithm, rounds=8, callbacks=[lambda e: seen.append(e.models)], **options)
    np.testing.assert_allclose(np.stack(seen), blocks[1:], rtol=0, atol=1e-12)
    paper = reference(regressions(SETS), algorithm, rounds=8, **options)
    assert np.abs(paper - blocks).max() > 1e-3, "the personalization must make a difference"


@pytest.mark.parametrize("theta", AVERAGE)
def test_pcfedsplit_equals_douglas_rachford_if_local_problems_are_solved(theta):
    problem = personalized(regressions(SETS), theta, "average")
    present = [[0, 1], [1], [0, 1, 2], [0, 2], [0, 1, 2, 3], [1, 3]]
    absent = [[i for i in range(4) if i not in each] for each in present]
    options = {"rounds": len(present), "local_steps": MANY, "participation": absent}
    result = run(problem, PCFedSplit(prox=0.5), **options)
    models, center = douglas_rachford(problem, present, tau=0.5, alpha=1.0, kappa=1.8)
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.server["z"], center, rtol=0, atol=1e-10)


@pytest.mark.parametrize("theta", [(0.0,), (0.5,), (1.0,), (0.0, 0.3, 1.0)])
def test_free_center_equals_douglas_rachford_if_local_problems_are_solved(theta):
    problem = personalized(regressions(SETS), theta, "free")
    algorithm = PCFedSplit(prox=0.5)
    start = np.stack([each.project(np.zeros(N)) for each in SETS])
    result = run(problem, algorithm, rounds=5, local_steps=MANY, x0=start)
    models, center = free_douglas_rachford(problem, 5, tau=0.5, kappa=1.8)
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.center, center, rtol=0, atol=1e-10)


def test_optimality_conditions_of_a_free_center():
    problem = personalized(regressions(SETS[:3]), (0.5,), "free")
    result = run(problem, PCFedSplit(), rounds=300, local_steps=20, eval_every=300)
    c, total = result.center, np.zeros(N)
    for agent, x in zip(problem.agents, result.models, strict=True):
        force = agent.coupling * (x - c)
        total += 0.5 * agent.loss.gradient(c) - force
        moved = agent.constraint.project(x - 0.1 * (0.5 * agent.loss.gradient(x) + force))
        np.testing.assert_allclose(moved, x, atol=1e-8)
    np.testing.assert_allclose(total, 0, atol=1e-7)


# -- reductions -----------------------------------------------------------------------------------


def test_own_losses_without_coupling_are_training_alone():
    problem = regressions([L1Ball(1.0), L2Ball(2.0)])
    agents = [Agent(a.loss, a.constraint, 0.0, 1.0) for a in problem.agents]
    result = run(Problem(agents, "free"), PCFedSplit(), rounds=60, local_steps=20)
    for agent, x in zip(agents, result.models, strict=True):
        alone = np.zeros(N)
        for _ in range(20_000):
            step = agent.loss.gradient(alone) / agent.loss.smoothness()
            alone = agent.constraint.project(alone - step)
        np.testing.assert_allclose(x, alone, atol=1e-6)


def test_free_center_without_personalization_is_the_minimiser_that_no_set_limits():
    # With whole spaces, models equal the centre, and the centre minimises the mean loss.
    problem = personalized(regressions([WholeSpace()] * 3), (0.0,), "free")
    result = run(problem, PCFedSplit(), rounds=80, local_steps=20)
    X = np.concatenate([a.loss._features.matrix / np.sqrt(a.loss.size) for a in problem.agents])
    y = np.concatenate([a.loss._targets / np.sqrt(a.loss.size) for a in problem.agents])
    best = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(result.center, best, atol=1e-6)
    np.testing.assert_allclose(result.models, np.tile(best, (3, 1)), atol=1e-6)


# -- rounds and certificates ----------------------------------------------------------------------


@pytest.mark.parametrize(("theta", "center"), VARIANTS)
@pytest.mark.parametrize("name", ["least squares", "weak coupling", "softmax"])
def test_rounds_to_the_optimum(name, theta, center):
    problem = personalized(FAMILIES[name].problem(10), theta, center)
    best = optimum(problem, tolerance=1e-7).objective

    def close(evaluation) -> bool:
        assert problem.infeasibility(evaluation.models).max() <= 1e-12
        return evaluation.record.objective <= best + 1e-6 * abs(best)

    options = {"local_steps": 10, "stop": close}
    assert run(problem, PCFedSplit(), rounds=60, **options).status == "stopped"
    if name != "weak coupling":  # it may take more than 1,000 rounds if most agents are absent
        some = run(problem, PCFedSplit(), rounds=300, participation=0.3, **options)
        assert some.status == "stopped"


@pytest.mark.parametrize(("theta", "center"), VARIANTS)
def test_stops_at_a_certified_gap(theta, center):
    problem = personalized(regressions([L1Ball(4.0), L1Ball(6.0), L1Ball(9.0)]), theta, center)
    result = run(problem, PCFedSplit(), rounds=150, local_steps=10, stop=Gap(1e-6, relative=True))
    assert result.status == "stopped"
    certificate = certify(problem, result)
    assert certificate.relative_gap <= 1e-6
    assert certificate.objective == pytest.approx(result.history[-1].objective, rel=1e-12)


def test_the_models_are_better_for_their_owners():
    problem = FAMILIES["least squares"].problem(10)

    def own_loss(theta: float, center: str) -> float:
        personal = personalized(problem, (theta,), center)
        models = run(personal, PCFedSplit(), rounds=60, local_steps=10).models
        return float(
            np.mean([a.loss.value(x) for a, x in zip(personal.agents, models, strict=True)])
        )

    assert own_loss(0.5, "free") < 0.9 * own_loss(0.0, "average")
    assert own_loss(1.0, "average") < 0.9 * own_loss(0.0, "average")


def test_a_free_center_halves_the_messages():
    problem = regressions([L1Ball(0.5), L1Ball(1.0), L1Ball(2.0)])
    up, down = [], []
    for center in ("average", "free"):
        history = run(personalized(problem, (0.5,), center), PCFedSplit(), rounds=4).history
        up.append(history[3].bytes_up - history[2].bytes_up)
        down.append(history[3].bytes_down - history[2].bytes_down)
    scalars = len(PCFedSplit.statistics)
    assert up == [3 * 8 * (2 * N + scalars), 3 * 8 * (N + scalars)]
    assert down == [3 * 8 * (4 * N + 5), 3 * 8 * (2 * N + 4)]


# -- bits, state and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "theta", "center"),
    [(PCFedSplit(), *variant) for variant in VARIANTS]
    + [(PCFedAvg(step=0.1, penalty=2.0), theta, "average") for theta in AVERAGE],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_loops_equal_single_steps(algorithm, theta, center, dtype, monkeypatch):
    problem = personalized(classifiers(4, dtype=dtype), theta, center)
    options = {"rounds": 12, "local_steps": 5, "batch": 0.4}
    compiled = run(problem, algorithm, **options)
    for name in ("pcfedsplit_steps._solve_compiled", "pcfedavg_steps._steps_compiled"):
        monkeypatch.setattr(f"pcfed.algorithms.{name}", lambda *_: False)
    single = run(problem, algorithm, **options)
    np.testing.assert_array_equal(compiled.models, single.models)
    np.testing.assert_array_equal(compiled.center, single.center)


@pytest.mark.parametrize("theta", [(0.5,), (0.0, 0.3, 1.0)])
@pytest.mark.parametrize("center", ["average", "free"])
def test_resumes_to_the_same_bits(theta, center, tmp_path):
    problem = personalized(classifiers(4), theta, center)
    options = {"local_steps": 3, "batch": 0.4, "participation": 3}
    whole = run(problem, PCFedSplit(), rounds=9, **options)
    half = run(problem, PCFedSplit(), rounds=4, **options)
    half.save(tmp_path / "half.npz")
    rest = run(
        problem, PCFedSplit(), rounds=5, x0=type(half).load(tmp_path / "half.npz"), **options
    )
    np.testing.assert_array_equal(rest.models, whole.models)
    np.testing.assert_array_equal(rest.center, whole.center)


def test_another_center_or_personalization_is_another_run(tmp_path):
    problem, path = classifiers(3), tmp_path / "run.checkpoint"
    run(personalized(problem, (0.5,), "free"), PCFedSplit(), rounds=2, checkpoint=path)
    for theta, center in (((0.4,), "free"), ((0.5,), "average")):
        with pytest.raises(ValueError, match="run: checkpoint"):
            run(personalized(problem, theta, center), PCFedSplit(), rounds=2, checkpoint=path)


def test_pcfedavg_needs_the_average():
    problem = personalized(classifiers(3), (0.5,), "free")
    with pytest.raises(ValueError, match="PCFedAvg: the center of the problem must be 'average'"):
        run(problem, PCFedAvg(step=0.1, penalty=1.0), rounds=1)


def test_the_step_of_the_theorem_needs_the_papers_problem():
    problem = personalized(classifiers(3), (0.5,), "average")
    with pytest.raises(ValueError, match="PCFedAvg: step can be 'theory' only if"):
        run(problem, PCFedAvg(step="theory", penalty=1.0), rounds=1)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "half"])
def test_wrong_personalization_is_explained(value):
    loss = LeastSquares(np.eye(2), np.ones(2))
    with pytest.raises(ValueError, match="Agent: personalization must be"):
        Agent(loss, LinfBall(1.0), 0.1, value)


def test_wrong_centers_are_explained():
    agents = regressions([L1Ball(1.0)]).agents
    with pytest.raises(ValueError, match="Problem: center must be 'average' or 'free', got 'mean'"):
        Problem(agents, center="mean")
    free = Problem(agents, center="free")
    for method in (free.objective, free.gradient, lambda x: certify(free, x)):
        with pytest.raises(ValueError, match="center must be given where the center"):
            method(np.zeros((1, N)))
