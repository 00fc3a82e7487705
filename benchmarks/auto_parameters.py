"""Compare the number of rounds with step and penalty "auto" with the best pair of a grid.

    python benchmarks/auto_parameters.py ["least squares" digits MNIST]

The target is a certified relative gap of 1e-2, with all data in every gradient. The grid has five
values per decade: steps from 0.1 to 10 times m/L, penalties from L/1000 to L. A pair has half
of the rounds of "auto": if it reaches the target, "auto" is not within a factor of two of the best.
"""

import sys
from itertools import product

from threadpoolctl import threadpool_limits

from pcfed import Gap, PCFedAvg, Problem, run
from pcfed.experiments.exact import CASES, Case, case_problem

TARGET = Gap(1e-2, relative=True)
STEPS = [10 ** (k / 5) for k in range(-5, 6)]
PENALTIES = [10 ** (k / 5) for k in range(-15, 1)]


def rounds_to_target(
    problem: Problem, case: Case, algorithm: PCFedAvg, max_rounds: int
) -> int | None:
    """Return the number of rounds to the target, or None if it is not reached.

    The gap is evaluated at least twenty times, so the number is at most 5 % too large.
    """
    result = run(
        problem,
        algorithm,
        rounds=max_rounds,
        local_steps=case.local_steps,
        eval_every=max(1, max_rounds // 20),
        stop=Gap(TARGET.tolerance, relative=True),
    )
    return result.state.round if result.status == "stopped" else None


def compare(case: Case) -> str:
    """Return one line about a problem."""
    problem = case_problem(case, None)
    auto = PCFedAvg("auto", "auto", exact=True)
    first = rounds_to_target(problem, case, auto, 800)
    if first is None:
        return f"{case.problem}: auto did not reach the target in 800 rounds"
    auto_rounds = rounds_to_target(problem, case, auto, first) or first  # evaluated more often
    faster = {}
    pairs = list(product(STEPS, PENALTIES))
    for tried, (step, penalty) in enumerate(pairs):
        print(f"  {case.problem}: {tried} of {len(pairs)} pairs tried", end="\r", file=sys.stderr)
        algorithm = PCFedAvg(step * problem.m / problem.L_f, penalty * problem.L_f, exact=True)
        found = rounds_to_target(problem, case, algorithm, auto_rounds // 2)
        if found is not None:
            faster[step, penalty] = found
            print(f"  {found} rounds with {algorithm}", flush=True)
    best = f"; the best took {min(faster.values())}" if faster else ""
    return (
        f"{case.problem}: auto took {auto_rounds} rounds; {len(faster)} of {len(pairs)} pairs "
        f"reached the target in {auto_rounds // 2}{best}"
    )


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["least squares", "digits", "MNIST"]
    with threadpool_limits(1):
        for each in CASES:
            if each.batch == 1.0 and each.problem in wanted:
                print(compare(each), flush=True)
