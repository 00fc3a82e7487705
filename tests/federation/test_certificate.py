"""The certificate over messages: the numbers of `certify`, and the consent of all owners."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pcfed import Agent, Problem, certify, run
from pcfed.federation.server import MissingAgents
from pcfed.federation.server_state import ServerResult
from pcfed.sets import L1Ball, WholeSpace
from tests.federation.in_process import NAMES, OPTIONS, federation, history, models
from tests.federations import ALGORITHMS, classifiers

WILLING = {"certificate": True}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@every_algorithm
def test_the_numbers_of_the_simulator(algorithm, tmp_path):
    with federation(tmp_path, algorithm, 5, owner=WILLING) as (problem, _, server):
        server.run()
        found = server.certificate()
    expected = certify(
        problem, run(problem, algorithm, rounds=5, batch=0.3, **OPTIONS), tightening=0
    )
    assert expected.gap > 0
    np.testing.assert_allclose(found.objective, expected.objective, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.gap, expected.gap, rtol=0, atol=1e-12)
    assert (found.round, found.reason) == (5, None)


def test_what_is_sent_is_what_is_summed_and_nothing_more(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 1, owner=WILLING) as (_, _, server):
        server.run()
        server.transport.replies.clear()
        server.certificate()
        sent = [(r.kind, set(r.vectors), set(r.metadata)) for r in server.transport.replies]
    always = {"protocol", "name", "training", "round", "rollbacks", "certificate"}
    expected = [
        ("feasible_model", {"model"}, always),
        ("objective_terms", {"gradient"}, always | {"objective", "nonconvex", "coupling"}),
        ("gap_term", set(), always | {"gap"}),
    ]
    assert sent == [each for each in expected for _ in NAMES]


def test_no_certificate_without_the_consent_of_all(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, owner=WILLING) as (_, clients, server):
        clients["south"]._certificate = False
        server.run()
        server.transport.replies.clear()
        result = server.conclude()
        assert result.no_certificate == (
            "A certificate needs the consent of all agents, and south did not give it; the owner "
            "can, with certificate = true in the agent's file."
        )
        assert result.certificate is None
        kinds = {reply.kind for reply in server.transport.replies}
        assert kinds == {"finish", "audit"}  # no agent has revealed its model for nothing
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, owner=WILLING) as (_, clients, server):
        clients["south"]._certificate = False  # the server does not know yet who consents
        assert "south did not give it" in server.conclude().no_certificate
        assert not [
            reply
            for reply in server.transport.replies
            if reply.metadata["name"] == "south"
            and reply.kind == "feasible_model"
            and reply.vectors
        ]
        clients["south"]._certificate = True
        server.finish()
        assert server.conclude().certificate.gap > 0  # now the owner consents


@pytest.mark.parametrize("step", [0, 1, 2])
def test_no_certificate_while_an_agent_is_absent(step, tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, owner=WILLING) as (_, _, server):
        server.run()
        server.transport.faults = iter([{}] * step + [{"west": "lost"}])
        result = server.conclude()
        assert result.no_certificate == ("A certificate needs all agents, and west did not answer.")
        assert result.finished == list(NAMES)
        assert max(result.audit.values()) < 1e-14
        assert server.conclude().certificate.gap > 0


def test_an_unbounded_set_is_named(tmp_path):
    first = classifiers().agents
    agents = [
        Agent(a.loss, WholeSpace() if i == 1 else L1Ball(1.0), 0.1) for i, a in enumerate(first)
    ]
    problem = Problem(agents)
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, problem=problem, owner=WILLING) as (
        _,
        clients,
        server,
    ):
        server.run()
        found = server.certificate()
        assert certify(problem, models(clients, server)).gap == np.inf
        assert found.gap is None
        assert found.sentence == (
            "No certificate: the set of south is unbounded along its gradient."
        )
        server.conclude().save(tmp_path / "result.json")
        contents = (tmp_path / "result.json").read_text()
        assert json.loads(contents, parse_constant=pytest.fail)["certificate"] == vars(found)
        assert ServerResult.load(tmp_path / "result.json").certificate == found


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("gap_term", "gap", "nothing"),
        ("gap_term", "gap", -1e9),
        ("gap_term", "gap", math.nan),
        ("objective_terms", "objective", -math.inf),
        ("objective_terms", "objective", -1e-9),
        ("objective_terms", "objective", math.inf),
        ("objective_terms", "coupling", -0.1),
        ("objective_terms", "coupling", 10**400),
        ("objective_terms", "nonconvex", None),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(kind, key, value, tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 1, owner=WILLING) as (_, clients, server):
        server.run()
        honest = clients["west"].handle

        def lies(message):
            reply = honest(message)
            if reply.kind == kind:
                reply.metadata[key] = value
            return reply

        clients["west"].handle = lies
        with pytest.raises(MissingAgents, match=rf"west did not answer \(its {key} in a cert"):
            server.certificate()
        clients["west"].handle = honest
        assert server.certificate().gap > 0


def test_training_stops_at_the_gap(tmp_path):
    algorithm, gap = ALGORITHMS["PCFedSplit"], 0.02
    with federation(tmp_path, algorithm, 400, owner=WILLING, gap=gap, gap_every=20) as (
        problem,
        clients,
        server,
    ):
        done = server.run().round
        assert 0 < done < 400
        assert done % 20 == 0
        result = server.conclude()
        server.finish()
        at_end = certify(problem, models(clients, server), tightening=0)
    assert result.certificate.gap == pytest.approx(at_end.gap, abs=1e-12)
    assert at_end.gap <= gap * at_end.objective
    earlier = run(problem, algorithm, rounds=done - 20, batch=0.3, **OPTIONS)
    before = certify(problem, earlier, tightening=0)
    assert before.gap > gap * before.objective  # it would not have stopped before
    with federation(tmp_path, algorithm, 400, owner=WILLING, gap=gap, gap_every=20) as (
        _,
        _,
        server,
    ):
        assert server.run().round == done  # after a restart the gap is still reached


def test_a_gap_is_refused_at_once_if_an_owner_does_not_consent(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9, owner=WILLING, gap=0.1) as (
        _,
        clients,
        server,
    ):
        clients["west"]._certificate = False
        with pytest.raises(
            MissingAgents, match=r"^rounds.gap needs the consent of all agents, and west"
        ):
            server.run()
        assert server.state.round == 0


def test_the_gap_is_not_certified_while_an_agent_is_absent(tmp_path):
    faults = [{}, {}, {"west": "lost"}]  # two rounds, then a certificate
    notes = []
    with federation(
        tmp_path, ALGORITHMS["PCFedAvg"], 3, faults, owner=WILLING, gap=0.001, gap_every=2
    ) as (_, _, server):
        server.on_status = lambda **changes: notes.append(changes)
        assert server.run().round == 3
        assert len(history(server)) == 3
    assert {"note": "A certificate needs all agents, and west did not answer."} in notes
