"""Check an installed pcfed with one extra or none: python tests/smoke.py 0.1.0 [EXTRA].

Every public module is imported, the command is started, and a small problem is trained with what
the extra adds. Modules that need another extra must say which one, in one sentence.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

import pcfed
from pcfed import Agent, PCFedSplit, Problem, certify, run
from pcfed.errors import install_command
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball, Polyhedron

WITH_COMMAND = ("app", "experiments", "flower", "mlflow", "tensorboard")
"""The extras that install the command line."""

MODULES = {
    **dict.fromkeys(("algorithms", "data", "guarantees", "kernels", "losses", "problem")),
    **dict.fromkeys(("reference", "report", "sets", "simulation", "storage")),
    "cli": None,  # its function ``load`` says what is missing
    "config": "app",
    "estimators": "sklearn",
    "experiments": "experiments",
    "federation": "flower",
    "training": "app",
    "training.trackers": "app",
    "training.trackers.mlflow": "mlflow",
    "training.trackers.tensorboard": "tensorboard",
}
"""The public modules, and the extra that the error names where one is missing."""

PROVIDED = {
    "app": {"app"},
    "experiments": {"app", "experiments", "flower", "sklearn"},
    "fast": {"experiments"},  # threadpoolctl is all that the import needs
    "flower": {"app", "experiments", "flower"},
    "mlflow": {"app", "experiments", "flower", "mlflow"},
    "sklearn": {"experiments", "sklearn"},  # scikit-learn needs threadpoolctl, too
    "tensorboard": {"app", "experiments", "flower", "tensorboard"},
}
"""For each extra, those whose modules can be imported with it alone."""
PROVIDED["app"] |= {"experiments", "flower"}


def fail(text: str) -> None:
    """End with an error."""
    sys.exit(f"smoke: {text}")


def check_modules(extra: str) -> int:
    """Import every public module; return how many of them say that another extra is missing."""
    missing = 0
    for name, needed in MODULES.items():
        can_import = needed is None or needed in PROVIDED.get(extra, set())
        try:
            importlib.import_module(f"pcfed.{name}")
        except ImportError as error:
            # The modules of a package are not imported if the package itself says what is missing.
            expected = {install_command(each) for each in (needed, MODULES[name.split(".")[0]])}
            text = str(error)
            is_sentence = text.endswith(".") and "\n" not in text
            if can_import or not is_sentence or not any(f"run {e}." in text for e in expected):
                fail(f"pcfed.{name} with the extra {extra!r}: {error!r}.")
            missing += 1
        else:
            if not can_import:
                fail(f"pcfed.{name} must need {needed!r}, but can be imported with {extra!r}.")
    return missing


def check_command(extra: str) -> None:
    """Start the command: it works, or says which extra to install."""
    command = [str(Path(sys.executable).with_name("pcfed"))]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    if extra not in WITH_COMMAND:
        if done.returncode != 2 or f"run {install_command('app')}." not in done.stderr:
            fail(f"pcfed --help with {extra!r} ended with {done.returncode}: {done.stderr}")
        return
    if done.returncode or "train" not in done.stdout:
        fail(f"pcfed --help with {extra!r} ended with {done.returncode}: {done.stderr}")
    options = {"tensorboard": ["--tensorboard", "events"], "mlflow": ["--mlflow"]}.get(extra, [])
    steps = [
        ["init"],
        ["train", "train.toml", "--out", "run", "--set", "training.rounds=2", *options],
        ["predict", "run", "data/market.csv", "--agent", "market"],
        ["report", "run"],
    ]
    if extra == "flower":
        steps += [["federation", "server", "init", "--host", "localhost", "--agents", "a,b"]]
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            done = subprocess.run([*command, *step], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                fail(f"pcfed {' '.join(step)} with {extra!r}: {done.stdout}{done.stderr}")


def check_torch() -> None:
    """Train one agent on a module."""
    import torch

    from pcfed.losses import TorchLoss

    module = torch.nn.Linear(2, 1, bias=False).double()
    data = (torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64))
    loss = TorchLoss(module, data, torch.nn.functional.mse_loss)
    result = run(Problem([Agent(loss, L1Ball(1.0), 0.1)]), pcfed.FedAvg(0.1), rounds=3)
    if not np.isfinite(result.models).all():
        fail("the models of a module must be finite.")


def check_estimators() -> None:
    """Fit an estimator of two agents."""
    from pcfed.estimators import FederatedRegressor

    X = np.random.default_rng(0).normal(size=(40, 2))
    y = X @ [1.0, -1.0]
    model = FederatedRegressor().fit({"a": (X, y), "b": (X, y)}, constraints={"a": "l1(5)"})
    if not np.abs(model.predict(X, agent="b") - y).max() < 0.5:
        fail("FederatedRegressor must learn a linear function.")


def check_extra(extra: str) -> None:
    """Use what an extra adds to the library."""
    from pcfed.kernels import load

    if (load("sums") is not None) != (extra == "fast"):
        fail(f"compiled functions must be there with 'fast' only, got another with {extra!r}.")
    if extra == "torch":
        check_torch()
    elif extra == "sklearn":
        check_estimators()
    elif extra == "flower":
        for name in ("client_app", "keys", "server_app", "transport"):
            importlib.import_module(f"pcfed.federation.{name}")


def check_training() -> str:
    """Train two agents and return the certificate of their models."""
    loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    sets = (L1Ball(1.0), Polyhedron([[1, 1], [-1, 0], [0, -1]], [5, 5, 5]))
    problem = Problem([Agent(loss, each, coupling=0.1) for each in sets])
    result = run(problem, PCFedSplit(), rounds=100, local_steps=3)
    certificate = certify(problem, result)
    if not (certificate.gap is not None and certificate.gap < 1e-6):
        fail(f"expected a gap below 1e-6, got {certificate}.")
    return str(certificate)


def main() -> None:
    """Check the version, the modules, the command, and a small training."""
    expected, extra = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
    if not version("pcfed") == pcfed.__version__ == expected:
        fail(f"expected {expected}, got {version('pcfed')} and {pcfed.__version__}.")
    if "site-packages" not in pcfed.__file__:
        fail(f"expected the installed pcfed, got {pcfed.__file__}.")
    certificate = check_training()
    missing = check_modules(extra)
    check_command(extra)
    check_extra(extra)
    print(
        f"pcfed {expected} with {extra or 'no extra'} works, {missing} of {len(MODULES)} modules "
        f"name an extra: {certificate}",
        flush=True,
    )


if __name__ == "__main__":
    main()
