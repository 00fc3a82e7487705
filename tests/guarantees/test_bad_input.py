"""Invalid arguments get one sentence with the argument, the value and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, PCFedAvg, Problem, run
from pcfed.guarantees import (
    Constants,
    Gap,
    bounds,
    certify,
    constants,
    noise_bound,
    noise_estimate,
    optimum,
    rounds_for,
)
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball
from tests.federations import classifiers
from tests.guarantees.test_certificate import Wavy

PROBLEM = classifiers()
KNOWN = {
    "m": 4,
    "L_f": 1.0,
    "sigma": 0.1,
    "penalty": 10.0,
    "Q": 1.0,
    "M": 0.5,
    "gradient_norm": 0.2,
}
WAVY = Problem([Agent(Wavy(np.eye(2), np.ones(2)), L1Ball(1.0), 0.1)])


def bound(rounds=10, step=None, participation=1.0, as_printed=False, **changed):
    return lambda: bounds(
        Constants(**{**KNOWN, **changed}),
        rounds=rounds,
        step=step,
        participation=participation,
        as_printed=as_printed,
    )


CASES = {
    "rounds": (bound(rounds=0), "bounds: rounds must be a whole number ≥ 1, got 0"),
    "step": (bound(step=0.1), r"bounds: step must be at most 0\.0161420\d* .*, got 0\.1"),
    "step H": (
        bound(step=0.0161, local_steps=50),
        r"bounds: step must be at most 0\.00039\d* .*, got 0\.0161",
    ),
    "step negative": (bound(step=-1.0), "bounds: step must be > 0, got -1.0"),
    "step nan": (bound(step=np.nan), "bounds: step must be a finite number, got nan"),
    "step schedule": (bound(step=lambda r: 0.1), "bounds: step must be one number for all rounds"),
    "absences": (bound(participation=0.5), "bounds: participation must be 1.0, got 0.5"),
    "one agent": (bound(m=1), "bounds: m must be at least 2, got 1"),
    "H per agent": (
        bound(local_steps=[1, 2, 3, 4]),
        r"Constants: local_steps must be one number .* got \[1, 2, 3, 4\]",
    ),
    "H zero": (bound(local_steps=0), "Constants: local_steps must be a whole number ≥ 1, got 0"),
    "penalty": (bound(penalty=0.0), "Constants: penalty must be > 0, got 0.0"),
    "penalty schedule": (
        lambda: constants(PROBLEM, penalty=lambda r: 1.0),
        "constants: penalty must be a finite number",
    ),
    "penalty nan": (
        lambda: constants(PROBLEM, penalty=np.nan),
        "constants: penalty must be a finite number, got nan",
    ),
    "nu2": (bound(nu2=np.nan), "Constants: nu2 must be ≥ 0, got nan"),
    "nu2 infinite": (bound(nu2=np.inf), "bounds: nu2 must be finite, got inf"),
    "unknown": (
        bound(Q=None, gradient_norm=None),
        "bounds: constants must have Q and gradient_norm, got None",
    ),
    "unknown printed": (bound(as_printed=True), "bounds: constants must have M_printed, got None"),
    "no constants": (lambda: bounds(PROBLEM, rounds=1), "bounds: constants must be a Constants"),
    "Q negative": (bound(Q=-1.0), "Constants: Q must be ≥ 0, got -1.0"),
    "epsilon": (
        lambda: rounds_for(0.0, Constants(**KNOWN)),
        "rounds_for: epsilon must be > 0, got 0.0",
    ),
    "epsilon tiny": (
        lambda: rounds_for(1e-30, Constants(**KNOWN)),
        "rounds_for: epsilon must be reachable within",
    ),
    "other penalty": (
        lambda: constants(PROBLEM, penalty=1.0, penalised=optimum(PROBLEM, penalty=2.0)),
        "constants: penalised must be the optimum with .* got penalty 2.0 where 1.0 belongs",
    ),
    "swapped": (
        lambda: constants(PROBLEM, penalty=1.0, constrained=optimum(PROBLEM, penalty=1.0)),
        "constants: .* got penalty 1.0 where None belongs",
    ),
    "batch": (
        lambda: noise_bound(PROBLEM, batch=51),
        "run: batch must be at most the data of every agent, got 51",
    ),
    "sampling": (
        lambda: noise_bound(PROBLEM, batch=5, sampling="some"),
        "run: sampling must be one of",
    ),
    "averages": (
        lambda: noise_estimate(PROBLEM, [np.zeros(3)], batch=5),
        r"noise_estimate: averages must be vectors of 48 entries, got shapes \[\(3,\)\]",
    ),
    "no averages": (
        lambda: noise_estimate(PROBLEM, [], batch=5),
        "noise_estimate: averages must be vectors of 48 entries",
    ),
    "models": (lambda: certify(PROBLEM, np.zeros(3)), r"certify: result must have shape .*\(3,\)"),
    "models nan": (lambda: certify(PROBLEM, np.full(48, np.nan)), "certify: result must be finite"),
    "models text": (lambda: certify(PROBLEM, "best"), "certify: result must be numbers"),
    "gap": (lambda: Gap(0.0), "Gap: tolerance must be > 0, got 0.0"),
    "gap nan": (lambda: Gap(np.nan), "Gap: tolerance must be a finite number, got nan"),
    "gap not convex": (
        lambda: run(WAVY, PCFedAvg(0.1, 1.0), rounds=2, stop=Gap(0.1)),
        "Gap: there must be a certificate to stop at, but the loss of agent 0 is not convex",
    ),
    "optimum not convex": (
        lambda: optimum(WAVY),
        "optimum: losses must be convex, got one of agent 0 that is not",
    ),
    "tolerance": (lambda: optimum(PROBLEM, tolerance=0.0), "optimum: tolerance must be > 0"),
    "iterations": (lambda: optimum(PROBLEM, iterations=0), "optimum: iterations must be a whole"),
    "optimum penalty": (lambda: optimum(PROBLEM, penalty=-1.0), "optimum: penalty must be > 0"),
    "x0": (lambda: optimum(PROBLEM, x0=np.zeros(2)), "optimum: x0 must have shape"),
    "gradient": (
        lambda: PROBLEM.gradient(np.zeros(2)),
        "Problem.gradient: models must have shape",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_arguments_get_one_sentence(name):
    action, expected = CASES[name]
    with pytest.raises(ValueError, match=expected) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")


def test_the_largest_step_is_admitted_even_when_it_is_written_in_decimals():
    known = Constants(**KNOWN)
    assert bounds(known, rounds=5, step=float(f"{known.largest_step:.10g}")).step > 0


def test_least_squares_need_full_batches():
    problem = Problem([Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(1.0), 0.1)] * 2)
    assert constants(problem, penalty=1.0, batch=1).nu2 == np.inf
