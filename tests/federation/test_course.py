"""A training that gets worse for rounds is said to."""

from __future__ import annotations

from pcfed.federation.course import Course
from tests.federation.in_process import federation
from tests.federations import ALGORITHMS


def course(*rounds):
    """Return the course of a training in which agents a, b, … report these losses."""
    entries = []
    for losses in rounds:
        pairs = zip("abcdef", losses, strict=False)
        entries.append({"metrics": {name: {"loss": x} for name, x in pairs if x is not None}})
    return Course(entries)


def test_losses_that_rise_for_five_rounds():
    falling = [(1.0, 1.0), (0.5, 0.7)]
    rising = [(0.5 + 0.2 * k, 0.7 + 0.2 * k) for k in range(1, 6)]
    assert course(*falling, *rising[:4]).warning is None
    said = course(*falling, *rising).warning
    assert "getting worse for 5 rounds: 1.6 on average, 0.6 at best; see which" in said
    assert "pcfed federation rollback" in said


def test_losses_that_only_vary():
    assert course(*[(1.0 / k, 1.0 / k) for k in range(1, 30)]).warning is None
    assert course((1.0, 1.0), *[(0.5 + 0.04 * (-1) ** k, 0.5) for k in range(20)]).warning is None
    assert course((0.5, 0.5), *[(0.9, 0.9)] * 20).warning is None  # higher, and does not rise


def test_only_agents_that_report_in_both_rounds_are_compared():
    rounds = [(0.1, None), (0.1, 5.0)] + [(0.1, None), (None, 5.0)] * 10
    assert course(*rounds).warning is None
    assert course(*[(None, None)] * 9).warning is None


def test_certified_gaps_that_grow():
    found = Course()
    for gap in (3.0, 1.0, None, 2.0, 2.0, 4.0):
        found.add_gap(gap)
    assert found.warning is None
    found.add_gap(8.0)
    assert "The certified gap has been growing: 1, 2, 4, 8" in found.warning


def test_the_server_says_it(tmp_path):
    said = []
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 12, owner={"report": ["loss"]}) as (
        _,
        clients,
        server,
    ):
        server.on_status = lambda **changes: said.append(changes.get("warning"))
        for client in clients.values():
            client.handle = worse(client.handle)
        server.run()
    assert any(text and "getting worse" in text for text in said)


def worse(handle):
    """Return an agent whose reported loss rises from round 5 on."""

    def handle_worse(message):
        reply = handle(message)
        rounds = message.metadata["round"]
        if rounds >= 5:
            reply.metadata["metric_loss"] += rounds - 4
        return reply

    return handle_worse
