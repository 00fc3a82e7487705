"""Processes in the background: started with a log, listed in a file, and stopped as groups."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

from pcfed.storage.saved import Metadata, SavedJson

HOST = "127.0.0.1"
Command = list[Path | str | int]


@dataclass(frozen=True)
class Processes(SavedJson):
    """The processes of a federation: the SuperLink's port, whether they use TLS, their ids.

    Each process leads a process group of its own.
    """

    file_kind: ClassVar[str] = "list of a federation's processes"
    format: ClassVar[int] = 2
    advice: ClassVar[str] = "stop the processes with the version of pcfed that started them."

    port: int
    tls: bool
    pids: Mapping[str, int]

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(**contents)

    def alive(self) -> dict[str, bool]:
        """Return for each process whether it runs."""
        return {name: is_alive(pid) for name, pid in self.pids.items()}


def spawn(command: Command, environment: Mapping[str, str], log: Path) -> int:
    """Start a process that outlives this one, in a group of its own, and return its id."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    arguments = [str(each) for each in command]
    return os.posix_spawn(
        arguments[0],
        arguments,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, mode, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
    )


def stop(groups: Iterable[int]) -> None:
    """Stop process groups: ask them to end, and kill them after some seconds."""
    groups = list(groups)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            # The whole group: a SuperNode that died may have left a ClientApp.
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        wait_until(lambda: not any(is_alive(group, os.killpg) for group in groups), 5.0)


def is_alive(pid: int | None, kill: Callable[[int, int], None] = os.kill) -> bool:
    """Return whether a process runs, or with os.killpg any of its group; None never does."""
    if pid is None:
        return False
    with suppress(ChildProcessError):
        # A child that has ended stays visible until its parent has waited for it.
        os.waitpid(pid, os.WNOHANG)
    try:
        kill(pid, 0)
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
