"""Small problems that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pcfed import (
    Agent,
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedProx,
    FedRep,
    Local,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    Problem,
    ProxAL,
    Scaffold,
)
from pcfed.losses import LeastSquares, SoftmaxRegression
from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    ConvexSet,
    GroupL1Ball,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    NuclearBall,
    Polyhedron,
    PSDCone,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WholeSpace,
)

N = 9  # a 3 × 3 matrix, so that matrix sets take part

CLOSED_FORM: dict[str, Callable[[np.random.Generator], ConvexSet]] = {
    "whole space": lambda rng: WholeSpace(),
    "nonnegative": lambda rng: NonNegative(),
    "box": lambda rng: Box(-rng.uniform(0, 1, N), rng.uniform(0, 1, N)),
    "l1": lambda rng: L1Ball(rng.uniform(0.2, 2)),
    "l1, centre": lambda rng: L1Ball(rng.uniform(0.2, 2), center=rng.normal(size=N)),
    "l1, weights": lambda rng: L1Ball(rng.uniform(0.2, 2), weights=rng.uniform(0.5, 2, N)),
    "l2": lambda rng: L2Ball(rng.uniform(0.2, 2)),
    "linf": lambda rng: LinfBall(rng.uniform(0.1, 0.5)),
    "simplex": lambda rng: Simplex(rng.uniform(0.5, 2)),
    "halfspace": lambda rng: Halfspace(rng.normal(size=N), rng.normal()),
    "hyperplane": lambda rng: Hyperplane(rng.normal(size=N), rng.normal()),
    "affine": lambda rng: Affine(rng.normal(size=(2, N)), rng.normal(size=2)),
    "group l1": lambda rng: GroupL1Ball([[0, 1, 2], [3, 4], [5, 6, 7, 8]], rng.uniform(0.2, 2)),
    "nuclear": lambda rng: NuclearBall((3, 3), rng.uniform(0.2, 2)),
    "second-order cone": lambda rng: SecondOrderCone(),
    "psd": lambda rng: PSDCone(3),
    "blocks": lambda rng: Blocks({(0, 4): L1Ball(rng.uniform(0.2, 1)), (6, 9): NonNegative()}),
    "translated": lambda rng: Translated(L2Ball(rng.uniform(0.2, 2)), rng.normal(size=N)),
    "scaled": lambda rng: Scaled(L1Ball(1.0), rng.uniform(0.2, 2)),
}

ITERATIVE: dict[str, Callable[[np.random.Generator], ConvexSet]] = {
    "polyhedron": lambda rng: Polyhedron(rng.normal(size=(4, N)), rng.uniform(0.1, 1, 4)),
    "intersection": lambda rng: Intersection(
        L1Ball(rng.uniform(0.5, 2)), Box(-rng.uniform(0.1, 0.5), 1.0)
    ),
}

ALGORITHMS = {
    "PCFedAvg": PCFedAvg(step=0.1, penalty=3.0),
    "PCFedSplit": PCFedSplit(),
    "FedAvg": FedAvg(step=0.05, penalty=3.0),
    "FedProx": FedProx(step=0.05, penalty=3.0, prox=0.5),
    "Scaffold": Scaffold(step=0.05, penalty=3.0),
    "Local": Local(step=0.05, penalty=3.0),
    "Ditto": Ditto(step=0.05, prox=0.5),
    "PFedMe": PFedMe(step=0.1, own_step=0.05, prox=2.0, own_steps=3),
    "PerFedAvg": PerFedAvg(step=0.05, own_step=0.1, hessian_free=True),
    "FedRep": FedRep(step=0.05, own=((-2, None),), own_steps=2),
    "FedMiD": FedMiD(step=0.05, project_onto="l1(1.5)"),
    "FedDualAvg": FedDualAvg(step=0.05),
    "PFedHN": PFedHN(step=0.05, hidden=3, embedding=2),
    "ProxAL": ProxAL(step=0.05, penalty=3.0, prox=3.0, inner_rounds=3),
}


def regressions(
    sets: Sequence[ConvexSet], *, seed: int = 0, n: int = N, samples: int = 24
) -> Problem:
    """Least squares with different data and different solutions for every agent."""
    rng = np.random.default_rng(seed)
    agents = []
    for i, each in enumerate(sets):
        X = rng.normal(size=(samples + i, n))  # unequal sizes: batches do not divide them
        y = X @ (2 * rng.normal(size=n)) + 0.1 * rng.normal(size=samples + i)
        agents.append(Agent(LeastSquares(X, y), each, coupling=0.1 * (i + 1)))
    return Problem(agents)


def classifiers(
    m: int = 3,
    *,
    dtype: type[np.floating] | type[np.uint8] = np.float64,
    seed: int = 0,
    held_out: bool = False,
    factors: Sequence[float] | None = None,
) -> Problem:
    """Softmax regression on blobs, some of them far off if asked, with budgets that bind."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(4, 12))

    def draw(factor: float) -> SoftmaxRegression:
        y = rng.integers(4, size=50)
        X = factor * (centers[y] + rng.normal(size=(50, 12)))
        if dtype == np.uint8:
            X = (40 * X + 100).clip(0, 255)
        return SoftmaxRegression(X.astype(dtype), y, classes=4)

    return Problem(
        Agent(draw(factor), L1Ball(1.0 + i), coupling=0.05, test=draw(1) if held_out else None)
        for i, factor in enumerate([1] * m if factors is None else factors)
    )
