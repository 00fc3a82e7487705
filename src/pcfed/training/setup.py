"""From a configuration and its data files to a problem and a method, with everything checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, RunInfo
from pcfed.arrays import Float64Array
from pcfed.config.agent_table import AgentSettings, checked_name
from pcfed.config.model_table import TORCH, Model
from pcfed.config.train_file import Config
from pcfed.data.tables import Table, read_table
from pcfed.errors import did_you_mean, error_context, join_names, one_line, short_repr
from pcfed.losses import LeastSquares, LogisticRegression, Loss, SoftmaxRegression
from pcfed.problem import Agent, Problem
from pcfed.sampling import Purpose, batch_size, stream
from pcfed.sets import ConvexSet, WholeSpace
from pcfed.training.modules import for_module, load_module, module_loss, start_of
from pcfed.training.standardize import Scaling
from pcfed.training.step_search import with_trial_step
from pcfed.training.targets import Label, read_targets

Rows = NDArray[np.intp]
"""Which rows of a table."""

UNEVEN = 100.0
"""Columns whose sizes differ by more are worth a warning."""

LARGEST = 1e150
"""Features beyond this are refused: their squares would overflow."""


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A training that is ready to run.

    Attributes
    ----------
    problem : Problem
        The agents with their data, sets and held-out rows.
    algorithm : Algorithm
        The method; ``"auto"`` is still a word in it, which `pcfed.run` works out.
    columns : tuple of str
        The names of the features, in the order of the coefficients.
    labels : tuple of int or str, or None
        The labels of a classification: what a model predicts are positions in it.
    tests : tuple of int
        Every agent's number of held-out rows.
    constraints : tuple of ConvexSet
        The agents' sets of coefficients as they are delivered.
    scaling : Scaling or None
        From the coordinates of the training to those of the data, if these are others.
    start : Array or None
        Where a module begins; linear models begin at zero.
    warnings : tuple of str
        What may be a mistake, one sentence each.
    """

    problem: Problem
    algorithm: Algorithm
    columns: tuple[str, ...]
    labels: tuple[Label, ...] | None
    tests: tuple[int, ...]
    constraints: tuple[ConvexSet, ...]
    scaling: Scaling | None
    start: NDArray[Any] | None
    warnings: tuple[str, ...]


def assemble(config: Config, *, allow_import: bool = False) -> TrainingSetup:
    r"""Read the data of a training and build its problem and its method.

    With ``data.agent`` the roster is that column's values, sorted (as numbers if all are whole
    numbers), then the agents that have a file of their own; otherwise it is in the order of the
    configuration. Held-out rows are drawn for each agent from the stream of (seed, position).

    Parameters
    ----------
    config : Config
        What `load_config` returned.
    allow_import : bool
        Whether ``model.module`` may be imported, which runs the code in that file.

    Raises
    ------
    ValueError
        If a file cannot be read or does not fit: one sentence that names the file or the agent.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from pcfed.training import load_config
    >>> home = tempfile.TemporaryDirectory()
    >>> folder = Path(home.name)
    >>> _ = (folder / "homes.csv").write_text(
    ...     "home,area,load\nnorth,1,3\nnorth,2,5\nsouth,1,2\nsouth,4,6\n")
    >>> _ = (folder / "train.toml").write_text('''
    ... model.kind = "least-squares"
    ... data = {file = "homes.csv", agent = "home", target = "load", held_out = 0}
    ... agents.north.constraint = {l1 = 1}
    ... ''')
    >>> made = assemble(load_config(folder / "train.toml"))
    >>> made.problem, made.problem.names, made.columns
    (Problem(2 agents, 1 parameters), ('north', 'south'), ('area',))
    >>> home.cleanup()
    """
    try:
        module = None
        if config.model.kind == TORCH:
            module = load_module(config, allow_import=allow_import)
        return _assemble(config, module)
    except MemoryError:
        raise ValueError(
            f"{config.where}: the data must fit into memory, got too many; take float32 or less."
        ) from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _assemble(config: Config, module: Any) -> TrainingSetup:
    where = config.where
    pairs = list(_roster(config))
    settings = [agent for agent, _ in pairs]
    tables = [table for _, table in pairs]
    names = [agent.name for agent in settings]
    targets = [agent.target or "" for agent in settings]
    for agent, table in pairs:
        if table.rows < 2:
            raise ValueError(
                f"{where}: agents.{agent.name} must have at least 2 rows, got {table.rows} in "
                f"{table.where}; add data or leave the agent out."
            )
    found = read_targets(where, config.model.predicts, tables, targets, names)
    columns = _columns(config, tables, targets, names)
    matrices = [matrix_of(table, columns) for table in tables]
    warnings = [*found.warnings, *_constant(where, columns, matrices), *_single(config)]
    parts = [_held_out(config, i, len(X)) for i, X in enumerate(matrices)]
    scaling = None
    if module is None:
        training = [X[train] for X, (train, _) in zip(matrices, parts, strict=True)]
        sizes = Scaling.of(training, intercept=config.model.intercept)
        if config.data.standardize:
            scaling = sizes
        else:
            warnings += _uneven(where, columns, sizes)
    agents = []
    for agent, X, y, rows in zip(settings, matrices, found.values, parts, strict=True):
        with error_context(f"{where}: agents.{agent.name}"), np.errstate(all="ignore"):
            agents.append(_agent(config, agent, X, y, rows, found.labels, scaling, module))
    problem = Problem(agents)
    _check_run(config, problem)
    return TrainingSetup(
        problem=problem,
        algorithm=config.algorithm,
        columns=columns,
        labels=found.labels,
        tests=tuple(len(test) for _, test in parts),
        constraints=tuple(
            for_module(agent.constraint or WholeSpace(), module) for agent in settings
        ),
        scaling=scaling,
        start=start_of(problem.agents[0].loss),
        warnings=tuple(warnings),
    )


