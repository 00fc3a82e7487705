"""Reports on trainings: their contents, in the file and in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from playwright.sync_api import Browser

from pcfed.algorithms import PCFedAvg
from pcfed.experiments.styles import METHOD_STYLES
from pcfed.losses.kinds import MODEL_KINDS
from pcfed.palette import STYLES, series_styles
from pcfed.report import write_training_report
from pcfed.report.models_section import bounds, contributions, models_section
from pcfed.report.page import ChartGroup, Details, Paragraph
from pcfed.report.training_charts import (
    MAX_POINTS,
    agents_chart,
    compared_runs_chart,
    compared_scores_chart,
    overall_chart,
    subsampled,
)
from pcfed.report.training_report import (
    compared_settings,
    run_metrics,
    runs_by_title,
    training_styles,
)
from pcfed.report.verdict_section import verdict_section
from pcfed.sets import parse_set
from pcfed.training import Outcome, RunWarning, prepare
from pcfed.training.example import write_example
from pcfed.training.saved_run import SavedRun, open_run
from tests.report.conftest import HOSTILE
from tests.report.test_browser import WIDTHS, draw_all, opened
from tests.report.test_page import ParsedPage

ODD = 'a<b>&"c'
"""A name that would break a page that does not escape."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings of the example, one with a hostile name and 12 fewer rounds."""
    folder = tmp_path_factory.mktemp("runs")
    config = write_example(folder)[0]
    text = config.read_text().replace("rounds = 30", "rounds = 20")
    config.write_text(text)
    prepare(config, folder / "split").run()
    config.write_text(
        text.replace("rounds = 20", "rounds = 8")
        .replace('name = "PCFedSplit"', 'name = "PCFedSplit"\nrelaxation = 1.5')
        .replace("[agents.market]", f"[agents.{json.dumps(HOSTILE)}]")
    )
    prepare(config, folder / ODD).run()
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[SavedRun]:
    return [open_run(folder / "split"), open_run(folder / ODD)]


@pytest.fixture(scope="module")
def pages(folder: Path, runs: list[SavedRun]) -> dict[str, Path]:
    paths = {"one": folder / "one.html", "two": folder / "two.html"}
    write_training_report([runs[1]], paths["one"])
    write_training_report(runs, paths["two"])
    return paths


def test_a_report_has_the_results_of_the_training(pages: dict[str, Path], runs: list[SavedRun]):
    page = ParsedPage(pages["one"].read_text("utf-8"))
    outcome = runs[1].outcome
    assert outcome is not None
    text = " ".join(page.words)
    assert f"the models have objective {outcome.objective:.6g}, at most" in text
    for each in outcome.agents:
        row = next(
            row for row in page.rows if row.startswith(each.agent) and each.constraint in row
        )
        assert f"{each.score:.3g}" in row
    models = runs[1].models
    assert models is not None
    value = f"{models.parts('university')['coefficients'][0]:.3g}"
    assert any(row.startswith("age") and value in row for row in page.rows)
    assert "8 rounds done." in text  # from the log
    assert "algorithm.relaxation" in page.words


def test_a_report_begins_with_the_verdicts(pages: dict[str, Path], runs: list[SavedRun]):
    page = ParsedPage(pages["one"].read_text("utf-8"))
    outcome = runs[1].outcome
    assert outcome is not None
    assert [
        word
        for word in page.words
        if word
        in ("Verdict", "Certificate", "Course of the training", "Models", "Settings and log")
    ][5:] == ["Verdict", "Certificate", "Course of the training", "Models", "Settings and log"]
    for each in outcome.agents:
        (row,) = [row for row in page.rows if row.startswith(each.agent) and each.verdict in row]
        assert each.against_average.sentence in row
        assert each.usage.text in row
        assert each.usage.gain is None or each.usage.gain in row
    text = " ".join(page.words)
    assert "Own models against training alone:" in text
    before, _, _ = text.partition("All settings")
    assert "l1(1)" in before
    assert "L1Ball" not in before, "sets are written as in files"


