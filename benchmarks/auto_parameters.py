"""Compare the rounds of PCFedSplit() with those of the best fixed parameters of a grid.

    python benchmarks/auto_parameters.py ["least squares" digits MNIST]

The target is a relative gap of 1e-3, with all data in every gradient. The grid has two values of
``prox`` per decade, from 0.03 to 300 over L, and three values of ``relaxation``. A pair is stopped
when it has had as many rounds as PCFedSplit() without reaching the target.
"""

import sys
from itertools import product

from threadpoolctl import threadpool_limits

from pcfed import Evaluation, PCFedSplit, Problem, run
from pcfed.experiments.round_cases import CASES, Case, case_problem
from pcfed.guarantees import optimum

TARGET = 1e-3
MAX_ROUNDS = 500
PROX = [10 ** (k / 2) for k in range(-3, 6)]
RELAXATIONS = (1.0, 1.5, 1.8)


def rounds_to_target(
    problem: Problem, case: Case, algorithm: PCFedSplit, target: float, max_rounds: int
) -> int | None:
    """Return the number of rounds to an objective, or None if it is not reached."""

    def reached(evaluation: Evaluation) -> bool:  # models are always feasible
        return problem.objective(evaluation.models) <= target

    result = run(problem, algorithm, rounds=max_rounds, local_steps=case.local_steps, stop=reached)
    return result.state.round if result.status == "stopped" else None


def compare(case: Case) -> str:
    """Return one line about a problem."""
    problem = case_problem(case, None)
    best = optimum(problem, tolerance=1e-5)
    target = (best.objective - best.gap) / (1 - TARGET)
    auto = rounds_to_target(problem, case, PCFedSplit(), target, MAX_ROUNDS)
    if auto is None:
        return f"{case.problem}: PCFedSplit() did not reach the target in {MAX_ROUNDS} rounds"
    L = sum(agent.loss.typical_smoothness() for agent in problem.agents) / problem.m
    pairs = list(product(PROX, RELAXATIONS))
    found = {}
    for tried, (prox, relaxation) in enumerate(pairs):
        print(f"  {case.problem}: {tried} of {len(pairs)} pairs tried", end="\r", file=sys.stderr)
        rounds = rounds_to_target(problem, case, PCFedSplit(prox / L, relaxation), target, auto)
        if rounds is not None:
            found[prox, relaxation] = rounds
    line = f"{case.problem}: PCFedSplit() took {auto} rounds; {len(found)} of {len(pairs)} pairs"
    if not found:
        return f"{line} took no more"
    (prox, relaxation), fewest = min(found.items(), key=lambda item: item[1])
    return f"{line} took no more, the best {fewest} with prox {prox:.2g}/L, relaxation {relaxation}"


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["least squares", "digits", "MNIST"]
    with threadpool_limits(1):
        for each in CASES:
            if each.takes_all and each.problem in wanted:
                print(compare(each), flush=True)
