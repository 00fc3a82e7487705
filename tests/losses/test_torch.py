"""The loss of a PyTorch module: gradients, the same numbers as NumPy's, purity, refusals."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pcfed import Agent, PCFedAvg, Problem, certify, run
from pcfed.guarantees import optimum
from pcfed.losses import Loss, SoftmaxRegression
from pcfed.sets import Blocks, Box, L1Ball

torch = pytest.importorskip("torch")
TorchLoss = pytest.importorskip("pcfed.losses.torch_loss").TorchLoss
nn = torch.nn

N, D, K = 60, 20, 10
RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((N, D)), RNG.integers(0, K, N)
PICTURES = RNG.integers(0, 256, (N, 1, 8, 8), dtype=np.uint8)
NAN = float("nan")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def linear(dtype: Any = torch.float64) -> Any:
    return nn.Linear(D, K, bias=False, dtype=dtype)


def network(dtype: Any = torch.float64) -> Any:
    """A small convolutional network with everything that is allowed to be in one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(4 * 36, K),
        ).to(dtype)


def pictures(dtype: Any = torch.float64, **options: Any) -> Any:
    return TorchLoss(network(dtype), (PICTURES, Y), nn.CrossEntropyLoss(), **options)


def pair(rows: Any = slice(None), dtype: str = "float64") -> tuple[Any, SoftmaxRegression]:
    """One loss, once by torch and once by NumPy."""
    features = X[rows].astype(dtype)
    module = linear(getattr(torch, dtype))
    theirs = TorchLoss(module, (features, Y[rows]), nn.CrossEntropyLoss(), convex=True)
    return theirs, SoftmaxRegression(features, Y[rows], classes=K)


def test_attributes() -> None:
    loss = pictures(torch.float32)
    assert isinstance(loss, Loss)
    assert loss.n == 4 * 9 + 4 + 4 + 4 + 144 * K + K
    assert (loss.shape, loss.size, loss.dtype) == ((loss.n,), N, "float32")
    assert (loss.convex, loss.free, loss.smoothness()) == (False, None, math.inf)
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
def test_the_numbers_of_softmax_regression(dtype: str, error: float) -> None:
    theirs, ours = pair(dtype=dtype)
    x = RNG.standard_normal(ours.n)
    assert_allclose(theirs.value(x), ours.value(x), rtol=error)
    assert theirs.accuracy(x) == ours.accuracy(x)
    choices = [None, slice(3, 40), slice(None, None, -7), slice(-5, None), np.array([5, 2, 5, -1])]
    for rows in choices:
        assert_allclose(theirs.gradient(x, rows), ours.gradient(x, rows), atol=error)
    assert_allclose(theirs.double().gradient(x), ours.double().gradient(x), atol=1e-12)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("sampling", ["without_replacement", "blocks"])
@pytest.mark.parametrize("batch", [1.0, 7])
def test_the_trajectory_of_softmax_regression(exact: bool, sampling: Any, batch: Any) -> None:
    pairs = [pair(slice(0, 25)), pair(slice(25, 37)), pair(slice(37, 60))]
    runs = []
    for kind in (0, 1):
        agents = [
            Agent(losses[kind], L1Ball(radius), coupling=0.05, test=pair()[kind])
            for losses, radius in zip(pairs, (0.5, 2.0, 9.0), strict=True)
        ]
        problem = Problem(agents)
        method = PCFedAvg(step=0.2, penalty=2.0, exact=exact)
        result = run(problem, method, rounds=30, local_steps=4, batch=batch, sampling=sampling)
        runs.append((result, certify(problem, result)))
    (theirs, bound), (ours, other) = runs
    assert_allclose(theirs.models, ours.models, atol=1e-6)
    assert_allclose(bound.gap, other.gap, rtol=1e-6)
    for left, right in zip(theirs.history, ours.history, strict=True):
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
        method = PCFedAvg(step=0.1, penalty=1.0, exact=True)
        options = {"rounds": 6, "local_steps": 3, "batch": 5, "workers": workers}
        results.append(run(problem, method, x0=loss.start, **options))
    for result in results[1:]:
        assert_array_equal(result.models, results[0].models)
        assert result.history[-1].objective == results[0].history[-1].objective


