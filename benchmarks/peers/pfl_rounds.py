"""pfl: federated averaging on its simulated backend, with PyTorch on one core or all of them."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from .workload import CORES, SHAPE, STEP, Workload, arguments, best, load, loss, report, time_limit


def softmax_regression() -> Any:
    """Return softmax regression at zero, with the two methods that pfl requires of a model."""
    model: Any = torch.nn.Linear(SHAPE[1], SHAPE[0], bias=False)
    torch.nn.init.zeros_(model.weight)
    model.loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    model.metrics = lambda x, y: {"loss": Weighted(model.loss(x, y).item() * len(y), len(y))}
    return model


def clock(ends: list[float], limit: float) -> TrainingProcessCallback:
    """Return a callback that records the end of each round, and stops if all take too long."""

    def note(*_: Any, **__: Any) -> tuple[bool, Metrics]:
        ends.append(time.perf_counter())
        return min((b - a for a, b in pairwise(ends)), default=0.0) > limit, Metrics()

    callback = TrainingProcessCallback()
    callback.after_central_iteration = note
    return callback


def train(
    workload: Workload, users: list[PyTorchTensorDataset], limit: float
) -> tuple[list[float], Any]:
    """Return the seconds of all rounds but the first, and the model after them."""
    sampler = get_user_sampler("minimize_reuse", list(range(workload.agents)))
    data = FederatedDataset(users.__getitem__, sampler)
    softmax, ends = softmax_regression(), list[float]()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=workload.rounds,  # only in the first round, the warm-up
            train_cohort_size=workload.agents,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            softmax,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(softmax.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=STEP,
            local_batch_size=workload.batch,
        ),
        callbacks=[clock(ends, limit)],
        send_metrics_to_platform=False,
    )
    return [end - begin for begin, end in pairwise(ends)], softmax


def main() -> None:
    workload, path, _ = arguments()
    images, labels = load(path)
    users = [
        PyTorchTensorDataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=str(i))
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    runs: dict[str, tuple[list[float], Any]] = {}
    for threads in sorted({1, CORES}):
        torch.set_num_threads(threads)
        runs[f"threads: {threads}"] = train(workload, users, time_limit(runs))
    note, times, softmax = best(runs)
    report(times, loss(softmax.weight.detach().numpy(), images, labels), note)


if __name__ == "__main__":
    main()
