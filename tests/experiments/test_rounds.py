"""The rounds experiment: runs are saved, and tables and claims are computed from them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from pcfed.cli import app, reproduce
from pcfed.experiments.accelerated import accelerated_gradient
from pcfed.experiments.claims import claims
from pcfed.experiments.figures import write_figures
from pcfed.experiments.round_cases import (
    CASES,
    FAMILY,
    FAMILY_STEPS,
    QUICK_CASES,
    Case,
    least_squares_family,
)
from pcfed.experiments.rounds import (
    ACCELERATED,
    ALGORITHMS,
    FEW_PAIRS,
    GRID,
    OURS,
    PAPER,
    GapHistory,
    GapRecord,
    RoundsResults,
    max_rounds,
    measured_rounds,
    run_rounds,
    stalled,
    total_rounds,
)
from pcfed.guarantees import optimum
from pcfed.losses import SoftmaxRegression
from pcfed.problem import Agent, Problem
from pcfed.report import write_report
from pcfed.sets import L1Ball

FULL = Case("least squares", 60, 12, (1e-1, 1e-2, 1e-6), local_steps=10)
GROWING = Case("least squares", 12, 6, (1e-1, 1e-2), batch=0.1, growth=1.02, local_steps=5)
FOUR = Case(FAMILY, 60, 8, (1e-2, 1e-4), local_steps=FAMILY_STEPS, agents=4)
TWELVE = replace(FOUR, agents=12, few_pairs=True)
PARTIAL = replace(TWELVE, participation=0.5)
SMALL = (FULL, GROWING, FOUR, TWELVE, PARTIAL)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("rounds")
    return out, run_rounds(out, cases=SMALL)


def run_with_gaps(name: str, gaps: list[float], case: Case = FULL, **changes) -> GapHistory:
    """Return a run with these gaps after 1, 2, 3, … rounds of 10 bytes."""
    records = [GapRecord(r, 10 * r, gap, 1.0 + gap, gap / 2) for r, gap in enumerate(gaps, start=1)]
    return replace(GapHistory(case, name, "", 1.0, tuple(records)), **changes)


# -- the competitor -----------------------------------------------------------------------------


def test_accelerated_gradients_are_feasible_and_converge_to_the_optimum():
    problem = least_squares_family(5)
    best = optimum(problem, tolerance=1e-9)
    method = accelerated_gradient(problem, typical=True)
    iterates = list(method.iterates(problem, 150))
    zero = np.zeros((problem.m, problem.n))
    first = [
        agent.constraint.project(row)
        for agent, row in zip(problem.agents, -method.step * problem.gradient(zero), strict=True)
    ]
    np.testing.assert_allclose(iterates[0], first, atol=1e-15)
    assert max(problem.infeasibility(x).max() for x in iterates) <= 1e-12
    assert best.objective - best.gap <= problem.objective(iterates[-1]) <= best.objective + 1e-8
    np.testing.assert_allclose(iterates[-1], best.models, atol=1e-3)
    assert method.bytes_per_iteration(problem) == 2 * 2 * 5 * problem.n * 8


def test_bounds_on_the_smoothness_give_shorter_steps():
    rng = np.random.default_rng(0)
    loss = SoftmaxRegression(rng.normal(size=(30, 4)), np.arange(30) % 5, classes=5)
    problem = Problem([Agent(loss, L1Ball(1.0), coupling=0.5) for _ in range(3)])
    bound = accelerated_gradient(problem, typical=False)
    assert bound.step == pytest.approx(3 / (loss.smoothness() + 0.5))
    typical = accelerated_gradient(problem, typical=True)
    assert typical.step == pytest.approx(3 / (loss.typical_smoothness() + 0.5))
    assert typical.step > bound.step


# -- cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [4, 12])
def test_most_budgets_of_the_family_bind(m):
    problem = least_squares_family(m)
    norms = np.abs(optimum(problem, tolerance=1e-8).models).sum(axis=1)
    active = norms >= [(1 - 1e-9) * agent.constraint.radius for agent in problem.agents]
    assert active.mean() >= 0.5


def test_agents_of_a_small_problem_are_the_first_of_a_large_one():
    small, large = least_squares_family(3), least_squares_family(6)
    x = np.ones(small.n)
    for ours, theirs in zip(small.agents, large.agents, strict=False):
        assert ours.loss.value(x) == theirs.loss.value(x)
        assert ours.constraint.radius == theirs.constraint.radius


def test_the_families_are_those_of_the_figures():
    everything = RoundsResults(tuple(GapHistory(case, OURS, "", 1.0) for case in CASES))
    assert [case.agents for case in everything.cases_by_agents] == [4, 10, 32, 100, 320, 1000]
    steps = {case.local_steps for case in CASES if case.agents == 32}
    assert steps == {1, 3, 10, 30}
    present = {case.participation for case in CASES if case.agents == 100}
    assert present == {1.0, 0.3, 0.1}
    for cases in (CASES, QUICK_CASES):
        assert len({case.slug for case in cases}) == len({case.title for case in cases})
        assert len({case.slug for case in cases}) == len(cases)


# -- runs ---------------------------------------------------------------------------------------


def test_ours_reaches_the_target_and_runs_are_loaded_again(measured):
    out, results = measured
    assert results.cases == SMALL
    for case in SMALL:
        (ours,) = results.of(case, OURS)
        assert "PCFedSplit(prox='auto'" in ours.algorithm
        assert all(each.objective > 0 and each.infeasibility <= 1e-9 for each in ours.records)
    assert results.of(FULL, OURS)[0].status == "reached"
    assert results.best(FULL, OURS).smallest_gap <= 1e-6
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    reported: list[GapHistory] = []
    assert run_rounds(out, cases=SMALL, on_progress=reported.append) == results
    assert len(reported) == len(results.runs)
    limits = [max_rounds(each.case, each.name) for each in reported]
    assert sum(limits) == total_rounds(SMALL)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_every_case_has_the_algorithms_that_can_run_in_it(measured):
    _, results = measured
    for case in (FULL, FOUR, TWELVE):
        assert results.names(case) == list(ALGORITHMS)
        assert len(results.of(case, ACCELERATED)) == 1
    for case in (GROWING, PARTIAL):
        assert results.names(case) == list(ALGORITHMS[:-1])
    for case in SMALL:
        pairs = len(results.of(case, PAPER))
        assert pairs == (FEW_PAIRS if case.few_pairs else len(GRID))


def test_the_few_pairs_are_the_best_of_the_smaller_case(measured):
    out, results = measured
    files = out.rglob("rounds-m12-h10-p1-*.json")
    numbers = {int(path.stem.rsplit("-", 1)[1]) for path in files} & set(GRID)
    grid = dict(zip(GRID, results.of(FOUR, PAPER), strict=True))
    worst = max(grid[k].smallest_gap for k in numbers)
    others = [grid[k].smallest_gap for k in GRID if k not in numbers]
    assert results.first(FOUR, PAPER, 1e-2) is None  # so that the smallest gaps decide
    assert worst <= min(others)


def test_gaps_are_certified(measured):
    """No gap is smaller than the distance from the optimum, and they are nearly equal."""
    _, results = measured
    for case, problem in ((FOUR, least_squares_family(4)), (TWELVE, least_squares_family(12))):
        best = optimum(problem, tolerance=1e-10)
        for run in results.runs:
            if run.case == case:
                assert best.objective - 2e-7 <= run.lower_bound <= best.objective
                for record in run.records:
                    distance = (record.objective - best.objective) / record.objective
                    assert distance - 1e-12 <= record.gap <= distance + 1e-6


def test_iterations_of_accelerated_gradients_are_two_rounds(measured):
    _, results = measured
    (run,) = results.of(FOUR, ACCELERATED)
    assert [each.round for each in run.records[:3]] == [2, 4, 6]
    assert run.records[0].bytes == 2 * 2 * 4 * least_squares_family(4).n * 8
    assert all(each.infeasibility <= 1e-12 for each in run.records)


def test_measured_rounds_grow_by_a_tenth_and_end_with_the_last_round():
    assert measured_rounds(30) == [*range(1, 16), 16, 18, 20, 22, 24, 26, 29, 30]
    assert measured_rounds(1) == [1]


def test_runs_stall_when_their_gap_hardly_falls_any_more():
    def records(rounds: range, gap) -> tuple[GapRecord, ...]:
        return tuple(GapRecord(r, r, gap(r), 1.0, 0.0) for r in rounds)

    assert stalled(records(range(1, 151), lambda r: 0.1 + 0.9 * 0.5**r))
    assert not stalled(records(range(1, 90), lambda r: 0.1 + 0.9 * 0.5**r))
    assert not stalled(records(range(1, 151), lambda r: 1 / r))
    assert not stalled(records(range(1, 151), lambda r: 1.0)), "it may only have started slowly"
    assert stalled(records(range(1, 1001), lambda r: 1.0))


# -- tables and claims --------------------------------------------------------------------------


def test_the_best_pair_of_the_grid_is_used():
    results = RoundsResults(
        (
            run_with_gaps(OURS, [0.5, 0.005]),
            run_with_gaps(PAPER, [0.5, 0.4, 0.05]),
            run_with_gaps(PAPER, [0.2, 0.09]),
            run_with_gaps("FedAvg", [0.2], status="stalled"),
        )
    )
    assert results.first(FULL, PAPER, 0.1).round == 2
    assert results.first(FULL, PAPER, 1e-3) is None
    assert results.best(FULL, PAPER).smallest_gap == 0.05
    run = results.of(FULL, PAPER)[0]
    assert run.at(25).round == 2
    assert run.at(5) is None
    assert math.isinf(run_with_gaps(OURS, []).smallest_gap)
    texts = [results.text(FULL, name, 0.1) for name in (OURS, PAPER, "FedAvg")]
    assert texts == ["2", "2", "stalled"]
    assert results.text(FULL, PAPER, 1e-3) == f"not in {FULL.other_rounds}"
    found = claims([], None, results)
    assert [claim.verdict for claim in found] == ["holds", "holds", "does not hold"]
    assert found[0].measured == "2 rounds against 2 (PC-FedAvg)"
    assert found[1].measured == "2 rounds; no other algorithm did"


def test_a_run_that_ended_too_early_decides_nothing():
    ours = run_with_gaps(OURS, [0.5, 0.05, 0.005, 5e-7])
    sooner = run_with_gaps(PAPER, [0.09])
    cut = run_with_gaps("FedAvg", [0.5, 0.4])
    found = claims([], None, RoundsResults((ours, sooner, cut)))
    assert [claim.verdict for claim in found] == ["does not hold", "holds, but", "holds, but"]
    assert found[2].measured.endswith(f"PC-FedAvg, FedAvg had only {FULL.other_rounds} rounds")
    ended = [replace(each, status="stalled") for each in (sooner, cut)]
    verdicts = [claim.verdict for claim in claims([], None, RoundsResults((ours, *ended)))]
    assert verdicts == ["does not hold", "holds", "holds"]


@pytest.mark.parametrize(
    ("rounds", "verdict"), [((5, 3, 4, 6), "holds"), ((1, 3, 4, 7), "does not hold")]
)
def test_rounds_may_double_but_not_more_from_ten_agents_on(rounds, verdict):
    runs = [
        run_with_gaps(OURS, [1.0] * (number - 1) + [1e-7], replace(FOUR, agents=m))
        for m, number in zip((4, 10, 32, 100), rounds, strict=True)
    ]
    claim = claims([], None, RoundsResults(tuple(runs)))[0]
    assert "does not grow with m" in claim.claim
    assert claim.verdict == verdict
    assert claim.measured.startswith(f"rounds by m: 10: 3, 32: 4, 100: {rounds[3]}; the largest is")
    unreached = RoundsResults((*runs[:3], run_with_gaps(OURS, [1.0], replace(FOUR, agents=100))))
    assert claims([], None, unreached)[0].verdict == "does not hold"


def test_figures_data_and_report_are_written(measured, tmp_path):
    _, results = measured
    drawn = RoundsResults(tuple(each for each in results.runs if each.case in (FOUR, TWELVE)))
    pictures = write_figures([], tmp_path, rounds=drawn)
    expected = [FOUR.slug, TWELVE.slug, "rounds-against-agents"]
    assert [path.stem for path in pictures] == expected
    rows = (tmp_path / "rounds.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(each.records) for each in drawn.runs)
    rows = (tmp_path / "rounds-against-agents.csv").read_text().splitlines()
    reached = results.first(TWELVE, OURS, 1e-4)
    assert f"{OURS},0.0001,12,{reached.round},{reached.bytes}" in rows
    write_report([], tmp_path / "report.html", rounds=results)
    page = (tmp_path / "report.html").read_text()
    assert "Rounds and bytes to a certified relative gap" in page
    assert "Rounds by local steps H and participation" in page
    assert f"{results.first(FULL, OURS, 1e-2).round} rounds" in page
    assert f"best of {len(GRID)} pairs" in page


def test_the_command_writes_figures_report_and_claims(measured, monkeypatch):
    out, results = measured
    monkeypatch.setattr(reproduce, "QUICK_CASES", (FULL,))
    arguments = ["reproduce", "rounds", "--quick", "--out", str(out)]
    done = CliRunner().invoke(app.app, arguments, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert (out / "report.html").exists()
    assert (out / "figures" / f"{FULL.slug}.pdf").exists()
    assert results.text(FULL, OURS, 1e-6) + " rounds" in done.output
