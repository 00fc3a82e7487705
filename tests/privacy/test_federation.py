"""Private agents of a federation: their budget over rounds, restarts, repeats and trainings."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcfed import Agent, FedAvg, PCFedSplit, Privacy, Problem
from pcfed.federation import Client, Server, ServerConfig
from pcfed.federation.privacy_ledger import LedgerFile, PrivacyLedger
from pcfed.federation.protocol import Message, ProtocolError
from pcfed.federation.server import MissingAgents
from pcfed.losses import SoftmaxRegression
from pcfed.privacy import Mechanism, PrivateGradients, epsilon_of
from pcfed.sets import L1Ball
from tests.federation.in_process import RefusingTransport, federation, history, models
from tests.federations import classifiers
from tests.privacy.test_gradients import attacked

BUDGET = Privacy(3.0, 1e-5, feature_norm=5.0)


def private(problem=None, budget=BUDGET, positions=(0,)):
    """Return a problem in which some agents have a budget."""
    problem = problem or classifiers()
    return Problem(
        replace(agent, privacy=budget if i in positions else None)
        for i, agent in enumerate(problem.agents)
    )


def ledger(folder, name="north"):
    """Return what an agent has spent."""
    return LedgerFile.load(folder / name / "privacy.json")


@pytest.fixture
def answers(monkeypatch):
    """Return all gradients with the points at which they were taken, as text."""
    found = []
    write = PrivateGradients.write

    def writing(self, loss, x, out):
        write(self, loss, x, out)
        found.append((x.tobytes(), out.tobytes()))

    monkeypatch.setattr(PrivateGradients, "write", writing)
    return found


@pytest.mark.parametrize("algorithm", [FedAvg(step=0.1), PCFedSplit()])
def test_a_training_spends_what_was_planned(tmp_path, algorithm, answers):
    options = {"problem": private(), "transport": RefusingTransport}
    with federation(tmp_path, algorithm, 4, **options) as (_, _, server):
        server.run()
        (entry,) = ledger(tmp_path).trainings
        assert entry.plan.gradients == entry.spent == 12
        assert epsilon_of([entry.plan], 1e-5) <= 3.0
        assert len(answers) <= 12
        path = tmp_path / "north" / "privacy.json"
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(bytes.fromhex(ledger(tmp_path).secret)) == 32
        assert not (tmp_path / "south" / "privacy.json").exists()


def test_noise_comes_from_the_secret_and_not_from_the_seed(tmp_path):
    found = []
    for name in ("one", "two"):
        with federation(tmp_path / name, FedAvg(step=0.1), 1, problem=private()) as (_, _, server):
            server.run()
            found.append(server.transport.replies)
    own, others = ([each[i].vectors["delta"] for each in found] for i in (0, 1))
    assert not np.allclose(*own)
    np.testing.assert_array_equal(*others)


def test_more_rounds_than_planned_are_refused_and_the_others_go_on(tmp_path):
    options = {"problem": private(), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 2, **options) as (_, _, server):
        server.run()
    with federation(tmp_path, FedAvg(step=0.1), 4, **options) as (_, clients, server):
        # The same clients as before, from their files.
        server.run()
        last = history(server)[-1]
        assert last["accepted"] == ["south", "west"]
        assert "its privacy budget is spent" in last["refused"]["north"]
        assert ledger(tmp_path).trainings[0].spent == 6
        assert np.isfinite(models(clients, server)).all()


def test_too_many_rounds_are_refused_before_the_first_one(tmp_path):
    options = {"problem": private(budget=Privacy(0.02, 1e-5)), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 10**6, **options) as (_, _, server):
        server.run_round()
        reason = history(server)[0]["refused"]["north"]
        assert "its privacy budget allows at most" in reason
        assert "rounds of 3 gradients, got 1,000,000" in reason


def test_an_algorithm_that_needs_the_curvature_spends_nothing_without_a_public_number(tmp_path):
    options = {"problem": private(budget=Privacy(3.0, 1e-5)), "transport": RefusingTransport}
    with federation(tmp_path, PCFedSplit(), 2, **options) as (_, _, server):
        server.run_round()
        reason = history(server)[0]["refused"]["north"]
        assert "PCFedSplit needs privacy.feature_norm in the agent's file" in reason
        assert not (tmp_path / "north" / "privacy.json").exists()


def test_a_second_training_needs_more_budget(tmp_path):
    agent = private().agents[0]
    path = tmp_path / "north.privacy.json"
    mechanism = Mechanism.of(agent.loss.size, 15, "without_replacement")

    def charge(budget, training):
        PrivacyLedger(path, budget).charge(training, 3, 10, "question", mechanism)

    charge(BUDGET, "first")
    with pytest.raises(ProtocolError, match=r"spent; its owner can raise privacy\.epsilon"):
        charge(BUDGET, "second")
    charge(replace(BUDGET, epsilon=6.0), "second")
    plans = [each.plan for each in LedgerFile.load(path).trainings]
    assert len(plans) == 2
    assert 5.5 < epsilon_of(plans, 1e-5) <= 6.0
    with pytest.raises(ProtocolError, match="its privacy budget is spent"):
        charge(BUDGET, "first")  # the owner has lowered it again

    def can_pay(budget, gradients):
        return PrivacyLedger(path, budget).can_pay("second", gradients)

    raised = replace(BUDGET, epsilon=6.0)
    assert can_pay(raised, 27)
    assert not can_pay(raised, 28)
    assert can_pay(replace(BUDGET, epsilon=9.0), 28)


@pytest.fixture
def asking(tmp_path, answers):
    """Return a function that asks an agent which forgot its pending update, and a message."""
    problem = private()
    with federation(tmp_path, FedAvg(step=0.1), 20, problem=problem) as (_, _, server):
        message = server._messages("train", {}, {})["north"]

        def ask(metadata=None, agent=problem.agents[0], **vectors):
            """Return the first gradient, and how many are spent."""
            client = Client("north", agent, tmp_path / "north", batch=0.3)
            client.state_path.unlink(missing_ok=True)
            before = len(answers)
            asked = {**message.metadata, **(metadata or {})}
            client.handle(Message("train", asked, {**message.vectors, **vectors}))
            return np.frombuffer(answers[before][1]), ledger(tmp_path).trainings[0].spent

        yield ask, problem.agents[0], message


def test_a_repeat_has_the_same_answer_and_counts_once(asking):
    ask, _, message = asking
    first, spent = ask()
    assert spent == message.metadata["steps"] == 3
    for same in ({}, {"rollbacks": 1}, {"participants": "others"}):
        again, spent = ask(same)
        np.testing.assert_array_equal(first, again)
        assert spent == 3


def exchanged(agent, **changes):
    """Return the agent with other rows or another loss."""
    loss = agent.loss
    X, y = changes.pop("X", loss._features.matrix), changes.pop("y", loss._targets)
    options = {"classes": loss.classes, "intercept": loss.intercept, "l2": loss.l2, **changes}
    return replace(agent, loss=SoftmaxRegression(X, y, **options), test=None)


def test_other_questions_and_other_records_have_other_noise_and_count(asking):
    """The attacks of a server, and of who waits until the owner corrects a row."""
    ask, agent, message = asking
    X, y = agent.loss._features.matrix, agent.loss._targets
    other, labels = X.copy(), y.copy()
    other[3] += 1e-9
    labels[3] = (labels[3] + 1) % agent.loss.classes
    asked = [
        {"x": message.vectors["x"] + 1e-12},
        {"metadata": {"seed": 99}},
        {"metadata": {"center": "free"}},
        {"metadata": {"scaling": "1"}},
        {"metadata": {"model": "another"}},
        {"metadata": {"step": 0.11, "rollbacks": 1}},
        {"metadata": {"steps": 2}},
        {"agent": exchanged(agent, X=other)},
        {"agent": exchanged(agent, X=X[:, ::-1])},
        {"agent": exchanged(agent, y=labels)},
        {"agent": exchanged(agent, X=X[::-1], y=y[::-1])},
        {"agent": exchanged(agent, l2=1e-9)},
        {"agent": replace(agent, coupling=agent.coupling + 1e-9)},
    ]
    first, spent = ask()
    for each in asked:
        gradient, more = ask(**each)
        assert np.abs(gradient - first).max() > 0.1  # noise that cancels leaves at most 0.02
        assert more == spent + each.get("metadata", {}).get("steps", 3)
        spent = more


@pytest.mark.parametrize("steps", [0, -1000])
def test_rounds_without_steps_are_refused(asking, tmp_path, steps):
    ask, _, _ = asking
    ask()
    with pytest.raises(ProtocolError, match=f"must have a local step or more, got {steps}"):
        ask({"steps": steps})
    assert ledger(tmp_path).trainings[0].spent == 3
    file = PrivacyLedger(tmp_path / "privacy.json", BUDGET)
    with pytest.raises(ProtocolError, match="must have at least one gradient"):
        file.charge("t", steps, 1, "question", Mechanism(50, 50, is_sampled=False))


def test_a_ledger_that_gained_something_is_not_read(asking, tmp_path):
    ask, _, _ = asking
    ask()
    path = tmp_path / "north" / "privacy.json"
    path.write_text(path.read_text().replace('"spent": 3', '"spent": -997'))
    with pytest.raises(ValueError, match="not a valid privacy ledger: a number of gradients is"):
        ask()


def test_a_training_that_has_begun_needs_its_ledger(tmp_path):
    options = {"problem": private(), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 3, **options) as (_, _, server):
        server.run_round()
        path = tmp_path / "north" / "privacy.json"
        kept = path.read_text()
        path.unlink()
        server.run_round()
        refused = history(server)[1]["refused"]["north"]
        assert "its privacy ledger does not have this training, which has begun" in refused
        assert not path.exists()
        path.write_text(kept)
        server.run_round()
        assert "north" in history(server)[2]["accepted"]


def test_errors_of_an_algorithm_do_not_blame_the_feature_norm(tmp_path, monkeypatch):
    def wrong(self, problem, run_info):
        raise ValueError("something else")

    monkeypatch.setattr(FedAvg, "resolved", wrong)
    options = {"problem": private(), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 1, **options) as (_, _, server):
        server.run_round()
        assert history(server)[0]["refused"]["north"] == "something else"


@pytest.mark.parametrize(("epsilon", "warned"), [(0.1, 1), (500.0, 0)])
def test_much_noise_is_in_the_log_of_the_agent_once(tmp_path, caplog, epsilon, warned):
    problem = private(budget=Privacy(epsilon, 1e-5))
    with federation(tmp_path, FedAvg(step=0.1), 3, problem=problem) as (_, _, server):
        server.run()
    texts = [each.getMessage() for each in caplog.records]
    assert len([text for text in texts if "the noise of its privacy budget is" in text]) == warned


@pytest.mark.parametrize(("delta", "warned"), [(1e-3, 0), (0.1, 1)])
def test_a_large_delta_is_in_the_log_of_the_agent_once(tmp_path, caplog, delta, warned):
    problem = private(budget=Privacy(500.0, delta))
    with federation(tmp_path, FedAvg(step=0.1), 3, problem=problem) as (_, _, server):
        server.run()
    texts = [each.getMessage() for each in caplog.records]
    assert len([text for text in texts if "privacy.delta is" in text]) == warned


def test_algorithms_do_not_get_the_records(tmp_path, monkeypatch):
    def reading(self, problem, run_info):
        return problem.agents[0].loss.value(np.zeros(problem.n))

    monkeypatch.setattr(FedAvg, "resolved", reading)
    options = {"problem": private(), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 1, **options) as (_, _, server):
        server.run_round()
        assert "through LocalContext.gradient only" in history(server)[0]["refused"]["north"]


def test_a_budget_for_no_round_does_not_propose_fewer(tmp_path):
    options = {"problem": private(budget=Privacy(1e-4, 1e-5)), "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 2, **options) as (_, _, server):
        server.run_round()
        reason = history(server)[0]["refused"]["north"]
        assert "at most 0 rounds" in reason
        assert "raise privacy.epsilon, or train with more rows" in reason


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_server_does_not_learn_a_record_by_a_huge_model(tmp_path, dtype):
    """The attack of a server on the l2 term, which is far longer than the noise."""
    x = np.full(1, 2.0 ** np.finfo(dtype).nmant)

    def answer(canary, trial):
        agent = Agent(attacked(canary, dtype), L1Ball(1.0), privacy=Privacy(1.0, 1e-5))
        name, folder = f"{canary} {trial}", tmp_path / f"{canary} {trial}"
        config = ServerConfig(name, ("north",), 1, FedAvg(step=1.0), 1)
        with Server(config, None, folder / "server") as server:
            message = server._messages("train", {}, {})["north"]
        asked = Message("train", message.metadata, {**message.vectors, "x": x})
        reply = Client("north", agent, folder / "north", batch=1.0).handle(asked)
        return float(reply.vectors["delta"][0] + x[0])

    # Each of both answers is about as frequent with one record as with the other.
    for canary in (0, 1):
        assert {answer(canary, trial) for trial in range(20)} == {0.0, -1.0}


def test_certificates_standardization_and_scores_are_refused(tmp_path):
    problem = private(classifiers(held_out=True))
    owner = {"certificate": True}
    options = {"problem": problem, "owner": owner, "transport": RefusingTransport}
    with federation(tmp_path, FedAvg(step=0.1), 1, **options) as (_, clients, server):
        server.run()
        with pytest.raises(MissingAgents, match="needs the consent of all agents, and north"):
            server.certificate()
        for kind in ("objective_terms", "totals", "squares"):
            with pytest.raises(ProtocolError, match="computed from the records"):
                clients["north"].handle(server._messages(kind, {}, {})["north"])
        assert server.audit() == {}  # it may take part in audits, which are of its updates
    with pytest.raises(ValueError, match="report must have only infeasibility, rows"):
        Client("north", problem.agents[0], tmp_path / "x", report=("loss",))


def test_a_private_agent_takes_part_in_secure_sums_and_sits_out_once_it_is_done(tmp_path):
    options = {"problem": private(classifiers(5)), "secure": True, "colluders": 1}
    options |= {
        "transport": RefusingTransport,
        "norm_limit": 1e6,
        "grid": 2.0**-32,
        "identities": {},
    }
    with federation(tmp_path, FedAvg(step=0.1), 2, **options) as (_, _, server):
        server.run()
        assert all(len(each["accepted"]) == 5 for each in history(server))
        server.run_round()  # one more than was planned
        server.run_round()
        others = [f"agent {i + 1}" for i in range(1, 5)]
        assert [each["accepted"] for each in history(server)[2:]] == [others, others]
        # It is not asked for an update any more, so that no drop-out has to be repaired.
        assert not any("agent 1" in each["refused"] for each in history(server)[2:])
        assert max(server.audit().values()) == 0


SCRIPT = """
import os, signal, sys
from pathlib import Path
from pcfed import FedAvg
from pcfed.federation.client_state import ClientState
from tests.federation.in_process import federation
from tests.privacy.test_federation import private

save, number = ClientState.save, [0]

def dying(self, path):
    number[0] += 1
    if self.pending is not None and number[0] > 4:  # the first agent's second round
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, path)

if sys.argv[2] == "dies":
    ClientState.save = dying
with federation(Path(sys.argv[1]), FedAvg(step=0.1), 3, problem=private()) as (_, _, server):
    server.run()
"""


def test_an_agent_that_is_killed_spends_nothing_unseen_and_nothing_twice(tmp_path):
    def start(how):
        command = [sys.executable, "-c", SCRIPT, tmp_path, how]
        return subprocess.run(command, cwd=Path(__file__).parents[2]).returncode

    assert start("dies") == -signal.SIGKILL
    spent = ledger(tmp_path).trainings[0].spent
    assert spent > 0
    assert start("lives") == 0
    (entry,) = ledger(tmp_path).trainings
    assert entry.spent == entry.plan.gradients == 9
