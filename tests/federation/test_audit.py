"""Audits: they find a difference, and do not reveal an agent's state however many are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed.federation import Message
from pcfed.federation.protocol import ProtocolError, audit_digest, audit_directions
from tests.federation.in_process import federation
from tests.federations import ALGORITHMS


def audit_message(server, changes=(), **vectors):
    """Return an audit's message to an agent, with other metadata and vectors than the server's."""
    found = server._messages("audit", {}, {})["north"]
    return Message("audit", {**found.metadata, **dict(changes)}, {**found.vectors, **vectors})


def test_invented_rounds_do_not_solve_for_the_state(tmp_path):
    """A server that asks for ⌈n/3⌉ audits of one state gets the answer to one of them."""
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 3) as (problem, clients, server):
        server.run()
        assert clients["north"].handle(audit_message(server, {"round": 100})).vectors
        for invented in range(-(-problem.n // 3)):
            message = audit_message(server, {"round": 101 + invented})
            with pytest.raises(ProtocolError, match="it has answered another audit since its last"):
                clients["north"].handle(message)


def test_other_vectors_in_the_message_are_another_audit(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2) as (_, clients, server):
        server.run()
        clients["north"].handle(audit_message(server))
        name, vector = next(iter(server.state.vectors.items()))
        with pytest.raises(ProtocolError, match="another audit"):
            clients["north"].handle(audit_message(server, **{name: vector + 1e-9}))


def test_the_same_audit_has_the_same_answer(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedSplit"], 2) as (_, clients, server):
        server.run()
        server.audit()
        first, again = (clients["north"].handle(audit_message(server)) for _ in range(2))
        for name, vector in first.vectors.items():
            np.testing.assert_array_equal(again.vectors[name], vector)


def test_one_audit_for_every_accepted_update(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedSplit"], 9) as (_, _, server):
        for _ in range(4):
            server.run_round()
            assert all(difference < 1e-13 for difference in server.audit().values())


def test_an_audit_finds_a_changed_average(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 3) as (_, _, server):
        server.run()
        for vector in server.state.vectors.values():
            vector += 1e-3
        assert max(server.audit().values()) > 1e-5


def test_directions_depend_on_everything_that_was_broadcast():
    vectors = {"x": np.arange(4.0), "y": np.ones(4)}
    digests = {
        audit_digest("a", 3, vectors),
        audit_digest("b", 3, vectors),
        audit_digest("a", 4, vectors),
        audit_digest("a", 3, {"x": vectors["y"], "y": vectors["x"]}),
        audit_digest("a", 3, {**vectors, "y": np.nextafter(vectors["y"], 2)}),
    }
    assert len(digests) == 5
    first = audit_directions(audit_digest("a", 3, vectors), 4)
    np.testing.assert_array_equal(first, audit_directions(audit_digest("a", 3, vectors), 4))
    assert np.linalg.matrix_rank(first) == 3
