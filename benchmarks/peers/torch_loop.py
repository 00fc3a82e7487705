"""A loop over agents and steps with PyTorch's matrix products, which autograd would only slow down.

Small products can be slower on all cores than on one, so both are measured and the better is taken.
"""

from __future__ import annotations

import torch

from .work import CORES, SHAPE, STEP, arguments, best, load, loss, measure, patience, report


def main() -> None:
    work, path, _ = arguments()
    images, labels = load(path)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    own = torch.empty(SHAPE)
    columns = torch.arange(work.batch)
    minus = torch.tensor(-1.0)

    def play(weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(SHAPE)
        for agent in range(work.agents):
            own.copy_(weights)
            for rows in work.batches:
                some = x[agent, rows]
                slopes = torch.softmax(own @ some.T, dim=0)
                slopes.index_put_((y[agent, rows], columns), minus, accumulate=True)
                own.addmm_(slopes, some, alpha=-STEP / work.batch)
            total += own
        return total / work.agents

    runs: dict[str, tuple[list[float], torch.Tensor]] = {}
    with torch.inference_mode():
        for threads in sorted({1, CORES}):
            torch.set_num_threads(threads)
            runs[f"threads: {threads}"] = measure(
                work.rounds, play, torch.zeros(SHAPE), limit=patience(runs)
            )
    note, times, weights = best(runs)
    report(times, loss(weights.numpy(), images, labels), note)


if __name__ == "__main__":
    main()
