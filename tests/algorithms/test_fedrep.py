"""FedRep against its pseudocode in plain NumPy; what is sent, and slices of modules."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, FedAvg, FedRep, Local, Problem, run
from pcfed.sets import Blocks, L1Ball, L2Ball, WholeSpace
from tests.algorithms.plain import KINDS, OPTIONS, fedrep, plain_agents, problem_of
from tests.federation.in_process import federation
from tests.federations import classifiers, regressions

HEAD, REPRESENTATION = [0, 4, 5], [1, 2, 3]
OWN = ((0, 1), (-2, None))


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("batch", [1.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_pseudocode(kind, batch, constrained):
    agents = plain_agents(kind, batch=batch, constrained=constrained)
    algorithm = FedRep(step=0.1, own_step=0.2, own=OWN, own_steps=4, constrained=constrained)
    result = run(problem_of(agents), algorithm, batch=batch, **OPTIONS)
    phi, models = fedrep(agents, HEAD, alpha=0.1, own_alpha=0.2, tau=4)
    shared = result.state.server["x"]
    np.testing.assert_allclose(shared[REPRESENTATION], phi, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(shared[HEAD], 0.0)
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    assert np.abs(phi).max() > 0.05
    assert np.ptp(models[:, HEAD], axis=0).max() > 0.1


def test_models_share_the_representation_and_have_their_own_head():
    problem = regressions([WholeSpace()] * 3)
    result = run(problem, FedRep(step=0.05, own=((6, 9),)), rounds=20, local_steps=3)
    assert np.ptp(result.models[:, :6], axis=0).max() == 0
    assert np.ptp(result.models[:, 6:], axis=0).min() > 0.1
    assert np.abs(result.models[:, :6]).max() > 0.1


def test_own_models_are_feasible_only_if_constrained():
    problem = classifiers()
    options = {"rounds": 20, "local_steps": 4, "batch": 0.3}
    inside = run(problem, FedRep(step=0.3, own=((-12, None),)), **options)
    outside = run(problem, FedRep(step=0.3, own=((-12, None),), constrained=False), **options)
    assert max(record.infeasibility.max() for record in inside.history) < 1e-12
    assert problem.infeasibility(outside.models).max() > 0.1


def test_a_set_of_the_head_alone_leaves_the_representation_free():
    head = Blocks({(6, 9): L2Ball(0.1)})
    problem = regressions([head] * 3)
    result = run(problem, FedRep(step=0.05, own=((6, 9),)), rounds=50, local_steps=3)
    norms = np.linalg.norm(result.models[:, 6:], axis=1)
    np.testing.assert_allclose(norms, 0.1, rtol=1e-9)
    np.testing.assert_array_equal(result.models[0, :6], result.state.server["x"][:6])


def test_with_everything_own_every_agent_trains_alone():
    problem, options = classifiers(), {"rounds": 10, "batch": 0.3}
    algorithm = FedRep(step=0.2, own=((0, None),), own_steps=3, constrained=False)
    result = run(problem, algorithm, **options)
    alone = run(problem, Local(step=0.2), local_steps=3, **options)
    np.testing.assert_allclose(result.models, alone.models, rtol=0, atol=1e-12)
    assert np.abs(alone.models).max() > 0.1


def test_with_an_own_entry_that_does_nothing_it_is_fedavg():
    """A feature that is always zero has no gradient, so all the others are shared."""
    rng = np.random.default_rng(0)
    agents = []
    for base in regressions([WholeSpace()] * 3).agents:
        X = rng.normal(size=(20, 4))
        X[:, 3] = 0.0
        agents.append(Agent(type(base.loss)(X, rng.normal(size=20)), WholeSpace()))
    problem = Problem(agents)
    algorithm = FedRep(step=0.1, own=((3, 4),), own_steps=2)
    result = run(problem, algorithm, rounds=15, local_steps=3)
    expected = run(problem, FedAvg(step=0.1), rounds=15, local_steps=3)
    np.testing.assert_allclose(result.models, expected.models, atol=1e-13)
    assert np.abs(expected.average).max() > 0.01


def test_the_own_block_is_never_sent(tmp_path):
    algorithm = FedRep(step=0.3, own=((0, 12),), own_steps=3, constrained=False)
    with federation(tmp_path, algorithm, 4) as (_, clients, server):
        server.run()
        sent = [r.vectors["delta"] for r in server.transport.replies if r.kind == "train"]
        assert len(sent) == 12
        assert all(not vector[:12].any() and np.abs(vector[12:]).max() > 1e-4 for vector in sent)
        own = clients["north"].model(server.state.vectors, algorithm)
        assert np.abs(own[:12]).max() > 1e-3


@pytest.mark.parametrize(
    ("own", "n"), [(((0, 10),), 9), (((4, 4),), 9), (((-10, None),), 9), (((9, None),), 9)]
)
def test_slices_must_be_within_the_model(own, n):
    problem = regressions([L1Ball(1.0)] * 2)
    assert problem.n == n
    with pytest.raises(ValueError, match=r"FedRep: own must have slices within the parameters"):
        run(problem, FedRep(step=0.1, own=own), rounds=1)


@pytest.mark.parametrize("own", [(), 3, "0:3", ((0,),), ((0, 1, 2),), ((0.5, 2),), [[None, 3]]])
def test_own_must_be_slices(own):
    with pytest.raises(ValueError, match=r"FedRep: own must have slices \(start, stop\), got"):
        FedRep(step=0.1, own=own)


def test_lists_of_files_and_messages_are_slices():
    assert FedRep(step=0.1, own=[[0, 3], [5, None]]) == FedRep(step=0.1, own=((0, 3), (5, None)))


def test_whole_numbers_of_numpy_are_slices():
    found = FedRep(step=0.1, own=((np.int64(0), np.int32(3)),))
    assert repr(found) == repr(FedRep(step=0.1, own=((0, 3),)))


def test_slices_that_overlap_are_merged():
    problem = classifiers()
    both, one = (
        run(problem, FedRep(step=0.2, own=own, own_steps=2), rounds=4).models
        for own in (((0, 4), (2, 8)), ((0, 8),))
    )
    np.testing.assert_array_equal(both, one)
    assert np.ptp(one[:, :8], axis=0).max() > 1e-3


def test_layers_of_a_module():
    torch = pytest.importorskip("torch")
    from pcfed.losses import TorchLoss

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    own = FedRep.slices_for_module(net, ["2"])
    assert own == FedRep.slices_for_module(net, ["2.weight", "2.bias"]) == ((28, 40), (40, 43))
    assert FedRep.slices_for_module(net, "0.bias") == ((24, 28),)
    with pytest.raises(ValueError, match=r"no trainable parameter or layer '2.wei'; did you mean"):
        FedRep.slices_for_module(net, ["2.wei"])
    with pytest.raises(ValueError, match=r"module must be a torch.nn.Module, got int"):
        FedRep.slices_for_module(3, ["2"])

    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 6))
    agents = []
    for shift in range(3):  # the agents name the classes differently: one head can't serve all
        y = rng.integers(3, size=60)
        X = (centers[y] + 0.3 * rng.normal(size=(60, 6))).astype(np.float32)
        loss = TorchLoss(net, (X, (y + shift) % 3), torch.nn.CrossEntropyLoss())
        agents.append(Agent(loss, Blocks.for_module(net, {"2.weight": L1Ball(20.0)})))
    problem, start = Problem(agents), agents[0].loss.start
    options = {"rounds": 30, "local_steps": 5, "batch": 0.5, "x0": start, "eval_every": 30}
    own_heads = run(problem, FedRep(step=0.5, own=own), **options)
    one_head = run(problem, FedAvg(step=0.5), **options)

    def accuracy(models):
        pairs = zip(problem.agents, models, strict=True)
        return np.mean([agent.loss.accuracy(x) for agent, x in pairs])

    assert accuracy(own_heads.models) > 0.9
    assert accuracy(one_head.models) < 0.6
    assert problem.infeasibility(own_heads.models).max() < 1e-6
