"""Compare the seconds per round of pcfed, other packages ("peers") and bare matrix products.

    python -m benchmarks.peers [A B C] [--peers numpy torch ...] [--repeats 2]

Every peer runs the same workloads on MNIST (``workload.py``) in a separate process, one at a time.
All peers are measured repeatedly, and the smallest median is reported. Peers that cannot be
installed or that fail are marked as failed. The average training losses must agree to 1 %;
otherwise no table is written. A run with all workloads and peers writes ``benchmarks/PEERS.md``.
Run nothing else on the machine at the same time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pcfed.data import iid, mnist

from .environments import PEERS, ROOT, PeerError, measured
from .table import Cell, Cells, document
from .workload import WORKLOADS

TOLERANCE = 0.01
"""Allowed relative difference of losses: pcfed samples batches, peers take them in order."""


def exported(workloads: Iterable[str], folder: Path) -> dict[str, Path]:
    """Write the images and labels of every workload, one part per agent, and return the files."""
    data = mnist()
    files = {}
    for name in workloads:
        workload = WORKLOADS[name]
        parts = iid(data.train_labels, workload.agents, seed=0)
        rows = np.stack([part[: workload.images] for part in parts])
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], images=data.train_images[rows], labels=data.train_labels[rows])
    return files


def compare(workloads: Sequence[str], peers: Sequence[str], repeats: int) -> Cells:
    """Measure every peer on every workload repeatedly, and return the smallest medians."""
    cells: dict[tuple[str, str], Cell] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = exported(workloads, Path(folder))
        for repeat in range(repeats):
            for workload in workloads:
                for peer in peers:
                    cell = attempt(peer, workload, files[workload])
                    outcome = cell.note if cell.failed else f"{cell.seconds_per_round:.4g} s"
                    line = f"{repeat + 1}/{repeats} {workload} {peer}: {outcome}"
                    print(line, file=sys.stderr, flush=True)
                    best = cells.get((workload, peer), cell)
                    if best.failed or cell.seconds_per_round <= best.seconds_per_round:
                        cells[workload, peer] = cell
    return cells


def attempt(peer: str, workload: str, data: Path) -> Cell:
    """Return the measurement of a peer, or the reason why there is none."""
    try:
        return Cell(**measured(PEERS[peer], workload, data))
    except PeerError as reason:
        return Cell(float("nan"), None, 0, str(reason))


def disagreements(cells: Cells) -> list[str]:
    """Return one sentence per workload on which the losses differ by more than allowed."""
    found = []
    for name in dict.fromkeys(workload for workload, _ in cells):
        losses = {p: c.loss for (w, p), c in cells.items() if w == name and c.loss is not None}
        if losses and not max(losses.values()) <= (1 + TOLERANCE) * min(losses.values()):
            listed = ", ".join(f"{peer} {loss:.4f}" for peer, loss in losses.items())
            found.append(f"{name}: losses differ by more than {TOLERANCE:.0%}: {listed}.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    workloads = given.workloads or list(WORKLOADS)
    if unknown := set(workloads) - set(WORKLOADS):
        parser.error(
            f"valid workloads are {', '.join(WORKLOADS)}, not {', '.join(sorted(unknown))}"
        )
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"The load is {load:.1f}; timings will be inaccurate.", file=sys.stderr)
    cells = compare(workloads, given.peers, given.repeats)
    if found := disagreements(cells):
        sys.exit("\n".join(found))
    page = document(cells, workloads, given.peers, load)
    if set(workloads) == set(WORKLOADS) and set(given.peers) == set(PEERS):
        (ROOT / "benchmarks" / "PEERS.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
