"""A module that needs an extra says which one, in one sentence with the command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pcfed.errors import install_command
from pcfed.extras import MissingExtra, require

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("pcfed.config", "pydantic", "app"),
        ("pcfed.config.fields", "pydantic", "app"),
        ("pcfed.training", "pydantic", "app"),
        ("pcfed.training.trackers", "pydantic", "app"),
        ("pcfed.training.trackers.mlflow", "mlflow", "mlflow"),
        ("pcfed.training.trackers.tensorboard", "tensorboardX", "tensorboard"),
        ("pcfed.federation", "pydantic", "flower"),
        ("pcfed.federation.keys", "cryptography", "flower"),
        ("pcfed.federation.transport", "httpx", "flower"),
        ("pcfed.federation.client_app", "flwr", "flower"),
        ("pcfed.federation.server_app", "flwr", "flower"),
        ("pcfed.experiments", "threadpoolctl", "experiments"),
        ("pcfed.estimators", "sklearn", "sklearn"),
    ],
)
def test_a_module_names_the_missing_extra(module, package, extra):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (sentence,) = out.stdout.splitlines()
    assert sentence.endswith(f"not installed; run {install_command(extra)}.")


@pytest.mark.parametrize("package", ["cryptography", "flwr", "httpx"])
def test_commands_of_a_federation_name_the_extra_flower(package):
    code = (
        f"import sys; sys.argv = ['pcfed', 'init']\n"
        "from pcfed.cli import app\n"
        f"def fail(**_): raise ModuleNotFoundError(name='{package}.part')\n"
        "app.app = fail\napp.run_app()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"run {install_command('flower')}." in done.stderr


def test_the_error_has_the_package_and_the_sentence():
    require("pcfed.config", "app", "numpy", "scipy")
    with pytest.raises(
        MissingExtra, match=r"pcfed\.x needs the package 'no_such' of the extra 'app'"
    ) as caught:
        require("pcfed.x", "app", "numpy", "no_such")
    assert caught.value.name == "no_such"


def test_every_extra_that_uses_the_command_line_installs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in ("experiments", "flower", "mlflow", "tensorboard"):
        assert "pcfed[app]" in extras[name]
    declared = " ".join(extras["flower"])
    assert all(package in declared for package in ("cryptography", "flwr", "httpx"))
