"""The measured rates: runs are within the bounds, slopes are fitted, and files are loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pcfed.experiments.claims import claims
from pcfed.experiments.figures import write_figures
from pcfed.experiments.presets import load_preset
from pcfed.experiments.rates import RatePoint, Rates, measure_rates, rates_problem
from pcfed.guarantees import optimum
from pcfed.report import write_report
from tests.experiments.test_reproduce import called

SIZES = (40, 120, 360)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("rates")
    return out, measure_rates(out, rounds=SIZES, seeds=2)


def rates_with_slope(slope: float, seeds: int = 3, noise: float = 0.0) -> Rates:
    """Return points on a line of a known slope, with noise."""
    rng = np.random.default_rng(0)
    points = []
    for R in (100, 1000, 10_000, 100_000):
        for seed in range(seeds):
            value = 5 * R**slope * np.exp(noise * rng.normal())
            points.append(RatePoint(R, seed, value, value, 100.0, 100.0, -100.0))
    return Rates(tuple(points))


def test_budgets_bind_at_the_optimum():
    problem = rates_problem()
    best = optimum(problem, tolerance=1e-10)
    assert best.status == "converged"
    assert best.gap <= 1e-10
    norms = np.abs(best.models).sum(axis=1)
    np.testing.assert_allclose(norms, [a.constraint.radius for a in problem.agents], rtol=1e-9)


def test_runs_are_within_the_bounds_and_fall(measured):
    _, rates = measured
    assert len(rates.points) == 6
    assert rates.violations == ()
    assert rates.fit(lambda p: p.suboptimality).slope < -0.3
    assert rates.fit(lambda p: p.infeasibility).slope < -0.5
    assert all(p.infeasibility > 0 for p in rates.points)


def test_finished_runs_are_loaded_again(measured):
    out, rates = measured
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert len(before) == 6
    reported = []
    assert measure_rates(out, rounds=SIZES, seeds=2, on_progress=reported.append) == rates
    assert sorted(reported) == sorted(SIZES * 2)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


@pytest.mark.parametrize("slope", [-0.5, -1.0])
def test_fit_finds_the_slope_with_an_interval_around_it(slope):
    exact = rates_with_slope(slope).fit(lambda p: p.infeasibility)
    assert exact.slope == pytest.approx(slope, abs=1e-9)
    noisy = rates_with_slope(slope, seeds=20, noise=0.2).fit(lambda p: p.infeasibility)
    assert noisy.low < slope < noisy.high
    assert 0.005 < noisy.high - noisy.low < 0.1


def test_claims_depend_on_the_rates():
    good = {c.claim: c.verdict for c in claims([], rates_with_slope(-1.0))}
    assert set(good.values()) == {"holds"}
    flat = [c.verdict for c in claims([], rates_with_slope(-0.95))]
    assert flat == ["holds", "holds", "holds, but"]
    slow = [c.verdict for c in claims([], rates_with_slope(-0.3))]
    assert slow == ["holds", "does not hold", "does not hold"]
    rates = rates_with_slope(-1.0)
    outside = replace(rates.points[0], suboptimality=101.0)
    broken = Rates((outside, *rates.points[1:]))
    assert broken.violations == (outside,)
    assert claims([], broken)[0].verdict == "does not hold"


def test_figure_data_and_report_are_written(measured, tmp_path):
    _, rates = measured
    (png,) = write_figures([], tmp_path, rates)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "rates.csv").read_text().splitlines()) == 7
    write_report([], tmp_path / "report.html", rates=rates)
    page = (tmp_path / "report.html").read_text()
    assert "6 of 6 runs are within all three bounds" in page
    assert "The theorem: measured rates" in page


def test_certify_and_bounds_on_the_command_line(tmp_path):
    code, _, err = called("reproduce", "local-steps", "--quick", "--out", str(tmp_path))
    assert code == 0, err
    run = next(tmp_path.glob("runs/*.npz"))
    code, out, err = called("certify", str(run))
    assert code == 0, err
    assert "above the optimum" in out
    assert "agent 3" in out
    code, out, err = called("certify", str(tmp_path / "nothing.npz"))
    assert code == 2
    assert "there is no file" in err
    run.with_suffix(".json").unlink()
    code, out, err = called("certify", str(run))
    assert code == 2
    assert "is not a valid description of a run" in " ".join(err.split())


CONFIG = """
title = "Two agents"

[[setting]]
name = "digits"
data = "digits"
partition = "iid"
constraints = ["l1(5)", "box(-1, 1)"]
couplings = [0.1, 0.2]
penalty = 10.0
rounds = 100
batch = 1.0

[[setting.run]]
name = "PC-FedAvg"
algorithm = "PCFedAvg"
step = 1e-4
local_steps = 2
"""


def test_bounds_of_a_config_that_the_theorem_covers(tmp_path):
    (tmp_path / "own.toml").write_text(CONFIG)
    code, out, err = called("bounds", str(tmp_path / "own.toml"))
    assert code == 0, err
    assert "The theorem covers PC-FedAvg as this experiment runs it" in " ".join(out.split())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("title =", "titel =", "'title' is missing"),
        ("rounds = 100", "", "'rounds' is missing"),
        ('"PCFedAvg"', '"PCFed"', "got 'PCFed'; did you mean 'PCFedAvg'?"),
        ("step = 1e-4", "step = -1", "step must be > 0, got -1"),
        ("step = 1e-4", "stride = 1", "stride"),
        ("[[setting]]", "[[setting]", "is not a valid experiment"),
        ("[[setting.run]]", "[[setting.method]]", "is now called [[setting.run]]"),
    ],
)
def test_invalid_configs_get_a_sentence(old, new, sentence, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(CONFIG.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"own\.toml is not a valid experiment") as caught:
        load_preset(str(path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_config_gets_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        load_preset(str(tmp_path / "nothing.toml"))


def test_bounds_report_that_the_step_of_the_paper_is_not_covered():
    code, out, err = called("bounds", "mnist", "--quick")
    assert code == 0, err
    said = " ".join(out.split())
    assert "The theorem does not cover PC-FedAvg here: its step 0.03 is above the largest" in said
    assert "E[f − f*] ≤" in said
    assert "Rounds for ε = 0.1" in said