def warned(outcome: Outcome, agents: int = 1) -> Outcome:
    """Return an outcome with hostile warnings, and with copies of its agents under other names."""
    sentence = f"{HOSTILE}: its own model has the loss 6.7, training alone has 0.03."
    copies = tuple(
        replace(each, agent=f"{each.agent} {k}") for k in range(agents) for each in outcome.agents
    )
    warning = RunWarning("large loss", (HOSTILE,), sentence)
    return replace(outcome, agents=copies, warnings=(warning,) * 40)


def test_warnings_are_shown_and_many_agents_stay_readable(runs: list[SavedRun]):
    outcome = runs[0].outcome
    assert outcome is not None
    section = verdict_section("run", warned(outcome, agents=50))
    notes = [block for block in section.blocks if isinstance(block, Paragraph)]
    assert sum(HOSTILE in note.text for note in notes) == 3
    (more,) = [block for block in section.blocks if isinstance(block, Details)]
    assert more.summary == "27 more warnings"
    assert more.text.endswith("\n10 more warnings are in outcome.json.")
    assert any("The first 200 of 250 agents" in note.text for note in notes)
    (group,) = [block for block in section.blocks if isinstance(block, ChartGroup)]
    scores, limits = group.charts
    assert len(scores.panels[0].data[0]["x"]) == len(limits.panels[0].data[0]["x"]) == 30
    assert "Only 30 of 250 agents are drawn" in scores.caption
    for panel in (*scores.panels, *limits.panels):
        assert go.Figure(panel.data, panel.layout).data


def test_intervals_are_drawn_around_the_other_models(runs: list[SavedRun]):
    outcome = runs[0].outcome
    assert outcome is not None
    section = verdict_section("run", outcome)
    (group,) = [block for block in section.blocks if isinstance(block, ChartGroup)]
    own, alone, average = group.charts[0].panels[0].data
    for i, agent in enumerate(outcome.agents):
        assert own["x"][i] == pytest.approx(agent.score, rel=1e-4)
        assert own["error_x"]["array"][i] == 0
        for trace, found in ((alone, agent.against_alone), (average, agent.against_average)):
            low = trace["x"][i] - trace["error_x"]["arrayminus"][i]
            high = trace["x"][i] + trace["error_x"]["array"][i]
            assert low == pytest.approx(agent.score - found.high, abs=1e-4)
            assert high == pytest.approx(agent.score - found.low, abs=1e-4)
            # The interval reaches the dot of the own model exactly if nothing is clear.
            assert (low <= agent.score <= high) == (found.verdict in ("unclear", "same"))


