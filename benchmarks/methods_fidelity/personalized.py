"""Personalised methods against numbers of their papers or of their authors' code.

Ditto: federated point estimation, whose best weight and error are known in closed form. pFedMe and
Per-FedAvg: softmax regression on MNIST, with the agents and settings of pFedMe's authors. FedRep:
the linear representation of its theorem. All methods run without sets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, Ditto, FedAvg, FedRep, PerFedAvg, PFedMe, Problem, run
from pcfed.algorithms import (
    Algorithm,
    LocalContext,
    RoundInfo,
    Update,
    Vectors,
)
from pcfed.algorithms.own_models import take_steps
from pcfed.data import mnist
from pcfed.losses import LeastSquares, Loss, SoftmaxRegression
from pcfed.sets import WholeSpace

from .table import Row, progress

# -- Ditto: point estimation ----------------------------------------------------------------------

TRIALS = 1000
SIGMA, SAMPLES, TAU = 0.8, 30, 0.1
CLOSED_FORM = "[1], closed form"


class Setting(NamedTuple):
    """Agents, some of which attack, with the names of the setting in the table."""

    m: int
    attackers: int
    name: str
    short_name: str
    weights: str


SETTINGS = (
    Setting(8, 0, "8 agents", "8 agents", "0, 0.4, …, 2.0, 2.4, 3, 5"),
    Setting(16, 8, "16 agents of which 8 attack", "8 of 16 attack", "the same"),
)
WEIGHTS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 3.0, 5.0)


def point_estimation(lam: float, seed: int, m: int, attackers: int = 0) -> float:
    """Return the mean squared error of Ditto's own models, over honest agents and all trials.

    Every entry of a model is a trial of its own: agent i estimates the mean $w_i$ of its samples,
    where the means of all agents are normally distributed, those of attackers more widely.
    """
    rng = np.random.default_rng(seed)
    spread = np.where(np.arange(m) < attackers, 0.5, TAU)
    true = spread[:, None] * rng.normal(size=(m, TRIALS))
    observed = true + SIGMA / np.sqrt(SAMPLES) * rng.normal(size=(m, TRIALS))
    X = np.sqrt(TRIALS) * np.eye(TRIALS)  # f_i(w) is half the squared distance to what i observed
    losses = [LeastSquares(X, np.sqrt(TRIALS) * row) for row in observed]
    problem = Problem(Agent(loss, WholeSpace()) for loss in losses)
    algorithm = Ditto(0.8, own_step=0.8 / (1 + lam), prox=lam, constrained=False)
    models = run(problem, algorithm, rounds=12, eval_every=12).models
    return float(np.mean((models - true)[attackers:] ** 2))


def ditto() -> Iterator[Row]:
    """Yield the best weight and the smallest error, without and with attackers."""
    variance = SIGMA**2 / SAMPLES
    for m, attackers, name, short_name, weights in SETTINGS:
        wider = attackers * (0.5**2 - TAU**2) / (m - 1)
        best = variance * m / (m * TAU**2 + wider)
        smallest = 1 / (1 / variance + (m - 1) / (m * TAU**2 + variance + wider))
        errors = []
        for lam in WEIGHTS:
            errors.append(point_estimation(lam, seed=0, m=m, attackers=attackers))
            progress(f"Ditto, {name}: weight {lam:.2f}, squared error {errors[-1]:.5f}")
        found = WEIGHTS[int(np.argmin(errors))]
        with_it = [point_estimation(best, seed=k, m=m, attackers=attackers) for k in range(5)]
        ours = f"{found:.1f} of {weights}"
        yield Row("Ditto", f"best weight, {name}", f"{best:.2f}", ours, CLOSED_FORM)
        quantity = f"squared error with the best weight, {short_name}"
        ours = f"{np.mean(with_it):.5f} ± {np.std(with_it) / 2:.5f}"
        yield Row("Ditto", quantity, f"{smallest:.5f}", ours, CLOSED_FORM)
        quantity = f"squared error alone (weight 0), {short_name}"
        yield Row("Ditto", quantity, f"{variance:.5f}", f"{errors[0]:.5f}", CLOSED_FORM)


# -- pFedMe and Per-FedAvg: MNIST -----------------------------------------------------------------

USERS, PRESENT = 20, 5
ROUNDS = (200, 800)


class LocalCopies(PFedMe):
    """pFedMe that outputs the agents' copies w of the shared model in place of their own models.

    The files of the authors have the accuracies of these copies.
    """

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Return the updates of pFedMe, with the copies as private models."""
        update = super().local(context, received, private, round_info)
        return Update(update.sent, {"v": received["x"] + update.sent["delta"]})


