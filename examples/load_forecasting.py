"""Load forecasting for households whose appliances bound the coefficients of the forecast.

Eight households of a street train forecasts of their hourly load together. Each knows the ratings
of its own appliances, which are private, and its model must respect them. The load in kW is

    load = profile[hour] + mild·(15 − T)₊/10 + cold·(5 − T)₊/10 + cool·(T − 22)₊/10 + sun·s + noise

with temperature T in °C (a yearly and a daily cycle plus random weather over several days),
sunshine s in [0, 1], and noise ~ N(0, 0.8²). The 24 coefficients of the profile are those of the
street times a factor in [0.8, 1.2]; the other four differ between households. The limits of a
household are boxes and a polyhedron:

- the profile is between 0 and 4 kW;
- solar panels of P kW produce 60 % to 100 % of P at full sunshine: −P ≤ sun ≤ −0.6·P;
- the air conditioner uses 50 % to 100 % of its rating at 32 °C;
- the heater uses 60 % to 100 % of its rating at −10 °C: 2.5·mild + 1.5·cold; and its
  slope at most doubles in the cold, 0 ≤ cold ≤ mild.

All households have data of the same few days of a year, with the same weather. The losses are
evaluated at the average of the models, which forecasts the street; the model of a household
forecasts that household. Both are tested on another whole year, without noise.

    python examples/load_forecasting.py [--quick] [--days N] [--seed N] [--picture load.png]
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, FedAvg, Gap, Local, PCFedSplit, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import Blocks, Box, ConvexSet, Intersection, Polyhedron

Array = NDArray[np.float64]
# kW of heater, air conditioner and solar panels; 0 where a household has none
RATINGS = ((0, 0, 0), (0, 2, 0), (0, 0, 4), (4, 0, 0), (5, 3, 0), (6, 0, 5), (6, 3, 4), (8, 2, 0))
COLORS = {"own": "#0072B2", "alone": "#009E73", "shared": "#D55E00", "projected": "#CC79A7"}


def limits(heater: float, cooler: float, panels: float) -> Blocks:
    """Return the constraint set of a household's 28 coefficients."""
    lower = np.array([0, 0, cooler / 2, -panels])
    upper = np.array([heater, heater, cooler, -0.6 * panels])
    appliances: ConvexSet = Box(lower, upper)
    if heater:  # otherwise the box alone fixes its coefficients at 0
        rows = np.array([[2.5, 1.5, 0, 0], [-2.5, -1.5, 0, 0], [-1, 1, 0, 0]])
        heating = Polyhedron(rows, np.array([heater, -0.6 * heater, 0]))
        appliances = Intersection(appliances, heating)
    return Blocks({(0, 24): Box(0, 4), (24, None): appliances})


def features(days: NDArray[np.int64], rng: np.random.Generator) -> Array:
    """Return the features of every hour of the days, from simulated weather."""
    day, hour = np.repeat(days, 24), np.tile(np.arange(24), len(days))
    weather = np.repeat(np.convolve(rng.normal(0, 3, len(days) + 4), np.ones(5) / 2, "valid"), 24)
    summer = -np.cos(2 * np.pi * day / 365)
    degrees = 11 + 12 * summer + 4 * np.sin(2 * np.pi * (hour - 9) / 24) + weather
    clear = np.repeat(rng.uniform(0.2, 1, len(days)), 24)
    sun = clear * (0.7 + 0.3 * summer) * np.maximum(0, np.sin(2 * np.pi * (hour - 6) / 24))
    heating = [np.maximum(0, 15 - degrees) / 10, np.maximum(0, 5 - degrees) / 10]
    cooling = np.maximum(0, degrees - 22) / 10
    return np.column_stack([np.eye(24)[hour], *heating, cooling, sun])


