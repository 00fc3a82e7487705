"""No test in this folder downloads anything: the real sources are removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pcfed.data import catalog


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.delenv("PCFED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("MNIST", "CIFAR10", "SWISSMETRO", "ELECTRICITY"):
        monkeypatch.setattr(catalog, name, replace(getattr(catalog, name), sources=()))
