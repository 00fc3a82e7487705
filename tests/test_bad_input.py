"""Wrong arguments get one sentence that names the argument, the value and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import (
    Agent,
    Ditto,
    FedAvg,
    FedProx,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedMe,
    Power,
    Problem,
    Scaffold,
    run,
)
from pcfed.losses import LeastSquares
from pcfed.reference import reference
from pcfed.sets import Box, L1Ball
from tests.federations import classifiers

LOSS = LeastSquares(np.eye(3), np.ones(3))
BALL = L1Ball(1.0)


def start(**options):
    return lambda: run(classifiers(), PCFedAvg(step=0.1, penalty=1.0), **{"rounds": 2, **options})


CASES = {
    "step zero": (lambda: FedAvg(step=0), "FedAvg: step must be > 0, got 0"),
    "step negative": (lambda: PCFedAvg(-1.0, 1.0), "PCFedAvg: step must be > 0, got -1.0"),
    "step nan": (lambda: FedAvg(step=np.nan), "FedAvg: step must be a finite number, got nan"),
    "step text": (lambda: FedAvg(step="fast"), "FedAvg: step must be a number, a function"),
    "step theory": (lambda: FedAvg(step="theory"), "FedAvg: step must be a number, a function"),
    "penalty": (lambda: PCFedAvg(1.0, -2.0), "PCFedAvg: penalty must be ≥ 0, got -2.0"),
    "prox of PCFedSplit": (lambda: PCFedSplit(0.0), "PCFedSplit: prox must be > 0, got 0.0"),
    "prox nan": (lambda: PCFedSplit(np.nan), "PCFedSplit: prox must be a finite number, got nan"),
    "relaxation": (
        lambda: PCFedSplit(relaxation=2.0),
        r"PCFedSplit: relaxation must be in \(0, 2\), got 2.0; give one such as 1.8",
    ),
    "relaxation nan": (
        lambda: PCFedSplit(relaxation=np.nan),
        "PCFedSplit: relaxation must be a finite number, got nan",
    ),
    "prox": (lambda: FedProx(step=1.0, prox=-1.0), "FedProx: prox must be ≥ 0, got -1.0"),
    "server step": (
        lambda: Scaffold(step=1.0, server_step=0.0),
        "Scaffold: server_step must be > 0, got 0.0",
    ),
    "prox of Ditto": (lambda: Ditto(1.0, prox=-1.0), "Ditto: prox must be ≥ 0, got -1.0"),
    "prox of PFedMe": (lambda: PFedMe(1.0, prox=0.0), "PFedMe: prox must be > 0, got 0.0"),
    "own step": (lambda: PerFedAvg(1.0, own_step=0.0), "PerFedAvg: own_step must be > 0, got 0.0"),
    "own steps": (
        lambda: PFedMe(1.0, prox=1.0, own_steps=0),
        "PFedMe: own_steps must be a whole number ≥ 1, got 0",
    ),
    "constrained": (
        lambda: Ditto(1.0, prox=1.0, constrained="no"),
        "Ditto: constrained must be True or False, got 'no'",
    ),
    "difference": (
        lambda: PerFedAvg(1.0, difference=np.nan),
        "PerFedAvg: difference must be a finite number, got nan",
    ),
    "power": (lambda: Power(offset=0.0), "Power: offset must be > 0, got 0.0"),
    "schedule": (
        lambda: run(classifiers(), FedAvg(step=lambda r: 1.0 - r), rounds=3),
        "FedAvg: step in round 1 must be > 0, got 0.0",
    ),
    "no agent": (lambda: Problem([]), "Problem: agents must not be empty"),
    "not an agent": (lambda: Problem([LOSS]), r"Problem: agents\[0\] must be an Agent, got Least"),
    "no loss": (lambda: Agent(3, BALL, 0.1), "Agent: loss must be a Loss, got int"),
    "no set": (lambda: Agent(LOSS, 85, 0.1), "Agent: constraint must be a ConvexSet, got int"),
    "coupling": (lambda: Agent(LOSS, BALL, -0.1), "Agent: coupling must be ≥ 0, got -0.1"),
    "test shape": (
        lambda: Agent(LOSS, BALL, 0.1, test=LeastSquares(np.eye(2), np.ones(2))),
        "Agent: test must have the shape of loss",
    ),
    "set of another length": (
        lambda: Agent(LOSS, Box(np.zeros(2), np.ones(2)), 0.1),
        "Box",
    ),
    "different n": (
        lambda: Problem(
            [Agent(LOSS, BALL, 0.1), Agent(LeastSquares(np.eye(2), np.ones(2)), BALL, 0.1)]
        ),
        r"Problem: agent 1 has 2 parameters .* agent 0 has 3 .* must share one parameter shape",
    ),
    "same names": (
        lambda: Problem([Agent(LOSS, BALL, 0.1, name="a"), Agent(LOSS, BALL, 0.1, name="a")]),
        "Problem: agent names must differ, got 'a' 2 times",
    ),
    "rounds": (start(rounds=0), "run: rounds must be a whole number ≥ 1, got 0"),
    "rounds float": (start(rounds=1.5), "run: rounds must be a whole number ≥ 1, got 1.5"),
    "batch zero": (start(batch=0), "run: batch must be a whole number ≥ 1, got 0"),
    "batch zero float": (start(batch=0.0), r"run: batch must be a fraction in \(0, 1\]"),
    "batch fraction": (start(batch=1.5), r"run: batch must be a fraction in \(0, 1\]"),
    "batch nan": (start(batch=np.nan), r"run: batch must be a fraction in \(0, 1\]"),
    "batch too large": (start(batch=51), "run: batch must be at most .* got 51 but agent 0 has 50"),
    "sampling": (start(sampling="some"), "run: sampling must be one of without_replacement"),
    "local steps": (start(local_steps=0), "run: local_steps must be a whole number ≥ 1, got 0"),
    "local steps agent": (start(local_steps=[1, 0, 1]), r"run: local_steps\[1\] must be a whole"),
    "local steps length": (start(local_steps=[1, 2]), r"run: local_steps .* got \[1, 2\] for 3"),
    "participation share": (start(participation=0.0), r"run: participation must be a fraction"),
    "participation number": (start(participation=4), "run: participation .* got 4 of 3"),
    "participation zero": (start(participation=0), "run: participation must be a whole number"),
    "participation bool": (start(participation=True), "run: participation must be a fraction"),
    "participation text": (start(participation="all"), "run: participation must be a fraction"),
    "participation who": (start(participation=[[3]]), r"run: participation .* got \[3\] in"),
    "participation mask": (
        start(participation=[[True, False, True]]),
        "run: participation must say which",
    ),
    "participation flat": (start(participation=[0, 1]), "run: participation .* got 0 in round 0"),
    "seed": (start(seed=-1), "run: seed must be a whole number ≥ 0, got -1"),
    "eval_every": (start(eval_every=0), "run: eval_every must be a whole number ≥ 1, got 0"),
    "workers": (start(workers=0), "run: workers must be a whole number ≥ 1, got 0"),
    "output": (start(output="best"), "run: output must be one of .* got 'best'"),
    "x0 shape": (start(x0=np.zeros(3)), r"run: x0 must have shape .*, got \(3,\)"),
    "x0 nan": (start(x0=np.full(48, np.nan)), "run: x0 must be finite, got nan at index"),
    "x0 text": (start(x0="zeros"), "run: x0 must be an array, \"random\" or a Result, got 'zeros'"),
    "x0 result": (
        lambda: start(x0=run(classifiers(2), FedAvg(step=0.1), rounds=1))(),
        r"run: x0 must be a result of this problem, got models of shape \(2, 48\)",
    ),
    "rule": (
        lambda: reference(classifiers(), PCFedAvg(0.1, 1.0), rounds=1, rule="other"),
        "reference: rule must be gradient or printed, got 'other'",
    ),
    "models": (
        lambda: classifiers().objective(np.zeros((2, 2))),
        r"Problem.objective: models must have shape",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    action, expected = CASES[name]
    with pytest.raises(ValueError, match=expected) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