def test_verdicts_without_scores_have_no_dots(runs: list[SavedRun]):
    outcome = runs[0].outcome
    assert outcome is not None
    unknown = {"score": None, "average_score": None, "local_score": None}
    agents = tuple(
        replace(each, **unknown, against_alone=None, against_average=None, usage=None)
        for each in outcome.agents
    )
    section = verdict_section("run", replace(outcome, agents=agents))
    assert not any(isinstance(block, ChartGroup) for block in section.blocks)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_verdicts_in_a_browser(browser: Browser, runs: list[SavedRun], tmp_path: Path, width: int):
    run = replace(runs[1], outcome=warned(runs[1].outcome))
    write_training_report([run], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", width) as tab:
        draw_all(tab)
        section = tab.locator("#run-verdict")
        assert section.locator(".note").count() == 3
        dots, bars = (section.locator(".plot").nth(i) for i in (0, 1))
        assert dots.locator(".points path").count() == 15
        assert dots.locator("path.xerror").count() == 15
        assert bars.locator(".points path").count() == 5
        shown = [text.strip() for text in bars.locator(".textpoint").all_text_contents()]
        assert "uses 1 of 1 (l1 norm)" in shown
        names = dots.locator(".ytick text").all_text_contents()
        assert [name.split()[0] for name in names][:2] == ["harbour", "hillside"]
        assert tab.evaluate("window.hacked") is None
        wide = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
        assert max(tab.evaluate(wide)) <= width
        # Without the own models, the other two are still there.
        section.locator("button.series").first.click()
        assert dots.locator(".points path").count() == 10


def test_only_settings_that_differ_are_compared(runs: list[SavedRun]):
    found = compared_settings(runs)
    assert found["training.rounds"] == ["20", "8"]
    assert found["algorithm.relaxation"] == ["1.8", "1.5"]
    assert "training.seed" not in found
    assert compared_settings([runs[0], runs[0]]) == {}
    assert list(runs_by_title([runs[0], runs[0]]))[1].endswith("split (2)")
    metrics = run_metrics(runs[0])
    assert metrics["rounds"] == "20"
    assert float(metrics["relative gap"]) == pytest.approx(runs[0].outcome.relative_gap, rel=0.01)


def test_sets_are_written_as_in_files(pages: dict[str, Path]) -> None:
    text = pages["one"].read_text(encoding="utf-8")
    assert "l1(1)" in text
    assert "L1Ball(" not in text


def test_names_are_escaped_and_nothing_is_loaded(pages: dict[str, Path]):
    for path in pages.values():
        text = path.read_text("utf-8")
        page = ParsedPage(text)
        assert HOSTILE not in text
        assert any(HOSTILE in words for words in page.words)
        assert any(ODD in words for words in page.words)
        assert page.tags.count("script") == 3
        assert all(load.startswith(("#", "data:")) for load in page.loads)
        targets = {load[1:] for load in page.loads if load.startswith("#")}
        assert all(f' id="{target}"' in text for target in targets)


def test_lines_end_where_the_run_did(runs: list[SavedRun]):
    run = runs[0]
    overall, each = overall_chart(run), agents_chart(run)
    last, outcome = run.history[-1], run.outcome
    gap, objective = (panel.data[0]["y"] for panel in overall.panels)
    assert objective[-1] == pytest.approx(last.objective, rel=1e-4)
    # Every feasible model is above the lower bound, which the certificate of the end proves.
    assert gap[-1] == pytest.approx(outcome.relative_gap, rel=1e-3)
    assert gap == sorted(gap, reverse=True)
    assert gap[0] > 1e3 * gap[-1]
    (scores,) = each.panels
    for i, line in enumerate(scores.data):
        assert line["y"][-1] == pytest.approx(last.test_accuracy[i], rel=1e-4)
    titled = runs_by_title(runs)
    charts = compared_runs_chart(titled, training_styles(titled))
    for panel in (*overall.panels, *each.panels, *charts[0].panels):
        assert go.Figure(panel.data, panel.layout).data


def outside(run: SavedRun, distance: float) -> SavedRun:
    """Return a training with models at a distance from their sets in every round."""
    history = [replace(r, infeasibility=r.infeasibility + distance) for r in run.history]
    return replace(run, history=tuple(history))


def test_a_panel_that_would_be_empty_is_left_out(runs: list[SavedRun]):
    headings = [panel.heading for panel in agents_chart(runs[0]).panels]
    assert headings == ["Score on held-out rows"], "PCFedSplit is feasible in every round"
    far = outside(runs[0], 0.5)
    assert [panel.heading for panel in agents_chart(far).panels][1].startswith("Distance from")
    # The objective of models outside their sets may be below the optimum: there is no gap.
    assert [panel.heading for panel in overall_chart(far).panels] == ["Objective"]


def test_without_a_certificate_the_objective_is_compared_with_its_smallest_value(
    runs: list[SavedRun],
):
    chart = overall_chart(replace(runs[0], outcome=replace(runs[0].outcome, gap=None)))
    assert chart.panels[0].heading == "Objective above its smallest value"
    smallest = min(record.objective for record in runs[0].history)
    first = runs[0].history[0].objective - smallest
    assert chart.panels[0].data[0]["y"][0] == pytest.approx(first, rel=1e-4)


def test_one_huge_value_does_not_flatten_the_rest(runs: list[SavedRun]):
    first, *rest = runs[0].history
    wild = replace(first, objective=1e9, test_accuracy=first.test_accuracy - 1e6)
    run = replace(runs[0], history=(wild, *rest))
    for chart in (overall_chart(run), agents_chart(run)):
        low, high = chart.panels[-1].layout["yaxis"]["range"]
        assert -2 < low < high < 2
        assert "beyond the axis" in chart.caption
    outcome = runs[0].outcome
    agents = (replace(outcome.agents[0], average_score=-1e6), *outcome.agents[1:])
    section = verdict_section("run", replace(outcome, agents=agents))
    (group,) = [block for block in section.blocks if isinstance(block, ChartGroup)]
    panel = group.charts[0].panels[0]
    low, high = panel.layout["xaxis"]["range"]
    assert -2 < low < high < 3
    shared = panel.data[2]
    assert (shared["x"][0], shared["marker"]["symbol"][0]) == (low, "triangle-left")
    assert set(shared["marker"]["symbol"][1:]) == {"square-open"}


def test_coefficients_are_drawn_within_their_limits(runs: list[SavedRun]):
    section = models_section("run", runs[0])
    panels = {
        panel.heading.partition(":")[0]: panel for panel in section.blocks[0].charts[0].panels
    }
    models = runs[0].models
    # harbour has an l1 budget of 1: bars are shares of it.
    shares = [x for trace in panels["harbour"].data for x in trace["x"]]
    assert sum(shares) == pytest.approx(100 * np.abs(models.model("harbour")[:-1]).sum(), rel=1e-3)
    # market has the box [0, 2].
    bars, dots = panels["market"].data
    assert (bars["base"], bars["x"]) == ([0.0] * 6, [2.0] * 6)
    assert sorted(dots["x"]) == pytest.approx(sorted(models.model("market")[:-1]), rel=1e-4)
    for panel in panels.values():
        assert go.Figure(panel.data, panel.layout).data


LIMITS = {
    "l1(2)": [0.5, 1.0],
    "l2(2)": [0.25, 1.0],
    "simplex(4)": [0.25, -0.5],
    "intersection(nonnegative, l1(4))": [0.25, 0.5],
}


def test_contributions_and_bounds_are_those_of_the_set():
    x = np.array([1.0, -2.0])
    for spec, expected in LIMITS.items():
        assert contributions(parse_set(spec), x) == pytest.approx(expected)
    assert contributions(parse_set("box(0, 1)"), x) is None
    low, high = bounds(parse_set("intersection(box(-3, [1, 2]), linf(2))"), 2)
    assert (low.tolist(), high.tolist()) == ([-2, -2], [1, 2])
    low, high = bounds(parse_set("whole_space"), 2)
    assert not np.isfinite([*low, *high]).any()


def test_the_intercept_does_not_wash_out_the_colours(runs: list[SavedRun]):
    models = runs[0].models
    changed = models.models.copy()
    changed[:, -1] = 1e6
    run = replace(runs[0], models=replace(models, models=changed))
    rows = models_section("run", run).blocks[1].groups[0].rows
    assert rows[-1][0].text == "(intercept)"
    assert {cell.tint for cell in rows[-1][1:]} == {None}
    assert max(abs(cell.tint) for row in rows[:-1] for cell in row[1:]) == 1


def test_names_are_shown_as_they_were_written(
    browser: Browser, runs: list[SavedRun], tmp_path: Path
):
    name = 'O\'Neil "<&>"'
    first, *rest = runs[0].outcome.agents
    outcome = replace(runs[0].outcome, agents=(replace(first, agent=name), *rest))
    write_training_report([replace(runs[0], outcome=outcome)], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as tab:
        draw_all(tab)
        names = tab.locator("#run-verdicts-0-0 .ytick text").all_text_contents()
        assert names[0].strip() == name


def test_long_tables_are_folded_and_printed(browser: Browser, runs: list[SavedRun], tmp_path: Path):
    run = replace(runs[1], outcome=warned(runs[1].outcome, agents=3), models=None)
    write_training_report([replace(run, history=())], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", 375) as tab:
        draw_all(tab)
        row = tab.locator("#run-verdict tbody tr").first
        assert not row.is_visible()
        tab.get_by_text("All 15 verdicts in words").click()
        assert row.is_visible()
        tab.get_by_text("All 15 verdicts in words").click()
        tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert row.is_visible()


def test_layers_of_a_module_have_the_names_of_the_module(runs: list[SavedRun]):
    models = runs[0].models
    torch = replace(
        models,
        kind=MODEL_KINDS["torch"],
        layout={"0.weight": (3, 2), "0.bias": (1,)},
        labels=None,
    )
    table = models_section("run", replace(runs[0], models=torch)).blocks[0]
    assert [row[0].text for row in table.groups[0].rows] == ["0.weight (3 × 2)", "0.bias (1)"]


def test_a_comparison_begins_with_the_scores_of_all_agents(
    pages: dict[str, Path], runs: list[SavedRun]
):
    titled = {"one": runs[0], "two": runs[0]}
    (chart,) = compared_scores_chart(titled, training_styles(titled))
    first, second = chart.panels[0].data
    expected = [agent.score for agent in runs[0].outcome.agents]
    assert first["x"] == second["x"] == pytest.approx(expected, rel=1e-4)
    assert set(first["y"]).isdisjoint(second["y"]), "equal scores do not hide each other"
    assert compared_scores_chart(runs_by_title(runs), {}) == [], "other agents"
    words = ParsedPage(pages["two"].read_text("utf-8")).words
    titles = ("Scores and course", "Results", "Settings that differ")
    assert [word for word in words if word in titles] == [*titles, *titles]


def test_trainings_with_different_algorithms_have_the_colours_of_these(runs: list[SavedRun]):
    assert list(training_styles(runs_by_title(runs)).values()) == list(STYLES[:2])
    other = replace(runs[1].config, algorithm=PCFedAvg(step="auto", penalty="auto"))
    styles = training_styles({"a": runs[0], "b": replace(runs[1], config=other)})
    assert styles == {"a": METHOD_STYLES["PCFedSplit"], "b": METHOD_STYLES["PC-FedAvg"]}


def test_long_histories_and_many_agents_stay_readable(runs: list[SavedRun]):
    many = subsampled([replace(runs[0].history[0], round=i) for i in range(10_000)])
    assert len(many) == MAX_POINTS
    assert (many[0].round, many[-1].round) == (0, 9_999)
    styles = series_styles(map(str, range(20)))
    assert len({(style.colour, style.dash) for style in styles.values()}) == 20


def test_an_unfinished_training_has_a_report(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "split", tmp_path / "part")
    for name in ("outcome.json", "models.npz", "result.npz", "log.txt"):
        (tmp_path / "part" / name).unlink()
    write_training_report([open_run(tmp_path / "part")], tmp_path / "page.html")
    page = ParsedPage((tmp_path / "page.html").read_text("utf-8"))
    assert any("Not finished." in words for words in page.words)
    assert any(row.startswith("hillside") and "linf(0.4)" in row for row in page.rows)
    assert "Verdict" not in page.words
    (tmp_path / "part" / "history.jsonl").unlink()
    write_training_report([open_run(tmp_path / "part")], tmp_path / "page.html")


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("name", ["one", "two"])
def test_pages_in_a_browser(browser: Browser, pages: dict[str, Path], name: str, width: int):
    with opened(browser, pages[name], width) as tab:
        draw_all(tab)
        total = tab.locator(".plot").count()
        assert total == {"one": 10, "two": 3}[name]
        assert tab.locator(".plot :is(.js-line, .points path)").count() >= total
        wide = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
        assert max(tab.evaluate(wide)) <= width, "only tables scroll sideways"
        assert tab.evaluate("window.hacked") is None
        shown = (
            "[...document.querySelectorAll('.plot')].flatMap(p => p.data).filter(t => t.visible)"
        )
        before = tab.evaluate(f"{shown}.length")
        tab.locator("button.series").first.click()
        assert tab.evaluate(f"{shown}.length") < before


def test_pages_of_many_trainings_are_small(runs: list[SavedRun], tmp_path: Path):
    write_training_report([*runs, *runs, *runs, *runs, *runs], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_500_000


def test_wide_tables_say_that_they_scroll(browser: Browser, pages: dict[str, Path]):
    with opened(browser, pages["one"], 375) as tab:
        table = tab.locator("#run-models .scroll").first
        hint = tab.locator("#run-models .swipe").first
        assert hint.is_visible()
        table.evaluate("box => box.scrollTo(200, 0)")
        name = table.locator("tbody th").first.bounding_box()
        assert name is not None
        assert 0 <= name["x"] < 30, "the first column stays"
    with opened(browser, pages["one"], 1280) as tab:
        assert not tab.locator("#run-verdict .swipe").first.is_visible()


def test_a_printed_page_has_charts_in_the_width_of_the_paper(
    browser: Browser, pages: dict[str, Path]
):
    with opened(browser, pages["one"], scheme="dark") as tab:
        draw_all(tab)
        tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        widths = tab.evaluate(
            "[...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().width)"
        )
        assert 100 < max(widths) <= 681  # 180 mm
        ink = "document.querySelector('.js-plotly-plot')._fullLayout.font.color"
        assert int(tab.evaluate(f"{ink}.match(/\\d+/)[0]")) < 120, "dark text on white paper"
        tab.emulate_media(media="screen")
        tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert int(tab.evaluate(f"{ink}.match(/\\d+/)[0]")) > 130


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pcfed", *arguments]
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(
        line, cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )


def test_the_commands(folder: Path, tmp_path: Path):
    done = command(folder, "report", "split")
    assert done.stdout == "Open split/report.html\n"
    assert (folder / "split" / "report.html").stat().st_size < 1_500_000  # with Plotly
    done = command(folder, "compare", "split", ODD, "--out", str(tmp_path / "c.html"))
    assert done.returncode == 0, done.stderr
    assert "algorithm.relaxation" in done.stdout
    assert "relative gap" in done.stdout
    assert ODD in done.stdout


WRONG = {
    "nothing there": (["report", "nowhere"], "must be the run directory of a training, but has no"),
    "only one": (["compare", "split"], "give at least two run directories, got split"),
    "one is none": (["compare", "split", "data"], "data must be the run directory of a training"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_one_sentence(name: str, folder: Path):
    arguments, expected = WRONG[name]
    done = command(folder, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", "[1]", r"config.json is not a valid description of a training"),
        (
            "config.json",
            '{"format": 1, "config": {}, "versions": 3}',
            r"config.json is not a valid description of a training",
        ),
        (
            "config.json",
            '{"format": 1, "digest": "", "config": {}, "versions": {}}',
            r"model\.kind is missing",
        ),
        ("history.jsonl", "{}\n", "must have one record per line"),
        ("outcome.json", "{}", "is not a valid training summary"),
        ("models.npz", "{}", "is not a valid file of trained models"),
    ],
)
def test_damaged_folders_are_refused(file, content, expected, folder: Path, tmp_path: Path):
    shutil.copytree(folder / "split", tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(ValueError, match=expected):
        open_run(tmp_path / "run")