class TwoSteps(PerFedAvg):
    r"""Per-FedAvg as in the first code of pFedMe's authors: both steps move the model.

    A local step is a step of length $\alpha$ on one batch and one of length $\gamma$ on the next,
    from where the first has led, and an own model is two such steps from the shared one.
    """

    def num_gradients(self, local_steps: int) -> int:
        """Return two per local step, and two for the own model."""
        return 2 * local_steps + 2

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take all steps; send the difference."""
        x = received["x"].astype(context.dtype)[None]
        w, v, used = context.rows(x), context.rows(x), 2 * context.steps
        more = context.with_steps(used + 2)
        lengths = self._own_step(round_info), round_info.step
        for k in range(used + 2):
            take_steps(more, w if k < used else v, [k], step=lengths[k % 2], project=False)
        return Update(sent={"delta": np.subtract(w, x, out=w)}, pending={"v": v})


def rows_of_users(labels: NDArray[Any]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the rows of MNIST that each agent of the authors has, and their labels.

    Agent u has the digits u and u + 1, modulo ten. Of each it gets the images from the beginning
    of MNIST up to a number of its own, so that all four agents of a digit have mostly the same
    images. All agents but the first one of a digit miss its very first image, but their labels are
    counted as if they had it: their first image of the second digit has the label of the first.
    """
    # Their split is a shuffle by Python's generator.
    rng, shuffler = np.random.RandomState(1), random.Random(1)  # nosec B311
    of_digit = [np.flatnonzero(labels == digit) for digit in range(10)]
    numbers = np.empty((4, 10), np.intp)
    for digit, all_rows in enumerate(of_digit):
        left = len(all_rows)
        for k in range(3):
            numbers[k, digit] = rng.randint(left // 5, left // 2)
            left -= numbers[k, digit]
        numbers[3, digit] = left
    # The numbers were drawn for the digits, but each agent takes the next two of the first numbers
    # of all digits, then of the second ones, and so on.
    remaining = iter(numbers.ravel())
    used, users = {4}, []  # of the digit 4, the first agent misses that image as well
    for user in range(USERS):
        rows, names = list[int](), list[int]()
        for digit in (user % 10, (user + 1) % 10):
            number = int(next(remaining))
            rows += of_digit[digit][int(digit in used) : number].tolist()
            names += [digit] * number
            used.add(digit)
        order = list(range(len(rows)))
        shuffler.shuffle(order)
        users.append((np.array(rows)[order], np.array(names)[order]))
    return users


def two_digits_each(l2: float = 0.0) -> Problem:
    """Return the 20 agents of pFedMe's authors; a quarter of the images of each is held out."""
    data = mnist()
    X = np.concatenate([data.train_images, data.test_images]).astype(np.float32)
    X -= X.mean(axis=0)
    X /= X.std(axis=0) + 0.001
    agents = []
    for rows, labels in rows_of_users(np.concatenate([data.train_labels, data.test_labels])):
        train, test = np.split(np.arange(len(rows)), [int(0.75 * len(rows))])
        loss, held_out = (
            SoftmaxRegression(X[rows[k]], labels[k], classes=10, intercept=True, l2=weight)
            for k, weight in ((train, l2), (test, 0.0))
        )
        agents.append(Agent(loss, WholeSpace(), test=held_out))
    return Problem(agents)


def absent(index: int) -> list[int]:
    """Return who is absent: all but five, who are those of the authors' code."""
    present = np.random.RandomState(index).choice(USERS, PRESENT, replace=False)
    return sorted(set(range(USERS)) - {int(user) for user in present})


def accuracies(problem: Problem, algorithm: Algorithm, seed: int = 0) -> NDArray[np.float64]:
    """Return the accuracies of own and of shared models on all held-out images, in two rows.

    They are those of the rounds `ROUNDS`: of the shared model with which the round begins, and of
    the models that all agents train from it, also those that are absent from the round.
    """
    progress(f"MNIST, seed {seed}: {algorithm}")
    options: dict[str, Any] = {"batch": 20, "local_steps": 20, "eval_every": max(ROUNDS)}
    tests = [agent.test for agent in problem.agents if agent.test is not None]
    sizes = np.array([test.size for test in tests])
    result, done, found = None, 0, []
    for index in ROUNDS:
        rounds, done = index - 1 - done, index - 1
        with_five = {"participation": absent, "seed": seed, **options}
        result = run(problem, algorithm, rounds=rounds, x0=result, **with_five)
        own = run(problem, algorithm, rounds=1, x0=result, seed=seed, **options).models
        shared = [result.state.server["x"]] * USERS
        for models in (own, shared):
            scores = [test.accuracy(x) for test, x in zip(tests, models, strict=True)]
            found.append(sizes @ scores / sizes.sum())
    return np.reshape(found, (len(ROUNDS), 2)).T


def text(values: NDArray[np.float64]) -> str:
    """Return accuracies as a text."""
    return ", ".join(f"{value:.4f}" for value in values)


def at_rounds(quantity: str) -> str:
    """Return a quantity with the rounds in which it is measured."""
    return f"{quantity}, MNIST, rounds {ROUNDS[0]} and {ROUNDS[1]}"


def pfedme() -> Iterator[Row]:
    """Yield the accuracies of pFedMe, and of FedAvg on the same data."""
    problem = two_digits_each(l2=0.001)
    options: dict[str, Any] = {"own_step": 0.1, "prox": 15.0, "own_steps": 5, "constrained": False}
    copies, _ = accuracies(problem, LocalCopies(0.005, **options))
    quantity = at_rounds("accuracy of local copies w")
    source = "[2], `pFedMe_p_0.005_1_15_5u_20b_20_5_0.1_avg`"
    yield Row("pFedMe", quantity, "0.9364, 0.9454", text(copies), source)
    own, shared = accuracies(problem, PFedMe(0.005, **options))
    quantity = at_rounds("accuracy of own models θ")
    yield Row("pFedMe", quantity, "not in the files", text(own), "")
    quantity = at_rounds("accuracy of the shared model")
    source = "[2], `pFedMe_0.005_1_15_5u_20b_20_5_0.1_avg`"
    yield Row("pFedMe", quantity, "0.9206, 0.9341", text(shared), source)
    _, shared = accuracies(two_digits_each(), FedAvg(0.005))
    source = "[2], `FedAvg_0.005_1.0_15_5u_20b_20`"
    yield Row("FedAvg", at_rounds("accuracy"), "0.9158, 0.9309", text(shared), source)


def perfedavg() -> Iterator[Row]:
    """Yield the accuracies of Per-FedAvg in the same setting, and of the authors' variant."""
    problem = two_digits_each()
    own, _ = accuracies(problem, TwoSteps(0.001, own_step=0.005, constrained=False))
    quantity = at_rounds("accuracy of own models, both steps move the model")
    source = "[2], `PerAvg_p_0.005_0.001_15_5u_20b_20`"
    yield Row("Per-FedAvg", quantity, "0.9184, 0.9325", text(own), source)
    own, _ = accuracies(problem, PerFedAvg(0.005, own_step=0.005, constrained=False))
    quantity = at_rounds("accuracy of own models, paper's step")
    yield Row("Per-FedAvg", quantity, "not in the files", text(own), "")
    larger = PerFedAvg(0.003, own_step=0.03, constrained=False)
    last = [accuracies(problem, larger, seed)[0, -1] for seed in range(5)]
    quantity = f"the same with steps 0.03 and 0.003, MNIST, round {ROUNDS[-1]}, five seeds"
    ours = f"{np.mean(last):.4f} ± {np.std(last, ddof=1):.4f}"
    yield Row("Per-FedAvg", quantity, "0.9296", ours, "[2], `CharlieDinh/pFedMe#14`")


# -- FedRep: a linear representation --------------------------------------------------------------

FEATURES, WIDTH = 10, 2


class LinearRepresentation(Loss):
    r"""Half the mean squared error of $y = h^\top B^\top x$; the flat vector holds B, then h."""

    convex = False

    def __init__(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        self.X, self.y = X, y
        self.size, self.n = len(y), (FEATURES + 1) * WIDTH
        self.shape, self.dtype = (self.n,), X.dtype

    def _residuals(self, x: Any, rows: Any = None) -> tuple[Any, Any, Any, Any]:
        B, h = np.reshape(x[:-WIDTH], (FEATURES, WIDTH)), x[-WIDTH:]
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])
        return X, B, h, X @ (B @ h) - y

    def value(self, x: Any) -> float:
        """Return half the mean squared error."""
        return float(np.mean(self._residuals(x)[-1] ** 2) / 2)

    def gradient(self, x: Any, rows: Any = None, out: Any = None) -> Any:
        """Return the gradient in B and h."""
        X, B, h, r = self._residuals(x, rows)
        g = r @ X / len(r)
        found = np.concatenate([np.outer(g, h).ravel(), B.T @ g])
        if out is None:
            return found
        out[...] = found
        return out

    def smoothness(self) -> float:
        """Return infinity: the loss has no smoothness constant."""
        return float("inf")

    def permute_samples(self, order: Any) -> LinearRepresentation:
        """Return the same loss with its samples in another order."""
        return LinearRepresentation(self.X[order], self.y[order])


