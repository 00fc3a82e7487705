"""TorchLoss: gradients, the same numbers as NumPy's, no side effects."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.guarantees import optimum
from pcfed.losses import Loss, SoftmaxRegression
from pcfed.sets import Blocks, L1Ball
from tests.losses.torch_cases import (
    PICTURES,
    RNG,
    D,
    K,
    N,
    TorchLoss,
    X,
    Y,
    linear,
    network,
    nn,
    one_thread,
    pair,
    pictures,
    torch,
)

__all__ = ["one_thread"]


def test_attributes() -> None:
    loss = pictures(torch.float32)
    assert isinstance(loss, Loss)
    assert loss.n == 4 * 9 + 4 + 4 + 4 + 144 * K + K
    assert (loss.shape, loss.size, loss.dtype) == ((loss.n,), N, "float32")
    assert (loss.convex, loss.intercept_slice, loss.smoothness()) == (False, None, math.inf)
    assert loss.gradient_spread() == math.inf
    assert repr(loss) == f"TorchLoss(60 samples, Sequential of {loss.n} parameters, float32)"
    assert pair()[0].convex


@pytest.mark.parametrize("block", [512, 7])
def test_finite_differences(block: int) -> None:
    loss = pictures(block=block)
    x, h = loss.start.copy(), 1e-5
    some = np.random.default_rng(0).choice(loss.n, 60, replace=False)
    slopes = []
    for i in some:
        e = np.zeros(loss.n)
        e[i] = h
        slopes.append((loss.value(x + e) - loss.value(x - e)) / (2 * h))
    gradient = loss.gradient(x)
    assert gradient.dtype == np.float64
    assert np.linalg.norm(gradient[some] - slopes) < 1e-7 * np.linalg.norm(slopes)


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-12), ("float32", 1e-6)])
def test_the_same_numbers_as_softmax_regression(dtype: str, error: float) -> None:
    by_torch, by_numpy = pair(dtype=dtype)
    x = RNG.standard_normal(by_numpy.n)
    assert_allclose(by_torch.value(x), by_numpy.value(x), rtol=error)
    assert by_torch.accuracy(x) == by_numpy.accuracy(x)
    choices = [None, slice(3, 40), slice(None, None, -7), slice(-5, None), np.array([5, 2, 5, -1])]
    for rows in choices:
        assert_allclose(by_torch.gradient(x, rows), by_numpy.gradient(x, rows), atol=error)
    assert_allclose(
        by_torch.to_float64().gradient(x), by_numpy.to_float64().gradient(x), atol=1e-12
    )


@pytest.mark.parametrize("algorithm", [PCFedAvg(0.2, 2.0), PCFedSplit(prox=2.0)], ids=repr)
@pytest.mark.parametrize("sampling", ["without_replacement", "blocks"])
@pytest.mark.parametrize("batch", [1.0, 7])
def test_the_same_run_as_softmax_regression(
    algorithm: Any, sampling: Any, batch: Any, monkeypatch: Any
) -> None:
    # The same curvature for both; a TorchLoss would measure it.
    monkeypatch.setattr(TorchLoss, "typical_smoothness", lambda loss, batch=None: 4.0)
    monkeypatch.setattr(SoftmaxRegression, "typical_smoothness", lambda loss, batch=None: 4.0)
    pairs = [pair(slice(0, 25)), pair(slice(25, 37)), pair(slice(37, 60))]
    runs = []
    for position in (0, 1):
        agents = [
            Agent(losses[position], L1Ball(radius), coupling=0.05, test=pair()[position])
            for losses, radius in zip(pairs, (0.5, 2.0, 9.0), strict=True)
        ]
        problem = Problem(agents)
        result = run(problem, algorithm, rounds=30, local_steps=4, batch=batch, sampling=sampling)
        runs.append((result, certify(problem, result)))
    (by_torch, bound), (by_numpy, other) = runs
    assert_allclose(by_torch.models, by_numpy.models, atol=1e-6)
    assert_allclose(bound.gap, other.gap, rtol=1e-6)
    for left, right in zip(by_torch.history, by_numpy.history, strict=True):
        assert_allclose(left.objective, right.objective, rtol=1e-6)
        assert_allclose(left.test_accuracy, right.test_accuracy)


def problem_of_networks(dtype: Any = torch.float32) -> tuple[Problem, Any]:
    module = network(dtype)
    agents = []
    for rows, radius in ((slice(0, 20), 1.0), (slice(20, 40), 3.0), (slice(40, 60), 9.0)):
        loss = TorchLoss(module, (PICTURES[rows], Y[rows]), nn.CrossEntropyLoss())
        agents.append(Agent(loss, Blocks.for_module(module, {"5.weight": L1Ball(radius)}), 0.01))
    same = Agent(agents[0].loss, agents[1].constraint, 0.02)  # one loss for two agents
    return Problem([*agents, same]), agents[0].loss


def test_two_workers_give_the_bits_of_one() -> None:
    results = []
    for workers in (1, 2, 3, 2):
        problem, loss = problem_of_networks()
        options = {"rounds": 6, "local_steps": 3, "batch": 5, "workers": workers}
        results.append(run(problem, PCFedSplit(), x0=loss.start, **options))
    for result in results[1:]:
        assert_array_equal(result.models, results[0].models)
        assert result.history[-1].objective == results[0].history[-1].objective


def test_pcfedsplit_measures_the_curvature_and_lowers_the_loss() -> None:
    problem, loss = problem_of_networks()
    before = problem.loss(loss.start)
    result = run(problem, PCFedSplit(), rounds=60, local_steps=5, x0=loss.start)
    assert result.status == "finished"
    assert result.history[-1].loss < 0.9 * before  # budgets of one layer hold it back
    assert problem.infeasibility(result.models).max() <= 1e-12
    measured = result.state.private["factor"]  # times 1, because nothing is expected
    assert measured.min() > 0
    assert np.ptp(measured) > 0


def test_training_lowers_the_loss_and_keeps_the_constraints() -> None:
    problem, loss = problem_of_networks()
    before = problem.loss(loss.start)
    result = run(problem, PCFedAvg(step=0.5, penalty=2.0), rounds=40, local_steps=5, x0=loss.start)
    assert result.history[-1].loss < before / 2
    certificate = certify(problem, result)
    assert certificate.gap is None
    assert certificate.reason == "the loss of agent 0 is not convex"
    for model, radius in zip(certificate.models, (1, 3, 9, 3), strict=True):
        assert np.abs(loss.unpack(model)["5.weight"]).sum() <= radius * (1 + 1e-9)


def test_one_loss_in_many_threads() -> None:
    loss = pictures(torch.float32)
    points = [loss.start + np.float32(0.01 * i) for i in range(24)]
    alone = [loss.gradient(x) for x in points]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(loss.gradient, points))
    for left, right in zip(alone, together, strict=True):
        assert_array_equal(left, right)


def test_no_side_effects() -> None:
    module, data = network(), (PICTURES.copy(), Y.copy())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    loss = TorchLoss(module, data, nn.CrossEntropyLoss())
    x = loss.start + 0.1
    first, value = loss.gradient(x, np.arange(9)), loss.value(x)
    loss.gradient(loss.start)
    assert_array_equal(loss.gradient(x, np.arange(9)), first)
    assert loss.value(x) == value
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.grad is None for p in module.parameters())
    assert module.training
    assert torch.equal(torch.get_rng_state(), state)
    assert_array_equal(data[0], PICTURES)
    with torch.no_grad():
        module[0].weight.zero_()
    assert loss.value(x) == value
    with pytest.raises(AttributeError, match=r"block cannot be changed; make a new loss"):
        loss.block = 3
    assert not loss.start.flags.writeable


def test_inside_no_grad() -> None:
    loss = pictures()
    expected = loss.gradient(loss.start)
    with torch.no_grad():
        assert_array_equal(loss.gradient(loss.start), expected)


@pytest.mark.parametrize("block", [1, 7, 59])
def test_blocks_change_nothing_but_rounding(block: int) -> None:
    whole, parts = pictures(), pictures(block=block)
    x = whole.start
    assert_allclose(parts.value(x), whole.value(x), rtol=1e-13)
    assert_allclose(parts.gradient(x), whole.gradient(x), atol=1e-14)
    assert parts.accuracy(x) == whole.accuracy(x)


def test_permuted_samples() -> None:
    loss, order = pictures(), np.random.default_rng(1).permutation(N)
    other = loss.permute_samples(order)
    x = loss.start
    assert_allclose(other.gradient(x, slice(5, 15)), loss.gradient(x, order[5:15]), atol=1e-15)
    assert_allclose(other.value(x), loss.value(x), rtol=1e-14)


def test_module_and_unpack_round_trip() -> None:
    loss = pictures()
    x = loss.start + np.linspace(-1, 1, loss.n)
    module = loss.module(x)
    flat = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    assert_array_equal(flat, x)
    for name, parameter in module.named_parameters():
        assert_array_equal(loss.unpack(x)[name], parameter.detach().numpy())
    assert module.training
    output = module.eval()(torch.from_numpy(PICTURES / 255))
    assert_allclose(nn.CrossEntropyLoss()(output, torch.from_numpy(Y)).item(), loss.value(x))
    assert np.shares_memory(loss.unpack(x)["0.weight"], x)


def test_frozen_parameters_are_no_part_of_x() -> None:
    module = network()
    module[0].requires_grad_(False)
    module.register_parameter("code", nn.Parameter(torch.arange(3), requires_grad=False))
    loss = TorchLoss(module, (PICTURES, Y), nn.CrossEntropyLoss())
    assert loss.n == 8 + 144 * K + K
    assert "0.weight" not in loss.unpack(loss.start)
    assert_allclose(loss.value(loss.start), pictures().value(pictures().start))
    assert_allclose(loss.gradient(loss.start), pictures().gradient(pictures().start)[40:])
    with pytest.raises(ValueError, match=r"no trainable parameter '0\.weight'; "):
        Blocks.for_module(module, {"0.weight": L1Ball(1)})
    assert Blocks.for_module(module, {"1.bias": L1Ball(1)}).blocks[0][0] == (4, 8)


def test_shared_and_unused_parameters() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = self.first
            self.idle = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.second(torch.tanh(self.first(x)))

    loss = TorchLoss(Twice().double(), (np.eye(3), np.eye(3)[::-1]), nn.MSELoss())
    assert loss.n == 9 + 6
    x = np.linspace(-1, 1, 15)
    gradient = loss.gradient(x)
    h = 1e-6 * np.eye(15)
    assert_allclose(
        gradient, [(loss.value(x + e) - loss.value(x - e)) / 2e-6 for e in h], atol=1e-8
    )
    assert_array_equal(gradient[9:], 0)
    assert math.isnan(loss.accuracy(x))


def test_forms_of_data() -> None:
    x = pair()[0].start
    scaled = [
        (X.astype(np.float32), Y.astype(np.uint8)),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        (np.asfortranarray(X), Y[::-1][::-1]),
        (X[::-1][::-1].astype(">f8"), Y.astype(">i4")),
    ]
    values = [TorchLoss(linear(), data, nn.CrossEntropyLoss()).value(x) for data in scaled]
    assert_allclose(values, values[1], rtol=1e-6)
    for locked in (X, Y):
        locked.flags.writeable = False
    try:
        assert TorchLoss(linear(), (X, Y), nn.CrossEntropyLoss()).value(x) == values[1]
    finally:
        for locked in (X, Y):
            locked.flags.writeable = True


def test_pixels_scale_and_token_ids() -> None:
    pixels = RNG.integers(0, 256, (N, D), dtype=np.uint8)
    x = RNG.standard_normal(K * D)
    loss = TorchLoss(linear(), (pixels, Y), nn.CrossEntropyLoss())
    other = TorchLoss(linear(), (pixels / 255, Y), nn.CrossEntropyLoss())
    third = TorchLoss(linear(), (pixels.astype(int), Y), nn.CrossEntropyLoss(), scale=1 / 255)
    assert_allclose([loss.value(x), third.value(x)], other.value(x), rtol=1e-14)
    tokens = TorchLoss(nn.Embedding(5, K), (np.arange(N) % 5, Y), nn.CrossEntropyLoss())
    assert tokens.gradient(tokens.start).shape == (50,)


def test_a_module_that_requires_float32_has_no_float64_form() -> None:
    class Single(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x.float())

    loss = TorchLoss(Single(D, K), (X, Y), nn.CrossEntropyLoss())
    assert loss.to_float64() is loss
    assert pictures(torch.float32).to_float64().dtype == np.float64
    assert pictures(torch.float32).to_float64().gradient(pictures().start).dtype == np.float64


@pytest.mark.parametrize("options", [{"step": "auto"}, {"step": "theory", "penalty": "theory"}])
def test_steps_that_need_a_smoothness_raise(options: Any) -> None:
    problem = Problem([Agent(pair()[0], L1Ball(1), 0.1) for _ in range(2)])
    with pytest.raises(ValueError, match=r"smoothness, got .*inf; give .*such as 0\.1\.$"):
        run(problem, PCFedAvg(**{"penalty": 1.0, **options}), rounds=2)
    with pytest.raises(ValueError, match=r"optimum: losses must have a finite smoothness, got inf"):
        optimum(problem)


def test_a_run_that_overflows_ends_with_a_status() -> None:
    problem, loss = problem_of_networks()
    result = run(problem, PCFedAvg(step=1e30, penalty=1.0), rounds=5, x0=loss.start)
    assert result.status == "diverged"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_agrees() -> None:
    here, there = pictures(), pictures(device="cuda")
    assert_allclose(there.gradient(here.start), here.gradient(here.start), atol=1e-10)
    assert_allclose(there.value(here.start), here.value(here.start))


def test_errors_of_samples_are_losses_where_there_are_no_labels() -> None:
    y = RNG.standard_normal(N)
    loss = TorchLoss(nn.Linear(D, 1, dtype=torch.float64), (X, y[:, None]), nn.MSELoss(), block=7)
    errors = loss.sample_errors(loss.start)
    predictions = loss.sample_predictions(loss.start)
    assert errors is not None
    assert predictions is not None
    assert_allclose(errors, (predictions[:, 0] - y) ** 2)
    assert_allclose(errors.mean(), loss.value(loss.start))
    no_tensor = TorchLoss(Pair(), (X, y), lambda output, y: ((output[0] - y) ** 2).mean())
    assert no_tensor.sample_errors(no_tensor.start) is None
    assert no_tensor.sample_predictions(no_tensor.start) is None


class Pair(nn.Module):
    """A module that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, 1, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[:, 0], x