def test_training_lowers_the_loss_and_keeps_the_budgets() -> None:
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


def test_purity() -> None:
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


def test_out() -> None:
    loss = pictures(torch.float32)
    x = loss.start.copy()
    expected = loss.gradient(x)
    out = np.empty(loss.n, np.float32)
    assert loss.gradient(x, out=out) is out
    assert_array_equal(out, expected)
    wide, strided = np.empty(loss.n), np.empty(2 * loss.n, np.float32)[::2]
    for other in (wide, strided):
        assert loss.gradient(x, out=other) is other
        assert_array_equal(other, expected)
    assert loss.gradient(x, out=x) is x
    assert_array_equal(x, expected)


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


def test_permuted() -> None:
    loss, order = pictures(), np.random.default_rng(1).permutation(N)
    other = loss.permuted(order)
    x = loss.start
    assert_allclose(other.gradient(x, slice(5, 15)), loss.gradient(x, order[5:15]), atol=1e-15)
    assert_allclose(other.value(x), loss.value(x), rtol=1e-14)


def test_pickle() -> None:
    loss = pictures()
    loss.value(loss.start)
    other = pickle.loads(pickle.dumps(loss))
    assert_array_equal(other.gradient(loss.start), loss.gradient(loss.start))


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


def test_pixels_scale_and_words() -> None:
    pixels = RNG.integers(0, 256, (N, D), dtype=np.uint8)
    x = RNG.standard_normal(K * D)
    loss = TorchLoss(linear(), (pixels, Y), nn.CrossEntropyLoss())
    other = TorchLoss(linear(), (pixels / 255, Y), nn.CrossEntropyLoss())
    third = TorchLoss(linear(), (pixels.astype(int), Y), nn.CrossEntropyLoss(), scale=1 / 255)
    assert_allclose([loss.value(x), third.value(x)], other.value(x), rtol=1e-14)
    words = TorchLoss(nn.Embedding(5, K), (np.arange(N) % 5, Y), nn.CrossEntropyLoss())
    assert words.gradient(words.start).shape == (50,)


def test_a_module_that_insists_on_float32_has_no_double() -> None:
    class Single(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x.float())

    loss = TorchLoss(Single(D, K), (X, Y), nn.CrossEntropyLoss())
    assert loss.double() is loss
    assert pictures(torch.float32).double().dtype == np.float64
    assert pictures(torch.float32).double().gradient(pictures().start).dtype == np.float64


@pytest.mark.parametrize("options", [{"step": "auto"}, {"step": "theory", "penalty": "theory"}])
def test_steps_that_need_a_smoothness_are_refused(options: Any) -> None:
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


