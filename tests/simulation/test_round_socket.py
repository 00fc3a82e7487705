"""Sockets between a driver and an actor: messages of any size, errors, and lost ends."""

from __future__ import annotations

import signal
import time
from contextlib import closing, suppress
from socket import AF_UNIX, setdefaulttimeout
from socket import socket as plain_socket
from threading import Event, Thread

import numpy as np
import pytest

from pcfed.algorithms import RoundInfo
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.round_socket import (
    BUFFER_BYTES,
    AgentError,
    RoundListener,
    RoundSocket,
    SocketClosed,
    pickled,
)
from pcfed.tree_sums import PartialSums

pytest.importorskip("ray")

CALL = RoundCall(RoundInfo(3, m=9, max_local_steps=2), {}, [4, 7], [2, 1])


def run_round(accepted, call, server):
    """Return the state plus the index of the last round, in place."""
    for vector in server.values():
        vector += accepted
    sums = PartialSums(np.array(call.positions), {"z": np.stack([*server.values()])})
    return RangeSums(sums, {}, len(call.steps), (), call.info.index)


@pytest.fixture
def connected(tmp_path):
    """Return a function that opens a socket to a thread that answers rounds."""
    opened = []

    def connect(function):
        path = str(tmp_path / f"actor-{len(opened)}")
        listener = RoundListener(path)

        def answer():
            with suppress(SocketClosed, ConnectionError):
                listener.answer_rounds(function)

        thread = Thread(target=answer)
        thread.start()
        opened.append((RoundSocket(path), thread))
        return opened[-1][0]

    yield connect
    for socket, thread in opened:
        socket.close()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("size", [0, 5, BUFFER_BYTES])
def test_calls_and_answers_of_any_size_arrive(size, connected):
    socket = connected(run_round)
    state = {"a": np.arange(float(size)), "b": np.full(size, np.nan)}
    for accepted in (-1, 2):
        socket.send(pickled(state))
        socket.send(pickled((accepted, CALL)))
        answer = socket.receive()
        expected = run_round(accepted, CALL, {name: rows.copy() for name, rows in state.items()})
        np.testing.assert_array_equal(answer.sums.vectors["z"], expected.sums.vectors["z"])
        assert answer.sums.positions.tolist() == [4, 7]
        assert (answer.num_accepted, answer.bytes_up) == (2, 3)
        assert answer.sums.vectors["z"].flags.writeable


def test_errors_are_raised_and_the_next_call_is_answered(connected):
    def fail_once(accepted, call, server):
        if accepted == 0:
            raise EOFError("agent: its file ends early; copy it.")
        return run_round(accepted, call, server)

    socket = connected(fail_once)
    for accepted in (0, 1):
        socket.send(pickled({"a": np.zeros(2)}))
        socket.send(pickled((accepted, CALL)))
        if accepted == 0:
            with pytest.raises(AgentError) as raised:
                socket.receive()
            assert isinstance(raised.value.cause, EOFError)
        else:
            assert socket.receive().num_accepted == 2


def test_an_answer_is_announced(connected):
    may_answer = Event()

    def wait(*arguments):
        assert may_answer.wait(10)
        return run_round(*arguments)

    socket = connected(wait)
    socket.send(pickled({"a": np.zeros(2)}))
    socket.send(pickled((1, CALL)))
    assert not socket.has_answer(0.1)
    may_answer.set()
    assert socket.has_answer(10)
    assert socket.receive().num_accepted == 2
    assert not socket.has_answer(0)


def test_the_end_of_an_actor_is_an_answer(tmp_path):
    path = str(tmp_path / "actor")
    with closing(plain_socket(AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        socket = RoundSocket(path)
        connection, _ = listener.accept()
        connection.sendall(b"\1\0\0")  # it ends in the middle of a message
        connection.close()
    for _ in range(2):
        socket.send(pickled({"a": np.zeros(2)}))
        assert socket.has_answer(10)
        with pytest.raises(SocketClosed):
            socket.receive()
    socket.close()
    with pytest.raises(ConnectionRefusedError):
        RoundSocket(path)


def test_an_actor_pauses_after_its_rounds_and_answers_again(tmp_path):
    listener = RoundListener(str(tmp_path / "actor"))
    socket = RoundSocket(str(tmp_path / "actor"))
    for accepted in (1, 2):
        socket.send(pickled({"a": np.zeros(2)}))
        socket.send(pickled((accepted, CALL)))
        socket.pause()
        listener.answer_rounds(run_round)  # in this thread: it ends
        assert socket.receive().sums.vectors["z"].tolist() == [[accepted, accepted]]
    socket.close()
    with pytest.raises(SocketClosed):
        listener.answer_rounds(run_round)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_actor_that_exits_closes_the_socket(error, tmp_path):
    def leave(*arguments):
        raise error

    listener = RoundListener(str(tmp_path / "actor"))
    socket = RoundSocket(str(tmp_path / "actor"))
    socket.send(pickled({"a": np.zeros(2)}))
    socket.send(pickled((1, CALL)))
    with pytest.raises(error):
        listener.answer_rounds(leave)
    with pytest.raises(SocketClosed):
        socket.receive()
    socket.close()


def test_errors_of_signal_handlers_are_raised_where_they_arrive(connected):
    def stop(*_):
        raise TimeoutError("enough")

    may_answer = Event()

    def wait(*arguments):
        may_answer.wait(10)
        return run_round(*arguments)

    socket = connected(wait)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        socket.send(pickled({"a": np.zeros(2)}))
        socket.send(pickled((1, CALL)))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError, match="enough"):
            socket.receive()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError, match="enough"):  # the actor does not read
            socket.send(pickled({"a": np.zeros(4 * BUFFER_BYTES)}))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        may_answer.set()


def test_the_default_timeout_of_a_program_does_not_count(connected):
    def slow(*arguments):
        time.sleep(0.3)
        return run_round(*arguments)

    setdefaulttimeout(0.05)
    try:
        socket = connected(slow)
        time.sleep(0.3)
        socket.send(pickled({"a": np.zeros(2)}))
        socket.send(pickled((1, CALL)))
        assert socket.receive().num_accepted == 2
    finally:
        setdefaulttimeout(None)


def test_paths_that_cannot_be_are_named(tmp_path):
    for path in (tmp_path / ("long" * 50), tmp_path / "nowhere" / "actor"):
        with pytest.raises(OSError, match=r"too long|No such file"):
            RoundListener(str(path))
    with pytest.raises(FileNotFoundError):
        RoundSocket(str(tmp_path / "nowhere" / "actor"))
