"""From train.toml and its data files to a problem that is ready to run, with everything checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, RunInfo
from pcfed.arrays import Float64Array
from pcfed.config.fields import check_agent_name
from pcfed.config.personalization import DEFAULT_COUPLING
from pcfed.config.train_file import AgentSettings, Config, Model
from pcfed.data.encoding import Encoding, fit_encoding
from pcfed.data.tables import Table, read_table
from pcfed.errors import did_you_mean, error_context, join_names, one_line, short_repr
from pcfed.losses import Loss
from pcfed.losses.intercepts import default_intercept_bound
from pcfed.losses.kinds import TORCH, Label, LinearKind
from pcfed.problem import Agent, Problem
from pcfed.sampling import resolve_batch_size, split_rows
from pcfed.sets import ConvexSet
from pcfed.simulation.plan import Plan
from pcfed.standardize import Scaling
from pcfed.training.modules import constraint_for_module, initial_parameters, load_module
from pcfed.training.step_search import needs_step_search, with_trial_step
from pcfed.training.targets import read_targets

MAX_SCALE_RATIO = 30.0
"""There is a warning if the scales of two columns differ by a larger factor."""


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A training that is ready to run.

    Attributes
    ----------
    problem : Problem
        The agents with their data, sets and held-out rows.
    algorithm : Algorithm
        The algorithm; ``"auto"`` is still a keyword in it, which `pcfed.run` resolves.
    columns : tuple of str
        The names of the features, in the order of the coefficients.
    encoding : Encoding
        How the columns of the files become features.
    labels : tuple of int or str, or None
        The labels of a classification: a model predicts positions in it.
    tests : tuple of int
        Every agent's number of held-out rows.
    missing_labels : tuple of tuples
        The labels that no training row of an agent has, for every agent.
    constraints : tuple of ConvexSet
        The agents' sets, for the coefficients of the data as given.
    scaling : Scaling or None
        How the data were centred and scaled, if they were.
    start : Array or None
        The initial parameters of a module; linear models start at zero.
    warnings : tuple of str
        Possible mistakes, one sentence each.
    digest : str
        64 hexadecimal digits that change with everything that affects the numbers of the training,
        computed from the bytes of the data files as they were parsed.
    """

    problem: Problem
    algorithm: Algorithm
    columns: tuple[str, ...]
    encoding: Encoding
    labels: tuple[Label, ...] | None
    tests: tuple[int, ...]
    missing_labels: tuple[tuple[Label, ...], ...]
    constraints: tuple[ConvexSet, ...]
    scaling: Scaling | None
    start: NDArray[Any] | None
    warnings: tuple[str, ...]
    digest: str


@dataclass(frozen=True, eq=False)
class _AgentData:
    """An agent's settings, features and targets, and its rows for training and for testing."""

    settings: AgentSettings
    X: Float64Array
    y: NDArray[Any]
    train: NDArray[np.intp]
    test: NDArray[np.intp]


