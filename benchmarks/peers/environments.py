"""The peers and the virtual environments in which they run, ``.bench/NAME``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"  # pip finds a CPU build of this version; others need CUDA
NUMPY = "numpy==2.4.6"
PATH = re.compile(r"(/[^/\s]+){2,}")
LIMIT = 900
"""Maximum seconds of a peer for one workload."""


@dataclass(frozen=True)
class Peer:
    """One line of the table.

    Attributes
    ----------
    title : str
        Its name in the table.
    module : str
        The script in this folder.
    options : sequence of str
        Further command-line arguments of the script.
    environment : str
        Name of its virtual environment; empty if it runs in the current one.
    packages : sequence of str
        Arguments of ``pip install``, one string per call.
    variables : mapping of str to str
        Environment variables of the process.
    """

    title: str
    module: str
    options: Sequence[str] = ()
    environment: str = ""
    packages: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


# FedJAX does not pin dm-haiku, SciPy and ml_dtypes; newer versions do not work with this JAX.
FEDJAX = (
    *("fedjax==0.0.16", "jax==0.4.25", "jaxlib==0.4.25", "numpy==1.26.4", "scipy==1.12.0"),
    *("dm-haiku==0.0.12", "optax==0.2.2", "chex==0.1.86", "ml_dtypes==0.3.2"),
)
# Disable telemetry, update checks and installation of dependencies at run time.
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
BARE, BASE = "bare", "pcfed-2"
"""The peers that the others are compared with."""

PEERS = {
    BARE: Peer("bare products, stacked", "bare_products"),
    "numpy": Peer("NumPy loop", "numpy_loop"),
    "torch": Peer("PyTorch loop", "torch_loop", (), "torch", (TORCH, NUMPY)),
    "fedjax": Peer("FedJAX 0.0.16", "fedjax_rounds", (), "fedjax", (" ".join(FEDJAX),)),
    "pfl": Peer("pfl 0.6.0", "pfl_rounds", (), "pfl", (TORCH, f"pfl==0.6.0 {NUMPY}")),
    "flower": Peer(
        *("Flower 1.41.0", "flower_rounds", (), "flower"),
        (f"flwr[simulation]==1.41.0 {NUMPY}",),
        FLOWER,
    ),
    "pcfed-1": Peer("pcfed FedAvg, workers=1", "pcfed_rounds", ("FedAvg", "1")),
    BASE: Peer("pcfed FedAvg, workers=2", "pcfed_rounds", ("FedAvg", "2")),
    "pc-1": Peer("pcfed PC-FedAvg, workers=1", "pcfed_rounds", ("PCFedAvg", "1")),
    "pc-2": Peer("pcfed PC-FedAvg, workers=2", "pcfed_rounds", ("PCFedAvg", "2")),
    "split-1": Peer("pcfed PCFedSplit, workers=1", "pcfed_rounds", ("PCFedSplit", "1")),
    "split-2": Peer("pcfed PCFedSplit, workers=2", "pcfed_rounds", ("PCFedSplit", "2")),
}


class PeerError(Exception):
    """A peer cannot be measured; the message is one sentence."""


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a peer; create its environment if it is missing or outdated.

    Raises
    ------
    PeerError
        If it cannot be installed.
    """
    if not peer.environment:
        return Path(sys.executable)
    folder = ROOT / ".bench" / peer.environment
    python, ready = folder / "bin" / "python", folder / ".ready"
    pins = "\n".join(peer.packages)
    if not ready.exists() or ready.read_text() != pins:
        print(f"{peer.title}: creating its environment", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _output(["-m", "venv", str(folder)], Path(sys.executable), "it cannot be installed")
        for packages in peer.packages:
            pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _output([*pip, *packages.split()], python, "it cannot be installed")
        ready.write_text(pins)
    return python


def measured(peer: Peer, workload: str, data: Path) -> dict[str, Any]:
    """Return the measurement of a peer on a workload: the last line that its script prints.

    Raises
    ------
    PeerError
        If it cannot be installed, fails or takes too long.
    """
    options = ["-m", f"{__package__}.{peer.module}", workload, str(data), *peer.options]
    lines = _output(options, python_of(peer), "it fails", peer.variables).strip().splitlines()
    try:
        line: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise PeerError("it fails: its last line is not a measurement.") from None
    return line


def _output(
    options: list[str], python: Path, what: str, variables: Mapping[str, str] | None = None
) -> str:
    """Return the output of an interpreter, or raise an error with the last line of stderr."""
    try:
        done = subprocess.run(
            [str(python), *options],
            cwd=ROOT,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{what}: not finished after {LIMIT} s.") from None
    if done.returncode:
        default = f"exit code {done.returncode} without an error message"
        last = next(iter(reversed(done.stderr.strip().splitlines())), default)
        raise PeerError(f"{what}: {PATH.sub('…', last)[:200]}")
    return done.stdout
