"""A set for each named parameter of a PyTorch module, before the module is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcfed.arrays import Array
from pcfed.sets import ConvexSet, WarmStart, parse_set


@dataclass(frozen=True, eq=False, repr=False)
class Layers(ConvexSet):
    """Sets by the names of parameters: ``{blocks = {"conv1.weight" = "l1(5)"}}``.

    It becomes a set of flat vectors once there is a module: `pcfed.sets.Blocks.for_module`.

    Attributes
    ----------
    sets : mapping from str to ConvexSet
        Every parameter's set.
    """

    sets: Mapping[str, ConvexSet]

    def _check_length(self, where: str, n: int) -> None:
        raise self._misplaced()

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        raise self._misplaced()

    def _misplaced(self) -> ValueError:
        """Return what to say where there is no module."""
        return ValueError(
            f'blocks by names such as {next(iter(self.sets))!r} need model.kind = "torch"; for '
            'other models name slices such as "0:10".'
        )


def parse_constraint(spec: object) -> ConvexSet:
    """Return the set that a specification describes, be it by the names of parameters.

    Examples
    --------
    >>> parse_constraint({"blocks": {"fc.weight": "l1(5)"}}).sets
    {'fc.weight': L1Ball(radius=5.0)}
    """
    blocks = spec.get("blocks") if isinstance(spec, Mapping) and len(spec) == 1 else None
    if not isinstance(blocks, Mapping) or not blocks or any(":" in str(name) for name in blocks):
        return parse_set(spec)
    return Layers({str(name): parse_set(each) for name, each in blocks.items()})