class Noise(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + torch.rand(1).item()


class Counter(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x)


class Detached(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x).detach()


def layers(*some: Any) -> Any:
    return nn.Sequential(nn.Linear(D, K), *some)


def broken() -> Any:
    module = nn.Linear(D, K)
    with torch.no_grad():
        module.weight[0, 0] = NAN
    return module


def frozen() -> Any:
    return nn.Linear(D, K).requires_grad_(False)


def mixed() -> Any:
    return nn.Sequential(nn.Linear(D, D), nn.Linear(D, K).double())


MODULES: list[tuple[Callable[[], Any], str]] = [
    (lambda: layers(nn.BatchNorm1d(K)), r"statistics.*got '1', a BatchNorm1d; take GroupNorm or"),
    (lambda: nn.BatchNorm1d(D, track_running_stats=False), r"got 'module', a BatchNorm1d; take"),
    (lambda: layers(nn.InstanceNorm1d(K, track_running_stats=True)), r"a InstanceNorm1d; take"),
    (lambda: len, r"module must be a torch\.nn\.Module, got builtin_function_or_method; wrap"),
    (frozen, r"must have trainable parameters, got none in Linear; set requires_grad"),
    (lambda: nn.Linear(D, K).half(), r"all float32 or all float64, got 'weight' of float16; conv"),
    (lambda: nn.Linear(D, K, dtype=torch.complex64), r"got 'weight' of complex64; convert"),
    (mixed, r"all float32 or all float64, got '1\.weight' of float64; convert"),
    (broken, r"trainable parameters must be finite, got NaN or inf in 'weight'; initialise"),
    (lambda: nn.LazyLinear(K), r"know the shapes.*got 'weight' without one; call the module once"),
    (lambda: Noise(D, K), r"must be a function of its input.*called twice; keep random numbers"),
    (lambda: Counter(D, K), r"must be a function of its input.*called twice; keep random numbers"),
    (lambda: Detached(D, K), r"must depend on the trainable parameters.*; keep \.detach\(\)"),
    (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, K)), r"leave its input.*inplace=Fa"),
    (lambda: nn.Linear(D + 1, K), r"must take batches of X, got RuntimeError .* \(8, 20\).*; give"),
    (lambda: nn.LSTM(D, K), r"loss_fn must take outputs and y.*got TypeError"),
]
DATA: list[tuple[Any, str]] = [
    ((X,), r"data must be a pair \(X, y\), got tuple; give"),
    (None, r"data must be a pair \(X, y\), got NoneType; give"),
    ((X, Y[:-1]), r"y must have one entry per row of X, 60 of them, got shape \(59,\); give"),
    ((X, 3), r"y must have one entry per row of X.*got shape \(\); give"),
    ((X[:0], Y[:0]), r"X must have at least one sample.*got shape \(0, 20\); give"),
    (
        (np.where(np.isclose(X, X[9, 2], 0, 0), NAN, X), Y),
        r"X must be finite in float32, got nan at row 9; remove",
    ),
    (
        (np.where(np.isclose(X, X[9, 2], 0, 0), 1e60, X), Y),
        r"X must be finite in float32, got inf at row 9; remo",
    ),
    ((X, np.where(np.arange(N) == 5, NAN, Y)), r"y must be finite.*got nan at row 5; remove"),
    (
        (X, np.where(np.arange(N) == 5, 10, Y)),
        r"y must be whole numbers in 0\.\.9, got 10 at row 5",
    ),
    (
        (X, np.where(np.arange(N) == 0, -1, Y)),
        r"y must be whole numbers in 0\.\.9, got -1 at row 0",
    ),
    ((X, Y.astype(str)), r"y must be real numbers.*got ndarray of <U21; give"),
    ((X * 1j, Y), r"X must be real numbers.*got ndarray of complex128; give"),
    ((torch.from_numpy(X) * 1j, Y), r"X must be real numbers in a dense.*complex128 in strided"),
    ((torch.from_numpy(X).to_sparse(), Y), r"X must be real numbers in a dense.*in sparse_coo"),
    (([[1, 2], [3]], Y), r"X must be real numbers in a rectangular array, got list"),
    ((X, Y * 1.0), r"loss_fn must take outputs and y of shape \(8,\) of float32, got RuntimeE"),
]
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"loss_fn": nn.CrossEntropyLoss(reduction="sum")}, r"a mean over the batch, got .*; take"),
    ({"loss_fn": nn.CrossEntropyLoss(torch.arange(1.0, 11))}, r"a mean over the batch, got .*with"),
    ({"loss_fn": nn.CrossEntropyLoss(reduction="none")}, r"one number.*got shape \(8,\); take"),
    ({"loss_fn": lambda output, y: 1.0}, r"one number.*got float; take"),
    ({"loss_fn": nn.CrossEntropyLoss}, r"loss_fn must be a function.*got <class.*; give"),
    ({"loss_fn": "mean"}, r"loss_fn must be a function of outputs and y, got 'mean'; give"),
    ({"convex": 1}, r"convex must be True or False, got 1; give"),
    ({"block": 0}, r"block must be a whole number ≥ 1, got 0; give"),
    ({"scale": 0}, r"scale must be > 0, got 0; give"),
    ({"device": "nowhere"}, r"can be copied to a device, got RuntimeError .*; give device="),
]
refusals = [
    *(({"module": make}, words) for make, words in MODULES),
    *(({"data": data}, words) for data, words in DATA),
    *OPTIONS,
]


