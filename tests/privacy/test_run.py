"""Private agents in a run: what is accounted for, what is refused, and that bits repeat."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from pcfed import (
    Agent,
    Checkpointing,
    FedAvg,
    Gap,
    PCFedAvg,
    PCFedSplit,
    Privacy,
    Problem,
    Result,
    certify,
    run,
)
from pcfed.algorithms import RunInfo
from pcfed.losses import LeastSquares, LogisticRegression, TorchLoss
from pcfed.losses.base import Loss
from pcfed.losses.linear import LinearModel
from pcfed.losses.public import PublicLoss
from pcfed.privacy import BudgetError, PrivateGradients, loss_digest
from pcfed.sets import L1Ball, WholeSpace
from pcfed.simulation import plan, simulate
from pcfed.simulation.engine import Engine
from tests.federations import ALGORITHMS, classifiers

BUDGET = Privacy(2.0, 1e-5, feature_norm=5.0)
SEED = 2**63 + 7
OPTIONS = {"rounds": 4, "local_steps": 3, "batch": 0.2, "seed": SEED}


def private(problem=None, budget=BUDGET, positions=(0, 2), **changes):
    """Return a problem in which some agents have a privacy budget."""
    problem = problem or classifiers()
    return Problem(
        replace(agent, **changes, privacy=budget if i in positions else None)
        for i, agent in enumerate(problem.agents)
    )


@pytest.fixture
def counted(monkeypatch):
    """The numbers of gradients that private agents take, one entry per agent and round."""
    found = []
    write = PrivateGradients.write

    def counting(self, loss, x, out):
        if self.count == 0:
            found.append(0)
        write(self, loss, x, out)
        found[-1] += 1

    monkeypatch.setattr(PrivateGradients, "write", counting)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_as_many_gradients_as_it_says(name, counted):
    algorithm = ALGORITHMS[name]
    problem = private(positions=(1,), personalization=0.5 if name.startswith("PC") else 0.0)
    result = run(problem, algorithm, **OPTIONS)
    allowed = algorithm.num_gradients(3)
    assert max(counted) == allowed
    assert len(counted) <= 4
    assert result.privacy[0] is None
    assert result.privacy[1].gradients == 4 * allowed
    assert 1.95 < result.privacy[1].epsilon <= 2.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_read_the_records_of_private_agents_through_noise_only(name, monkeypatch):
    problem = private()
    mine = {id(problem.agents[i].loss) for i in (0, 2)}
    algorithm, kept = ALGORITHMS[name], OPTIONS | {"eval_every": 10}
    names = ("value", "gradient", "gradients", "smoothness", "typical_smoothness")
    for each in names:
        method = getattr(type(problem.agents[0].loss), each)

        def guarded(self, *args, method=method, each=each, **kwargs):
            if evaluating == [] and id(self) in mine:
                raise AssertionError(each)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(type(problem.agents[0].loss), each, guarded)
    # Metrics for the one who simulates, and the keys of noise, are computed from the records.
    evaluating = []

    def allowed(function):
        def evaluation(*args):
            evaluating.append(True)
            found = function(*args)
            evaluating.clear()
            return found

        return evaluation

    monkeypatch.setattr(Engine, "evaluate", allowed(Engine.evaluate))
    monkeypatch.setattr(plan, "loss_digest", allowed(plan.loss_digest))
    monkeypatch.setattr(simulate, "check_records", allowed(simulate.check_records))
    # `can_clip` compares methods, which are replaced here.
    monkeypatch.setattr(LinearModel, "can_clip", True)
    assert run(problem, algorithm, **kept).status == "finished"


def test_an_algorithm_that_reads_records_is_refused():
    class Curious(FedAvg):
        def local(self, context, received, private, round_info):
            context.agents[0].loss.value(received["x"])
            return super().local(context, received, private, round_info)

    with pytest.raises(ValueError, match=r"through LocalContext\.gradient only"):
        run(private(), Curious(step=0.1), **OPTIONS)

    class Inquisitive(FedAvg):
        def resolved(self, problem, run_info):
            problem.agents[1].loss.value(np.zeros(problem.n))  # an agent without a budget
            problem.agents[0].loss.value(np.zeros(problem.n))
            return super().resolved(problem, run_info)

    with pytest.raises(ValueError, match=r"through LocalContext\.gradient only"):
        run(private(), Inquisitive(step=0.1), **OPTIONS)
    problem = classifiers()
    assert problem.public_view is problem
    assert private().public_view.names == problem.names
    view = private().agents[0].public_view
    assert isinstance(view.loss, PublicLoss)
    assert view.public_view is view
    assert view.test is None


@pytest.mark.parametrize("name", ["PCFedSplit", "FedAvg", "PerFedAvg"])
def test_bits_depend_neither_on_threads_nor_on_groups(name):
    problem = private(classifiers(7), positions=(0, 2, 3, 6))
    algorithm = ALGORITHMS[name]
    one = run(problem, algorithm, **OPTIONS, workers=1)
    two = run(problem, algorithm, **OPTIONS, workers=2)
    np.testing.assert_array_equal(one.models, two.models)
    other = run(problem, algorithm, **{**OPTIONS, "seed": SEED + 1}, workers=1)
    assert not np.array_equal(one.models, other.models)


def test_noise_does_not_cancel_between_runs_with_one_seed():
    """The differences without noise would be those of single records."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = (X[:, 0] > 0).astype(float)
    changed = y.copy()
    changed[5] = 1 - changed[5]
    order = rng.permutation(40)
    losses = [
        LogisticRegression(X, y),
        LogisticRegression(X, changed),
        LogisticRegression(X[order], y[order]),
        LogisticRegression(X, y, l2=1e-9),
        LeastSquares(X, y),
    ]

    def trained(loss):
        problem = Problem([Agent(loss, WholeSpace(), privacy=Privacy(2.0, 1e-5))])
        options = {**OPTIONS, "rounds": 1, "local_steps": 1, "batch": 1.0}
        return run(problem, FedAvg(step=1.0), **options)

    first, *others = map(trained, losses)
    deviation = first.privacy[0].noise_multiplier * 2 / 40
    for other in others:
        assert np.abs(other.models - first.models).max() > 0.3 * deviation
    np.testing.assert_array_equal(trained(losses[0]).models, first.models)