# -- who takes part ---------------------------------------------------------------------------


def _roster(config: Config) -> Iterator[tuple[AgentSettings, Table]]:
    """Yield the agents, in the order of the roster, with their rows."""
    own = [agent for agent in config.agents if agent.file is not None]
    if config.data.file is not None and config.data.agent is not None:
        column = config.data.agent
        table = read_table(config.located(config.data.file), text=(column,))
        names, places = np.unique(table.column(column), return_inverse=True)
        rows = np.split(np.argsort(places, kind="stable"), np.cumsum(np.bincount(places))[:-1])
        shares = dict(zip(names.tolist(), rows, strict=True))
        _check_names(config, table, list(shares))
        for name in _sorted(shares):
            yield config.agent(name), table.take(shares[name])
    tables: dict[str, Table] = {}
    for agent in own:
        file = agent.file or ""
        if file not in tables:
            tables[file] = read_table(config.located(file))
        yield agent, tables[file]


def _check_names(config: Config, table: Table, names: list[str]) -> None:
    """Refuse tables of agents that have no rows, or rows and a file of their own."""
    for name in names:
        checked_name(f"{table.where}: column {short_repr(config.data.agent)}", name)
    known = set(names)
    for agent in config.agents:
        where = f"{config.where}: agents.{agent.name}"
        if agent.file is None and agent.name not in known:
            raise ValueError(
                f"{where} must have rows in {table.where}, got none; {did_you_mean(agent.name, names)}"
                f"The column {short_repr(config.data.agent)} has {join_names(_sorted(names), 4)}."
            )
        if agent.file is not None and agent.name in known:
            raise ValueError(
                f"{where}.file must be left out where {table.where} has rows of the agent, got "
                f"{short_repr(agent.file)}; remove one of the two."
            )


def _sorted(names: Sequence[str] | dict[str, Any]) -> list[str]:
    """Return names in order: as numbers if all are whole numbers."""
    plain = sorted(names)
    whole = all(name.isascii() and name.isdecimal() for name in plain)
    return sorted(plain, key=int) if whole else plain


# -- what they have in common -----------------------------------------------------------------


