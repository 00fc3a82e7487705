"""Compare the rounds that step and penalty "auto" take with the best pair of a grid.

    python benchmarks/auto_parameters.py ["least squares" digits MNIST]

The target is a certified relative gap of 1e-2, with all data in every gradient. The grid has five
values per decade: steps from 0.1 to 10 times m/L, penalties from L/1000 to L. A pair is given half
of the rounds that "auto" took: one that gets there shows that "auto" is not within a factor of two.
"""

import sys
from itertools import product

from threadpoolctl import threadpool_limits

from pcfed import Gap, PCFedAvg, Problem, run
from pcfed.experiments.exact import CASES, Case, case_problem

TARGET = Gap(1e-2, relative=True)
STEPS = [10 ** (k / 5) for k in range(-5, 6)]
PENALTIES = [10 ** (k / 5) for k in range(-15, 1)]


def rounds_to_target(problem: Problem, case: Case, method: PCFedAvg, limit: int) -> int | None:
    """Return the rounds, looked at twenty times at least, in which a method gets there."""
    result = run(
        problem,
        method,
        rounds=limit,
        local_steps=case.local_steps,
        eval_every=max(1, limit // 20),
        stop=Gap(TARGET.tolerance, relative=True),
    )
    return result.state.round if result.status == "stopped" else None


def compare(case: Case) -> str:
    """Return one line on a problem."""
    problem = case_problem(case, None)
    auto = PCFedAvg("auto", "auto", exact=True)
    first = rounds_to_target(problem, case, auto, 800)
    if first is None:
        return f"{case.problem}: auto did not get there in 800 rounds"
    taken = rounds_to_target(problem, case, auto, first) or first  # looked at more closely
    sooner = {}
    pairs = list(product(STEPS, PENALTIES))
    for tried, (share, part) in enumerate(pairs):
        print(f"  {case.problem}: {tried} of {len(pairs)} pairs tried", end="\r", file=sys.stderr)
        method = PCFedAvg(share * problem.m / problem.L_f, part * problem.L_f, exact=True)
        found = rounds_to_target(problem, case, method, taken // 2)
        if found is not None:
            sooner[share, part] = found
            print(f"  {found} rounds with {method}", flush=True)
    best = f"the best took {min(sooner.values())}" if sooner else "none did"
    return (
        f"{case.problem}: auto took {taken} rounds; of {len(pairs)} pairs {len(sooner)} got there "
        f"in {taken // 2}; {best}"
    )


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["least squares", "digits", "MNIST"]
    with threadpool_limits(1):
        for each in CASES:
            if each.batch == 1.0 and each.problem in wanted:
                print(compare(each), flush=True)