@pytest.mark.parametrize(("given", "message"), refusals)
def test_refusals(given: dict[str, Any], message: str) -> None:
    options = {"data": (X, Y), "loss_fn": nn.CrossEntropyLoss(), **given}
    make = options.pop("module", lambda: nn.Linear(D, K))
    module, data, loss_fn = make(), options.pop("data"), options.pop("loss_fn")
    with pytest.raises(ValueError, match=message) as error:
        TorchLoss(module, data, loss_fn, **options)
    assert str(error.value).startswith("TorchLoss: ")
    assert str(error.value).endswith(".")
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)


def test_targets_that_would_be_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loss_fn must take.*Using a target size"):
        TorchLoss(nn.Linear(D, 1), (X, X[:, 0]), nn.MSELoss())


CALLS: list[tuple[Any, str]] = [
    (lambda f: f.value(np.zeros(5)), r"x must be a flat vector of 200 real parameters, got shape"),
    (lambda f: f.gradient(np.zeros((K, D))), r"x must be a flat vector.*\(10, 20\).*x\.ravel\(\)"),
    (lambda f: f.gradient(f.start, slice(2, 2)), r"rows must select at least one of the 60"),
    (lambda f: f.gradient(f.start, np.array([60])), r"rows must lie in 0\.\.59, got 60 to 60;"),
    (lambda f: f.gradient(f.start, np.ones(N, bool)), r"rows must be a slice.*flatnonzero"),
    (lambda f: f.gradient(f.start, out=np.zeros(3)), r"out must be a float array.*\(3,\)"),
    (lambda f: f.permuted([0, 1, 2]), r"order must hold every row 0\.\.59 once, got an array"),
    (lambda f: f.module(np.zeros(3)), r"x must be a flat vector of 200 real parameters"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_bad_calls(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^TorchLoss: {message}"):
        call(pair()[0])


def test_a_set_per_named_parameter() -> None:
    module = network()
    blocks = Blocks.for_module(module, {"5.bias": Box(0, 1), "0.weight": L1Ball(2)})
    loss = pictures()
    p = blocks.project(loss.start * 50)
    assert_allclose(np.abs(loss.unpack(p)["0.weight"]).sum(), 2)
    assert_array_equal(
        loss.unpack(p)["5.bias"], np.clip(loss.unpack(loss.start)["5.bias"], 0, 1 / 50) * 50
    )
    assert_array_equal(loss.unpack(p)["5.weight"], loss.unpack(loss.start)["5.weight"] * 50)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            {"5.wieght": L1Ball(1)},
            r"no trainable parameter '5.wieght'; did you mean '5.weight'\? Va",
        ),
        ({"conv": L1Ball(1)}, r"parameter 'conv'; Valid names are 0.weight, 0.bias, 1.weight"),
        ({3: L1Ball(1)}, r"no trainable parameter 3; "),
        ({"5.bias": Box([0, 0], [1, 1])}, r"set of '5.bias' must have 10 entries.*got 2; give"),
        ({"5.bias": 3}, r"5.bias: set must be a set, got 3; give"),
        ({}, r"sets must map names of parameters to sets, got \{\}; give"),
        (L1Ball(1), r"sets must map names of parameters to sets, got L1Ball.*; give"),
    ],
)
def test_bad_sets_of_a_module(sets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Blocks\.for_module: .*{message}"):
        Blocks.for_module(network(), sets)


def test_sets_need_a_module() -> None:
    with pytest.raises(ValueError, match=r"module must be a torch\.nn\.Module, got dict; give"):
        Blocks.for_module({}, {"weight": L1Ball(1)})


def test_without_torch_one_sentence() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pcfed.losses import *\n"
        "import pcfed\n"
        "try: from pcfed.losses import TorchLoss\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "TorchLoss: torch is not installed; run pip install 'pcfed[torch]'.\n"
