"""The models and reports at the end of a training, and what the server does not get."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, FedAvg, PCFedSplit, certify
from pcfed.config.federation_files import METRICS
from pcfed.federation.agent_report import model_warnings
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball
from pcfed.storage.archive import load_arrays
from tests.federation.in_process import NAMES, federation, history, models
from tests.federations import ALGORITHMS

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@every_algorithm
def test_every_agent_has_its_feasible_model(algorithm, tmp_path):
    owner = {"certificate": True}
    with federation(tmp_path, algorithm, 4, owner=owner) as (problem, clients, server):
        server.run()
        result = server.conclude()
        expected = certify(problem, models(clients, server))
    assert result.finished == list(NAMES)
    for name, agent, model in zip(NAMES, problem.agents, expected.models, strict=True):
        about, arrays = load_arrays(tmp_path / name / "model.npz")
        np.testing.assert_array_equal(arrays["model"], model)
        assert np.abs(arrays["model"]).sum() <= agent.constraint.radius * (1 + 1e-15)
        assert (about["name"], about["rounds"], about["shape"]) == (name, 4, [4, 12])


def test_the_server_keeps_no_personal_model(tmp_path):
    algorithm = PCFedSplit()
    owner = {"certificate": True, "report": METRICS}
    with federation(tmp_path, algorithm, 10, owner=owner) as (problem, clients, server):
        server.run()
        server.conclude()
        own = models(clients, server)
    feasible = certify(problem, own).models
    offsets = own - server.state.vectors["z"]
    assert np.abs(own - own.mean(axis=0)).max() > 0.1  # they differ from the average
    files = sorted(path.name for path in (tmp_path / "server").iterdir())
    assert files == ["checkpoint.npz", "earlier", "history.jsonl"]
    scalars = {"prox", "ratio", "curvature", "joined", "changes"}
    for file in ("checkpoint.npz", "earlier/10.npz"):
        _, arrays = load_arrays(tmp_path / "server" / file)
        assert set(arrays) == {f"server/{name}" for name in {"z", "y_mean", "P", "Y"} | scalars}
        for vector in arrays.values():
            for private in (*own, *feasible, *offsets):
                if vector.shape == private.shape:
                    assert np.abs(vector - private).max() > 1e-3


def test_an_agent_that_missed_the_end_can_be_asked_again(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, [{}, {}, {"west": "lost"}]) as (
        _,
        _,
        server,
    ):
        server.run()
        assert list(server.finish()) == ["north", "south"]
        assert not (tmp_path / "west" / "model.npz").exists()
        assert list(server.finish()) == list(NAMES)
        assert (tmp_path / "west" / "model.npz").exists()


ALWAYS = {"protocol", "name", "training", "round", "rollbacks", "certificate"}


@pytest.mark.parametrize("report", [(), ("loss",), ("rows", "accuracy"), METRICS])
def test_only_metrics_that_the_owner_allows_are_reported(report, tmp_path):
    with federation(tmp_path, FedAvg(step=0.1), 2, owner={"report": report}) as (
        problem,
        _,
        server,
    ):
        start = server.state.vectors["x"].copy()
        server.run()
        at_end = server.finish()
        for reply in server.transport.replies:
            assert set(reply.metadata) == ALWAYS | {f"metric_{key}" for key in report}
            assert set(reply.vectors) <= {"delta"}
        entries = history(server)
        end = server.state.vectors["x"]
    for model, said in ((start, entries[0]["metrics"]), (end, at_end)):
        for name, agent in zip(NAMES, problem.agents, strict=True):
            expected = {
                "loss": agent.loss.value(model),
                "accuracy": agent.loss.accuracy(model),
                "infeasibility": agent.constraint.distance(model),
                "rows": 50.0,
            }
            assert said.get(name, {}) == {key: expected[key] for key in METRICS if key in report}


def test_metrics_that_are_not_numbers_are_ignored(tmp_path):
    owner = {"report": METRICS}
    with federation(tmp_path, FedAvg(step=0.1), 1, owner=owner) as (_, clients, server):
        honest = clients["west"].handle

        def lies(message):
            reply = honest(message)
            reply.metadata.update(metric_loss="<b>", metric_rows=np.inf, metric_other=1.0)
            return reply

        clients["west"].handle = lies
        server.run()
        metrics = history(server)[0]["metrics"]
    assert set(metrics["north"]) == set(METRICS)
    assert set(metrics["west"]) == {"infeasibility", "accuracy"}


def test_warnings_in_the_report_of_an_agent():
    X, y = np.eye(4), np.array([5.0, 6.0, 5.0, 6.0])
    agent = Agent(LeastSquares(X, y), L1Ball(4.0), 0.1)
    assert model_warnings(agent, y) == []
    (zero,) = model_warnings(agent, np.zeros(4))
    assert zero.startswith("All coefficients are 0")
    (negative,) = model_warnings(agent, np.ones(4))
    assert negative.startswith("The model predicts worse than the mean of the target, with R² -81")
