"""One BLAS thread, the same examples in every run of the property tests, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright
from threadpoolctl import threadpool_limits

# `pytest --hypothesis-profile default` looks for new examples instead.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)


@pytest.fixture(autouse=True, scope="session")
def single_blas_thread() -> Iterator[None]:
    """Matrices here are small, and threads that wait for a busy core are slow."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield running
        running.close()
