"""A loop over agents and steps with PyTorch's matrix products, without autograd, which is slower.

Small products can be slower on all cores than on one; both are measured, the faster is reported.
"""

from __future__ import annotations

import torch

from .workload import CORES, SHAPE, STEP, arguments, best, load, loss, measure, report, time_limit


def main() -> None:
    workload, path, _ = arguments()
    images, labels = load(path)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    own = torch.empty(SHAPE)
    columns = torch.arange(workload.batch)
    minus = torch.tensor(-1.0)

    def run_round(weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(SHAPE)
        for agent in range(workload.agents):
            own.copy_(weights)
            for rows in workload.batches:
                some = x[agent, rows]
                slopes = torch.softmax(own @ some.T, dim=0)
                slopes.index_put_((y[agent, rows], columns), minus, accumulate=True)
                own.addmm_(slopes, some, alpha=-STEP / workload.batch)
            total += own
        return total / workload.agents

    runs: dict[str, tuple[list[float], torch.Tensor]] = {}
    with torch.inference_mode():
        for threads in sorted({1, CORES}):
            torch.set_num_threads(threads)
            runs[f"threads: {threads}"] = measure(
                workload.rounds, run_round, torch.zeros(SHAPE), limit=time_limit(runs)
            )
    note, times, weights = best(runs)
    report(times, loss(weights.numpy(), images, labels), note)


if __name__ == "__main__":
    main()
