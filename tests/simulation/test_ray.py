"""Actors of a real Ray cluster of two nodes give the bits of one process, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import nullcontext
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Lock, Thread, Timer

import numpy as np
import pytest

from pcfed import (
    Agent,
    Checkpointing,
    FedAvg,
    Gap,
    Memory,
    PCFedSplit,
    Privacy,
    Problem,
    Ray,
    Result,
    run,
)
from pcfed.errors import ClusterError
from pcfed.losses import LeastSquares, SoftmaxRegression, TorchLoss
from pcfed.sets import Box, L1Ball, L2Ball
from pcfed.simulation import ray_connection, ray_ranges
from pcfed.simulation.range_actor import RangeActor, RangeSettings
from pcfed.simulation.ray_ranges import MAX_RESTARTS, RayRanges
from pcfed.simulation.round_socket import RoundSocket, SocketClosed
from pcfed.simulation.threads import _controller
from tests.federations import ALGORITHMS
from tests.simulation.test_ranges import assert_same_bits, in_ranges, make_agent
from tests.simulation.trapped import (
    CALL,
    OPTIONS,
    SPRUNG,
    TRAP,
    CarelessActor,
    M,
    Mortal,
    PathError,
    Slow,
    SlowToFree,
    TrappedActor,
    TrappedCalls,
    problem_of,
)

ray = pytest.importorskip("ray")
NodeAffinitySchedulingStrategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
SPLIT = PCFedSplit()


class Cluster:
    """A cluster of two nodes in another process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.simulation.ray_cluster"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            command, **streams, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.address, self.head = self.read().split()

    def read(self) -> str:
        """Return the next line of the process that is not a log of Ray's."""
        return next(line for line in self.process.stdout if "\t" not in line)

    def replace_node(self) -> None:
        """Remove the second node, which may have been killed, and add another one."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.read()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def address(cluster):
    """The address of the cluster, to which nothing is connected after a test."""
    yield cluster.address
    assert not ray.is_initialized()


@pytest.fixture
def sockets(monkeypatch):
    """Return the numbers of answers to rounds that every socket of a run has received."""
    received = {}

    class Counting(RoundSocket):
        def receive(self):
            received[self] = received.get(self, 0) + 1
            return super().receive()

    monkeypatch.setattr(ray_ranges, "RoundSocket", Counting)
    return received


@pytest.fixture
def on_one_machine(monkeypatch):
    """Start all actors on the machine of the driver, so that all rounds are called at sockets."""

    def start(self, settings):
        strategy = NodeAffinitySchedulingStrategy(here(), soft=False)
        return self._actor_class.options(scheduling_strategy=strategy).remote(settings)

    monkeypatch.setattr(RayRanges, "_start_actor", start)


def here():
    return ray.get_runtime_context().get_node_id()


def connect(address):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of variables for accelerators
        ray.init(address, log_to_driver=False, logging_level="ERROR")


def set_trap(folder, text, at):
    """Return callbacks that set a trap after some rounds."""
    (folder / TRAP).unlink(missing_ok=True)
    return [lambda each: (folder / TRAP).write_text(text) if each.record.round == at else None]


CASES = {
    "average": {"output": "average", "sampling": "blocks", "batch": 4},
    "random": {"output": "random"},
    "grid": {"grid": 2.0**-32, "workers": 2},
    "own vectors": {"x0": np.random.default_rng(0).normal(size=(M, 5))},
    "float32": {"memory": Memory("float32")},
}


def test_any_number_of_actors_gives_the_bits_of_one_process(address, tmp_path):
    problem = problem_of(tmp_path)
    one = run(problem, SPLIT, **OPTIONS)
    for actors in (2, 3):
        assert_same_bits(run(problem, SPLIT, **OPTIONS, backend=Ray(address, actors)), one)


@pytest.mark.parametrize("grid", [None, 2.0**-32])
def test_rounds_at_sockets_give_the_same_bits(grid, on_one_machine, sockets, address, tmp_path):
    problem = problem_of(tmp_path)
    one = run(problem, SPLIT, **OPTIONS, grid=grid)
    assert_same_bits(run(problem, SPLIT, **OPTIONS, grid=grid, backend=Ray(address, 3)), one)
    assert list(sockets.values()) == [OPTIONS["rounds"]] * 3


@pytest.mark.parametrize("fits", [True, False])
def test_large_states_are_not_sent_through_sockets(
    fits, on_one_machine, sockets, address, tmp_path, monkeypatch
):
    problem = problem_of(tmp_path)
    one = run(problem, SPLIT, **OPTIONS)
    state = sum(vector.nbytes for vector in one.state.server.values())
    monkeypatch.setattr(ray_ranges, "MAX_SOCKET_BYTES", state if fits else state - 1)
    monkeypatch.setattr(ray_ranges, "MAX_INLINE_BYTES", 0)
    assert_same_bits(run(problem, SPLIT, **OPTIONS, backend=Ray(address, 2)), one)
    assert bool(sockets) == fits


def test_actors_on_other_machines_are_called_by_ray(sockets, address, tmp_path, monkeypatch):
    nodes = []

    def start(self, settings):
        all_nodes = sorted((each["NodeID"] for each in ray.nodes() if each["Alive"]), key=is_here)
        nodes.append(all_nodes[len(nodes) % 2])
        strategy = NodeAffinitySchedulingStrategy(nodes[-1], soft=False)
        return self._actor_class.options(scheduling_strategy=strategy).remote(settings)

    def is_here(node):
        return node == here()

    monkeypatch.setattr(RayRanges, "_start_actor", start)
    problem = problem_of(tmp_path)
    result = run(problem, SPLIT, **OPTIONS, backend=Ray(address, 3))
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))
    assert len(set(nodes)) == 2
    assert list(sockets.values()) == [OPTIONS["rounds"]]


def test_sockets_raise_the_errors_of_agents(on_one_machine, sockets, address):
    class Failing(LeastSquares):
        def __init__(self, *data):
            self.calls = []
            super().__init__(*data)

        def gradient(self, x, rows=None, *, out=None):
            self.calls.append(1)
            if len(self.calls) == 7:
                raise PathError("7.csv", "it was moved")
            return super().gradient(x, rows, out=out)

    problem = Problem([Agent(Failing(np.eye(2), np.ones(2)), Box(0, 1)) for _ in range(2)])
    with pytest.raises(OSError, match=r"^7\.csv is not there: it was moved$"):
        run(problem, FedAvg(0.1), rounds=9, backend=Ray(address, 2))
    assert max(sockets.values()) == 7


def test_a_round_does_not_overtake_a_call(on_one_machine, sockets, address, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_ranges, "RangeActor", SlowToFree)
    problem = problem_of(tmp_path)

    def free(evaluation):  # nobody waits for its end
        evaluation._engine.free()

    options = {**OPTIONS, "callbacks": [free], "rounds": 3}
    result = run(problem, SPLIT, **options, backend=Ray(address, 2))
    assert_same_bits(result, run(problem, SPLIT, **options))
    assert sockets


@pytest.mark.parametrize("error", [ray.exceptions.RayActorError, SocketClosed])
def test_errors_of_agents_are_not_taken_for_the_end_of_an_actor(
    error, on_one_machine, sockets, address
):
    class Failing(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            raise error

    problem = Problem([Agent(Failing(np.eye(2), np.ones(2)), Box(0, 1))])
    with pytest.raises(error):
        run(problem, FedAvg(0.1), rounds=1, backend=Ray(address, 1))
    assert list(sockets.values()) == [1]


def test_agents_are_in_the_main_thread_of_their_actor(on_one_machine, sockets, address):
    class InThread(LeastSquares):
        def __init__(self, *data):
            self.threads = set()
            super().__init__(*data)

        def gradient(self, x, rows=None, *, out=None):
            self.threads.add(threading.current_thread())
            return super().gradient(x, rows, out=out)

        def value(self, x):
            self.threads.add(threading.current_thread())
            return super().value(x)

    def is_main(agent, model):
        return np.array([agent.loss.threads == {threading.main_thread()}], float)

    found = []
    problem = Problem([Agent(InThread(np.eye(2), np.ones(2)), Box(0, 1)) for _ in range(2)])
    run(
        *(problem, FedAvg(0.1)),
        rounds=2,
        backend=Ray(address, 2),
        callbacks=[lambda each: found.append(each.sum_over_agents(is_main)[0])],
    )
    assert found == [2, 2]
    assert list(sockets.values()) == [2, 2]


def test_a_process_that_an_agent_has_forked_does_not_delay_its_successor(
    on_one_machine, sockets, address, tmp_path
):
    class Forking(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            if not (tmp_path / SPRUNG).exists():
                (tmp_path / SPRUNG).touch()
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                os._exit(1)
            return super().gradient(x, rows, out=out)

    problem = Problem([Agent(Forking(np.eye(2), np.ones(2)), Box(0, 1))])
    begin = time.monotonic()
    assert run(problem, FedAvg(0.1), rounds=3, backend=Ray(address, 1)).status == "finished"
    assert time.monotonic() - begin < 50
    assert sorted(sockets.values()) == [1, 2]


@pytest.mark.parametrize("folder", ["nowhere", "long" * 30])
def test_rounds_are_called_by_ray_where_there_can_be_no_socket(
    folder, sockets, address, tmp_path, monkeypatch
):
    if folder != "nowhere":
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    problem = problem_of(tmp_path)
    result = run(problem, SPLIT, **OPTIONS, backend=Ray(address, 2, deadline=1e300))
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))
    assert not sockets


def test_a_long_deadline_is_none(on_one_machine, sockets, address, tmp_path):
    problem = problem_of(tmp_path)
    result = run(problem, SPLIT, **OPTIONS, backend=Ray(address, 2, deadline=1e300))
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))
    assert sockets


@pytest.mark.federation
def test_an_agent_that_exits_ends_the_run(on_one_machine, sockets, address):
    class Exiting(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            raise SystemExit

    problem = Problem([Agent(Exiting(np.eye(2), np.ones(2)), Box(0, 1))])
    with pytest.raises(ClusterError, match="the agents 0 to 0 has died 4 times in one call"):
        run(problem, FedAvg(0.1), rounds=1, backend=Ray(address, 1))
    assert list(sockets.values()) == [1]


@pytest.mark.federation
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_options_give_the_bits_of_one_process(case, address, tmp_path):
    problem, options = problem_of(tmp_path), {**OPTIONS, **case}
    one = run(problem, SPLIT, **options)
    assert_same_bits(run(problem, SPLIT, **options, backend=Ray(address, 3)), one)


@pytest.mark.federation
@pytest.mark.parametrize("in_folder", [False, True], ids=["object store", "folder"])
@pytest.mark.parametrize(("victim", "output"), [("actor", "average"), ("node", "last")])
@pytest.mark.parametrize("by", ["sockets", "Ray"])
def test_a_killed_actor_or_node_changes_no_bit(
    by, victim, in_folder, output, sockets, cluster, address, tmp_path, monkeypatch, request
):
    if by == "Ray":
        monkeypatch.setattr(ray_ranges, "MAX_SOCKET_BYTES", 0)
    elif victim == "actor":
        request.getfixturevalue("on_one_machine")
    # Snapshots of more than 16 MB are in the object stores, and die with their nodes.
    problem = problem_of(tmp_path, *((12, 200_000, 3) if victim == "node" else ()))
    options = {**OPTIONS, "output": output}
    one = run(problem, SPLIT, **options)
    folder = tmp_path / "snapshots" if in_folder else None
    if folder:
        folder.mkdir()
    try:
        result = run(
            problem,
            SPLIT,
            **options,
            backend=Ray(address, 2 if victim == "node" else 3, folder=folder, snapshot_every=3),
            callbacks=set_trap(tmp_path, f"{victim} {cluster.head}", at=8),
        )
        assert (tmp_path / SPRUNG).exists()
    finally:
        if victim == "node":
            cluster.replace_node()
    assert_same_bits(result, one)
    assert folder is None or not any(folder.iterdir())
    rounds = OPTIONS["rounds"]
    if by == "Ray":
        assert not sockets
    elif victim == "actor":  # its successor has a socket from the next round on
        assert sorted(sockets.values()) == [rounds - 9, 9, rounds, rounds]
    else:
        assert rounds in sockets.values()


@pytest.mark.federation
@pytest.mark.parametrize("lost", [1, 2])
def test_a_machine_that_is_lost_before_its_snapshot_is_copied_changes_no_bit(
    lost, cluster, address, tmp_path, monkeypatch
):
    problem, options = problem_of(tmp_path, 12, 200_000, 3), {**OPTIONS, "eval_every": 12}
    one = run(problem, SPLIT, **options)
    copy, copies = RayRanges._copied, []

    def lose_a_node(self, *snapshots):
        copies.append(snapshots)
        if len(copies) == lost:
            cluster.replace_node()
        return copy(self, *snapshots)

    monkeypatch.setattr(RayRanges, "_copied", lose_a_node)
    assert_same_bits(run(problem, SPLIT, **options, backend=Ray(address, 2, snapshot_every=3)), one)
    assert len(copies) == 3


@pytest.mark.federation
def test_an_actor_killed_in_a_snapshot_changes_no_bit(address, tmp_path, monkeypatch):
    problem, folder = problem_of(tmp_path), tmp_path / "snapshots"
    folder.mkdir()
    monkeypatch.setattr(ray_ranges, "RangeActor", TrappedActor)
    result = run(
        *(problem, SPLIT),
        **OPTIONS,
        backend=Ray(address, 3, folder=folder, snapshot_every=3),
        # A gradient looks for the trap as well.
        callbacks=[lambda each: each.record.round == 6 and (tmp_path / TRAP).touch()],
    )
    assert not (tmp_path / TRAP).exists()
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))


@pytest.mark.federation
def test_an_actor_that_dies_again_and_again_ends_the_run(address, tmp_path, monkeypatch):
    started, start = [], RayRanges._start_actor

    def count(self, settings):
        started.append(settings)
        return start(self, settings)

    monkeypatch.setattr(RayRanges, "_start_actor", count)
    file = tmp_path / "deaths"

    def problem(deaths):
        file.write_text("")
        started.clear()
        loss = Mortal(np.eye(2), np.ones(2), file=file, deaths=deaths)
        return Problem([Agent(loss, Box(0, 1))])

    options = {"rounds": 1, "backend": Ray(address, 1)}
    assert run(problem(deaths=MAX_RESTARTS), FedAvg(0.1), **options).status == "finished"
    with pytest.raises(ClusterError, match="the agents 0 to 0 has died 4 times in one call"):
        run(problem(deaths=9), FedAvg(0.1), **options)
    assert len(file.read_text()) == len(started) == MAX_RESTARTS + 1


@pytest.mark.federation
def test_a_killed_driver_resumes_to_the_same_bits(address, tmp_path):
    command = [sys.executable, "-m", "tests.simulation.trapped", str(tmp_path), address]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / SPRUNG).exists()
    problem = problem_of(tmp_path)
    files = Checkpointing(tmp_path / "run", every=2, resume=True)
    resumed = run(problem, SPLIT, **OPTIONS, checkpoint=files, backend=Ray(address, 3))
    assert_same_bits(resumed, run(problem, SPLIT, **OPTIONS))


@pytest.mark.parametrize("is_first_on_ray", [True, False])
@pytest.mark.federation
def test_a_run_resumes_with_and_without_a_cluster(is_first_on_ray, address, tmp_path):
    problem, files = problem_of(tmp_path), Checkpointing(tmp_path / "run", every=1, resume=True)
    backends = [None, Ray(address, 2)]
    for rounds, on_ray in ((5, is_first_on_ray), (OPTIONS["rounds"], not is_first_on_ray)):
        options = {**OPTIONS, "rounds": rounds, "backend": backends[on_ray]}
        result = run(problem, SPLIT, **options, checkpoint=files)
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))


@pytest.mark.federation
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("method", "output"),
    [
        ("metrics", "last"),
        ("models", "last"),
        ("average_models", "average"),
        ("averaged_models", "average"),
        ("back_up", "random"),
        ("restore", "random"),
    ],
)
def test_an_actor_killed_in_a_call_changes_no_bit(
    method, output, when, address, tmp_path, monkeypatch
):
    problem, options = problem_of(tmp_path), {**OPTIONS, "output": output}
    one = run(problem, SPLIT, **options)
    monkeypatch.setattr(ray_ranges, "RangeActor", TrappedCalls)

    def set_trap(evaluation):
        if evaluation.record.round == 4:
            (tmp_path / CALL).write_text(f"{method} {when}")

    if output == "random":  # whose iterate may be in the first rounds
        (tmp_path / CALL).write_text(f"{method} {when}")
    else:
        options["callbacks"] = [set_trap]
    result = run(problem, SPLIT, **options, backend=Ray(address, 2, snapshot_every=3))
    assert (tmp_path / SPRUNG).exists()
    assert_same_bits(result, one)


@pytest.mark.federation
@pytest.mark.parametrize("has_copies", [True, False])
def test_the_driver_has_a_copy_where_no_other_actor_could(
    has_copies, cluster, address, tmp_path, monkeypatch
):
    def start_elsewhere(self, settings):
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        other = next((node for node in nodes if node != cluster.head), cluster.head)
        strategy = NodeAffinitySchedulingStrategy(other, soft=True)
        return self._actor_class.options(scheduling_strategy=strategy).remote(settings)

    monkeypatch.setattr(RayRanges, "_start_actor", start_elsewhere)
    if not has_copies:
        monkeypatch.setattr(RayRanges, "_copied", lambda self, saved: list(saved))
    problem = problem_of(tmp_path, 12, 200_000, 3)
    options = {
        **OPTIONS,
        "backend": Ray(address, 1, snapshot_every=3),
        "callbacks": set_trap(tmp_path, f"node {cluster.head}", at=8),
    }
    try:
        if has_copies:
            result = run(problem, SPLIT, **options)
            assert_same_bits(result, run(problem, SPLIT, **OPTIONS))
        else:
            with pytest.raises(ClusterError, match=r"private state of the agents 0 to 11 is lost"):
                run(problem, SPLIT, **options)
        assert (tmp_path / SPRUNG).exists()
    finally:
        cluster.replace_node()


def private_agents():
    def make(i):
        rng = np.random.default_rng(i)
        loss = SoftmaxRegression(rng.normal(size=(8, 3)), rng.integers(3, size=8), classes=3)
        budget = Privacy(3.0, 1e-5, feature_norm=3.0) if i % 2 else None
        return Agent(loss, L1Ball(1.0 + i % 4), privacy=budget)

    return [make(i) for i in range(37)]


def torch_agents():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))

    def make(i):
        rng = np.random.default_rng(i)
        data = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(3, size=9)
        loss = TorchLoss(net, data, torch.nn.CrossEntropyLoss())
        return Agent(loss, L2Ball(5.0), personalization=i % 3 / 2)

    return [make(i) for i in range(20)]


@pytest.mark.federation
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (private_agents, "PFedHN"),
        (private_agents, "PCFedSplit"),
        (torch_agents, "FedProx"),
        (lambda: [make_agent(i) for i in range(40)], "ProxAL"),
    ],
    ids=["PFedHN, budgets", "PCFedSplit, budgets", "torch", "ProxAL"],
)
def test_methods_and_agents_of_all_kinds_have_the_bits_of_one_process(make, name, address):
    problem = Problem(make())
    options = {"rounds": 4, "local_steps": [1 + i % 3 for i in range(problem.m)], "batch": 3}
    options["seed"] = 2**62 + 1  # as large as those that keep a budget must be
    one = run(problem, ALGORITHMS[name], **options)
    assert_same_bits(run(problem, ALGORITHMS[name], **options, backend=Ray(address, 3)), one)


@pytest.mark.federation
@pytest.mark.parametrize("by", ["sockets", "Ray"])
def test_agents_later_than_the_deadline_are_absent(by, sockets, address, tmp_path, request):
    if by == "sockets":
        request.getfixturevalue("on_one_machine")
    problem = problem_of(tmp_path)
    options = {**OPTIONS, "participation": 1.0}
    result = run(
        problem,
        SPLIT,
        **options,
        backend=Ray(address, 2, deadline=2.0),
        callbacks=set_trap(tmp_path, "sleep 5", at=4),
    )
    assert (tmp_path / SPRUNG).exists()
    sent = np.diff([0, *(record.bytes_up for record in result.history)])
    assert sent[4] == sent[3] / 2  # one of two actors was late
    assert sent[-1] == sent[3]  # and took part again
    audited = SPLIT.for_center("average").audited(result.state.server, result.state.private)
    for name, rows in audited.items():
        np.testing.assert_allclose(rows.mean(axis=0), result.state.server[name], atol=1e-12)
    assert len(sockets) == (2 if by == "sockets" else 1)


@pytest.mark.federation
def test_an_actor_whose_answer_is_on_another_machine_is_not_late(address, tmp_path, monkeypatch):
    class SlowOnce(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            if (tmp_path / TRAP).exists():
                (tmp_path / TRAP).rename(tmp_path / SPRUNG)
                time.sleep(8)
            return super().gradient(x, rows, out=out)

    def start(self, settings):
        is_first = len(self._ranges) == 0
        nodes = (each["NodeID"] for each in ray.nodes() if each["Alive"])
        node = next(node for node in nodes if (node == here()) == is_first)
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._actor_class.options(scheduling_strategy=strategy).remote(settings)

    def absent(index):
        if index == 1:
            (tmp_path / TRAP).touch()
        return []

    monkeypatch.setattr(RayRanges, "_start_actor", start)
    data = np.ones((1, 2_200_000)), np.ones(1)  # an answer that stays in the object store
    agents = [Agent(kind(*data), Box(-1, 1)) for kind in (SlowOnce, LeastSquares)]
    options = {"participation": absent, "eval_every": 1, "rounds": 2}
    result = run(Problem(agents), FedAvg(1e-7), **options, backend=Ray(address, 2, deadline=4.0))
    sent = np.diff([0, *(record.bytes_up for record in result.history)])
    assert (tmp_path / SPRUNG).exists()
    assert sent[-1] == sent[-2] / 2 > 0


@pytest.mark.federation
def test_an_actor_that_is_always_late_is_named_and_keeps_its_snapshots(address, tmp_path):
    agents = [make_agent(0), make_agent(1)]
    loss = Slow(np.eye(5), np.ones(5), folder=tmp_path)
    problem = Problem([agents[0], Agent(loss, Box(-1, 1))])
    folder = tmp_path / "snapshots"
    folder.mkdir()
    backend = Ray(address, 2, folder=folder, snapshot_every=1, deadline=0.3)
    with pytest.warns(UserWarning, match=r"agents 1 to 1 have been absent in the last 5 rounds"):
        run(
            *(problem, FedAvg(0.1)),
            rounds=8,
            backend=backend,
            callbacks=[lambda each: each.record.round == 6 and (tmp_path / TRAP).touch()],
        )
    assert (tmp_path / SPRUNG).exists()


@pytest.mark.parametrize("rounds", [1, 2])
def test_errors_of_agents_are_raised_after_the_deadline(rounds, address):
    class Failing(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            time.sleep(0.5)
            raise ValueError("agent: no data; copy it.")

    loss = Failing(np.eye(5), np.ones(5))
    problem = Problem([make_agent(0), Agent(loss, Box(0, 1))])

    def absent(index):  # the second round begins after the answer has arrived
        time.sleep(index)
        return []

    options = {"rounds": rounds, "participation": absent, "eval_every": rounds}
    options["backend"] = Ray(address, 2, deadline=0.2)
    with pytest.raises(ValueError, match=r"^agent: no data; copy it\.$"):
        run(problem, FedAvg(0.1), **options)


def test_a_run_does_not_wait_for_processors_that_others_use(cluster):
    connect(cluster.address)
    try:
        busy = ray.remote(num_cpus=1)(Event).remote()
        ray.get(busy.is_set.remote())
        release = Timer(60, ray.kill, [busy])  # or the test would wait for ever
        release.start()
        run(Problem([make_agent(0), make_agent(1)]), FedAvg(0.1), rounds=1, backend=Ray())
        assert release.is_alive()
        release.cancel()
        ray.kill(busy)
    finally:
        ray.shutdown()


def test_calls_that_are_kept_to_be_repeated_are_bounded(address, tmp_path, monkeypatch):
    saved, save = [], RayRanges._save_snapshots

    def count(self, accepted):
        saved.append(accepted + 1)
        save(self, accepted)

    monkeypatch.setattr(RayRanges, "_save_snapshots", count)
    monkeypatch.setattr(ray_ranges, "SNAPSHOT_FACTOR", 1e9)  # they are never due by time
    monkeypatch.setattr(ray_ranges, "MAX_CALL_BYTES", 5000)
    run(problem_of(tmp_path), SPLIT, **OPTIONS, backend=Ray(address, 1))
    # The first one measures the time. 20 participants and 22 numbers are 1,136 bytes per round.
    assert saved == [1, 6, 11]


def test_errors_of_copies_of_snapshots_are_raised(address, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_ranges, "RangeActor", CarelessActor)
    options = {**OPTIONS, "backend": Ray(address, 2, snapshot_every=1)}
    with pytest.raises(ValueError, match=r"^keep: no memory; free some\.$"):
        run(problem_of(tmp_path), SPLIT, **options)


def test_blas_libraries_that_agents_load_have_one_thread(monkeypatch):
    done = []

    class Controller:
        def limit(self, *, limits, user_api):
            done.append((limits, user_api))
            return nullcontext()

    def make(i):
        done.append("made")
        return make_agent(i)

    monkeypatch.setattr("threadpoolctl.ThreadpoolController", Controller)
    values = dict.fromkeys(each.name for each in fields(RangeSettings))
    values |= {"agents": Problem.lazy(4, make).agents, "first": 0, "m": 4, "workers": 1}
    values |= {"algorithm": SPLIT, "memory": Memory(), "batch": 1.0}
    actor = RangeActor(RangeSettings(**values))
    done.clear()
    try:
        actor.call("start", -1, np.zeros(5))
    finally:
        _controller.cache_clear()
    assert done[0] == "made"
    assert done[-1] == (1, "blas")


def test_more_threads_than_a_node_has_processors_are_fine(address, tmp_path):
    problem = problem_of(tmp_path)
    result = run(problem, SPLIT, **OPTIONS, workers=2, backend=Ray(address, 1))
    assert_same_bits(result, run(problem, SPLIT, **OPTIONS))


def test_actors_have_as_many_threads_of_pytorch_as_the_driver(address):
    torch = pytest.importorskip("torch")

    def threads(agent, model):
        return np.array([float(torch.get_num_threads())])

    before, found = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        run(
            *(Problem([make_agent(0)]), FedAvg(0.1)),
            rounds=1,
            backend=Ray(address, 1),
            callbacks=[lambda each: found.append(each.sum_over_agents(threads))],
        )
    finally:
        torch.set_num_threads(before)
    assert found == [3]


def own_cluster(*arguments):
    command = [sys.executable, "-m", "tests.simulation.own_cluster", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("as expected\n"), done.stderr


@pytest.mark.federation
def test_others_cannot_use_the_cluster_of_a_run(address, tmp_path):
    own_cluster("token", tmp_path, address)


@pytest.mark.federation
def test_an_actor_without_memory_is_replaced():
    own_cluster("memory")


def test_lazy_agents_are_made_in_the_actors(address, tmp_path):
    def make(i):
        (tmp_path / f"{i}-{os.getpid()}").touch()
        return make_agent(i)

    one = run(Problem.lazy(150, make_agent), SPLIT, **OPTIONS)
    assert_same_bits(run(Problem.lazy(150, make), SPLIT, **OPTIONS, backend=Ray(address, 2)), one)
    made = [path.name.split("-") for path in tmp_path.iterdir()]
    assert {i for i, _ in made} == set(map(str, range(150)))
    assert [i for i, process in made if process == str(os.getpid())] == ["0"]


@pytest.mark.federation
def test_a_run_stops_at_a_certified_gap(address, tmp_path):
    problem, options = problem_of(tmp_path), {"rounds": 90, "local_steps": 5, "eval_every": 10}
    one = run(problem, SPLIT, **options, stop=Gap(1e-3, relative=True))
    two = run(problem, SPLIT, **options, stop=Gap(1e-3, relative=True), backend=Ray(address, 2))
    assert one.status == "stopped"
    assert_same_bits(two, one)


def test_memory_of_private_state_may_be_in_files(tmp_path):
    problem, few = Problem.lazy(150, make_agent), {**OPTIONS, "participation": 3}
    one = run(problem, SPLIT, **few)
    assert_same_bits(run(problem, SPLIT, **few, memory=Memory(folder=tmp_path)), one)
    assert not any(tmp_path.iterdir())  # the files have no names


def test_memory_mapped_results_are_saved(monkeypatch, tmp_path):
    problem = Problem([make_agent(i) for i in range(150)])
    in_memory = run(problem, SPLIT, **OPTIONS)
    monkeypatch.setattr("pcfed.arrays.MAX_MEMORY", 1000)
    monkeypatch.setattr("pcfed.simulation.simulate._ranges", in_ranges((0, 64, 150)))
    result = run(problem, SPLIT, **OPTIONS)
    assert isinstance(result.models, np.memmap)
    result.save(tmp_path / "result.npz")
    assert_same_bits(Result.load(tmp_path / "result.npz"), in_memory)


def test_float32_state_is_within_its_bound():
    errors, sizes = [], []

    def check(evaluation):
        state = evaluation._engine.state
        sizes.extend(np.linalg.norm(state.private[name], axis=1).max() for name in ("W", "U"))
        for name, rows in SPLIT.audited(state.server, state.private).items():
            errors.append(np.linalg.norm(rows.mean(axis=0) - state.server[name]))
            assert errors[-1] <= state.round * 2.0**-24 * max(sizes) + 1e-14

    problem = Problem([make_agent(i) for i in range(50)])
    memory = Memory("float32")
    run(problem, SPLIT, rounds=40, local_steps=3, memory=memory, callbacks=[check])
    assert max(errors) > 1e-12  # in float64 it is less


@pytest.mark.parametrize(
    ("given", "message"),
    [({"dtype": "float16"}, "Memory: dtype must be one of"), ({"folder": "nowhere"}, "existing")],
)
def test_bad_memory_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Memory(**given)


def test_errors_of_agents_are_those_of_one_process(address):
    def make_agent(i):
        if i == 140:
            raise ValueError("agent 140: no file; copy it.")
        return Agent(LeastSquares(np.eye(2), np.ones(2)), Box(0, 1))

    with pytest.raises(ValueError, match=r"^agent 140: no file; copy it\.$"):
        run(Problem.lazy(150, make_agent), FedAvg(0.1), rounds=1, backend=Ray(address, 2))


def test_errors_with_their_own_constructor_keep_their_text(address):
    def make_agent(i):
        if i == 140:
            raise PathError("140.csv", "it was moved")
        return Agent(LeastSquares(np.eye(2), np.ones(2)), Box(0, 1))

    with pytest.raises(OSError, match=r"^140\.csv is not there: it was moved$"):
        run(Problem.lazy(150, make_agent), FedAvg(0.1), rounds=1, backend=Ray(address, 2))


def test_batches_and_algorithms_that_cannot_be_sent_are_named(address):
    lock, problem = Lock(), Problem([make_agent(0)])

    def with_lock(index):
        with lock:
            return 1

    reason = r"must consist of .*, got an error: cannot pickle '_thread.lock' object; move"
    options = {"rounds": 1, "backend": Ray(address, 1)}
    with pytest.raises(ValueError, match=f"^run: batch {reason}"):
        run(problem, SPLIT, batch=with_lock, **options)
    with pytest.raises(ValueError, match=f"^run: algorithm {reason}"):
        run(problem, FedAvg(step=with_lock), **options)


def test_a_function_that_cannot_be_sent_is_named(address):
    lock = Lock()

    def with_lock(agent, model):
        with lock:
            return model

    def look(evaluation):
        evaluation.sum_over_agents(with_lock)

    options = {"rounds": 1, "callbacks": [look], "backend": Ray(address, 1)}
    message = r"^Evaluation.sum_over_agents: function must .* cannot pickle '_thread.lock' object;"
    with pytest.raises(ValueError, match=message):
        run(Problem([make_agent(0)]), FedAvg(0.1), **options)


def test_agents_that_cannot_be_sent_are_named(address):
    agent = Agent(LeastSquares(np.eye(2), np.ones(2)), Box(0, 1))
    object.__setattr__(agent, "lock", Lock())
    with pytest.raises(ValueError, match=r"^run: agents must consist of objects that Ray"):
        run(Problem([agent]), FedAvg(0.1), rounds=1, backend=Ray(address, 1))


def test_a_folder_that_is_missing_is_named(address, tmp_path):
    backend = Ray(address, 1, folder=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"Ray: folder must be an existing folder, got"):
        run(Problem([make_agent(0)]), FedAvg(0.1), rounds=1, backend=backend)


def test_an_address_of_another_cluster_is_refused(cluster):
    problem = Problem([make_agent(0)])
    connect(cluster.address)
    try:
        port = cluster.address.rpartition(":")[2]
        for same in (cluster.address, f"localhost:{port}", "auto", None):
            assert run(problem, FedAvg(0.1), rounds=1, backend=Ray(same)).status == "finished"
        with pytest.raises(ValueError, match=r"Ray: address must be that of the cluster to which"):
            run(problem, FedAvg(0.1), rounds=1, backend=Ray("127.0.0.1:9"))
    finally:
        ray.shutdown()


def test_agents_that_actors_cannot_read_are_named(address):
    class Unreadable(Box):
        def __reduce__(self):
            return len, (7,)

    problem = Problem([Agent(LeastSquares(np.eye(2), np.ones(2)), Unreadable(0.0, 1.0))])
    with pytest.raises(ValueError, match=r"^run: agents must consist of objects that Ray"):
        run(problem, FedAvg(0.1), rounds=1, backend=Ray(address, 1))


ADDRESSES = 7, "", "local", "10.0.0.1", "ray://10.0.0.1:10001", "10.0.0.1:70000"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"address": each}, 'Ray: address must be "auto" or HOST:PORT') for each in ADDRESSES),
        ({"actors": 0}, "Ray: actors must be"),
        ({"deadline": -1.0}, "Ray: deadline must be"),
        ({"snapshot_every": 0}, "Ray: snapshot_every must be"),
        ({"folder": 3}, "Ray: folder must be"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Ray(**given)


def test_a_connection_of_the_client_is_refused(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ValueError, match=r"Ray: this process must be connected to the cluster it"):
        ray_connection.connect("auto")


def test_a_missing_token_is_named(monkeypatch):
    def refuse(**options):
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray_connection, "_check_reachable", lambda address: None)
    monkeypatch.setattr(ray, "init", refuse)
    message = r"connect to Ray cluster\); if it has a token, set RAY_AUTH_MODE=token and RAY_A"
    with pytest.raises(ValueError, match=message):
        ray_connection.connect("127.0.0.1:9")


def test_a_missing_cluster_is_named():
    problem = Problem([make_agent(0)])
    with pytest.raises(ValueError, match=r"Ray: address must be that of a running cluster, got"):
        run(problem, FedAvg(0.1), rounds=1, backend=Ray("127.0.0.1:9"))


def test_something_else_at_the_address_is_named(capfd):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ValueError, match=r"got '127.*' \(something else listens there\)"):
            run(Problem([make_agent(0)]), FedAvg(0.1), rounds=1, backend=Ray(address))
    assert "gcs" not in capfd.readouterr().err


def test_a_backend_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"run: backend must be .*; give one such as Ray"):
        run(Problem([make_agent(0)]), FedAvg(0.1), rounds=1, backend="ray")
