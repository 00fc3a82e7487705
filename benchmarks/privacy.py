"""Differential privacy: two accountants side by side, and the accuracy that a budget costs.

    python -m benchmarks.privacy accountants
    python -m benchmarks.privacy utility

Each command replaces its table in PRIVACY.md. The first one needs autodp and opacus.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcfed import Agent, FedAvg, PCFedSplit, Privacy, Problem, run
from pcfed.algorithms import Algorithm
from pcfed.data import Dataset, iid, mnist
from pcfed.losses import SoftmaxRegression
from pcfed.privacy import Mechanism, Spending, epsilon_of
from pcfed.sets import L1Ball

PAGE = Path(__file__).parent / "PRIVACY.md"
DELTA = 1e-5
RADII = (20, 60, 180, 540)
BUDGETS: tuple[float | None, ...] = (1.0, 3.0, 8.0, None)
SEEDS = (1, 2)

SETTINGS = [
    *((1_000, 50, gradients, z) for gradients, z in ((60, 3.0), (200, 4.0), (1_000, 8.0))),
    *((1_000, 200, gradients, z) for gradients, z in ((60, 8.0), (200, 12.0), (1_000, 30.0))),
    *((6_000, 300, gradients, z) for gradients, z in ((60, 2.0), (200, 3.0), (1_000, 6.0))),
    *((60_000, 600, gradients, z) for gradients, z in ((100, 1.0), (1_000, 1.5), (5_000, 3.0))),
    *((200, 20, gradients, z) for gradients, z in ((40, 4.0), (400, 10.0))),
    *((500, 500, gradients, z) for gradients, z in ((10, 5.0), (50, 10.0), (200, 20.0))),
    *((500, 500, gradients, z) for gradients, z in ((200, 80.0), (1_000, 50.0), (5_000, 100.0))),
]
"""Records, records in a gradient, gradients, noise multiplier."""


def accountants() -> Iterator[str]:
    """Yield a table of the epsilons of pcfed and of other accountants."""
    yield "| records | batch | gradients | noise | pcfed | other accountant | same conversion |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for records, batch, gradients, z in SETTINGS:
        mechanism = Mechanism(records, batch, is_sampled=batch < records)
        ours = epsilon_of([Spending(mechanism, z, gradients)], DELTA)
        if mechanism.is_sampled:
            name, (own, same) = "autodp", _autodp(batch / records, z, gradients)
        else:
            name, own = "opacus", _opacus(z, gradients)
            same = own
        row = (f"{records:,}", f"{batch:,}", f"{gradients:,}", f"{z:g}", f"{ours:.3f}")
        yield f"| {' | '.join(row)} | {own:.3f} ({name}) | {same:.3f} |"


def _autodp(rate: float, z: float, gradients: int) -> tuple[float, float]:
    """Return the epsilon of autodp, and that of its divergences with a tighter conversion.

    autodp converts divergences to epsilon as Mironov (2017) did; dp-accounting as Canonne, Kamath
    and Steinke (2020).
    """
    from autodp import rdp_acct, rdp_bank

    account: Any = rdp_acct.anaRDPacct()
    account.compose_subsampled_mechanism(
        lambda order: rdp_bank.RDP_gaussian({"sigma": z}, order),
        rate,
        coeff=gradients,
        improved_bound_flag=True,
    )
    own = float(account.get_eps(DELTA))
    tighter = [
        float(account.evalRDP(a)) + np.log1p(-1 / a) - np.log(DELTA * a) / (a - 1)
        for a in range(2, 65)
    ]
    return own, float(min(tighter))


def _opacus(z: float, gradients: int) -> float:
    """Return the epsilon of opacus for full batches."""
    from opacus.accountants.analysis import rdp

    orders = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
    divergences = rdp.compute_rdp(q=1.0, noise_multiplier=z, steps=gradients, orders=orders)
    return float(rdp.get_privacy_spent(orders=orders, rdp=divergences, delta=DELTA)[0])


def utility() -> Iterator[str]:
    """Yield a table of accuracies on the test images of MNIST."""
    data = mnist()
    yield "| method | ε = 1 | ε = 3 | ε = 8 | no privacy |"
    yield "|---|---:|---:|---:|---:|"
    methods: dict[str, tuple[Algorithm, float]] = {
        "PCFedSplit, personalization 0.5": (PCFedSplit(), 0.5),
        "FedAvg, one shared model": (FedAvg(step=0.5), 0.0),
    }
    for name, (algorithm, theta) in methods.items():
        cells = [_accuracies(data, epsilon, theta, algorithm) for epsilon in BUDGETS]
        line = f"| {name} | {' | '.join(cells)} |"
        print(line, flush=True)
        yield line


def _accuracies(data: Dataset, epsilon: float | None, theta: float, algorithm: Algorithm) -> str:
    """Return the mean accuracy of the agents' models, and its range over the seeds."""
    privacy = None if epsilon is None else Privacy(epsilon, DELTA, clip=3.0, feature_norm=10.0)
    test = SoftmaxRegression(data.test_images, data.test_labels, classes=10, intercept=True)
    found = []
    for seed in SEEDS:
        parts = iid(data.train_labels, len(RADII), seed=seed)
        agents = []
        for rows, radius in zip(parts, RADII, strict=True):
            X, y = data.train_images[rows], data.train_labels[rows]
            loss = SoftmaxRegression(X, y, classes=10, intercept=True)
            agents.append(Agent(loss, L1Ball(radius), 0.05, theta, privacy=privacy))
        result = run(
            Problem(agents),
            algorithm,
            rounds=30,
            local_steps=5,
            batch=500,
            seed=2**62 + seed,  # no secret: these images are public, and so are the results
            eval_every=30,
        )
        found.append(float(np.mean([test.accuracy(x) for x in result.models])))
    return f"{100 * np.mean(found):.1f} % ± {50 * (max(found) - min(found)):.1f}"


def replace_table(name: str, lines: Sequence[str]) -> None:
    """Write a table to the page, between its two marks."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n\n{end}{after}", "utf-8")


def main() -> None:
    """Measure what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", choices=["accountants", "utility"])
    for name in parser.parse_args().tables:
        replace_table(name, list(accountants() if name == "accountants" else utility()))


if __name__ == "__main__":
    main()
