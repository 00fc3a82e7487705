"""Updates that are far too long are refused; honest ones of any usual size are not."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PCFedAvg, PCFedSplit
from pcfed.federation.norm_limits import EARLY_ROUNDS, FLOOR, Norms, lower_medians, refuse_long
from pcfed.federation.protocol import Message
from pcfed.federation.server import Diverged
from tests.federation.in_process import federation, history, models
from tests.federations import ALGORITHMS

FACTOR = 1e4
ALGORITHM = PCFedAvg(step=0.1, penalty=1.0)


def updates(*lengths):
    """Return updates of agents whose vectors have these norms."""
    return {
        f"agent {i}": Message("train", {}, {"v": np.array([0.6, 0.8]) * length})
        for i, length in enumerate(lengths)
    }


def refused(norms, *lengths, limit=np.inf):
    """Return the agents that are refused."""
    found = refuse_long(updates(*lengths), norms, ALGORITHM, limit=limit, factor=FACTOR)[1]
    return sorted(found)


def after(*rounds):
    """Return the usual norms after rounds with updates of these lengths."""
    norms = Norms()
    for lengths in rounds:
        found, _ = refuse_long(updates(*lengths), norms, ALGORITHM, limit=np.inf, factor=FACTOR)
        norms = norms.after(lower_medians(found))
    return norms


USUAL = after(*[(2.0, 1.0, 3.0)] * EARLY_ROUNDS)


def test_the_median_of_earlier_rounds_counts():
    assert USUAL.largest["v"] == pytest.approx(2.0)
    assert refused(USUAL, 1.9e4, 1.0, 1.0) == []
    assert refused(USUAL, 2.1e4, 1.0, 1.0) == ["agent 0"]
    assert refused(USUAL, 2.1e4) == ["agent 0"]  # alone in its round


def test_short_updates_do_not_make_the_limit_smaller():
    norms = USUAL
    for _ in range(50):
        norms = norms.after({"v": 1e-9})
    assert refused(norms, 1.9e4, 1e-9, 1e-9) == []


def test_a_floor_in_the_first_rounds():
    assert refused(Norms(), FLOOR * 0.99) == []
    assert refused(Norms(), FLOOR * 1.01) == ["agent 0"]
    assert refused(Norms(), 1e300, 1.0) == ["agent 0"]
    assert refused(Norms(), 1e9, 2e9, 3e9) == []  # data of this size
    assert refused(after((0.0, 0.0), (0.0, 0.0)), 5.0, 0.0) == []


def test_agents_that_do_not_move_do_not_count():
    norms = after(*[(1.0, 2.0, *[0.0] * 8)] * EARLY_ROUNDS)
    assert refused(norms, 1e3, *[0.0] * 8) == []


def test_one_agent_cannot_raise_the_limit():
    norms = USUAL
    for power in range(4, 300, 4):
        assert refused(norms, 3 * 10.0**power, 1.0) == ["agent 0"]
        found, _ = refuse_long(updates(1.9e4, 1.0), norms, ALGORITHM, limit=np.inf, factor=FACTOR)
        norms = norms.after(lower_medians(found))


def test_a_fixed_limit():
    assert refused(USUAL, 5.0, 2.0, limit=4.0) == ["agent 0"]


def test_statistics_have_limits_of_their_own():
    algorithm = PCFedSplit()
    honest = np.array([0.0, 0.0, 4.0, 2.0, 0.1, 0.0, 0.0, 1.0])
    lie = honest.copy()
    lie[2] = 1e300

    def messages(*all_statistics):
        return {
            str(i): Message("train", {}, {"statistics": s}) for i, s in enumerate(all_statistics)
        }

    found, why = refuse_long(
        messages(honest, honest * 3, lie), Norms(), algorithm, limit=np.inf, factor=FACTOR
    )
    assert list(found) == ["0", "1"]
    assert "the norm of its curvature is 1e+300, above the limit" in why["2"]


@pytest.mark.parametrize(
    "name",
    [
        *("PCFedAvg", "PCFedSplit", "FedAvg", "Scaffold", "ProxAL", "FedMiD", "FedDualAvg"),
        *("Ditto", "PFedMe", "PerFedAvg", "FedRep", "PFedHN"),
    ],
)
def test_one_update_of_1e300_is_refused_by_default(name, tmp_path):
    with federation(tmp_path, ALGORITHMS[name], 6) as (_, clients, server):
        honest = clients["north"].handle

        def lies(message):
            reply = honest(message)
            if message.kind == "train" and message.metadata["round"] in (0, 3):
                vectors = {key: np.full_like(v, 1e300) for key, v in reply.vectors.items()}
                reply = Message(reply.kind, reply.metadata, vectors)
            return reply

        clients["north"].handle = lies
        server.run()
        clients["north"].handle = honest
        server.finish()
        assert [list(entry["refused"]) for entry in history(server)] == [
            ["north"] if index in (0, 3) else [] for index in range(6)
        ]
        assert np.abs(models(clients, server)).max() < 100
        assert all(difference < 1e-12 for difference in server.audit().values())


def test_updates_that_grow_without_bound_end_the_training(tmp_path):
    algorithm = PCFedAvg(step=2.0, penalty=30.0)
    with federation(tmp_path, algorithm, 400) as (_, _, server):
        with pytest.raises(Diverged, match=r"has diverged by round \d+: .* rollback, and try a sm"):
            server.run()
        assert EARLY_ROUNDS <= server.state.round < 400
        assert all(np.isfinite(vector).all() for vector in server.state.vectors.values())
