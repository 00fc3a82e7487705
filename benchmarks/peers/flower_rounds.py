"""Flower: FedAvg in its simulation engine, with one worker per core."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from .flower_client import app
from .workload import SHAPE, arguments, load, loss, report


def main() -> None:
    workload, path, _ = arguments()
    server, ends, models = ServerApp(), [], []

    def after_round(_: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())
        models.append(arrays)

    def serve(grid: Grid, context: Context) -> None:
        FedAvg(fraction_evaluate=0.0, min_available_nodes=workload.agents).start(
            grid,
            ArrayRecord([np.zeros(SHAPE, dtype=np.float32)]),
            num_rounds=workload.rounds,
            train_config=ConfigRecord({"workload": sys.argv[1], "path": path}),
            evaluate_fn=after_round,
        )

    server.main()(serve)
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=workload.agents,
        backend_config={"client_resources": {"num_cpus": 1}},
    )
    times = [end - begin for begin, end in pairwise(ends)][1:]
    report(times, loss(models[-1].to_numpy_ndarrays()[0], *load(path)))


if __name__ == "__main__":
    main()