def make_problem(rng: np.random.Generator, days: int) -> tuple[Problem, LeastSquares]:
    """Return the households, with a year of test data each, and the test loss of the street."""
    hours, agents, truths = np.arange(24), [], []
    bumps = np.exp(-(((hours - 7) / 1.5) ** 2)), np.exp(-(((hours - 19) / 2.5) ** 2))
    profile = 0.3 + 0.8 * bumps[0] + 1.2 * bumps[1]
    spread = np.linspace(15, 350, days).astype(np.int64)
    X, year = features(spread, rng), features(np.arange(365), rng)
    for i, (heater, cooler, panels) in enumerate(RATINGS):
        used = rng.uniform(0.65, 0.95, 3) * (heater, cooler, panels)
        mild = used[0] / 3.25
        truth = np.append(profile * rng.uniform(0.8, 1.2), [mild, mild / 2, used[1], -used[2]])
        loss = LeastSquares(X, X @ truth + rng.normal(0, 0.8, len(X)))
        test = LeastSquares(year, year @ truth)
        constraint = limits(heater, cooler, panels)
        agents.append(Agent(loss, constraint, coupling=0.1, test=test, name=f"home {i + 1}"))
        truths.append(truth)
    return Problem(agents), LeastSquares(year, year @ np.mean(truths, axis=0))


def errors(problem: Problem, street: LeastSquares, models: Array) -> list[float]:
    """Return RMS errors over a year in kW: of every household, then of the street."""
    pairs = zip(problem.agents, models, strict=True)
    losses = [agent.test.value(x) for agent, x in pairs if agent.test]
    return [float(np.sqrt(2 * loss)) for loss in (*losses, street.value(models.mean(axis=0)))]


def draw(path: str, compared: dict[str, list[float]]) -> None:
    """Draw the errors, one row per household."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.4, 4.6), layout="constrained")
    rows = np.arange(len(RATINGS) + 1)
    for (name, values), marker in zip(compared.items(), "o^sD", strict=True):
        label = {"own": "own model (pcfed)", "projected": "shared, projected"}.get(name, name)
        axis.plot(values, rows, marker, color=COLORS[name], label=label, ms=7, alpha=0.9)
    names = [f"heat {h}, cool {c}, sun {p}" for h, c, p in RATINGS] + ["street, per household"]
    axis.set_yticks(rows, names)
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set(xlabel="error over a year (kW, root mean square)", ylabel="ratings (kW)")
    axis.axhline(len(RATINGS) - 0.5, color="#555555", lw=1)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train together, alone, and one shared model; print every household's errors."""
    parser = argparse.ArgumentParser(description="Load forecasting with private limits.")
    parser.add_argument("--quick", action="store_true", help="stop early; takes a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw a picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated data")
    parser.add_argument("--days", type=int, default=3, help="days of data (default: 3)")
    options = parser.parse_args()

    problem, street = make_problem(np.random.default_rng(options.seed), options.days)
    rounds, stop = (25, None) if options.quick else (200, Gap(1e-3, relative=True))
    result = run(problem, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=10, stop=stop)
    own = certify(problem, result)
    shared = run(problem, FedAvg("auto"), rounds=1000, local_steps=10, eval_every=1000)
    alone = run(problem, Local("auto", 10.0), rounds=300, local_steps=10, eval_every=300)
    models = {
        "own": own.models,
        "alone": certify(problem, alone, tightening=0).models,
        "shared": shared.models,
        "projected": certify(problem, shared, tightening=0).models,
    }
    compared = {name: errors(problem, street, x) for name, x in models.items()}
    violation = problem.infeasibility(shared.average)

    print("forecast error over a year, in kW (root mean square)")
    print("home    heat cool sun   own model   alone   shared   projected   violation by shared")
    for i, ratings in enumerate(RATINGS):
        own_i, alone_i, shared_i, projected_i = (values[i] for values in compared.values())
        rated = "{:4d} {:4d} {:3d}".format(*ratings)
        errors_i = f"{own_i:9.2f} {alone_i:9.2f} {shared_i:8.2f} {projected_i:10.2f}"
        print(f"home {i + 1}  {rated}   {errors_i} {violation[i]:18.2f}")
    summaries = {"mean of the homes": slice(-1), "street, per household": slice(-1, None)}
    for name, rows in summaries.items():
        means = [float(np.mean(values[rows])) for values in compared.values()]
        print("{:22s}{:9.2f} {:9.2f} {:8.2f} {:10.2f}".format(name, *means))
    best = np.inf if own.gap is None else own.gap / own.objective
    inside = problem.infeasibility(own.models).max()
    print(f"\nThe own models satisfy all limits (up to {inside:.0e}). Their objective is within")
    print(f"{best:.2%} of the optimum under these limits (certified).")
    if options.picture:
        draw(options.picture, compared)


if __name__ == "__main__":
    main()
