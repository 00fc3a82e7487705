"""Real processes that are killed at the worst moments, and strangers: `make test-federation`.

Whatever happens, the audit holds and every model is the simulator's with the same absences.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pcfed.federation.client_state import ClientState
from pcfed.federation.keys import make_keys
from pcfed.federation.paths import CHECKPOINT, STATE
from pcfed.federation.rollback import roll_back
from pcfed.federation.server_state import ServerState
from tests.federation.processes import SPLIT, Federation, federation, wait_until
from tests.federation.test_server import MODULE

pytestmark = pytest.mark.federation

ALGORITHMS = {
    "PCFedSplit": SPLIT,
    "PCFedAvg": 'name = "PCFedAvg"\nstep = 0.1\npenalty = 3.0',
    "FedAvg": 'name = "FedAvg"\nstep = 0.05\npenalty = 3.0',
    "FedProx": 'name = "FedProx"\nstep = 0.05\npenalty = 3.0\nprox = 0.5',
    "Scaffold": 'name = "Scaffold"\nstep = 0.05\npenalty = 3.0',
    "Local": 'name = "Local"\nstep = 0.05\npenalty = 3.0',
    "Ditto": 'name = "Ditto"\nstep = 0.05\nprox = 0.5',
    "PFedMe": 'name = "PFedMe"\nstep = 0.05\nprox = 2.0',
    "PerFedAvg": 'name = "PerFedAvg"\nstep = 0.05\nhessian_free = true',
    "FedRep": 'name = "FedRep"\nstep = 0.05\nown = [[0, 2]]',
    "FedMiD": 'name = "FedMiD"\nstep = 0.05\nproject_onto = "l1(1.5)"',
    "FedDualAvg": 'name = "FedDualAvg"\nstep = 0.05',
    "PFedHN": 'name = "PFedHN"\nstep = 0.05\nhidden = 3',
    "ProxAL": 'name = "ProxAL"\nstep = 0.05\npenalty = 3.0\nprox = 0.5\ninner_rounds = 1',
}
FAULTY = "agent-3"


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("real") / "federation"
    with federation(folder, 4, tls=True) as found:
        yield found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_numbers_of_the_simulator(real, name):
    real.begin(name, rounds=2, algorithm=ALGORITHMS[name])
    real.train()
    assert real.check() == [real.names] * 2


def test_an_algorithm_that_server_and_agents_import(real):
    (real.folder / "own_algorithms.py").write_text(MODULE)
    for name in real.names:
        real.change(name, "coupling", 'imports = ["own_algorithms"]\ncoupling')
    algorithm = 'name = "Momentum"\nstep = 0.05\npenalty = 3.0\nmomentum = 0.8'
    real.begin("own algorithm", rounds=3, algorithm=algorithm, imports=["own_algorithms"])
    real.train()
    assert real.check() == [real.names] * 3


def test_strangers_are_rejected(real, tmp_path):
    """A key that nobody registered; a registered one with an authority that is not the server's."""
    own, theirs = tmp_path / "own", real.folder / "keys"
    make_keys(own, ["127.0.0.1"], ["unregistered", "deceived"])
    real.stranger("unregistered", own, theirs / "ca.crt")
    real.register(own / "deceived.key.pub")
    real.stranger("deceived", own, own / "ca.crt")
    real.begin("strangers", rounds=2)
    real.train()
    assert real.check() == [real.names] * 2
    for stranger, why in (
        ("unregistered", "Failed to activate SuperNode"),
        ("deceived", "certificate verify failed"),
    ):
        wait_until(lambda who=stranger: "Exit Code: 305" in real.log(who))
        assert why in real.log(stranger)
        assert "Receiving" not in real.log(stranger)


def test_a_node_that_is_killed_while_it_computes(real):
    real.begin("killed node", rounds=4, minimum=3)
    real.plant(FAULTY, "computing", 1, wait=True)
    real.train(once(real, lambda: real.kill(FAULTY), lambda: real.up(tls=True)))
    accepted = real.check()
    assert FAULTY not in accepted[1]
    assert any(FAULTY in present for present in accepted)


def test_a_server_that_is_killed_while_agents_compute(real):
    real.begin("killed server", rounds=4, minimum=3)
    real.plant(FAULTY, "computing", 2, wait=True)
    real.run(on_tick=once(real, lambda: real.kill("SuperLink")))
    assert not real.alive()["SuperLink"]
    assert len(real.history()) == 2
    real.release()
    real.up(tls=True)
    real.train()
    real.check()


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_app_that_is_killed_before_or_after_it_writes_its_state(real, where):
    real.begin(f"killed {where}", rounds=4, minimum=3)
    real.plant(FAULTY, where, 1)
    pending = []

    def on_tick() -> None:
        if real.reached and not pending:
            state = ClientState.load(real.state(FAULTY) / STATE)
            pending.append(state.pending.round_info.index)

    real.train(on_tick)
    assert pending == [0 if where == "before" else 1]
    assert FAULTY not in real.check()[1]


def test_an_app_that_outlives_its_node_and_writes_its_state_later(real):
    """The old ClientApp must not overwrite the state of the new one."""
    real.begin("outlived", rounds=5, minimum=3)
    real.plant(FAULTY, "before", 1, wait=True)
    again = once(real, lambda: real.kill(FAULTY), lambda: real.up(tls=True))

    def on_tick() -> None:
        again()
        if len(real.history()) >= 3:
            real.release()

    real.train(on_tick)
    accepted = real.check()
    assert FAULTY not in accepted[1]
    assert (real.faults / "written").exists()


def test_a_rollback(real):
    """The same rounds again, from earlier states of server and agents: the same bits."""
    real.begin("rollback", rounds=4)
    real.server_file.write_text(real.server_file.read_text() + "keep_every = 2\n")
    real.train()
    before = ServerState.load(real.training_directory / CHECKPOINT).vectors
    roll_back(real.training_directory, 2)
    real.train()
    assert real.check() == [real.names] * 4
    after = ServerState.load(real.training_directory / CHECKPOINT)
    assert after.rollbacks == ((4, 2),)
    for name, vector in before.items():
        np.testing.assert_array_equal(after.vectors[name], vector)


def once(real: Federation, *steps) -> object:
    """Return a function that takes the steps once, when a ClientApp has reached the fault."""
    left = list(steps)

    def on_tick() -> None:
        while real.reached and left:
            left.pop(0)()

    return on_tick
