"""One BLAS thread, and the same examples in every run of the property tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

# `pytest --hypothesis-profile default` looks for new examples instead.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def single_blas_thread() -> Iterator[None]:
    """Matrices here are small, and threads that wait for a busy core are slow."""
    with threadpool_limits(1):
        yield