def build_setup(config: Config, *, allow_import: bool = False) -> TrainingSetup:
    """Read the data of a training and build its problem.

    With ``data.agent`` the agents are that column's values, sorted (as numbers if all are
    integers), then the agents that have a file of their own; otherwise they are in the order of
    train.toml. Held-out rows are drawn for each agent from the stream of (seed, position).

    Parameters
    ----------
    config : Config
        The content of train.toml, from `load_config`.
    allow_import : bool
        Whether ``model.module`` may be imported, which runs the code in that file.

    Raises
    ------
    ValueError
        If a file cannot be read or does not fit: one sentence that names the file or the agent.
    """
    try:
        return _build_setup(config, allow_import)
    except MemoryError:
        raise ValueError(
            f"{config.where}: the data must fit into memory, got too many; take float32 or less."
        ) from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _build_setup(config: Config, allow_import: bool) -> TrainingSetup:
    where, module, digests = config.where, None, {}
    if config.model.is_torch:
        module, digests[str(config.model.file)] = load_module(config, allow_import=allow_import)
    roster = list(_read_agents(config, digests))
    names = [settings.name for settings, _ in roster]
    targets = [settings.target for settings, _ in roster]
    raw_columns = _feature_columns(config, [table for _, table in roster], targets, names)
    roster, warnings = _without_missing(config, roster, raw_columns)
    _check_num_rows(where, roster)
    tables = [table for _, table in roster]
    found = read_targets(where, config.model, tables, targets, names)
    held_out, seed = config.data.held_out, config.training.seed
    splits = [split_rows(held_out, table.rows, seed, i) for i, table in enumerate(tables)]
    encoding = fit_encoding(
        tables,
        [train for train, _ in splits],
        raw_columns,
        one_hot=config.data.categories == "one-hot",
        fill=config.data.missing == "mean",
        decimal=config.data.decimal,
    )
    columns, matrices = encoding.features, [encoding.matrix(table) for table in tables]
    model_name = f"the model of {join_names(columns, 8)}"
    agents_data = zip(roster, matrices, found.values, splits, strict=True)
    data = [_AgentData(settings, X, y, *split) for (settings, _), X, y, split in agents_data]
    warnings += [*found.warnings, *_constant_columns(config, columns, matrices), *_ones(config)]
    scaling = None
    if module is None:
        computed = _fit_scaling(config, data, found.labels)
        if not config.data.standardize:
            warnings += _different_scales(where, columns, computed)
        # Means of rows would reveal something about the records of private agents.
        if not config.is_private and (config.data.standardize or config.model.intercept):
            scaling = computed if config.data.standardize else computed.without_scale()
    center = 0.0 if scaling is None else scaling.target_mean
    bound = intercept_bound(config.model, [each.y[each.train] for each in data], center)
    agents = []
    for each in data:
        with error_context(f"{where}: agents.{each.settings.name}"), np.errstate(all="ignore"):
            built = _build_agent(config, each, found.labels, scaling, bound, module, model_name)
            agents.append(built)
    problem = Problem(agents, config.center)
    warnings += _check_run(config, problem)
    return TrainingSetup(
        problem=problem,
        algorithm=config.algorithm,
        columns=columns,
        encoding=encoding,
        labels=found.labels,
        tests=tuple(len(each.test) for each in data),
        missing_labels=tuple(_missing_labels(each, found.labels) for each in data),
        constraints=tuple(constraint_for_module(each.settings.constraint, module) for each in data),
        scaling=scaling,
        start=initial_parameters(problem.agents[0].loss),
        warnings=tuple(warnings),
        digest=config.digest(digests),
    )


# -- the agents and their rows ------------------------------------------------------------------


def _read_agents(config: Config, digests: dict[str, str]) -> Iterator[tuple[AgentSettings, Table]]:
    """Yield the agents with their rows, in order; add the SHA-256 of each file to ``digests``."""
    if config.data.file is not None and config.data.agent is not None:
        column = config.data.agent
        located = config.located(config.data.file)
        table = read_table(located, text=(column,), decimal=config.data.decimal)
        digests[config.data.file] = table.sha256
        names, positions = np.unique(table.column(column), return_inverse=True)
        order = np.argsort(positions, kind="stable")
        rows = np.split(order, np.cumsum(np.bincount(positions))[:-1])
        rows_by_name = dict(zip(names.tolist(), rows, strict=True))
        _check_names(config, table, list(rows_by_name))
        for name in _sorted_names(rows_by_name):
            yield config.agent(name), table.take(rows_by_name[name])
    tables: dict[str, Table] = {}
    for agent in config.agents:
        if agent.file is None:
            continue
        if agent.file not in tables:
            located = config.located(agent.file)
            tables[agent.file] = read_table(located, decimal=config.data.decimal)
            digests[agent.file] = tables[agent.file].sha256
        yield agent, tables[agent.file]


def _without_missing(
    config: Config, roster: Sequence[tuple[AgentSettings, Table]], columns: Sequence[str]
) -> tuple[list[tuple[AgentSettings, Table]], list[str]]:
    """Return the agents without rows that cannot be used, and a warning that counts them.

    With ``data.missing = "drop"`` these are rows with any missing entry, with ``"mean"`` those
    without a target.
    """
    if config.data.missing == "error":
        return list(roster), []
    kept, dropped = [], 0
    for settings, table in roster:
        used = [settings.target, *(columns if config.data.missing == "drop" else ())]
        complete = ~np.any([table.missing(name) for name in used], axis=0)
        dropped += int((~complete).sum())
        if not complete.all():
            # With a missing entry, the whole column was text.
            table = table.take(np.flatnonzero(complete)).with_numbers()
        kept.append((settings, table))
    total = sum(table.rows for _, table in roster)
    text = f"{config.where}: {dropped} of {total} rows have missing entries and are not used."
    return kept, [text] if dropped else []


def _check_num_rows(where: str, roster: Sequence[tuple[AgentSettings, Table]]) -> None:
    for agent, table in roster:
        if table.rows < 2:
            raise ValueError(
                f"{where}: agents.{agent.name} must have at least 2 rows, got {table.rows} in "
                f"{table.where}; add data or leave the agent out."
            )