def test_an_agent_without_a_budget_is_not_affected_in_the_first_round():
    plain, mixed = classifiers(), private(positions=(0,))
    kept = {**OPTIONS, "rounds": 1}
    algorithm = ALGORITHMS["Local"]
    a, b = (run(problem, algorithm, **kept).models for problem in (plain, mixed))
    np.testing.assert_array_equal(a[1:], b[1:])
    assert not np.array_equal(a[0], b[0])


def test_noise_changes_models_as_much_as_it_should():
    few, many = (
        run(
            private(budget=Privacy(epsilon, 1e-5), positions=(0, 1, 2)), FedAvg(step=0.1), **OPTIONS
        )
        for epsilon in (0.5, 50.0)
    )
    exact = run(classifiers(), FedAvg(step=0.1), **OPTIONS)
    near, far = (np.linalg.norm(each.models - exact.models) for each in (many, few))
    assert near < far / 4


def test_a_result_says_what_was_spent_and_keeps_it_in_its_file(tmp_path):
    result = run(private(), FedAvg(step=0.1), **OPTIONS)
    result.save(tmp_path / "run.npz")
    assert Result.load(tmp_path / "run.npz").privacy == result.privacy
    assert run(classifiers(), FedAvg(step=0.1), **OPTIONS).privacy == ()


@pytest.mark.parametrize("seed", [2**62, 2**64 - 1, 2**127 + 1])
def test_long_seeds_work_everywhere(seed, tmp_path):
    options = {**OPTIONS, "seed": seed, "participation": 0.7, "x0": "random", "batch": 0.5}
    for sampling in ("without_replacement", "blocks"):
        path = tmp_path / sampling
        options |= {"sampling": sampling}
        short = run(private(), FedAvg(step=0.1), **options, checkpoint=path)
        again = Checkpointing(path, resume=True)
        result = run(private(), FedAvg(step=0.1), **options, checkpoint=again)
        np.testing.assert_array_equal(result.models, short.models)
        other = run(private(), FedAvg(step=0.1), **{**options, "seed": seed + 1})
        assert np.abs(other.models - short.models).max() > 1e-3
        result.save(tmp_path / "result.npz")
        assert Result.load(tmp_path / "result.npz").privacy == result.privacy


