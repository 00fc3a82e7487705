"""Measure everything that needs no other package; print it and write it to RESULTS.md.

make bench
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import paper_runs, projections, scale
from benchmarks.peers.table import machine

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, print and write."""
    scaled = scale.measure()
    scale.picture(scaled, ROOT / "docs" / "scale.png")
    parts = {
        "The paper's runs": (paper_runs, paper_runs.table(paper_runs.measure())),
        "Agents and parameters": (scale, scale.table(scaled)),
        "Projections onto the l1 ball": (projections, projections.table(projections.measure())),
    }
    text = ["# Timings", "", f"By `make bench` on {machine()}."]
    for title, (module, table) in parts.items():
        text += ["", f"## {title}", "", _about(module.__doc__ or ""), "", table]
    (ROOT / "benchmarks" / "RESULTS.md").write_text("\n".join(text) + "\n", "utf-8")
    print("\n".join(text))


def _about(doc: str) -> str:
    """Return what a module says about itself, without how to run it."""
    lines = [line for line in doc.strip().splitlines() if not line.startswith("    ")]
    return "\n".join(lines[1:]).strip()


if __name__ == "__main__":
    main()