def _check_names(config: Config, table: Table, names: list[str]) -> None:
    """Refuse tables of agents that have no rows, and of agents with both rows and a file."""
    for name in names:
        with error_context(f"{table.where}: column {short_repr(config.data.agent)}"):
            check_agent_name(name)
    known = set(names)
    for agent in config.agents:
        where = f"{config.where}: agents.{agent.name}"
        if agent.file is None and agent.name not in known:
            raise ValueError(
                f"{where} must have rows in {table.where}, got none; "
                f"{did_you_mean(agent.name, names)}The column "
                f"{short_repr(config.data.agent)} has {join_names(_sorted_names(names), 4)}."
            )
        if agent.file is not None and agent.name in known:
            raise ValueError(
                f"{where}.file must be left out where {table.where} has rows of the agent, got "
                f"{short_repr(agent.file)}; remove one of the two."
            )


def _sorted_names(names: Sequence[str] | dict[str, Any]) -> list[str]:
    """Return names in order: as numbers if all are integers, so that 9 comes before 10."""
    ordered = sorted(names)
    are_integers = all(name.isascii() and name.isdecimal() for name in ordered)
    return sorted(ordered, key=int) if are_integers else ordered


def _missing_labels(data: _AgentData, labels: tuple[Label, ...] | None) -> tuple[Label, ...]:
    """Return the labels that no training row of an agent has."""
    seen = set(data.y[data.train].tolist()) if labels is not None else set()
    return tuple(label for code, label in enumerate(labels or ()) if code not in seen)


# -- features -----------------------------------------------------------------------------------