@pytest.mark.parametrize(("delta", "warned"), [(0.01, False), (0.02, True)])
def test_a_large_delta_is_warned_about(delta, warned):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(private(budget=Privacy(2.0, delta), positions=(1,)), FedAvg(step=0.1), **OPTIONS)
    texts = [str(each.message) for each in found]
    assert bool(texts) == warned
    if warned:
        assert texts == [
            "agent 1: privacy.delta is 0.02, and must be far below one over its 50 rows to protect "
            "each of them: to publish a row drawn at random would be within a delta of 0.02; give "
            "one such as 2e-04."
        ]


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "changes", "rule"),
    [
        (FedAvg(step=0.1), {"stop": Gap(0.1)}, "stop must be left out"),
        (FedAvg(step=0.1), {"output": "random"}, "output must be 'last' or 'average'"),
        (FedAvg(step=0.1), {"batch": lambda index: 0.5}, "batch must be a number"),
        (FedAvg(step=0.1), {"sampling": "with_replacement"}, "sampling must be"),
        (PCFedAvg(step="theory", penalty=1.0), {}, "step can be 'theory' only if no agent"),
    ],
)
def test_what_would_spend_more_is_refused(algorithm, changes, rule):
    with pytest.raises(ValueError, match=rule):
        run(private(), algorithm, **OPTIONS | changes)


@pytest.mark.parametrize("seed", [None, 0, 7, 2**62 - 1])
def test_seeds_that_could_be_guessed_are_refused(seed):
    options = {key: value for key, value in OPTIONS.items() if key != "seed"}
    if seed is not None:
        options["seed"] = seed
    rule = r"run: seed must be a secret of at least 2\*\*62 .*; got \d+; take (\d{19}), which was"
    with pytest.raises(ValueError, match=rule) as caught:
        run(private(), FedAvg(step=0.1), **options)
    drawn = int(re.search(rule, str(caught.value))[1])
    assert 2**62 <= drawn < 2**63  # which fits into the integers of train.toml
    run(private(), FedAvg(step=0.1), **{**options, "seed": drawn})
    run(classifiers(), FedAvg(step=0.1), **options)


