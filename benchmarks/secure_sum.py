"""What a round with a secure sum costs, beside one without.

    python -m benchmarks.secure_sum [agents …]

m agents and a server are in one process and write their files to a temporary folder. They train
least squares with 1,000 parameters and 20 rows per agent by PCFedSplit, with a free centre and five
local steps. "Up" and "down" are the bytes that an agent sends and receives in a round: the vectors,
and the texts of the metadata. "Agent" is the time of one agent in all exchanges of a round, its own
training and its files included, and "server" is all the rest. The rounds of both kinds alternate;
the first two are left out, because they have other messages. Times are medians, and the ratio is
that of the whole rounds. Nothing is transported: a real transport adds a fixed time to each
exchange.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, PCFedSplit
from pcfed.federation import Client, Server, ServerConfig
from pcfed.federation.identity import Identity
from pcfed.federation.protocol import Message
from pcfed.federation.secure_agent import SecureAgent
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball

AGENTS = (4, 16, 64)
PARAMETERS, ROWS, LOCAL_STEPS = 1000, 20, 5
WARM_UP, ROUNDS = 2, 3


class Cost(NamedTuple):
    """What a round costs: bytes and seconds of one agent, and seconds of the server and of all."""

    exchanges: int
    up: float
    down: float
    agent: float
    server: float
    total: float


class CountingTransport:
    """Carries messages in this process, and counts exchanges, bytes and the agents' seconds."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients
        self.exchanges, self.up, self.down, self.seconds = 0, 0, 0, 0.0

    def exchange(self, messages: Mapping[str, Message], min_present: int) -> Iterator[Message]:
        """Deliver messages, and yield the replies."""
        self.exchanges += 1
        for name, message in messages.items():
            self.down += num_bytes(message)
            started = time.perf_counter()
            reply = self._clients[name].handle(message)
            self.seconds += time.perf_counter() - started
            self.up += num_bytes(reply)
            yield reply


def num_bytes(message: Message) -> int:
    """Return the size of a message without what a transport adds."""
    texts = sum(len(f"{key}{value}") for key, value in message.metadata.items())
    return texts + sum(vector.nbytes for vector in message.vectors.values())


def agents_of(m: int) -> list[Agent]:
    """Return agents with random data and budgets of their own."""
    rng = np.random.default_rng(0)
    return [
        Agent(
            LeastSquares(rng.normal(size=(ROWS, PARAMETERS)), rng.normal(size=ROWS)),
            L1Ball(budget),
            coupling=0.1,
        )
        for budget in rng.uniform(1, 5, m)
    ]


def server_of(
    agents: Sequence[Agent], folder: Path, *, secure: bool
) -> tuple[Server, CountingTransport]:
    """Return the server of a federation in this process, and what counts its bytes."""
    clients = {}
    for i, agent in enumerate(agents):
        name = f"agent {i + 1}"
        secrets = SecureAgent(name, Identity.create(), folder / name / "secrets.json")
        clients[name] = Client(name, agent, folder / name, secure=secrets if secure else None)
    config = ServerConfig(
        "benchmark",
        tuple(clients),
        PARAMETERS,
        PCFedSplit(),
        WARM_UP + ROUNDS,
        LOCAL_STEPS,
        center="free",
        secure=secure,
    )
    transport = CountingTransport(clients)
    return Server(config, transport, folder / "server"), transport


def round_cost(server: Server, transport: CountingTransport) -> Cost:
    """Run one round, and return what it costs."""
    m = len(server.config.roster)
    before = dict(vars(transport))
    started = time.perf_counter()
    server.run_round()
    total = time.perf_counter() - started
    seconds = transport.seconds - before["seconds"]
    return Cost(
        transport.exchanges - before["exchanges"],
        (transport.up - before["up"]) / m,
        (transport.down - before["down"]) / m,
        seconds / m,
        total - seconds,
        total,
    )


def measure(m: int) -> tuple[Cost, Cost]:
    """Return the medians of rounds without and with a secure sum of m agents."""
    agents = agents_of(m)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        plain, secure = (
            server_of(agents, Path(folder) / str(kind), secure=kind) for kind in (False, True)
        )
        stack.enter_context(plain[0])
        stack.enter_context(secure[0])
        pairs = [(round_cost(*plain), round_cost(*secure)) for _ in range(WARM_UP + ROUNDS)]
    measured = zip(*pairs[WARM_UP:], strict=True)
    found = [Cost(*map(median, zip(*costs, strict=True))) for costs in measured]
    return found[0], found[1]


def lines(m: int, plain: Cost, secure: Cost) -> Iterator[str]:
    """Yield the rows of the table for m agents."""
    for kind, cost in (("plain", plain), ("secure", secure)):
        ratio = "1" if cost is plain else f"{cost.total / plain.total:.1f}"
        yield (
            f"| {m} | {kind} | {cost.exchanges:g} | {cost.up / 1e3:,.1f} | {cost.down / 1e3:,.1f} "
            f"| {1e3 * cost.agent:,.1f} | {1e3 * cost.server:,.1f} | {ratio} |"
        )


def main() -> None:
    """Measure, and print a table."""
    print("| m | sum | exchanges | up, kB | down, kB | agent, ms | server, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    with threadpool_limits(1):
        for m in [int(each) for each in sys.argv[1:]] or AGENTS:
            for line in lines(m, *measure(m)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
