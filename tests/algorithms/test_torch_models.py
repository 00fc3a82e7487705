"""Methods beside PCFedSplit with PyTorch modules: sets per layer, NumPy's numbers, resumed runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pcfed import (
    Agent,
    Ditto,
    FedDualAvg,
    FedMiD,
    FedRep,
    PerFedAvg,
    PFedHN,
    PFedMe,
    Problem,
    ProxAL,
    run,
)
from pcfed.algorithms import Algorithm
from pcfed.algorithms.constrained import SharedModelAlgorithm
from pcfed.sets import Blocks, Box, L2Ball
from tests.losses.torch_cases import D, K, TorchLoss, X, Y, nn, one_thread, pair, torch
from tests.simulation.checkpointed import run as checkpointed
from tests.simulation.test_checkpoint import killed
from tests.simulation.test_run import same

__all__ = ["one_thread"]

HIDDEN = 4
PARTS = (slice(0, 20), slice(20, 35), slice(35, 60))
RADII = (0.15, 0.6, 1.2)
WIDTH = 0.1

METHODS: dict[str, Algorithm] = {
    "Ditto": Ditto(step=0.3, prox=0.2),
    "PFedMe": PFedMe(step=0.2, own_step=0.2, prox=2.0, own_steps=3),
    "PerFedAvg": PerFedAvg(step=0.3, own_step=0.2, own_steps=2, hessian_free=True),
    "FedRep": FedRep(step=0.3, own=((-HIDDEN * K - K, None),), own_steps=3),
    "PFedHN": PFedHN(step=0.3, server_step=0.3, embedding=3, hidden=4),
    "FedMiD": FedMiD(step=0.3, project_onto="l2(3)"),
    "FedDualAvg": FedDualAvg(step=0.3, project_onto="l2(3)"),
    "ProxAL": ProxAL(step=0.3, penalty=0.05, prox=0.5, inner_rounds=4),
}
every_method = pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)


def network(dtype: Any = torch.float64) -> Any:
    """Two linear layers, "0" and "2"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, K)).to(dtype)


def networks(dtype: Any = torch.float64) -> tuple[Problem, np.ndarray]:
    """Agents whose first layer is in a ball and whose second one is in a box, and a start."""
    module, agents = network(dtype), []
    for part, radius in zip(PARTS, RADII, strict=True):
        features = X[part].astype("float64" if dtype is torch.float64 else "float32")
        loss = TorchLoss(module, (features, Y[part]), nn.CrossEntropyLoss())
        limits = {"0.weight": L2Ball(radius), "2.weight": Box(-WIDTH, WIDTH)}
        agents.append(Agent(loss, Blocks.for_module(module, limits)))
    return Problem(agents), agents[0].loss.start


@every_method
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_own_models_are_in_their_sets(algorithm: Any, dtype: Any) -> None:
    problem, start = networks(dtype)
    options = {"rounds": 15, "local_steps": 4, "batch": 8, "x0": start}
    inside = run(problem, algorithm, **options)
    outside = run(problem, replace(algorithm, constrained=False), **options)
    assert max(record.infeasibility.max() for record in inside.history) < 1e-12
    assert problem.infeasibility(outside.models).min() > 0.1
    losses = []
    for agent, radius, x in zip(problem.agents, RADII, inside.models, strict=True):
        layers = agent.loss.unpack(x)
        norm, largest = np.linalg.norm(layers["0.weight"]), np.abs(layers["2.weight"]).max()
        assert norm <= radius * (1 + 1e-6)
        assert largest <= WIDTH * (1 + 1e-6)
        assert largest == pytest.approx(WIDTH, rel=1e-3), "the box must bind, or nearly"
        if radius == min(RADII):
            assert norm == pytest.approx(radius), "the smallest ball must bind"
        nearest = agent.constraint.project(start.astype(np.float64))
        losses.append((agent.loss.value(x), agent.loss.value(nearest)))
    own, first = np.mean(losses, axis=0)
    assert own < first - 0.01, "training must lower the mean loss"


@every_method
@pytest.mark.parametrize("constrained", [True, False])
def test_a_linear_module_gives_the_models_of_softmax_regression(
    algorithm: Any, constrained: bool
) -> None:
    losses = [pair(part) for part in PARTS]
    by_torch, by_numpy = (
        run(
            Problem([Agent(each[i], L2Ball(r)) for each, r in zip(losses, RADII, strict=True)]),
            replace(algorithm, constrained=constrained),
            rounds=20,
            local_steps=4,
        )
        for i in (0, 1)
    )
    np.testing.assert_allclose(by_torch.models, by_numpy.models, rtol=0, atol=1e-10)
    norms = np.linalg.norm(by_numpy.models, axis=1)
    assert (norms > 0.1).all()
    own = constrained or not isinstance(algorithm, SharedModelAlgorithm)
    assert (np.ptp(by_numpy.models, axis=0).max() > 0.01) == own, "own models alone must differ"


@every_method
def test_a_resumed_run_gives_the_bits_of_a_run_without_a_pause(algorithm: Any, tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    problem, start = networks(torch.float32)
    options = {"rounds": 8, "local_steps": 3, "batch": 6, "participation": 2, "x0": start}
    killed(problem, algorithm, path, at=5, every=2, **options)
    # A new problem, as in a new process: nothing but the checkpoint may connect the two runs.
    resumed = checkpointed(
        networks(torch.float32)[0], algorithm, checkpoint=path, every=2, resume=True, **options
    )
    whole = run(problem, algorithm, **options)
    same(resumed, whole)
    assert np.abs(whole.models - start).max() > 0.01


def test_fedrep_has_one_representation_and_a_head_of_every_agent() -> None:
    problem, start = networks()
    algorithm = FedRep(
        step=0.3, own=FedRep.slices_for_module(network(), ["2"]), own_steps=3, constrained=False
    )
    result = run(problem, algorithm, rounds=10, local_steps=3, x0=start)
    models = [agent.loss.unpack(x) for agent, x in zip(problem.agents, result.models, strict=True)]
    first = problem.agents[0].loss.unpack(start)
    for name in ("0.weight", "0.bias"):
        for other in models[1:]:
            np.testing.assert_array_equal(other[name], models[0][name])
        assert np.abs(models[0][name] - first[name]).max() > 0.01
    for name in ("2.weight", "2.bias"):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert np.abs(models[i][name] - models[j][name]).max() > 0.1
