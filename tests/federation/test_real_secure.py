"""Secure sums of real processes, killed at every moment: `make test-federation`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pcfed.federation.paths import OPEN_SUM, RESULT
from pcfed.federation.server_state import ServerResult
from tests.federation.processes import Federation, federation

pytestmark = pytest.mark.federation

FAULTY = "agent-2"
MOMENTS = [
    "before announce",
    "after announce",
    "before train",
    "computing",
    "after train",
    "before confirm",
    "after confirm",
    "before unmask",
    "after unmask",
]
"""Moments of the first round with all five exchanges; `introduce` is like `announce`."""


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("secure") / "federation"
    with federation(folder, 4, tls=True) as found:
        yield found


def test_the_numbers_of_the_simulator_and_a_certificate_without_consent(real):
    real.begin("plain", rounds=4)
    plain = timed(real)
    real.check(exact=True)
    real.begin("secure", rounds=4, secure=True)
    secure = timed(real)
    assert real.check(exact=True) == [real.names] * 4
    result = ServerResult.load(real.training_directory / RESULT)
    assert result.certificate is not None  # no owner has consented to certificates
    print(f"4 rounds and the end: plain {plain:.1f} s, secure {secure:.1f} s")


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_app_that_is_killed(real, moment):
    """The round has the exact sum over those counted; who is left out comes back."""
    real.begin(moment, rounds=3, minimum=3, secure=True)
    text = real.server_file.read_text().replace("deadline = 60.0", "deadline = 20.0")
    real.server_file.write_text(text)
    real.plant(FAULTY, moment, 0)
    real.train()
    assert real.reached
    accepted = real.check(exact=True)
    if moment.endswith(("confirm", "unmask")):
        assert FAULTY in accepted[0]  # its masked update was there before it died
    assert any(FAULTY in names for names in accepted)


def test_a_server_that_is_killed_while_a_sum_is_opened(real):
    real.begin("killed", rounds=3, secure=True)
    real.plant(FAULTY, "before unmask", 1, wait=True)

    def kill_when_reached() -> None:
        if real.reached and "SuperLink" not in real.killed:
            assert (real.training_directory / OPEN_SUM).exists()
            real.kill("SuperLink")

    real.run(on_tick=kill_when_reached)
    assert "SuperLink" in real.killed
    real.release()
    real.up(tls=True)
    real.train()
    assert real.check(exact=True) == [real.names] * 3
    assert not (real.training_directory / OPEN_SUM).exists()


def timed(real: Federation) -> float:
    """Train, and return the seconds that it took."""
    start = time.monotonic()
    real.train()
    return time.monotonic() - start