def _feature_columns(
    config: Config, tables: Sequence[Table], targets: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the features, which all agents must have."""
    if config.data.features is not None:
        for table in tables:
            for name in config.data.features:
                table.missing(name)  # refuses a name that is no column
        return config.data.features
    for name in config.data.exclude or ():
        if not any(name in table.names for table in tables):
            tables[0].missing(name)
    others = {*targets, config.data.agent, *(config.data.exclude or ())}
    first = tuple(name for name in tables[0].names if name not in others)
    if not first:
        raise ValueError(
            f"{tables[0].where}: there must be columns besides the target and the agent, got "
            f"{join_names(tables[0].names)}; add features."
        )
    for name, table in zip(names, tables, strict=True):
        own = {column for column in table.names if column not in others}
        missing, extra = [column for column in first if column not in own], own.difference(first)
        if missing or extra:
            has_not, has = (name, names[0]) if missing else (names[0], name)
            raise ValueError(
                f"{config.where}: all agents must have the same columns, got no "
                f"{join_names(missing or sorted(extra), 4)} with {short_repr(has_not)}, which "
                f"{short_repr(has)} has; add them, or list the columns to use in data.features or "
                "the others in data.exclude."
            )
    return first


def _fit_scaling(
    config: Config, data: Sequence[_AgentData], labels: tuple[Label, ...] | None
) -> Scaling:
    """Return the means and scales of all training rows; with the mean of targets to be centred."""
    intercept = config.model.intercept
    scaling = Scaling.fit([each.X[each.train] for each in data], intercept=intercept)
    if labels is not None or not intercept:
        return scaling
    return scaling.with_target_mean([each.y[each.train] for each in data])


def intercept_bound(
    model: Model, targets: Sequence[Float64Array], target_mean: float
) -> float | None:
    """Return the bound of ``train.toml`` or the default one; None if the model needs none.

    ``targets`` are those of every agent's training rows, as given.
    """
    if not isinstance(model.kind, LinearKind) or not model.intercept:
        return None
    return model.intercept_bound or default_intercept_bound(model.kind, targets, target_mean)


# -- one agent ----------------------------------------------------------------------------------


def _build_agent(
    config: Config,
    data: _AgentData,
    labels: tuple[Label, ...] | None,
    scaling: Scaling | None,
    bound: float | None,
    module: Any,
    model_name: str,
) -> Agent:
    """Return an agent with its losses on rows for training and on held-out rows."""
    model, settings = config.model, data.settings

    def loss_on(rows: NDArray[np.intp]) -> Loss:
        X, y = data.X[rows], data.y[rows]
        if not isinstance(model.kind, LinearKind):
            return TORCH.build_loss(module, X, y, model.task)
        if scaling is not None:
            X = scaling.transform(X)
            y = y - scaling.target_mean if labels is None else y
        return model.kind.build_loss(
            X,
            y,
            labels,
            intercept=model.intercept,
            l2=model.l2,
            dtype=config.data.dtype,
        )

    constraint = constraint_for_module(settings.constraint, module)
    loss = loss_on(data.train)
    test = loss_on(data.test) if len(data.test) else None
    if module is None:
        constraint.check_model_length(math.prod(loss.shape), model_name)
    if scaling is not None:
        constraint = scaling.transform_constraint(
            constraint, math.prod(loss.shape), option="data.standardize = false"
        )
    return Agent(
        loss,
        constraint,
        # The number for "auto" is found later, see `pcfed.training.trainer`.
        DEFAULT_COUPLING if settings.coupling == "auto" else settings.coupling,
        settings.personalization,
        test=test,
        name=settings.name,
        intercept_bound=bound,
        privacy=settings.privacy,
    )


# -- checks and warnings ------------------------------------------------------------------------


def _constant_columns(
    config: Config, columns: Sequence[str], matrices: Sequence[Float64Array]
) -> Iterator[str]:
    """Yield a warning if columns have the same number in all rows of all agents."""
    first = matrices[0][0]
    constant = np.all([np.equal(X, first).all(axis=0) for X in matrices], axis=0)
    if constant.any():
        found = [name for name, is_constant in zip(columns, constant, strict=True) if is_constant]
        instead = "" if config.model.intercept else ", or take model.intercept = true instead"
        yield (
            f"{config.where}: columns with the same number in all rows contain no information, got "
            f"{join_names(found, 4)}; leave them out of data.features{instead}."
        )


def _different_scales(where: str, columns: Sequence[str], scaling: Scaling) -> Iterator[str]:
    """Yield a warning if columns have very different scales."""
    # A scale of exactly 1 may be that of a constant column, which has none.
    scales = np.where(scaling.scale == 1.0, np.nan, scaling.scale)
    if np.isnan(scales).all():
        return
    small, large = int(np.nanargmin(scales)), int(np.nanargmax(scales))
    ratio = scales[large] / scales[small]
    if ratio > MAX_SCALE_RATIO:
        yield (
            f"{where}: {columns[large]} is about {ratio:.0e} times as large as "
            f"{columns[small]}, which makes training slow; set "
            "data.standardize = true."
        )


def _ones(config: Config) -> Iterator[str]:
    """Yield a warning where 1 was given and 1.0 may have been meant."""
    if config.training.batch == 1 and isinstance(config.training.batch, int):
        yield f"{config.where}: training.batch = 1 is a single row; write 1.0 for all rows."
    if config.training.participation == 1 and isinstance(config.training.participation, int):
        yield f"{config.where}: training.participation = 1 is one agent; write 1.0 for all."


def _check_run(config: Config, problem: Problem) -> list[str]:
    """Refuse, before anything is written, what `pcfed.run` would refuse; return warnings."""
    training, where = config.training, config.where
    if isinstance(training.participation, int) and training.participation > problem.m:
        raise ValueError(
            f"{where}: training.participation must be at most the number of agents, got "
            f"{training.participation} of {problem.m}; give a smaller number, or 1.0 for all."
        )
    sizes = [agent.loss.size for agent in problem.agents]
    if isinstance(training.batch, int) and training.batch > min(sizes):
        smallest = int(np.argmin(sizes))
        raise ValueError(
            f"{where}: training.batch must be at most the rows of every agent, got "
            f"{training.batch} but {problem.names[smallest]} trains on {sizes[smallest]}; give a "
            "smaller number, or a share such as 0.1."
        )
    pairs = zip(sizes, problem.names, strict=True)
    batches = tuple(resolve_batch_size(training.batch, size, agent=name) for size, name in pairs)
    noisy = list(batches) != sizes or problem.is_private
    batch = batches if noisy else None
    run_info = RunInfo(training.rounds, training.local_steps, batch, noisy=noisy)
    with error_context(f"{where}: algorithm"), np.errstate(all="ignore"):
        with_trial_step(config.algorithm, problem).resolved(problem.public_view, run_info)
    return _check_privacy(config, problem) if problem.is_private else []


def _check_privacy(config: Config, problem: Problem) -> list[str]:
    """Refuse a step that would be searched, and budgets that are too small; return warnings."""
    training = config.training
    with error_context(config.where):
        if needs_step_search(config.algorithm, problem):
            raise ValueError(
                "algorithm.step must be a number for modules where an agent has a privacy budget, "
                "got 'auto': it would be found by the losses; give one such as 0.1."
            )
        plan = Plan(
            problem,
            local_steps=training.local_steps,
            batch=training.batch,
            sampling="without_replacement",
            participation=training.participation,
            seed=training.seed,
        )
        plan.plan_privacy(config.algorithm, range(training.rounds))
    budgets = [(name, plan.spent(i)) for i, name in enumerate(problem.names)]
    found = [spent and spent.noise_warning(name, problem.n) for name, spent in budgets]
    return [sentence for sentence in found if sentence is not None]
