"""An algorithm of the user's own, which server and agents import."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import pytest

from pcfed import FedAvg, run
from pcfed.algorithms import registry
from pcfed.federation.protocol import Message, ProtocolError, algorithm_metadata, read_algorithm
from tests.federation.in_process import OPTIONS, federation, models


@registry.register
@dataclass(frozen=True)
class ServerMomentum(FedAvg):
    """FedAvg with momentum at the server, which needs one more vector there."""

    _: KW_ONLY
    momentum: float = 0.5

    def start(self, models):
        server, private = super().start(models)
        return {**server, "momentum": np.zeros_like(server["x"])}, private

    def aggregate(self, server, sums, round_info):
        moved = self.momentum * server["momentum"] + sums.vectors["delta"] / sums.num_aggregated
        return {"x": server["x"] + moved, "momentum": moved}


ALGORITHM = ServerMomentum(0.05, 3.0, momentum=0.8)


def test_the_numbers_of_the_simulator(tmp_path):
    with federation(tmp_path, ALGORITHM, 5) as (problem, clients, server):
        server.run()
        server.finish()
        expected = run(problem, ALGORITHM, rounds=5, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(clients, server), expected.models)
        plain = run(problem, FedAvg(0.05, 3.0), rounds=5, batch=0.3, **OPTIONS)
        assert np.abs(plain.models - expected.models).max() > 0.01


def test_parameters_arrive_as_they_were_sent():
    metadata = {**algorithm_metadata(ALGORITHM), "step": 0.05, "penalty": 3.0}
    assert read_algorithm(metadata) == ALGORITHM


def test_parameters_that_cannot_be_sent_are_refused_before_the_training(tmp_path):
    impossible = replace(ALGORITHM, momentum=np.float32(0.5))
    with (
        pytest.raises(ValueError, match="ServerMomentum: the parameters must be numbers, texts"),
        federation(tmp_path, impossible, 5),
    ):
        pass


def test_an_agent_that_does_not_know_the_algorithm_says_so(tmp_path):
    with federation(tmp_path, ALGORITHM, 1) as (_, clients, server):
        message = server._messages("train", {}, {})["north"]
        for change, reason in (
            ({"algorithm": "Other"}, "the agent does not know the algorithm 'Other'; its owner"),
            ({"parameters": '{"speed": 1}'}, "there is no parameter 'speed'"),
            ({"protocol": 1}, "the server uses version 1 of the protocol and the agent version 8"),
        ):
            other = Message("train", {**message.metadata, **change}, message.vectors)
            with pytest.raises(ProtocolError, match=reason):
                clients["north"].handle(other)
        assert not (tmp_path / "north").exists()
