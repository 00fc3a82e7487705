"""Constraints in files: the sets of `pcfed.sets.parse_set`, and one set per layer of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcfed.arrays import Array
from pcfed.sets import ConvexSet, WarmStart, parse_set


@dataclass(frozen=True, eq=False, repr=False)
class LayerSets(ConvexSet):
    """One set per named parameter of a module: ``{blocks = {"conv1.weight" = "l1(5)"}}``.

    The positions of the parameters are known only when the module has been loaded; then
    `pcfed.sets.Blocks.for_module` makes a set of flat vectors of it.
    """

    sets: Mapping[str, ConvexSet]

    def _check_length(self, where: str, n: int) -> None:
        raise self._needs_module()

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        raise self._needs_module()

    def _needs_module(self) -> ValueError:
        """Return the error for models that are not PyTorch modules."""
        return ValueError(
            f'blocks by names such as {next(iter(self.sets))!r} need model.kind = "torch"; for '
            'other models give slices such as "0:10".'
        )


def parse_constraint(spec: object) -> ConvexSet:
    """Return the set that a value in a file describes.

    Examples
    --------
    >>> parse_constraint({"blocks": {"fc.weight": "l1(5)"}}).sets
    {'fc.weight': L1Ball(radius=5.0)}
    """
    blocks = spec.get("blocks") if isinstance(spec, Mapping) and len(spec) == 1 else None
    if not isinstance(blocks, Mapping) or not blocks or any(":" in str(name) for name in blocks):
        return parse_set(spec)
    return LayerSets({str(name): parse_set(each) for name, each in blocks.items()})


def format_constraint(constraint: ConvexSet) -> str | dict[str, dict[str, str]]:
    """Return a set as a value that `parse_constraint` reads."""
    if isinstance(constraint, LayerSets):
        return {"blocks": {name: str(each) for name, each in constraint.sets.items()}}
    return str(constraint)
