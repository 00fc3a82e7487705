"""Compare seconds per round of pcfed, its peers and the bare matrix products.

    python -m benchmarks.peers [A B C] [--peers numpy torch ...] [--repeats 2]

Every peer does the same works on MNIST (``work.py``) in a process of its own, one at a time, peer
after peer and then all again; the smallest median counts. Peers that can't be installed or fail are
reported as such. The average training losses must agree to 1 %, or there is no table. A run with
all works and peers writes it to ``benchmarks/PEERS.md``. Let nothing else run meanwhile.
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
from .work import WORKS

TOLERANCE = 0.01
"""By how much losses may differ, since pcfed draws batches that the peers take in order."""


def exported(works: Iterable[str], folder: Path) -> dict[str, Path]:
    """Write the images and labels of every work, dealt to its agents, and return the files."""
    data = mnist()
    files = {}
    for name in works:
        work = WORKS[name]
        parts = iid(data.train_labels, work.agents, seed=0)
        rows = np.stack([part[: work.images] for part in parts])
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], images=data.train_images[rows], labels=data.train_labels[rows])
    return files


def compare(works: Sequence[str], peers: Sequence[str], repeats: int) -> Cells:
    """Measure every peer on every work, again and again, and keep the smallest medians."""
    cells: dict[tuple[str, str], Cell] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = exported(works, Path(folder))
        for turn in range(repeats):
            for work in works:
                for peer in peers:
                    cell = attempt(peer, work, files[work])
                    told = cell.note if cell.failed else f"{cell.seconds_per_round:.4g} s"
                    print(
                        f"{turn + 1}/{repeats} {work} {peer}: {told}", file=sys.stderr, flush=True
                    )
                    before = cells.get((work, peer), cell)
                    if before.failed or cell.seconds_per_round <= before.seconds_per_round:
                        cells[work, peer] = cell
    return cells


def attempt(peer: str, work: str, data: Path) -> Cell:
    """Return what was measured of a peer, or why it could not be."""
    try:
        return Cell(**measured(PEERS[peer], work, data))
    except PeerError as reason:
        return Cell(float("nan"), None, 0, str(reason))


def disagreements(cells: Cells) -> list[str]:
    """Return a sentence on each work on which the losses differ by more than they may."""
    found = []
    for work in dict.fromkeys(work for work, _ in cells):
        losses = {p: c.loss for (w, p), c in cells.items() if w == work and c.loss is not None}
        if losses and not max(losses.values()) <= (1 + TOLERANCE) * min(losses.values()):
            listed = ", ".join(f"{peer} {loss:.4f}" for peer, loss in losses.items())
            found.append(f"{work}: losses differ by more than {TOLERANCE:.0%}: {listed}.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    works = given.works or list(WORKS)
    if unknown := set(works) - set(WORKS):
        parser.error(f"works are {', '.join(WORKS)}, not {', '.join(sorted(unknown))}")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"The machine is busy (load {load:.1f}): numbers mean little.", file=sys.stderr)
    cells = compare(works, given.peers, given.repeats)
    if found := disagreements(cells):
        sys.exit("\n".join(found))
    page = document(cells, works, given.peers, load)
    if set(works) == set(WORKS) and set(given.peers) == set(PEERS):
        (ROOT / "benchmarks" / "PEERS.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
