"""Tiny experiments on the digits data, and their report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pcfed.experiments.jobs import jobs, results, run_jobs
from pcfed.experiments.presets import Preset, load_preset
from pcfed.experiments.summary import Comparison, comparisons
from pcfed.report import write_report

HOSTILE = '<img src=x onerror="window.hacked=1"></script>&amp;'
"""A name that would break a page that does not escape."""


def tiny(experiment: str, **changes: Any) -> Preset:
    """Return a preset with only its first setting, in a tiny size, with some fields changed."""
    preset = load_preset(experiment)
    first = replace(preset.settings[0], data="digits", samples=None, rounds=3)
    return replace(preset, settings=(replace(first, **changes),))


def run_all(presets: list[Preset], out: Path) -> list[Comparison]:
    todo = jobs(presets, 2)
    run_jobs(todo, out)
    return comparisons(presets, results(todo, out))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[Comparison]:
    """Comparisons with inactive constraints, of numbers of local steps, and with active budgets."""
    budgets = ("l1(0.5)", "l1(1)", "l1(2)", "l1(100)")
    binding = tiny("binding", constraints=budgets, name=HOSTILE)
    methods = binding.settings[0].runs
    renamed = (*methods[:-1], replace(methods[-1], name=HOSTILE))
    binding = replace(binding, settings=(replace(binding.settings[0], runs=renamed),))
    presets = [tiny("mnist"), tiny("local-steps"), binding]
    return run_all(presets, tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def report(finished: list[Comparison], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    write_report(finished, path, provenance={"version": "1.2.3", HOSTILE: HOSTILE})
    return path