def representation_distances(own_steps: int, rounds: int) -> list[float]:
    """Return the principal angle distance to the true representation, at the start and later."""
    rng = np.random.default_rng(0)
    true = np.linalg.qr(rng.normal(size=(FEATURES, WIDTH)))[0]
    agents = []
    for _ in range(30):
        X = rng.normal(size=(40, FEATURES))
        agents.append(
            Agent(LinearRepresentation(X, X @ true @ rng.normal(size=WIDTH)), WholeSpace())
        )
    start = np.zeros((FEATURES + 1) * WIDTH)
    start[:-WIDTH] = np.linalg.qr(rng.normal(size=(FEATURES, WIDTH)))[0].ravel()
    algorithm = FedRep(
        0.5, own_step=0.5, own=((-WIDTH, None),), own_steps=own_steps, constrained=False
    )

    def distance(x: NDArray[np.float64]) -> float:
        B = np.linalg.qr(x[:-WIDTH].reshape(FEATURES, WIDTH))[0]
        return float(np.linalg.norm(B - true @ (true.T @ B), 2))

    found = [distance(start)]
    result: Any = start
    for _ in range(4):
        options: dict[str, Any] = {"rounds": rounds // 4, "eval_every": rounds // 4, "x0": result}
        result = run(Problem(agents), algorithm, **options)
        found.append(distance(result.state.server["x"]))
        progress(f"FedRep, {own_steps} head steps: distance {found[-1]:.1e}")
    return found


def distances(own_steps: int) -> str:
    """Return the distances after 0, 20, 40, 60 and 80 rounds as a text."""
    found = representation_distances(own_steps, 80)
    return ", ".join(f"{each:.1e}" for each in found).replace("e-0", "e-")


def fedrep() -> Iterator[Row]:
    """Yield the distances to the true representation with many head steps and with one."""
    quantity = "distance to the true representation after 0, 20, 40, 60, 80 rounds"
    yield Row("FedRep", quantity, "falls geometrically", distances(own_steps=10), "[3]")
    quantity = "the same with one head step instead of ten"
    yield Row("FedRep", quantity, "", distances(own_steps=1), "")
