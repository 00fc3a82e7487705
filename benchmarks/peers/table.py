"""The table of the comparison, and the machine on which it was made, as Markdown."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .environments import BARE, BASE, PEERS
from .work import CORES, WORKS

INTRODUCTION = """\
# Seconds per round, pcfed and its peers

Federated averaging of softmax regression (784 → 10, float32) on MNIST; all agents take part in
every round, local steps are plain SGD, models are averaged with equal weights. Same data, batch
sizes and step for all. In brackets: the ratio to pcfed's FedAvg with two workers. Bare products are
only the two matrix products of each step, with NumPy: what the hardware allows. PC-FedAvg also
projects, onto an l1 ball of another radius for each agent. Made by `make bench-peers`.
"""


@dataclass(frozen=True)
class Cell:
    """What was measured of one peer on one work; the seconds are NaN if it failed, as noted."""

    seconds_per_round: float
    loss: float | None
    rounds: int
    note: str

    @property
    def failed(self) -> bool:
        """Whether there are no seconds."""
        return not self.seconds_per_round >= 0


Cells = Mapping[tuple[str, str], Cell]
"""By name of the work and name of the peer."""


def machine() -> str:
    """Describe the machine in one line."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", path.read_text() if path.exists() else "")
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    cpu = found[1] if found else platform.machine()
    return f"{cpu}, {CORES} cores, {versions}, {blas['name']} {blas['version']}"


def table(cells: Cells, works: Sequence[str], peers: Sequence[str]) -> str:
    """Return a line for each peer and a column for each work."""
    lines = [["", *(f"{work}: {WORKS[work]}" for work in works)], ["---", *["---:"] * len(works)]]
    for peer in peers:
        lines.append([PEERS[peer].title, *(_entry(cells, work, peer) for work in works)])
    if {BARE, BASE} <= set(peers):
        ratios = (_ratio(cells, work, BASE, BARE) for work in works)
        lines.append([f"{PEERS[BASE].title}, over bare products", *ratios])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(cells: Cells) -> str:
    """Return the losses, and what peers noted: how they were quickest, or why they failed."""
    lines = []
    for work in dict.fromkeys(work for work, _ in cells):
        losses = [c.loss for (of, _), c in cells.items() if of == work and c.loss is not None]
        if losses:
            span = f"{min(losses):.4f} to {max(losses):.4f}"
            lines.append(f"- {work}, loss after {WORKS[work].rounds} rounds of FedAvg: {span}")
    for peer in dict.fromkeys(peer for _, peer in cells):
        told = {work: cell.note for (work, of), cell in cells.items() if of == peer and cell.note}
        if told:
            each = "; ".join(f"{work}: {note}" for work, note in told.items())
            lines.append(f"- {PEERS[peer].title}: {each}")
    return "\n".join(lines)


def document(cells: Cells, works: Sequence[str], peers: Sequence[str], load: float) -> str:
    """Return the whole page; ``load`` is what the machine had to do before."""
    measured = f"Measured on: {machine()}; load before the start {load:.1f}."
    parts = (INTRODUCTION, measured, table(cells, works, peers), notes(cells))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _entry(cells: Cells, work: str, peer: str) -> str:
    """Return seconds and ratio of a peer on a work."""
    cell = cells[work, peer]
    if cell.failed:
        return "failed"
    seconds, ratio = cell.seconds_per_round, _ratio(cells, work, peer, BASE)
    shown = f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"
    return f"{shown} ({ratio})" if ratio else shown


def _ratio(cells: Cells, work: str, peer: str, base: str) -> str:
    """Return how many times as long a peer takes as another, or nothing where one failed."""
    pair = [cells.get((work, name)) for name in (peer, base)]
    first, second = (cell.seconds_per_round if cell else float("nan") for cell in pair)
    ratio = first / second
    return "" if np.isnan(ratio) else f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.2g} ×"
