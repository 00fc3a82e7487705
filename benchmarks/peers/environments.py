"""Who is compared, and the virtual environments in which the peers run, ``.bench/NAME``."""

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
TORCH = "torch==2.13.0"  # exactly: pip finds a CPU build of it, others bring gigabytes of CUDA
NUMPY = "numpy==2.4.6"
PATH = re.compile(r"(/[^/\s]+){2,}")
LIMIT = 900
"""Seconds that a peer may take for one work."""


@dataclass(frozen=True)
class Peer:
    """One line of the table.

    Attributes
    ----------
    title : str
        How the table calls it.
    module : str
        The script in this folder.
    options : sequence of str
        What the script is told besides the work and the data.
    environment : str
        Name of its virtual environment; none for those that run in ours.
    packages : sequence of str
        What is installed there, one after the other.
    variables : mapping of str to str
        Environment variables that it needs.
    """

    title: str
    module: str
    options: Sequence[str] = ()
    environment: str = ""
    packages: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


# dm-haiku, SciPy and ml_dtypes: what FedJAX's dependencies no longer hold back for this JAX.
FEDJAX = (
    *("fedjax==0.0.16", "jax==0.4.25", "jaxlib==0.4.25", "numpy==1.26.4", "scipy==1.12.0"),
    *("dm-haiku==0.0.12", "optax==0.2.2", "chex==0.1.86", "ml_dtypes==0.3.2"),
)
# Without these Flower calls home, looks for updates and installs dependencies when it is run.
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
BARE, BASE = "bare", "pcfed-2"
"""The lines that others are compared with."""

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
}


class PeerError(Exception):
    """Why a peer can't be measured, in one sentence."""


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a peer; its environment is made if it isn't there as it should be.

    Raises
    ------
    PeerError
        If it can't be installed.
    """
    if not peer.environment:
        return Path(sys.executable)
    folder = ROOT / ".bench" / peer.environment
    python, ready = folder / "bin" / "python", folder / ".ready"
    pins = "\n".join(peer.packages)
    if not ready.exists() or ready.read_text() != pins:
        print(f"{peer.title}: making its environment", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _output(["-m", "venv", str(folder)], Path(sys.executable), "it can't be installed")
        for packages in peer.packages:
            pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _output([*pip, *packages.split()], python, "it can't be installed")
        ready.write_text(pins)
    return python


def measured(peer: Peer, work: str, data: Path) -> dict[str, Any]:
    """Return what a peer says of itself on a work: its script's last line.

    Raises
    ------
    PeerError
        If it can't be installed, fails or takes too long.
    """
    options = ["-m", f"{__package__}.{peer.module}", work, str(data), *peer.options]
    lines = _output(options, python_of(peer), "it fails", peer.variables).strip().splitlines()
    try:
        line: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise PeerError("it fails: its last line is no report.") from None
    return line


def _output(
    options: list[str], python: Path, what: str, variables: Mapping[str, str] | None = None
) -> str:
    """Return what an interpreter prints, or raise with the last line of its complaint."""
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
        raise PeerError(f"{what}: not done after {LIMIT} s.") from None
    if done.returncode:
        silent = f"it ended with code {done.returncode} and without a word"
        last = next(iter(reversed(done.stderr.strip().splitlines())), silent)
        raise PeerError(f"{what}: {PATH.sub('…', last)[:200]}")
    return done.stdout
