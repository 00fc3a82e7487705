"""Exact PC-FedAvg against the others: runs are kept, tables and claims follow them."""

from __future__ import annotations

import math

import pytest

from pcfed.experiments.claims import claims
from pcfed.experiments.exact import (
    METHODS,
    OURS,
    PAPER,
    Case,
    Course,
    Look,
    Race,
    looks,
    measure_exact,
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
    return out, measure_exact(out, cases=SMALL)


def made(method: str, gaps: list[float]) -> Course:
    """Return a run with these gaps after 1, 2, 3, … rounds of 10 bytes."""
    seen = [Look(r, 10 * r, gap, 1.0 + gap, gap / 2) for r, gap in enumerate(gaps, start=1)]
    return Course(SMALL[0], method, "", tuple(seen))


def test_ours_gets_there_and_runs_are_read_back(measured):
    out, race = measured
    assert race.cases == SMALL
    assert len(race.courses) == 2 * len(METHODS)
    ours = race.of(SMALL[0], OURS)[0]
    assert ours.status == "reached"
    assert ours.smallest_gap <= 1e-3
    assert all(look.objective > 0 and look.infeasibility >= 0 for look in ours.looks)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    ticks: list[Course] = []
    assert measure_exact(out, cases=SMALL, tick=ticks.append) == race
    assert len(ticks) == len(race.courses)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_the_best_pair_of_the_grid_counts():
    race = Race((made(OURS, [0.5, 0.005]), made(PAPER, [0.5, 0.4, 0.05]), made(PAPER, [0.2, 0.09])))
    assert race.first(SMALL[0], PAPER, 0.1).round == 2
    assert race.first(SMALL[0], PAPER, 1e-3) is None
    assert race.best(SMALL[0], PAPER).smallest_gap == 0.05
    course = race.of(SMALL[0], PAPER)[0]
    assert course.at(25).round == 2
    assert course.at(5) is None
    assert math.isinf(made(OURS, []).smallest_gap)
    verdicts = [claim.verdict for claim in claims([], None, race)]
    assert verdicts == ["holds", "holds", "does not hold"]


def test_looks_grow_by_a_fifth_and_end_with_the_last_round():
    assert looks(12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert looks(1) == [1]


def test_figures_data_and_report_are_written(measured, tmp_path):
    _, race = measured
    pictures = write_figures([], tmp_path, race=race)
    assert [path.stem for path in pictures] == [case.slug for case in SMALL]
    rows = (tmp_path / "exact.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(course.looks) for course in race.courses)
    write_report([], tmp_path / "report.html", race=race)
    page = (tmp_path / "report.html").read_text()
    assert "Rounds and bytes to a certified relative gap" in page
    reached = race.first(SMALL[0], OURS, 1e-2)
    assert f"{reached.round} rounds" in page
    assert "best of 15 pairs" in page
