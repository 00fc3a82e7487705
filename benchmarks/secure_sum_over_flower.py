"""What a secure sum costs over Flower: bytes and seconds of a round, beside one without.

    python -m benchmarks.secure_sum_over_flower

A real SuperLink and four real SuperNodes run on this machine, with TLS and the data of
``pcfed federation up``. Every agent reaches the server through a relay that counts the bytes in
both directions: TLS, gRPC and the requests by which a SuperNode asks for messages are among them.
Trainings of one and of six rounds with and without a secure sum alternate, without certificates. A
round costs a fifth of the difference between six rounds and one; "start and end" is what is left of
the training of one round. Bytes are those of one agent, and seconds are those of
``pcfed federation run``, with the start of the ServerApp, the audit and, with a secure sum, the
certificate and the score. Numbers are medians over
three trainings of each kind.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.processes import HOST, Command, Processes

AGENTS, FEW, MANY, REPEATS = 4, 1, 6, 3


class Cost(NamedTuple):
    """What a training, or a part of one, costs: bytes of one agent, and seconds."""

    up: float
    down: float
    seconds: float


class CountingRelay(socketserver.ThreadingTCPServer):
    """Forwards connections to a port of this machine, and counts their bytes."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__((HOST, 0), RelayedConnection)
        self.target = target
        self.up, self.down = 0, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class RelayedConnection(socketserver.BaseRequestHandler):
    """One connection."""

    server: CountingRelay

    def handle(self) -> None:
        """Forward the bytes of both directions until the connection is closed."""
        try:
            other = socket.create_connection((HOST, self.server.target))
        except OSError:
            return  # the server has ended
        with other:
            back = threading.Thread(target=self._forward, args=(other, self.request, "down"))
            back.start()
            self._forward(self.request, other, "up")
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(65536):
                # One thread per connection and direction; a SuperNode has one connection at a time.
                setattr(self.server, direction, getattr(self.server, direction) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one side has closed the connection


class MeasuredFederation(LocalFederation):
    """A federation on this machine in which every agent reaches the server through a relay."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.relays: list[CountingRelay] = []
        self.write_example(AGENTS)
        for i in range(AGENTS):
            file = self.folder / f"agent-{i + 1}.toml"
            text = file.read_text().replace("certificate = true", "certificate = false")
            file.write_text(f"{text}secure = false  # trainings without are measured, too\n")
        self._text = self.server_file.read_text()

    def _supernode_command(self, name: str, file: Path, processes: Processes) -> Command:
        self.relays.append(CountingRelay(processes.port))
        port = self.relays[-1].server_address[1]
        return super()._supernode_command(name, file, replace(processes, port=int(port)))

    def measure(self, training: str, rounds: int, *, secure: bool) -> Cost:
        """Run a training, and return what it costs."""
        text = self._text.replace('training = "example"', f'training = "{training}"')
        text = text.replace("rounds = 5", f"rounds = {rounds}")
        self.server_file.write_text(f"secure = {str(secure).lower()}\n{text}")
        before = [(relay.up, relay.down) for relay in self.relays]
        started = time.perf_counter()
        self.run()
        seconds = time.perf_counter() - started
        sent = [
            (relay.up - up, relay.down - down)
            for relay, (up, down) in zip(self.relays, before, strict=True)
        ]
        up, down = (sum(each) / AGENTS for each in zip(*sent, strict=True))
        return Cost(up, down, seconds)


def measure() -> dict[tuple[bool, int], Cost]:
    """Return the median costs of trainings, by whether there is a secure sum and by rounds."""
    costs: dict[tuple[bool, int], list[Cost]] = {}
    with TemporaryDirectory() as folder:
        federation = MeasuredFederation(Path(folder))
        try:
            federation.up(tls=True)
            for repeat in range(REPEATS):
                for secure in (False, True):
                    for rounds in (FEW, MANY):
                        name = f"{'secure' if secure else 'plain'}-{rounds}-{repeat}"
                        cost = federation.measure(name, rounds, secure=secure)
                        costs.setdefault((secure, rounds), []).append(cost)
        finally:
            federation.down()
    return {kind: Cost(*map(median, zip(*found, strict=True))) for kind, found in costs.items()}


def lines(costs: dict[tuple[bool, int], Cost]) -> Iterator[str]:
    """Yield the rows of the table."""
    for secure in (False, True):
        few, many = costs[secure, FEW], costs[secure, MANY]
        one = Cost(*((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True)))
        rest = Cost(*(a - FEW * b for a, b in zip(few, one, strict=True)))
        for part, cost in (("round", one), ("start and end", rest)):
            yield (
                f"| {'secure' if secure else 'plain'} | {part} | {cost.up / 1e3:,.1f} "
                f"| {cost.down / 1e3:,.1f} | {cost.seconds:.1f} |"
            )


def main() -> None:
    """Measure, and print a table."""
    print("| sum | part | up, kB | down, kB | seconds |\n|---|---|---|---|---|")
    for line in lines(measure()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
