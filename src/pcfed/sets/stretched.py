"""Sets in other units: what becomes of a set when every entry is multiplied by a factor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.affine import Affine, Halfspace, Hyperplane
from pcfed.sets.balls import L1Ball, L2Ball, LinfBall
from pcfed.sets.base import ConvexSet
from pcfed.sets.boxes import Box, NonNegative, WholeSpace
from pcfed.sets.combine import Blocks, Scaled, Translated
from pcfed.sets.ellipsoid import Ellipsoid
from pcfed.sets.intersection import Intersection
from pcfed.sets.polyhedra import Polyhedron
from pcfed.sets.simplex import Simplex
from pcfed.validation import frozen


def stretched(convex: ConvexSet, factors: Array) -> ConvexSet:
    r"""Return the set $\{(f_1 s_1, .., f_n s_n) : s \in X\}$, which projects exactly.

    A box stays a box and linear rows stay linear rows; an l1 ball becomes a weighted one, an l2
    ball an ellipsoid, a simplex an intersection. With one factor for all entries every set is only
    scaled.

    Parameters
    ----------
    convex : ConvexSet
        X.
    factors : array of shape (n,)
        f > 0, one for each entry.

    Raises
    ------
    ValueError
        If the factors are not all the same and no projection onto the stretched set is known:
        group and nuclear balls, cones, sets of your own.

    Examples
    --------
    >>> from pcfed.sets import L1Ball, stretched
    >>> stretched(L1Ball(1.0), [2.0, 4.0])
    L1Ball(radius=1.0, weights=array([0.5, 0.25]))
    """
    f = frozen("stretched: factors", factors, ndim=1)
    if not f.min() > 0:
        raise ValueError(
            f"stretched: factors must be > 0, got {f.min()} at index {f.argmin()}; give others."
        )
    convex._check_length("stretched: factors", f.size)
    if np.all(f == 1.0) or isinstance(convex, (WholeSpace, NonNegative)):
        return convex
    for kind, rule in RULES.items():
        if isinstance(convex, kind):
            return rule(convex, f)
    if np.all(f == f[0]):
        return Scaled(convex, float(f[0]))
    raise ValueError(
        f"{type(convex).__name__}: no projection onto it is known where entries have different "
        "factors; take one factor for all, or another set."
    )


def _box(convex: Box, f: Float64Array) -> Box:
    return Box(f * convex.lower, f * convex.upper)


def _cube(convex: LinfBall, f: Float64Array) -> Box:
    center = np.zeros_like(f) if convex.center is None else convex.center
    return Box(f * (center - convex.radius), f * (center + convex.radius))


def _l1(convex: L1Ball, f: Float64Array) -> L1Ball:
    weights = 1.0 / f if convex.weights is None else convex.weights / f
    return L1Ball(convex.radius, center=_moved(convex.center, f), weights=weights)


def _l2(convex: L2Ball, f: Float64Array) -> Ellipsoid:
    return Ellipsoid(convex.radius, 1.0 / f, center=_moved(convex.center, f))


def _ellipsoid(convex: Ellipsoid, f: Float64Array) -> Ellipsoid:
    return Ellipsoid(convex.radius, convex.weights / f, center=_moved(convex.center, f))


def _polyhedron(convex: Polyhedron, f: Float64Array) -> Polyhedron:
    C = None if convex.C is None else convex.C / f
    return Polyhedron(convex.A / f, convex.b, C=C, d=convex.d)


def _simplex(convex: Simplex, f: Float64Array) -> Intersection:
    return Intersection(NonNegative(), Hyperplane(1.0 / f, convex.total))


def _blocks(convex: Blocks, f: Float64Array) -> Blocks:
    pairs = ((span, stretched(member, f[span])) for _, span, member in convex._spans(f.size))
    return Blocks(((span.start, span.stop), member) for span, member in pairs)


def _intersection(convex: Intersection, f: Float64Array) -> Intersection:
    return Intersection(*(stretched(member, f) for member in convex.sets))


def _moved(center: Float64Array | None, f: Float64Array) -> Float64Array | None:
    return None if center is None else f * center


Rule = Callable[..., ConvexSet]

RULES: dict[type[ConvexSet], Rule] = {
    Box: _box,
    LinfBall: _cube,
    L1Ball: _l1,
    L2Ball: _l2,
    Ellipsoid: _ellipsoid,
    Halfspace: lambda convex, f: Halfspace(convex.a / f, convex.b),
    Hyperplane: lambda convex, f: Hyperplane(convex.a / f, convex.b),
    Affine: lambda convex, f: Affine(convex.A / f, convex.b),
    Polyhedron: _polyhedron,
    Simplex: _simplex,
    Blocks: _blocks,
    Intersection: _intersection,
    Translated: lambda convex, f: Translated(stretched(convex.set, f), f * convex.offset),
    Scaled: lambda convex, f: Scaled(stretched(convex.set, f), convex.factor),
}
"""How each kind is stretched."""
