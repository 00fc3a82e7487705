"""Swapped arguments and arguments of other types get one sentence, never a raw AttributeError."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pcfed import (
    Agent,
    Checkpointing,
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedRep,
    Gap,
    Local,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    Problem,
    ProxAL,
    RefusalPolicy,
    Result,
    Scaffold,
    certify,
    guarantees,
    read_journal,
    run,
    sets,
)
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Box, ConvexSet, Halfspace, Intersection, L1Ball, SetRows, parse_set

X, Y = np.eye(3), np.ones(3)
LOSS, BALL, ALGORITHM = LeastSquares(X, Y), L1Ball(1.0), PCFedSplit()
AGENT = Agent(LOSS, BALL)
PROBLEM = Problem([AGENT])
RESULT = run(PROBLEM, ALGORITHM, rounds=1)


def start(**options):
    return lambda: run(PROBLEM, ALGORITHM, **{"rounds": 1, **options})


ORDER = r"call run\(problem, algorithm, rounds=100\)"
SENTENCES = {
    "algorithm by name": (
        lambda: run(PROBLEM, "PCFedAvg", rounds=2),
        rf"run: algorithm must be an Algorithm, got 'PCFedAvg'; {ORDER}, for example with PCFed",
    ),
    "algorithm as a class": (
        lambda: run(PROBLEM, PCFedSplit, rounds=2),
        r"algorithm must be an Algorithm, got the class PCFedSplit; create .* PCFedSplit\(\.\.\.\)",
    ),
    "run swapped": (
        lambda: run(ALGORITHM, PROBLEM, rounds=2),
        f"run: problem must be a Problem, got PCFedSplit; {ORDER}",
    ),
    "run with agents": (
        lambda: run([AGENT], ALGORITHM, rounds=2),
        "run: problem must be a Problem, got list",
    ),
    "stop": (start(stop=3), "run: stop must be a function of an Evaluation, got int; give"),
    "stop as a class": (start(stop=Gap), "run: stop must be .*, got the class Gap; give"),
    "one callback": (start(callbacks=print), "run: callbacks must be a list of functions, got <bu"),
    "callback 3": (start(callbacks=[3]), r"run: callbacks must be a list of functions, got \[3\]"),
    "refusals": (start(refusals=3), "run: refusals must be a RefusalPolicy, got int; give"),
    "checkpoint": (start(checkpoint=3), "run: checkpoint must be the path of a file, got int; g"),
    "journal": (start(journal=PROBLEM), "run: journal must be the path of a file, got Problem; g"),
    "progress": (start(progress="yes"), "run: progress must be True or False, got 'yes'; give"),
    "certify swapped": (
        lambda: certify(RESULT, PROBLEM),
        r"certify: problem must be a Problem, got Result; call certify\(problem, result\)",
    ),
    "certify an algorithm": (
        lambda: certify(PROBLEM, ALGORITHM),
        "certify: result must be numbers, got PCFedSplit; give",
    ),
    "certify None": (lambda: certify(PROBLEM, None), "certify: result must be numbers, got None"),
    "one agent": (
        lambda: Problem(AGENT),
        r"Problem: agents must be a list of agents, got Agent; give a list, as in Problem\(\[agent",
    ),
    "agents as arguments": (lambda: Problem(AGENT, AGENT), "Problem: agents must be a list of age"),
    "agents in a dict": (lambda: Problem({"a": AGENT}), "must be a list of agents, got dict; give"),
    "agents None": (lambda: Problem(None), "Problem: agents must be a list of agents, got None"),
    "agent as a class": (
        lambda: Problem([Agent]),
        r"agents\[0\] must be an Agent, got the class",
    ),
    "center": (
        lambda: Problem([AGENT], center="fre"),
        r"Problem: center must be 'average' or 'free', got 'fre'; did you mean 'free'\?$",
    ),
    "center 3": (lambda: Problem([AGENT], center=3), "got 3; choose one of the two"),
    "agent swapped": (
        lambda: Agent(BALL, LOSS),
        r"Agent: loss must be a Loss, got L1Ball; give the loss first, then the set: Agent\(loss",
    ),
    "set as text": (
        lambda: Agent(LOSS, "l1(1)"),
        r"constraint must be a ConvexSet, got 'l1\(1\)'; .* or parse_set\('l1\(1\)'\)",
    ),
    "set as a class": (
        lambda: Agent(LOSS, L1Ball),
        r"Agent: constraint must be a ConvexSet, got the class L1Ball; create .* L1Ball\(\.\.\.\)",
    ),
    "loss as a class": (lambda: Agent(LeastSquares, BALL), "got the class LeastSquares; create"),
    "loss as arrays": (lambda: Agent((X, Y), BALL), "Agent: loss must be a Loss, got tuple; give"),
    "test": (lambda: Agent(LOSS, BALL, test=(X, Y)), "Agent: test must be a Loss, got tuple; give"),
    "name": (lambda: Agent(LOSS, BALL, name=3), "Agent: name must be a str, got int; give"),
    "constrain_intercept": (
        lambda: Agent(LOSS, BALL, constrain_intercept="no"),
        "Agent: constrain_intercept must be True or False, got 'no'; give",
    ),
    "relative": (lambda: Gap(1e-3, relative="a"), "Gap: relative must be True or False, got 'a'"),
    "path": (lambda: Checkpointing(3), "Checkpointing: path must be the path of a file, got int"),
    "resume": (lambda: Checkpointing("a", resume="b"), "Checkpointing: resume must be True or Fa"),
    "journal path": (lambda: read_journal(3), "read_journal: path must be the path of a file, got"),
    "load": (lambda: Result.load(PROBLEM), "Result.load: path must be the path of a file, got Pro"),
    "save": (lambda: RESULT.save(PROBLEM), "Result.save: path must be the path of a file, got Pro"),
    "largest_step": (
        lambda: PROBLEM.largest_step(1.0, "a"),
        "Problem.largest_step: local_steps must be a whole number ≥ 1, got 'a'",
    ),
    "optimum": (
        lambda: guarantees.optimum(RESULT),
        r"optimum: problem must be a Problem, got Result; call optimum\(problem\)",
    ),
    "constants": (
        lambda: guarantees.constants(RESULT, penalty=1.0),
        "constants: problem must be a Problem, got Result; call",
    ),
    "noise_bound": (
        lambda: guarantees.noise_bound(RESULT, batch=1),
        "noise_bound: problem must be a Problem, got Result; call",
    ),
    "noise_estimate": (
        lambda: guarantees.noise_estimate(RESULT, PROBLEM, batch=1),
        "noise_estimate: problem must be a Problem, got Result; call",
    ),
    "averages": (
        lambda: guarantees.noise_estimate(PROBLEM, RESULT, batch=1),
        "noise_estimate: averages must be a list of vectors, got Result; call",
    ),
    "feasible_model": (
        lambda: guarantees.feasible_model(Y, AGENT),
        "feasible_model: agent must be an Agent, got ndarray; give the agent first",
    ),
    "objective_terms": (
        lambda: guarantees.objective_terms(PROBLEM, Y, Y),
        "objective_terms: agent must be an Agent, got Problem; give",
    ),
    "gap_term": (
        lambda: guarantees.gap_term(PROBLEM, Y, Y, Y, 1),
        "gap_term: agent must be an Agent, got Problem; give",
    ),
    "out": (lambda: BALL.project(Y, out="a"), "L1Ball.project: out must be a ndarray, got 'a'; g"),
    "warm_start": (
        lambda: BALL.project(Y, warm_start=3),
        "L1Ball.project: warm_start must be a WarmStart, got int; give",
    ),
    "rows": (lambda: SetRows(BALL), "SetRows: sets must be a list of sets, got L1Ball; give"),
    "rows of losses": (
        lambda: SetRows([LOSS]),
        r"SetRows: sets\[0\] must be a ConvexSet, got Le",
    ),
}


@pytest.mark.parametrize(("call", "message"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_names_the_argument_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


WRONG = {
    "a problem": PROBLEM,
    "a result": RESULT,
    "an agent": AGENT,
    "a loss": LOSS,
    "a set": BALL,
    "an algorithm": ALGORITHM,
    "a class": L1Ball,
    "text": "north",
    "None": None,
    "a dict": {},
    "a list of text": ["a"],
    "a function": print,
}
FUNCTION = {"a function", "a class"}
"""What can be called; ``run`` checks what a function of the round returns."""
CALLS = {
    "run, problem": (lambda value: run(value, ALGORITHM, rounds=1), {"a problem"}),
    "run, algorithm": (lambda value: run(PROBLEM, value, rounds=1), {"an algorithm"}),
    **{
        f"run, {name}": (lambda value, name=name: start(**{name: value})(), allowed)
        for name, allowed in {
            "rounds": set(),
            "local_steps": FUNCTION,
            "batch": FUNCTION,
            "sampling": set(),
            "participation": {*FUNCTION, "a dict"},
            "x0": {"a result", "None"},
            "seed": set(),
            "eval_every": set(),
            "output": set(),
            "stop": {"a function", "None"},
            "callbacks": set(),
            "progress": set(),
            "refusals": set(),
            "workers": set(),
        }.items()
    },
    "certify, problem": (lambda value: certify(value, RESULT), {"a problem"}),
    "certify, result": (lambda value: certify(PROBLEM, value), {"a result"}),
    "Problem": (lambda value: Problem(value), set()),
    "Problem, one of the agents": (lambda value: Problem([value]), {"an agent"}),
    "Problem, center": (lambda value: Problem([AGENT], value), set()),
    "Agent, loss": (lambda value: Agent(value, BALL), {"a loss"}),
    "Agent, constraint": (lambda value: Agent(LOSS, value), {"a set"}),
    "Agent, coupling": (lambda value: Agent(LOSS, BALL, value), set()),
    "Agent, personalization": (lambda value: Agent(LOSS, BALL, 0.1, value), set()),
    "Agent, test": (lambda value: Agent(LOSS, BALL, test=value), {"a loss", "None"}),
    "Agent, name": (lambda value: Agent(LOSS, BALL, name=value), {"text"}),
    "PCFedSplit": (PCFedSplit, set()),
    "PCFedAvg": (lambda value: PCFedAvg(value, 1.0), FUNCTION),
    "FedAvg": (FedAvg, FUNCTION),
    "Scaffold": (Scaffold, FUNCTION),
    "FedMiD": (FedMiD, FUNCTION),
    "FedMiD, project_onto": (lambda value: FedMiD(0.1, project_onto=value), set()),
    "FedDualAvg": (FedDualAvg, FUNCTION),
    "ProxAL": (lambda value: ProxAL(value, prox=1.0), FUNCTION),
    "PFedHN": (PFedHN, FUNCTION),
    "PFedHN, hidden": (lambda value: PFedHN(0.1, hidden=value), set()),
    "ProxAL, prox": (lambda value: ProxAL(0.1, prox=value), set()),
    "ProxAL, constrained": (lambda value: ProxAL(0.1, prox=1.0, constrained=value), set()),
    "Local": (Local, FUNCTION),
    "Ditto": (lambda value: Ditto(value, prox=1.0), FUNCTION),
    "Ditto, prox": (lambda value: Ditto(0.1, prox=value), set()),
    "PFedMe, own_steps": (lambda value: PFedMe(0.1, prox=1.0, own_steps=value), set()),
    "PerFedAvg, own_step": (lambda value: PerFedAvg(0.1, own_step=value), set()),
    "FedRep, own": (lambda value: FedRep(0.1, own=value), set()),
    "Gap": (Gap, set()),
    "RefusalPolicy": (RefusalPolicy, set()),
    "Checkpointing, every": (lambda value: Checkpointing("a", value), set()),
    "LeastSquares, X": (lambda value: LeastSquares(value, Y), set()),
    "LeastSquares, y": (lambda value: LeastSquares(X, value), set()),
    "LogisticRegression, y": (lambda value: LogisticRegression(X, value), set()),
    "SoftmaxRegression, classes": (
        lambda value: SoftmaxRegression(X, [0, 1, 2], classes=value),
        set(),
    ),
    "value": (LOSS.value, set()),
    "gradient": (LOSS.gradient, set()),
    "predict": (lambda value: LOSS.predict(Y, value), set()),
    "project": (BALL.project, set()),
    "parse_set": (parse_set, {"a set"}),
    "optimum": (guarantees.optimum, {"a problem"}),
    "bounds": (lambda value: guarantees.bounds(value, rounds=10), set()),
    "rounds_for": (lambda value: guarantees.rounds_for(0.1, value), set()),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_no_public_call_ends_in_a_raw_error(name, kind):
    call, allowed = CALLS[name]
    if kind in allowed:
        return
    with pytest.raises(ValueError, match=r"[:.] .*[;.]") as caught:
        call(WRONG[kind])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", sets.__all__)
def test_no_set_ends_in_a_raw_error(name, kind):
    cls = getattr(sets, name)
    if not (inspect.isclass(cls) and issubclass(cls, ConvexSet)) or inspect.isabstract(cls):
        return
    parameters = inspect.signature(cls).parameters.values()
    required = [each for each in parameters if each.default is each.empty]
    if not required or (name, kind) in {("Intersection", "a set"), ("CustomSet", "a function")}:
        return
    with pytest.raises(ValueError, match=f"^{name}: .*; "):
        cls(*[WRONG[kind]] * len(required))


def test_the_default_coupling_is_that_of_files_and_the_problem_is_the_papers():
    from pcfed.config.personalization import DEFAULT_COUPLING

    assert AGENT.coupling == DEFAULT_COUPLING == 0.1
    assert PROBLEM.losses_at_average


LENGTHS = {
    "halfspace": (
        lambda: Agent(LOSS, Halfspace([1.0, 1.0], 1.0)),
        "Halfspace: the set has 2 coefficients, but the model has 3; give a set of 3 coefficients",
    ),
    "without the intercept": (
        lambda: Agent(LeastSquares(X, Y, intercept=True), Halfspace(np.ones(4), 1.0)),
        "Halfspace: the set has 4 coefficients, but the model has 3; give a set of 3 coefficients",
    ),
    "member": (
        lambda: Agent(LOSS, Intersection(BALL, Box([0, 0], 1))),
        "Box: the set has 2 entries, but the model has 3; give a set of 3 entries",
    ),
    "block": (
        lambda: Agent(LOSS, sets.Blocks({(0, 2): Halfspace(np.ones(3), 1.0)})),
        r"Halfspace: the set has 3 coefficients, but the slice \(0, 2\) of the model has 2; give",
    ),
    "slice": (
        lambda: Agent(LOSS, sets.Blocks({(0, 5): BALL})),
        r"Blocks: the slice \(0, 5\) must be within the parameters, but the model has 3; correct",
    ),
    "scaled": (
        lambda: Agent(LOSS, sets.Scaled(Halfspace([1.0, 1.0], 1.0), 2.0)),
        "Halfspace: the set has 2 coefficients, but the model has 3; give",
    ),
}


@pytest.mark.parametrize(("call", "message"), LENGTHS.values(), ids=LENGTHS)
def test_a_set_of_another_length_blames_the_set(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize(
    ("members", "names"),
    [
        ((Box(0, 1), Box(2, 3)), r"Box\(lower=0.0, upper=1.0\) and Box\(lower=2.0, upper=3.0\)"),
        ((L1Ball(1), Box(2, 3)), r"L1Ball\(radius=1.0\) and Box\(lower=2.0, upper=3.0\)"),
        (
            (sets.L2Ball(1), Box(2, 3), Box(1, 4)),
            r"L2Ball\(radius=1.0\) and Box\(lower=2.0, upper=3.0\) and Box\(lower=1.0, upper=4.0\)",
        ),
    ],
)
def test_disjoint_members_are_named_as_they_were_written(members, names, n):
    with pytest.raises(sets.ProjectionError, match=f"the set is empty, {names} have no point in c"):
        Intersection(*members).project(np.zeros(n))


def test_contradictory_equations_are_named_as_they_were_written():
    planes = [sets.Hyperplane([1.0, 1.0], b) for b in (1.0, 2.0)]
    with pytest.raises(sets.ProjectionError, match=r"Hyperplane\(.*\) and Hyperplane\(.*\) have"):
        Intersection(*planes).project(np.zeros(2))


@pytest.mark.parametrize("wrong", ["ball(1)", "L1Bal(1)", "boxx(0, 1)", {"L2Bal": 1}, "nonneg"])
def test_a_suggested_name_is_one_of_the_listed_names(wrong):
    with pytest.raises(ValueError, match=r"did you mean '\w+'\? Valid names are") as caught:
        parse_set(wrong)
    suggested, listed = str(caught.value).split("'? Valid names are ")
    assert suggested.rsplit("'", 1)[1] in listed.rstrip(".").split(", ")