def test_a_module_that_fails_on_a_record_is_one_sentence():
    module = torch.nn.Sequential(
        torch.nn.Embedding(10, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    words = np.random.default_rng(0).integers(10, size=(200, 2))
    words[101] = 99  # it is not among the rows that the constructor tries
    loss = TorchLoss(module, (words, words[:, 0] % 2), torch.nn.CrossEntropyLoss())
    agent = Agent(loss, WholeSpace(), privacy=Privacy(1.0, 1e-5))
    rule = r"got IndexError from TorchLoss \(index out of range .* keep this message secret"
    with pytest.raises(ValueError, match=rule):
        run(Problem([agent]), FedAvg(step=0.1), **OPTIONS)
    with pytest.raises(ValueError, match=rule):
        loss_digest(loss)


def test_functions_that_change_their_mind_are_named():
    counts = iter([1, 1, 1, 2, 3, 4, 5, *[60] * 99])
    with pytest.raises(ValueError, match=r"correct num_gradients .* or local_steps and part"):
        run(private(), FedAvg(step=0.1), **{**OPTIONS, "local_steps": lambda index: next(counts)})


def test_when_a_run_ends_does_not_depend_on_records():
    loss = LeastSquares(1e6 * np.eye(3), np.ones(3))
    options = {"rounds": 3, "local_steps": 2, "seed": SEED}
    ends = [
        run(Problem([Agent(loss, L1Ball(1.0), privacy=each)]), FedAvg(step=1e3), **options).status
        for each in (None, Privacy(2.0, 1e-5))
    ]
    assert ends == ["diverged", "finished"]


def test_curvature_needs_a_public_number():
    for algorithm in (PCFedSplit(), FedAvg(step="auto")):
        with pytest.raises(ValueError, match="give Privacy a feature_norm"):
            run(private(budget=Privacy(2.0, 1e-5)), algorithm, **OPTIONS)
    step = FedAvg(step="auto").resolved
    numbers = []
    for scale in (1.0, 3.0):  # the step must not depend on the records of private agents
        problem = private(classifiers(factors=[scale] * 3), positions=(0, 1, 2))
        numbers.append(step(problem, RunInfo(4, 3, noisy=True)).step(0))
    assert numbers[0] == numbers[1]


def test_a_budget_for_fewer_rounds_says_how_many():
    problem = private(budget=Privacy(0.02, 1e-5))

    def start(rounds):
        return run(problem, FedAvg(step=0.1), **{**OPTIONS, "rounds": rounds, "batch": 1.0})

    with pytest.raises(BudgetError, match="for the budget of agent 0, got 5,000: ") as caught:
        start(5000)
    allowed = int(re.search(r"rounds must be at most (\d+)", str(caught.value))[1])
    assert start(allowed).status == "finished"
    with pytest.raises(BudgetError, match=f"rounds must be at most {allowed} .* {allowed + 1}:"):
        start(allowed + 1)


def test_a_budget_for_no_round_does_not_propose_fewer():
    with pytest.raises(BudgetError, match=r"at most 0 .*; raise epsilon, or train with more rows"):
        run(private(budget=Privacy(1e-4, 1e-5)), FedAvg(step=0.1), **OPTIONS)


@pytest.mark.parametrize("argument", ["participation", "local_steps"])
def test_a_run_resumes_with_the_same_schedule_only(argument, tmp_path, counted):
    """Otherwise the agent would take part in more rounds than its budget is for."""

    def schedule(early):
        def absent_or_steps(index):
            now = early == (index < 2)
            return (1 + 2 * now) if argument == "local_steps" else () if now else (0,)

        return absent_or_steps

    def interrupt(evaluation):
        if evaluation.record.round == 2:
            raise KeyboardInterrupt

    path = tmp_path / "run"

    def start(early, **options):
        checkpoint = Checkpointing(path, every=1, resume=True)
        options |= {**OPTIONS, argument: schedule(early), "checkpoint": checkpoint}
        return run(private(positions=(0,)), FedAvg(step=0.1), **options)

    with pytest.raises(KeyboardInterrupt):
        start(early=True, callbacks=[interrupt])
    with pytest.raises(ValueError, match=r"it is of a run with gradients per round \(their hash\)"):
        start(early=False)
    result = start(early=True)
    assert sum(counted) >= result.privacy[0].gradients


def test_a_result_cannot_be_continued_and_a_run_gets_no_more_rounds(tmp_path):
    problem, path = private(), tmp_path / "run"
    result = run(problem, FedAvg(step=0.1), **OPTIONS, checkpoint=path)
    with pytest.raises(ValueError, match="x0 must not be a result"):
        run(problem, FedAvg(step=0.1), **OPTIONS, x0=result)
    again = run(problem, FedAvg(step=0.1), **OPTIONS, checkpoint=Checkpointing(path, resume=True))
    np.testing.assert_array_equal(result.models, again.models)
    with pytest.raises(
        ValueError, match="it is of a run with privacy '12 gradients of 10 of 50 rows"
    ):
        run(
            problem,
            FedAvg(step=0.1),
            **{**OPTIONS, "rounds": 8},
            checkpoint=Checkpointing(path, resume=True),
        )


def test_certificates_are_refused():
    problem = private()
    with pytest.raises(ValueError, match="certify: agents must have no privacy budget"):
        certify(problem, run(problem, FedAvg(step=0.1), **OPTIONS))


def test_private_agents_try_no_second_time():
    """Others repeat a step that is not finite, with more gradients."""
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    loss = LogisticRegression(X, X[:, 0] > 0)
    budget = Privacy(0.5, 1e-5, clip=1e38, feature_norm=2.0)
    problem = Problem([Agent(loss, WholeSpace(), privacy=budget)] * 2)
    assert run(problem, PCFedSplit(), **OPTIONS | {"local_steps": 4}).refusals


def test_modules_without_gradients_of_single_samples_are_refused_at_once():
    class Branching(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.0 if x.sum().item() > 0 else 2.0)

    X = np.ones((4, 2), np.float32)
    loss = TorchLoss(Branching(2, 2), (X, [0, 1, 0, 1]), torch.nn.CrossEntropyLoss())
    Agent(loss, L1Ball(1.0))
    with pytest.raises(ValueError, match=r"TorchLoss can't compute: .* avoid \.item\(\)"):
        Agent(loss, L1Ball(1.0), privacy=Privacy(2.0, 1e-5))


def test_agents_are_checked():
    loss = LeastSquares(np.eye(3), np.ones(3))

    class Plain(Loss):
        n, shape, size, dtype, convex = 3, (3,), 3, np.dtype(float), True
        value = gradient = smoothness = permute_samples = lambda self, *args, **kwargs: 0.0

    with pytest.raises(ValueError, match="Agent: a privacy budget needs a loss with clipped"):
        Agent(Plain(), L1Ball(1.0), privacy=BUDGET)

    class Other(LeastSquares):
        def gradient(self, x, rows=None, out=None):
            return super().gradient(x, rows, out)

    with pytest.raises(ValueError, match="got Other without"):
        Agent(Other(np.eye(3), np.ones(3)), L1Ball(1.0), privacy=BUDGET)
    with pytest.raises(ValueError, match="Agent: privacy must be"):
        Agent(loss, L1Ball(1.0), privacy=(2.0, 1e-5))
    with pytest.raises(ValueError, match="agents must have no privacy budget, got one at 0"):
        Problem.lazy(3, lambda i: Agent(loss, L1Ball(1.0), privacy=BUDGET))
