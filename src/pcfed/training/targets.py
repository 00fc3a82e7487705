"""The targets of all agents: numbers, or labels with one encoding for all agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.config.train_file import Model
from pcfed.data.encoding import numeric_target
from pcfed.data.tables import Table
from pcfed.errors import join_names, short_repr
from pcfed.losses.kinds import LEAST_SQUARES, SOFTMAX, Label

MAX_CLASSES = 1000
"""Columns with more labels are refused: most likely they are numbers."""


class Targets(NamedTuple):
    """The targets of all agents: numbers, or positions in the sorted ``labels``."""

    values: list[NDArray[Any]]
    labels: tuple[Label, ...] | None
    warnings: tuple[str, ...]


def read_targets(
    where: str, model: Model, tables: Sequence[Table], targets: Sequence[str], names: Sequence[str]
) -> Targets:
    """Return the targets of all agents for a model."""
    pairs = list(zip(tables, targets, strict=True))
    if not model.output.is_classification:
        numbers = [numeric_target(table, target) for table, target in pairs]
        return Targets(list(numbers), None, _constant(where, numbers))
    values = _same_type([_labels(model.task, table, target) for table, target in pairs])
    unique, positions = np.unique(np.concatenate(values), return_inverse=True)
    labels: tuple[Label, ...] = tuple(unique.tolist())
    _check_num_labels(where, model, labels)
    ends = np.cumsum([len(each) for each in values])[:-1]
    codes = np.split(positions.astype(np.intp), ends)
    return Targets(codes, labels, _rare(where, labels, codes, names))


def _labels(task: str, table: Table, target: str) -> NDArray[Any]:
    """Return a column of labels: integers as int64, everything else as text."""
    column = table.column(target)
    if column.dtype.kind != "f":
        return column
    numbers = table.numbers(target)
    # Beyond 2**53 a float does not determine the integer that the file has.
    are_integers = (numbers == np.floor(numbers)) & (np.abs(numbers) <= 2**53)
    if not are_integers.all():
        raise ValueError(
            f"{table.where}: the column {short_repr(target)} must be labels for {task}, integers "
            f"or text, got {numbers[np.argmin(are_integers)]} in "
            f'{table.location(~are_integers)}; did you mean kind = "{LEAST_SQUARES}"?'
        )
    return numbers.astype(np.int64)


def _same_type(values: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return all labels as text if one agent has text."""
    if all(each.dtype.kind == "i" for each in values):
        return values
    return [each.astype(np.dtypes.StringDType()) for each in values]


def _check_num_labels(where: str, model: Model, labels: tuple[Label, ...]) -> None:
    if len(labels) == 1:
        raise ValueError(
            f"{where}: there must be two labels or more, got only {short_repr(labels[0])} in all "
            "data; check data.target."
        )
    if len(labels) > model.output.max_labels:
        raise ValueError(
            f"{where}: {model.task} takes at most {model.output.max_labels:g} labels, got "
            f'{join_names(labels, 4)}; take model.kind = "{SOFTMAX}".'
        )
    if len(labels) > MAX_CLASSES:
        raise ValueError(
            f"{where}: {model.task} takes at most {MAX_CLASSES} labels, got {len(labels)}; did "
            f'you mean model.kind = "{LEAST_SQUARES}"?'
        )


def _rare(
    where: str,
    labels: tuple[Label, ...],
    codes: Sequence[NDArray[np.intp]],
    names: Sequence[str],
) -> tuple[str, ...]:
    """Return a warning if there are labels that only one of several agents has."""
    if len(codes) == 1:
        return ()
    has = np.array([np.bincount(each, minlength=len(labels)) > 0 for each in codes])
    alone = np.flatnonzero(has.sum(axis=0) == 1)
    if not len(alone):
        return ()
    shown = [f"{short_repr(labels[k], 30)} ({names[int(np.argmax(has[:, k]))]})" for k in alone[:4]]
    more = f" and {len(alone) - 4} more" if len(alone) > 4 else ""
    return (
        f"{where}: some labels occur with one agent only, {', '.join(shown)}{more}; "
        "check that all agents write labels the same way.",
    )


def _constant(where: str, numbers: Sequence[NDArray[np.float64]]) -> tuple[str, ...]:
    """Return a warning if all targets are the same number."""
    first = numbers[0][0]
    if any((each != first).any() for each in numbers):
        return ()
    return (f"{where}: the target is {first} in all rows, so there is nothing to learn.",)
