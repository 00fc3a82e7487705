"""What notebooks show: short tables, escaped, with the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import Browser

from pcfed import Agent, PCFedAvg, Problem, Result, certify, run
from pcfed.losses import LeastSquares
from pcfed.losses.kinds import MODEL_KINDS
from pcfed.notebook import bar_chart, html_table, line_chart
from pcfed.sets import L1Ball
from pcfed.training import TrainedModels
from tests.report.conftest import HOSTILE
from tests.report.test_page import ParsedPage


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(0)
    agents = []
    for i in range(25):
        loss = LeastSquares(rng.normal(size=(5, 3)), rng.normal(size=5))
        test = loss if i == 0 else None
        agents.append(Agent(loss, L1Ball(0.25), 0.5, test=test, name=f"{HOSTILE}{i}"))
    return Problem(agents)


def test_every_object_shows_a_table_of_its_agents(problem):
    result = run(problem, PCFedAvg(step=0.1, penalty=1.0), rounds=2)
    certificate = certify(problem, result)
    given = TrainedModels(
        MODEL_KINDS["least-squares"],
        (HOSTILE,),
        ("x", "y", "z"),
        None,
        {"coefficients": (3,)},
        result.models[:1],
        result.average,
    )
    for each in (problem, result, certificate, given):
        text = each._repr_html_()
        assert "<img" not in text
        page = ParsedPage(text)
        assert repr(each) in page.words
        assert len(page.rows) > 4
    rows = ParsedPage(problem._repr_html_()).rows
    assert f"{HOSTILE}3"[:60] + "5L1Ball(radius=0.25)0.50" in rows
    assert rows[-2] == "and 5 more"
    last = result.history[-1]
    shown = ParsedPage(result._repr_html_()).rows
    expected = f"{HOSTILE}0"[:60] + f"{last.infeasibility[0]:.4g}{last.distance[0]:.4g}"
    assert any(row.startswith(expected) for row in shown)
    moved = f"{HOSTILE}1"[:60] + f"{certificate.infeasibility[1]:.4g}{certificate.gap_terms[1]:.4g}"
    assert moved in ParsedPage(certificate._repr_html_()).rows


def test_objects_show_small_charts_with_the_names_of_agents(problem):
    result = run(problem, PCFedAvg(step=0.1, penalty=1.0), rounds=3)
    assert result.names == problem.names
    bare = run(
        Problem([replace(agent, test=None, personalization=0.5) for agent in problem.agents]),
        PCFedAvg(step=0.1, penalty=1.0),
        rounds=3,
    )
    for each, title in ((result, "held-out loss"), (bare, "distance from the center")):
        start, end = each.start.objective, each.history[-1].objective
        text = each._repr_html_()
        page = ParsedPage(text)
        assert page.tags.count("svg") == 2
        assert "<img" not in text
        assert f"objective by round: {start:.4g} in round 0, {end:.4g} in round 3" in page.words
        assert title in page.words
    assert ParsedPage(problem._repr_html_()).tags.count("svg") == 1
    assert "and 5 more" in problem._repr_html_().split("<svg")[1]


def test_names_are_saved_and_results_without_names_have_positions(problem, tmp_path):
    result = run(problem, PCFedAvg(step=0.1, penalty=1.0), rounds=1)
    result.save(tmp_path / "result.npz")
    assert Result.load(tmp_path / "result.npz").names == problem.names
    assert replace(result, names=()).names[:2] == ("agent 0", "agent 1")


def test_charts_leave_out_what_is_not_finite():
    nan, inf = float("nan"), float("inf")
    assert line_chart("gap", [(1, nan), (2, 1.0)]) == ""
    assert line_chart("gap", [(1, inf), (2, 1.0), (3, 1.0)]).count("<polyline") == 1
    assert "logarithmic" in line_chart("gap", [(1, 100.0), (2, 1.0)])
    assert "logarithmic" not in line_chart("gap", [(1, 100.0), (2, 0.0)])
    assert bar_chart("loss", ["a", "b"], [nan, 0.0]) == ""
    assert bar_chart("loss", ["a", "b"], [nan, 2.0]).count("<rect") == 1


def test_columns_without_any_value_are_left_out(problem):
    bare = Problem([replace(agent, test=None) for agent in problem.agents])
    assert "held out" in problem._repr_html_()
    assert "held out" not in bare._repr_html_()


def test_cells_are_escaped_cut_and_empty_without_a_number():
    text = html_table(
        "<b>", ["a", "b", "c"], [[HOSTILE, float("nan"), None], ["x" * 99, 1.0, None]]
    )
    page = ParsedPage(text)
    assert (
        page.tags
        == ["table", "caption", "thead", "tr", "th", "th", "tbody"] + ["tr", "td", "td"] * 2
    )
    assert "x" * 59 + "…" in page.words


def test_a_browser_shows_them(browser: Browser, problem: Problem):
    tab = browser.new_page()
    tab.set_content(problem._repr_html_())
    assert tab.locator("tbody tr").count() == 21
    assert tab.locator("td").nth(0).inner_text().startswith("<img")
    assert tab.evaluate("window.hacked") is None
    tab.close()
