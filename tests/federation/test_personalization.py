"""Losses at own models and a free centre, in a federation: the numbers of the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PCFedAvg, PCFedSplit, certify, run
from tests.federation.in_process import NAMES, OPTIONS, federation, models
from tests.federations import classifiers
from tests.personal import VARIANTS, personalized

WILLING = {"certificate": True}


@pytest.mark.parametrize(("theta", "center"), VARIANTS)
def test_the_numbers_of_the_simulator(theta, center, tmp_path):
    problem = personalized(classifiers(), theta, center)
    absent = {NAMES[0]: "lost"}
    faults = [absent, {}, absent, {NAMES[1]: "reply lost"}]
    options = {"problem": problem, "owner": WILLING, "center": center}
    with federation(tmp_path, PCFedSplit(), 8, faults, **options) as (_, clients, server):
        server.run()
        server.finish()
        found = server.certificate()
        assert all(difference < 1e-14 for difference in server.audit().values())
        own = models(clients, server)
    missing = [[0], [], [0], [1]]
    expected = run(problem, PCFedSplit(), rounds=8, batch=0.3, participation=missing, **OPTIONS)
    np.testing.assert_array_equal(own, expected.models)
    certificate = certify(problem, expected, tightening=0)
    assert certificate.gap > 0
    np.testing.assert_allclose(found.objective, certificate.objective, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.gap, certificate.gap, rtol=0, atol=1e-12)


def test_the_server_gets_no_update_of_own_models_if_the_center_is_free(tmp_path):
    problem = personalized(classifiers(), (0.5,), "free")
    with federation(tmp_path, PCFedSplit(), 3, problem=problem, center="free") as (_, _, server):
        server.run()
        sent = {name for reply in server.transport.replies for name in reply.vectors}
        held = set(server.state.vectors)
    assert sent == {"dz", "statistics"}
    assert held == {"z", "Y", "prox", "curvature", "joined", "changes"}


def test_pcfedavg_takes_losses_at_own_models(tmp_path):
    problem = personalized(classifiers(), (0.0, 0.3, 1.0), "average")
    algorithm = PCFedAvg(step=0.1, penalty=3.0)
    with federation(tmp_path, algorithm, 5, problem=problem) as (_, clients, server):
        server.run()
        server.finish()
        own = models(clients, server)
    expected = run(problem, algorithm, rounds=5, batch=0.3, **OPTIONS)
    np.testing.assert_array_equal(own, expected.models)


def test_pcfedavg_has_no_form_for_a_free_center(tmp_path):
    with (
        pytest.raises(ValueError, match="PCFedAvg: the center of the problem must be 'average'"),
        federation(tmp_path, PCFedAvg(step=0.1, penalty=3.0), 5, center="free"),
    ):
        pass
