"""Errors of TorchLoss and of sets for the parameters of a module."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pcfed.errors import install_command
from pcfed.sets import Blocks, Box, L1Ball
from tests.losses.torch_cases import (
    NAN,
    D,
    K,
    N,
    TorchLoss,
    X,
    Y,
    network,
    nn,
    one_thread,
    pair,
    pictures,
    torch,
)

__all__ = ["one_thread"]


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


def layers(*others: Any) -> Any:
    return nn.Sequential(nn.Linear(D, K), *others)


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
    (lambda: layers(nn.BatchNorm1d(K)), r"statistics.*got '1', a BatchNorm1d; use GroupNorm or"),
    (lambda: nn.BatchNorm1d(D, track_running_stats=False), r"got 'module', a BatchNorm1d; use"),
    (lambda: layers(nn.InstanceNorm1d(K, track_running_stats=True)), r"a InstanceNorm1d; use"),
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
    (
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, K)),
        r"not change its input.*inplace",
    ),
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
    ({"loss_fn": nn.CrossEntropyLoss(reduction="sum")}, r"a mean over the batch, got .*; use"),
    ({"loss_fn": nn.CrossEntropyLoss(torch.arange(1.0, 11))}, r"a mean over the batch, got .*with"),
    ({"loss_fn": nn.CrossEntropyLoss(reduction="none")}, r"one number.*got shape \(8,\); use"),
    ({"loss_fn": lambda output, y: 1.0}, r"one number.*got float; use"),
    ({"loss_fn": nn.CrossEntropyLoss}, r"loss_fn must be a function.*got <class.*; give"),
    ({"loss_fn": "mean"}, r"loss_fn must be a function of outputs and y, got 'mean'; give"),
    ({"convex": 1}, r"convex must be True or False, got 1; give"),
    ({"block": 0}, r"block must be a whole number ≥ 1, got 0; give"),
    ({"scale": 0}, r"scale must be > 0, got 0; give"),
    ({"device": "nowhere"}, r"can be copied to a device, got RuntimeError .*; give device="),
]
BAD_ARGUMENTS = [
    *(({"module": make}, message) for make, message in MODULES),
    *(({"data": data}, message) for data, message in DATA),
    *OPTIONS,
]


@pytest.mark.parametrize(("given", "message"), BAD_ARGUMENTS)
def test_bad_arguments(given: dict[str, Any], message: str) -> None:
    options = {"data": (X, Y), "loss_fn": nn.CrossEntropyLoss(), **given}
    make = options.pop("module", lambda: nn.Linear(D, K))
    torch.manual_seed(0)
    module, data, loss_fn = make(), options.pop("data"), options.pop("loss_fn")
    with pytest.raises(ValueError, match=message) as error:
        TorchLoss(module, data, loss_fn, **options)
    assert str(error.value).startswith("TorchLoss: ")
    assert str(error.value).endswith(".")
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)


def test_targets_that_would_be_broadcast() -> None:
    with pytest.raises(ValueError, match=r"loss_fn must take.*Using a target size"):
        TorchLoss(nn.Linear(D, 1), (X, X[:, 0]), nn.MSELoss())


CALLS: list[tuple[Any, str]] = [
    (lambda f: f.value(np.zeros(5)), r"x must be a flat vector of 200 real parameters, got shape"),
    (lambda f: f.gradient(np.zeros((K, D))), r"x must be a flat vector.*\(10, 20\).*x\.ravel\(\)"),
    (lambda f: f.gradient(f.start, slice(2, 2)), r"rows must select at least one of the 60"),
    (lambda f: f.gradient(f.start, np.array([60])), r"rows must lie in 0\.\.59, got 60 to 60;"),
    (lambda f: f.gradient(f.start, np.ones(N, bool)), r"rows must be a slice.*flatnonzero"),
    (lambda f: f.gradient(f.start, out=np.zeros(3)), r"out must be a float array.*\(3,\)"),
    (
        lambda f: f.permute_samples([0, 1, 2]),
        r"order must hold every row 0\.\.59 once, got an array",
    ),
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


def test_import_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pcfed.losses import *\n"
        "import pcfed\n"
        "try: from pcfed.losses import TorchLoss\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    command = install_command("torch")
    assert done.stdout == f"TorchLoss: torch is not installed; run {command}.\n"
