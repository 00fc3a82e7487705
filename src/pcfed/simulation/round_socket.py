"""Rounds of an actor on the driver's machine, called through a Unix socket.

A call of Ray's takes half a millisecond, and several with vectors: it passes threads, and an object
store that is made for clusters. Between two processes of one machine, a socket takes a tenth of
that. If one of the processes ends, the other one reads the end of the stream. Only processes of the
same user can reach the socket, because of the permissions of its folder.

An actor answers rounds at the socket in a call of Ray's that lasts until the driver sends PAUSE.
Everything is then computed in one thread, in the order in which it is called.

A message is a pickle, as Ray makes them, whose vectors follow it, so that they are copied once on
either side: the number of parts, their sizes, the pickle, the vectors.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any

from pcfed.algorithms import Vectors
from pcfed.simulation.aggregation import RangeSums, RoundCall

BUFFER_BYTES = 2**22
"""What a socket holds until it is read, if the system allows so much, so that sending is short."""

Message = Sequence[bytes | memoryview]
"""A pickle, and the vectors that it refers to."""

PAUSE: Message = ()
"""The message that ends `RoundListener.answer_rounds`."""

RunRound = Callable[[int, RoundCall, Vectors], RangeSums]
"""`pcfed.simulation.range_actor.RangeActor.run_round`."""


class SocketClosed(Exception):
    """The other process has ended, or has closed the socket."""


class AgentError(Exception):
    """An agent has raised an error, the ``cause``."""

    def __init__(self, cause: Any) -> None:
        super().__init__(cause)
        self.cause = cause


class RoundSocket:
    """The driver's end of a socket.

    Parameters
    ----------
    path : str
        Where the actor listens.

    Raises
    ------
    OSError
        If nobody listens there.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        _prepare(self._socket)
        try:
            self._socket.connect(path)
        except OSError:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Send a part of a call, `pickled`; `receive` returns the answer to both parts.

        The first one is the server's state; the second one starts the round: the index of the last
        round that was aggregated, and the range's call without the server's state. All actors
        should have the state before the first one starts, and competes for processors.
        """
        with suppress(ConnectionError):  # `receive` raises it
            _send(self._socket, message)

    def pause(self) -> None:
        """Let the actor answer other calls, after its round if it is in one."""
        self.send(PAUSE)

    def has_answer(self, seconds: float) -> bool:
        """Return whether there is something to receive, for which it waits some seconds."""
        return bool(wait([self._socket], seconds))

    def receive(self) -> RangeSums:
        """Return the answer to the last call; raise AgentError, or SocketClosed."""
        answer = _received(self._socket)
        if not isinstance(answer, RangeSums):
            raise AgentError(answer)
        return answer

    def close(self) -> None:
        """Close the socket; the actor stays."""
        self._socket.close()


class RoundListener:
    """The actor's end of a socket.

    Parameters
    ----------
    path : str
        Where the driver will connect.

    Raises
    ------
    OSError
        If there can't be a socket, for example because the path is too long.
    """

    def __init__(self, path: str) -> None:
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(None)
        try:
            self._listener.bind(path)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            raise

    def answer_rounds(self, run_round: RunRound) -> None:
        """Answer the calls of the driver until it sends PAUSE or has ended."""
        if self._connection is None:
            with closing(self._listener):
                self._connection, _ = self._listener.accept()
            _prepare(self._connection)
            # A process that an agent has forked would keep the socket open beyond the actor's end.
            os.register_at_fork(after_in_child=self._connection.close)
        try:
            while (server := _received(self._connection)) is not None:
                accepted, call = _received(self._connection)
                answer: RangeSums | Exception
                try:
                    answer = run_round(accepted, call, server)
                except Exception as error:  # agents may raise anything
                    answer = error
                _send(self._connection, pickled(answer))
        except BaseException:  # the driver must not wait for an answer
            self._connection.close()
            raise


def pickled(value: object) -> Message:
    """Return an object as a message; errors of agents may have classes of a user's program."""
    vectors: list[Any] = []
    pickles: Any = import_module("ray.cloudpickle")
    first: bytes = pickles.dumps(value, protocol=5, buffer_callback=vectors.append)
    return [first, *(vector.raw() for vector in vectors)]


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)  # whatever the default of the process is
    with suppress(OSError):  # some systems refuse what is too large; others give less
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def _send(connection: socket.socket, message: Message) -> None:
    sizes = [len(part) for part in message]
    connection.sendall(struct.pack(f"Q{len(sizes)}Q", len(sizes), *sizes))
    for part in message:
        connection.sendall(part)


def _received(connection: socket.socket) -> Any:
    """Return the object of the next message, None for PAUSE."""
    (number,) = struct.unpack("Q", _read(connection, 8))
    if number == 0:
        return None
    sizes = struct.unpack(f"{number}Q", _read(connection, 8 * number))
    first, *vectors = [_read(connection, size) for size in sizes]
    pickles: Any = import_module("ray.cloudpickle")
    return pickles.loads(first, buffers=vectors)


def _read(connection: socket.socket, size: int) -> bytearray:
    """Return the next bytes."""
    found = bytearray(size)
    rest = memoryview(found)
    while rest:
        try:
            received = connection.recv_into(rest)
        except ConnectionError:
            received = 0
        if not received:
            raise SocketClosed
        rest = rest[received:]
    return found
