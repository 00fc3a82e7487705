"""The exact experiment: runs are saved, and tables and claims are computed from them."""

from __future__ import annotations

import math

import pytest

from pcfed.experiments.claims import claims
from pcfed.experiments.exact import (
    ENTRIES,
    OURS,
    PAPER,
    Case,
    ExactResults,
    GapHistory,
    GapRecord,
    certified_rounds,
    run_exact,
)
from pcfed.experiments.figures import write_figures
from pcfed.report import write_report

SMALL = (
    Case("least squares", 1.0, 1.0, 120, 12, (1e-1, 1e-2, 1e-3), local_steps=10),
    Case("least squares", 0.1, 1.02, 12, 6, (1e-1, 1e-2), local_steps=5),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("exact")
    return out, run_exact(out, cases=SMALL)


def run_with_gaps(name: str, gaps: list[float]) -> GapHistory:
    """Return a run with these gaps after 1, 2, 3, … rounds of 10 bytes."""
    records = [GapRecord(r, 10 * r, gap, 1.0 + gap, gap / 2) for r, gap in enumerate(gaps, start=1)]
    return GapHistory(SMALL[0], name, "", tuple(records))


def test_ours_reaches_the_target_and_runs_are_loaded_again(measured):
    out, results = measured
    assert results.cases == SMALL
    assert len(results.runs) == 2 * len(ENTRIES)
    ours = results.of(SMALL[0], OURS)[0]
    assert ours.status == "reached"
    assert ours.smallest_gap <= 1e-3
    assert all(each.objective > 0 and each.infeasibility >= 0 for each in ours.records)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    reported: list[GapHistory] = []
    assert run_exact(out, cases=SMALL, on_progress=reported.append) == results
    assert len(reported) == len(results.runs)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_the_best_pair_of_the_grid_is_used():
    results = ExactResults(
        (
            run_with_gaps(OURS, [0.5, 0.005]),
            run_with_gaps(PAPER, [0.5, 0.4, 0.05]),
            run_with_gaps(PAPER, [0.2, 0.09]),
        )
    )
    assert results.first(SMALL[0], PAPER, 0.1).round == 2
    assert results.first(SMALL[0], PAPER, 1e-3) is None
    assert results.best(SMALL[0], PAPER).smallest_gap == 0.05
    run = results.of(SMALL[0], PAPER)[0]
    assert run.at(25).round == 2
    assert run.at(5) is None
    assert math.isinf(run_with_gaps(OURS, []).smallest_gap)
    verdicts = [claim.verdict for claim in claims([], None, results)]
    assert verdicts == ["holds", "holds", "does not hold"]


def test_certified_rounds_grow_by_a_fifth_and_end_with_the_last_round():
    assert certified_rounds(12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert certified_rounds(1) == [1]


def test_figures_data_and_report_are_written(measured, tmp_path):
    _, results = measured
    pictures = write_figures([], tmp_path, exact=results)
    assert [path.stem for path in pictures] == [case.slug for case in SMALL]
    rows = (tmp_path / "exact.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(each.records) for each in results.runs)
    write_report([], tmp_path / "report.html", exact=results)
    page = (tmp_path / "report.html").read_text()
    assert "Rounds and bytes to a certified relative gap" in page
    reached = results.first(SMALL[0], OURS, 1e-2)
    assert f"{reached.round} rounds" in page
    assert "best of 15 pairs" in page