def _columns(
    config: Config, tables: Sequence[Table], targets: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the features, which all agents have."""
    if config.data.features is not None:
        for table in tables:
            for name in config.data.features:
                table.column(name)
        return config.data.features
    others = {*targets, config.data.agent}
    first = tuple(name for name in tables[0].names if name not in others)
    if not first:
        raise ValueError(
            f"{tables[0].where}: there must be columns besides the target and the agent, got "
            f"{join_names(tables[0].names)}; add features."
        )
    for name, table in zip(names, tables, strict=True):
        mine = {each for each in table.names if each not in others}
        missing, extra = [each for each in first if each not in mine], mine.difference(first)
        if missing or extra:
            who, what = (name, missing) if missing else (names[0], sorted(extra))
            raise ValueError(
                f"{config.where}: all agents must have the same columns, got no {join_names(what, 4)} "
                f"with {short_repr(who)}, which {short_repr(names[0] if missing else name)} has; add them, "
                "or list the columns to use in data.features."
            )
    return first


def matrix_of(table: Table, columns: Sequence[str]) -> Float64Array:
    """Return the features of an agent."""
    X = np.column_stack([table.numbers(name) for name in columns])
    if not (largest := np.abs(X).max(axis=0)).max() <= LARGEST:
        name = columns[int(np.argmax(largest))]
        raise ValueError(
            f"{table.where}: the column {short_repr(name)} must stay below {LARGEST:g}, got "
            f"{largest.max():g}; rescale it."
        )
    return X


def _constant(
    where: str, columns: Sequence[str], matrices: Sequence[Float64Array]
) -> tuple[str, ...]:
    """Return a warning if there are columns with the same number in all rows of all agents."""
    first = matrices[0][0]
    same = np.all([np.equal(X, first).all(axis=0) for X in matrices], axis=0)
    if not same.any():
        return ()
    found = [name for name, constant in zip(columns, same, strict=True) if constant]
    return (
        f"{where}: columns with the same number in all rows tell nothing, got {join_names(found, 4)}; "
        "leave them out of data.features, or take model.intercept = true instead.",
    )


def _uneven(where: str, columns: Sequence[str], scaling: Scaling) -> Iterator[str]:
    """Yield a warning if columns are of very different sizes."""
    sizes = np.where(scaling.scale == 1.0, np.nan, scaling.scale)  # 1: it may not vary at all
    if np.isnan(sizes).all():
        return
    small, large = int(np.nanargmin(sizes)), int(np.nanargmax(sizes))
    ratio = sizes[large] / sizes[small]
    if ratio > UNEVEN:
        yield (
            f"{where}: {short_repr(columns[large], 30)} is some {ratio:.0e} times as large as "
            f"{short_repr(columns[small], 30)}, which makes training slow; set data.standardize = true."
        )


# -- one agent --------------------------------------------------------------------------------


def _held_out(config: Config, i: int, rows: int) -> tuple[Rows, Rows]:
    """Return an agent's rows for training and those for testing, both in the order of the file."""
    number = min(round(config.data.held_out * rows), rows - 1)
    order = stream(config.training.seed, Purpose.HELD_OUT, i).permutation(rows).astype(np.intp)
    return np.sort(order[number:]), np.sort(order[:number])


def _agent(
    config: Config,
    settings: AgentSettings,
    X: Float64Array,
    y: NDArray[Any],
    rows: tuple[Rows, Rows],
    labels: tuple[Label, ...] | None,
    scaling: Scaling | None,
    module: Any,
) -> Agent:
    if settings.constraint is None or settings.coupling is None:
        raise ValueError("constraint and coupling must be given; add them to its table.")
    train, test = rows
    if module is not None:
        constraint = for_module(settings.constraint, module)
        loss = module_loss(config, module, X[train], y[train])
        held_out = module_loss(config, module, X[test], y[test]) if len(test) else None
        return Agent(loss, constraint, settings.coupling, test=held_out, name=settings.name)
    constraint = settings.constraint
    if scaling is not None:
        X = scaling.applied(X)
    model, dtype = config.model, config.data.dtype
    loss = loss_of(model, X[train], y[train], labels, dtype)
    held_out = loss_of(model, X[test], y[test], labels, dtype) if len(test) else None
    if scaling is not None:
        constraint = scaling.mapped(constraint, math.prod(loss.shape))
    return Agent(loss, constraint, settings.coupling, test=held_out, name=settings.name)


def loss_of(
    model: Model, X: Float64Array, y: NDArray[Any], labels: Sequence[Label] | None, dtype: str
) -> Loss:
    """Return the loss of a model on some rows.

    Parameters
    ----------
    model : Model
        Which.
    X, y : arrays
        Features, and targets as `read_targets` gives them.
    labels : sequence of int or str, or None
        The labels of a classification.
    dtype : str
        That of the features and of local steps.
    """
    intercept, l2 = model.intercept, model.l2
    if labels is None:
        return LeastSquares(X, y, intercept=intercept, l2=l2, dtype=dtype)
    if model.kind == "logistic":
        return LogisticRegression(X, y, intercept=intercept, l2=l2, dtype=dtype)
    classes = len(labels)
    return SoftmaxRegression(X, y, classes=classes, intercept=intercept, l2=l2, dtype=dtype)


def _single(config: Config) -> Iterator[str]:
    """Yield a warning where 1 was given and 1.0 may have been meant."""
    if config.training.batch == 1 and isinstance(config.training.batch, int):
        yield f"{config.where}: training.batch = 1 is a single row; write 1.0 for all rows."
    if config.training.participation == 1 and isinstance(config.training.participation, int):
        yield f"{config.where}: training.participation = 1 is one agent; write 1.0 for all."


def _check_run(config: Config, problem: Problem) -> None:
    """Refuse what the run would refuse: batches and teams too large, words without a number."""
    training = config.training
    where = config.where
    if isinstance(training.participation, int) and training.participation > problem.m:
        raise ValueError(
            f"{where}: training.participation must be at most the number of agents, got "
            f"{training.participation} of {problem.m}; give a smaller number, or 1.0 for all."
        )
    sizes = [agent.loss.size for agent in problem.agents]
    if isinstance(training.batch, int) and training.batch > min(sizes):
        fewest = int(np.argmin(sizes))
        raise ValueError(
            f"{where}: training.batch must be at most the rows of every agent, got "
            f"{training.batch} but {problem.names[fewest]} trains on {sizes[fewest]}; give a "
            "smaller number, or a share such as 0.1."
        )
    pairs = zip(sizes, problem.names, strict=True)
    batches = tuple(batch_size(training.batch, size, agent=name) for size, name in pairs)
    full = list(batches) == sizes
    run_info = RunInfo(
        training.rounds, training.local_steps, None if full else batches, noisy=not full
    )
    with error_context(f"{where}: algorithm"), np.errstate(all="ignore"):
        with_trial_step(config.algorithm, problem).resolved(problem, run_info)
