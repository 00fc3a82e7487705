"""Check an installed pcfed without extras: python tests/smoke.py 0.1.0."""

import sys
from importlib.metadata import version

import numpy as np

import pcfed
from pcfed import Agent, PCFedSplit, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball, Polyhedron


def main() -> None:
    """Check the version, then train two agents and certify their models."""
    expected = sys.argv[1]
    if not version("pcfed") == pcfed.__version__ == expected:
        sys.exit(f"smoke: expected {expected}, got {version('pcfed')} and {pcfed.__version__}.")
    if "site-packages" not in pcfed.__file__:
        sys.exit(f"smoke: expected the installed pcfed, got {pcfed.__file__}.")
    loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    sets = (L1Ball(1.0), Polyhedron([[1, 1], [-1, 0], [0, -1]], [5, 5, 5]))
    problem = Problem([Agent(loss, each, coupling=0.1) for each in sets])
    result = run(problem, PCFedSplit(), rounds=100, local_steps=3)
    certificate = certify(problem, result)
    if not (certificate.gap is not None and certificate.gap < 1e-6):
        sys.exit(f"smoke: expected a gap below 1e-6, got {certificate}.")
    print(f"pcfed {expected} works: {certificate}")


if __name__ == "__main__":
    main()
