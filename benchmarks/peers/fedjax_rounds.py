"""FedJAX: its federated averaging with the backend ``jit`` or ``pmap``, whichever is faster."""

from __future__ import annotations

import os
from typing import Any

# pmap needs a device for every core; JAX reads this when it is imported.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.cpu_count() or 1}"

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from .workload import SHAPE, STEP, arguments, best, load, loss, measure, report, time_limit


def cross_entropy(weights: Any, batch: Any, _: Any) -> Any:
    """Return the loss of a batch."""
    logits = jax.nn.log_softmax(batch["x"] @ weights.T)
    return -jnp.mean(jnp.take_along_axis(logits, batch["y"][:, None], axis=1))


def main() -> None:
    workload, path, _ = arguments()
    images, labels = load(path)
    key = jax.random.PRNGKey(0)
    clients = [
        (str(i).encode(), fedjax.ClientDataset({"x": images[i], "y": labels[i]}), key)
        for i in range(workload.agents)
    ]
    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=workload.batch, num_epochs=None, num_steps=workload.steps, skip_shuffle=True
    )

    runs: dict[str, tuple[list[float], Any]] = {}
    for backend in ("jit", "pmap"):
        with fedjax.for_each_client_backend(backend):
            algorithm = fedjax.algorithms.fed_avg.federated_averaging(
                jax.grad(cross_entropy),
                fedjax.optimizers.sgd(learning_rate=STEP),
                fedjax.optimizers.sgd(learning_rate=1.0),
                batches,
            )

        def run_round(state: Any, algorithm: Any = algorithm) -> Any:
            state, _ = algorithm.apply(state, clients)
            return jax.block_until_ready(state)

        start = algorithm.init(jnp.zeros(SHAPE))
        runs[f"backend: {backend}"] = measure(
            workload.rounds, run_round, start, limit=time_limit(runs)
        )
    note, times, state = best(runs)
    report(times, loss(np.asarray(state.params), images, labels), note)


if __name__ == "__main__":
    main()
