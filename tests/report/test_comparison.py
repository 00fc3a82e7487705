"""Metrics, sentences, charts and images are computed from the results."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image

from pcfed.data import digits
from pcfed.experiments.claims import PC
from pcfed.experiments.figures import loss
from pcfed.experiments.personal import ALONE, METHODS
from pcfed.experiments.rounds import ALGORITHMS
from pcfed.experiments.styles import METHOD_STYLES, comparison_styles, method_styles
from pcfed.experiments.summary import Comparison
from pcfed.losses import SoftmaxRegression
from pcfed.palette import COLOURS
from pcfed.report.comparison_charts import comparison_charts
from pcfed.report.comparison_findings import differences, findings, summary
from pcfed.report.comparison_metrics import comparison_metrics
from pcfed.report.weight_images import data_url, weight_table


@pytest.fixture
def loose(finished: list[Comparison]) -> Comparison:
    return finished[0]


@pytest.fixture
def steps(finished: list[Comparison]) -> Comparison:
    return finished[1]


@pytest.fixture
def tight(finished: list[Comparison]) -> Comparison:
    return finished[2]


def pixels(url: str) -> np.ndarray:
    content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))


def test_metrics_are_those_of_the_last_models(tight: Comparison):
    data = digits()
    test = SoftmaxRegression(data.test_images, data.test_labels, classes=10, scale=data.scale)
    for algorithm in comparison_metrics(tight, data):
        runs = tight.results[algorithm.name]
        assert algorithm.loss == pytest.approx(np.mean([r.history[-1].loss for r in runs]))
        assert algorithm.loss_range[0] <= algorithm.loss <= algorithm.loss_range[1]
        for i, agent in enumerate(algorithm.agents):
            models = [run.models[i] for run in runs]
            assert agent.accuracy == pytest.approx(np.mean([test.accuracy(x) for x in models]))
            assert agent.norm == pytest.approx(np.mean([np.abs(x).sum() for x in models]))
            assert agent.budget == tight.setting.budgets[i]
            assert 0 < agent.nonzero <= 1


def test_agents_with_equal_metrics_share_a_row(loose: Comparison, tight: Comparison):
    rows = {m.name: [label for label, _ in m.rows] for m in comparison_metrics(loose, digits())}
    assert rows[PC] == rows["FedAvg"] == ["1–4"]
    rows = {m.name: [label for label, _ in m.rows] for m in comparison_metrics(tight, digits())}
    assert rows[PC] == rows["FedAvg"] == ["1", "2", "3", "4"]


def test_the_text_says_whether_the_constraint_binds(loose: Comparison, tight: Comparison):
    sentences = findings(loose, comparison_metrics(loose, digits()))
    assert "its constraint never bound" in sentences[0]
    assert any("had not converged" in each and "γ/m = 0.0075" in each for each in sentences)
    assert any("shows no personalisation" in each for each in sentences)
    sentences = findings(tight, comparison_metrics(tight, digits()))
    assert "The constraint binds" in sentences[0]
    assert "infeasible for agents 1" in sentences[0]
    assert any("different models" in each for each in sentences)


@pytest.mark.parametrize(("factor", "side"), [(0.5, "below"), (2.0, "above")])
def test_directions_follow_the_numbers(loose: Comparison, factor: float, side: str):
    metrics = comparison_metrics(loose, digits())
    best = min(m.loss for m in metrics if m.name != PC)
    metrics = [replace(m, loss=factor * best) if m.name == PC else m for m in metrics]
    percent = f"{abs(factor - 1) * 100:.0f} %"
    assert f"{percent} {side} the best of the others" in summary(loose, metrics)


def test_variants_are_compared_at_equal_work(steps: Comparison):
    text = summary(steps, comparison_metrics(steps, digits()))
    assert text.startswith("Loss at the end, from the lowest: 40 local steps")
    assert "At equal work, after 3 local steps" in text


def test_a_smaller_experiment_is_named_as_such(loose: Comparison):
    assert differences(loose) == ["data digits instead of mnist", "rounds 3 instead of 100"]


def test_lines_lie_in_their_bands_and_end_where_the_run_did(tight: Comparison):
    _, infeasibility, bars = comparison_charts(tight, comparison_metrics(tight, digits()))
    assert len(infeasibility.panels) == 4
    for i, panel in enumerate(infeasibility.panels):
        for low, high, line in zip(
            panel.data[::3], panel.data[1::3], panel.data[2::3], strict=True
        ):
            end = tight.last(line["meta"]["series"], lambda r, i=i: float(r.infeasibility[i]))
            assert line["y"][-1] == pytest.approx(end, rel=1e-4)
            assert np.all(np.array(low["y"]) <= np.array(line["y"]) * (1 + 1e-4))
            assert np.all(np.array(high["y"]) * (1 + 1e-4) >= np.array(line["y"]))
    for bar in bars.panels[0].data:
        share = 100 * tight.norms(bar["meta"]["series"]) / np.array(tight.setting.budgets, float)
        assert bar["y"] == pytest.approx(share.tolist(), abs=0.01)


def test_feasible_models_get_a_sentence_instead_of_empty_charts(loose: Comparison):
    infeasibility = comparison_charts(loose, comparison_metrics(loose, digits()))[1]
    assert not infeasibility.panels
    assert "feasible in every evaluated round" in infeasibility.caption


def test_every_algorithm_has_its_own_style(loose: Comparison, steps: Comparison):
    for comparison in (loose, steps):
        assert len(set(comparison_styles(comparison).values())) == len(comparison.results)
    styles = comparison_styles(loose)
    assert styles[PC].width > max(style.width for name, style in styles.items() if name != PC)


def test_a_method_has_the_same_style_in_every_chart(loose: Comparison):
    everywhere = method_styles((*ALGORITHMS, "another", "one more"))
    assert len({(style.colour, style.dash) for style in everywhere.values()}) == 8
    for name, style in {**comparison_styles(loose), **method_styles(["SCAFFOLD"])}.items():
        assert style == everywhere[name]
    personal = method_styles(METHODS)
    assert len({(style.colour, style.dash) for style in personal.values()}) == len(METHODS)
    assert set(METHODS) <= METHOD_STYLES.keys()
    assert personal[ALONE] == METHOD_STYLES["Local"]


def test_figures_have_the_colours_and_dashes_of_the_page(loose: Comparison, steps: Comparison):
    for comparison in (loose, steps):
        figure = loss(comparison)
        pyplot.close(figure)
        panel = figure.axes[0]
        drawn = {line.get_label(): line for line in panel.lines}
        for name, style in comparison_styles(comparison).items():
            assert drawn[name].get_color() == COLOURS[style.colour][0]
            assert drawn[name].is_dashed() == (style.dash != "solid")


def test_weight_images_have_a_row_per_distinct_model(loose: Comparison, tight: Comparison):
    table = weight_table(loose, digits())
    assert table is not None
    assert [row[0].note.partition(",")[0] for row in table.groups[0].rows] == ["agents 1–4"] * 4
    table = weight_table(tight, digits())
    assert table is not None
    own = [row for row in table.groups[0].rows if row[0].text == PC]
    agents = [row[0].note.partition(",")[0] for row in own]
    assert agents == [f"agent {i}" for i in (1, 2, 3, 4)]
    assert all(len(row) == 1 + 10 for row in own)
    assert pixels(own[0][1].image).shape == (8, 8, 4)


def test_a_pixel_shows_sign_and_size_and_zero_is_transparent():
    image = pixels(data_url(np.array([[0.0, 0.5], [-1.0, 3.0]])))
    red, blue, opacity = image[..., 0].astype(int), image[..., 2].astype(int), image[..., 3]
    assert opacity.tolist() == [[0, pytest.approx(128, abs=2)], [255, 255]]
    assert red[0, 1] > blue[0, 1]
    assert red[1, 0] < blue[1, 0]


def test_colour_images_have_grey_for_zero():
    image = pixels(data_url(np.array([[[0.0, 0.0, 0.0], [1.0, 0.0, -1.0]]])))
    assert image[0].tolist() == [[128, 128, 128, 255], [255, 128, 1, 255]]
