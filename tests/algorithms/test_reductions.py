"""Methods that must agree where their definitions do, and optima that must be reached."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from pcfed import FedAvg, FedProx, Local, PCFedAvg, Problem, Scaffold, run
from pcfed.sets import L1Ball, WholeSpace
from tests.federations import N, classifiers, regressions


def final(problem, algorithm, **options) -> np.ndarray:
    return run(problem, algorithm, **{"rounds": 20, "local_steps": 4, **options}).models


def test_fedprox_without_prox_is_fedavg():
    problem = classifiers()
    a = final(problem, FedAvg(step=0.3, penalty=2.0), batch=0.2)
    b = final(problem, FedProx(step=0.3, penalty=2.0, prox=0.0), batch=0.2)
    c = final(problem, FedProx(step=0.3, penalty=2.0, prox=0.5), batch=0.2)
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-3


def test_one_agent_is_penalised_sgd():
    problem = classifiers(1)
    agent = problem.agents[0]
    x = np.zeros(problem.n)
    for _ in range(20 * 4):
        excess = x - agent.constraint.project(x)
        x = x - 0.3 * (agent.loss.gradient(x) + 2.0 * excess)
    assert not agent.constraint.contains(x)
    for method in (PCFedAvg, FedAvg, Local, Scaffold):
        models = final(problem, method(step=0.3, penalty=2.0))
        np.testing.assert_allclose(models[0], x, atol=1e-12)


def test_whole_space_pcfedavg_is_fedavg_with_step_over_m():
    problem = regressions([WholeSpace()] * 4)
    a = final(problem, PCFedAvg(step=0.2, penalty=5.0), batch=0.3)
    b = final(problem, FedAvg(step=0.2 / 4), batch=0.3)
    np.testing.assert_allclose(a, b, atol=1e-12)
    assert np.abs(a).max() > 0.1


def test_whole_space_is_unconstrained_whatever_the_penalty():
    problem = regressions([WholeSpace()] * 3)
    for method in (PCFedAvg, FedAvg, Scaffold, Local):
        a = final(problem, method(step=0.05, penalty=7.0))
        b = final(problem, method(step=0.05, penalty=0.0))
        np.testing.assert_allclose(a, b, atol=1e-13)


def quadratic_form(loss) -> tuple[np.ndarray, np.ndarray, float]:
    """Return Q, c, d of a least-squares loss ½ xᵀQx + cᵀx + d."""
    c = loss.gradient(np.zeros(N))
    Q = np.stack([loss.gradient(e) - c for e in np.eye(N)])
    return (Q + Q.T) / 2, c, loss.value(np.zeros(N))


def minimiser_of_average(problem: Problem) -> np.ndarray:
    """Solve Σ_i ∇f_i(x) = 0 for least squares."""
    forms = [quadratic_form(agent.loss) for agent in problem.agents]
    return np.linalg.solve(sum(Q for Q, _, _ in forms), -sum(c for _, c, _ in forms))


@pytest.mark.parametrize("participation", [1.0, 2])
def test_scaffold_reaches_the_optimum_that_fedavg_misses(participation):
    problem = regressions([WholeSpace()] * 4)
    best = minimiser_of_average(problem)
    options = {"rounds": 1500, "local_steps": 10, "participation": participation}
    scaffold = run(problem, Scaffold(step=0.02), eval_every=1500, **options)
    fedavg = run(problem, FedAvg(step=0.02), eval_every=1500, **options)
    assert np.linalg.norm(scaffold.average - best) < 1e-9
    assert np.linalg.norm(fedavg.average - best) > 1e-2


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_control_variates_average_to_the_servers(participation):
    problem = classifiers(4)
    result = run(problem, Scaffold(step=0.1), rounds=10, local_steps=3, participation=participation)
    c = result.state.private["c"]
    np.testing.assert_allclose(result.state.server["c"], c.mean(axis=0), atol=1e-14)
    assert np.abs(c).max() > 1e-3


def penalised_optimum(problem: Problem, radii, rho: float) -> tuple[np.ndarray, float]:
    """Minimise G_ρ with CVXPY, the distance to an l1 ball written with its nearest point."""
    m = problem.m
    x, p = cp.Variable((m, N)), cp.Variable((m, N))
    mean = cp.sum(x, axis=0) / m
    total = 0
    for i, agent in enumerate(problem.agents):
        Q, c, d = quadratic_form(agent.loss)
        total += cp.quad_form(mean, cp.psd_wrap(Q)) / 2 + c @ mean + d
        total += agent.coupling / 2 * cp.sum_squares(x[i] - mean)
        total += rho / 2 * cp.sum_squares(x[i] - p[i])
    balls = [cp.norm1(p[i]) <= radius for i, radius in enumerate(radii)]
    solution = cp.Problem(cp.Minimize(total / m), balls)
    solution.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return x.value, solution.value


def test_pcfedavg_with_one_local_step_reaches_the_penalised_optimum_of_cvxpy():
    radii, rho = (0.5, 1.0, 3.0), 4.0
    problem = regressions([L1Ball(radius) for radius in radii])
    best, value = penalised_optimum(problem, radii, rho)
    step = 1 / problem.L_G(rho)
    result = run(problem, PCFedAvg(step=step, penalty=rho), rounds=5000, eval_every=5000)
    penalty = rho / 2 * np.mean(result.history[-1].infeasibility ** 2)
    assert result.history[-1].objective + penalty == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(result.models, best, atol=1e-4)
    assert np.ptp(result.models, axis=0).max() > 0.1, "models must differ for this to mean much"


def test_local_minimises_every_loss_alone_and_sends_nothing():
    problem = regressions([WholeSpace()] * 3)
    result = run(problem, Local(step=0.2), rounds=600, local_steps=5, eval_every=600)
    for agent, x in zip(problem.agents, result.models, strict=True):
        assert np.linalg.norm(agent.loss.gradient(x)) < 1e-8
    assert result.history[-1].bytes_up == result.history[-1].bytes_down == 0
    np.testing.assert_allclose(result.average, result.models.mean(axis=0))
