"""The sets of the test suites.

``CASES`` are made by hand and have constraints for CVXPY. ``EXAMPLES`` are the examples in the
docstrings of all sets in ``pcfed.sets.__all__``, so that a new set is tested without a change here.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from pcfed import sets
from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    ConvexSet,
    CustomSet,
    Ellipsoid,
    GroupL1Ball,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    NuclearBall,
    Polyhedron,
    PSDCone,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WholeSpace,
)

N = 6
CENTER = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -0.25])
WEIGHTS = np.array([1.0, 0.25, 3.0, 1.0, 2.0, 0.5])
NORMAL = np.array([1.0, -2.0, 0.5, 0.0, 0.0, 3.0])
GROUPS = [[0, 3], [1], [2, 4, 5]]
A = np.array(
    [
        [1.0, 2.0, 0.0, -1.0, 0.0, 0.0],
        [0.0, -1.0, 1.0, 1.0, 2.0, 0.0],
        [-1.0, 0.0, 0.0, 0.0, 1.0, -1.0],
        [2.0, 4.0, 0.0, -2.0, 0.0, 0.0],  # the first again
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ]
)
B = np.array([1.0, 0.5, 2.0, 2.0, 1.5])
C = np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 1.0], [2.0, 0.0, 0.0, 0.0, 0.0, 2.0]])
D = np.array([0.5, 1.0])


@dataclass(frozen=True)
class Case:
    """A set, its constraints for CVXPY, and its number of entries."""

    name: str
    set: ConvexSet
    constraints: Callable[[cp.Variable], list[cp.Constraint]] | None
    n: int = N
    closed_form: bool = True
    """Whether projecting twice gives the same bits."""
    bounded: bool = True
    """Whether ``minimize_linear`` finds a minimum of every linear function."""


def _group_norm(v: cp.Expression) -> cp.Expression:
    return sum(cp.norm2(v[g]) for g in GROUPS)


def _matrix(v: cp.Expression, rows: int, columns: int) -> cp.Expression:
    return cp.reshape(v, (rows, columns), order="C")


def _psd(v: cp.Variable) -> list[cp.Constraint]:
    V = _matrix(v, 3, 3)
    return [V == V.T, V >> 0]


CASES = [
    Case("whole", WholeSpace(), lambda v: [], bounded=False),
    Case("nonnegative", NonNegative(), lambda v: [v >= 0], bounded=False),
    Case("box", Box(-1.0, CENTER + 3.0), lambda v: [v >= -1, v <= CENTER + 3]),
    Case("open box", Box(-np.inf, CENTER), lambda v: [v <= CENTER], bounded=False),
    Case("l1", L1Ball(2.0), lambda v: [cp.norm1(v) <= 2]),
    Case("l1 centre", L1Ball(2.0, center=CENTER), lambda v: [cp.norm1(v - CENTER) <= 2]),
    Case(
        "l1 weights",
        L1Ball(2.0, weights=WEIGHTS),
        lambda v: [cp.norm1(cp.multiply(WEIGHTS, v)) <= 2],
    ),
    Case("point", L1Ball(0.0, center=CENTER), lambda v: [v == CENTER]),
    Case("l2", L2Ball(1.5), lambda v: [cp.norm2(v) <= 1.5]),
    Case("l2 centre", L2Ball(1.5, center=CENTER), lambda v: [cp.norm2(v - CENTER) <= 1.5]),
    Case(
        "ellipsoid",
        Ellipsoid(1.5, WEIGHTS),
        lambda v: [cp.norm2(cp.multiply(WEIGHTS, v)) <= 1.5],
    ),
    Case(
        "ellipsoid centre",
        Ellipsoid(1.5, WEIGHTS, center=CENTER),
        lambda v: [cp.norm2(cp.multiply(WEIGHTS, v - CENTER)) <= 1.5],
    ),
    Case("linf", LinfBall(0.75), lambda v: [cp.norm_inf(v) <= 0.75]),
    Case("linf centre", LinfBall(0.75, center=CENTER), lambda v: [cp.norm_inf(v - CENTER) <= 0.75]),
    Case("simplex", Simplex(2.0), lambda v: [v >= 0, cp.sum(v) == 2]),
    Case("halfspace", Halfspace(NORMAL, -1.0), lambda v: [NORMAL @ v <= -1], bounded=False),
    Case("hyperplane", Hyperplane(NORMAL, 0.7), lambda v: [NORMAL @ v == 0.7], bounded=False),
    Case("affine", Affine(C, D), lambda v: [C @ v == D], bounded=False),
    Case("polyhedron", Polyhedron(A, B), lambda v: [A @ v <= B], closed_form=False, bounded=False),
    Case(
        "polytope",
        Polyhedron(
            np.vstack((A, np.eye(N), -np.eye(N))), np.append(B, np.full(2 * N, 3.0)), C=C, d=D
        ),
        lambda v: [A @ v <= B, cp.norm_inf(v) <= 3, C @ v == D],
        closed_form=False,
    ),
    Case("groups", GroupL1Ball(GROUPS, 1.5), lambda v: [_group_norm(v) <= 1.5]),
    Case(
        "groups centre",
        GroupL1Ball(GROUPS, 1.5, center=CENTER),
        lambda v: [_group_norm(v - CENTER) <= 1.5],
    ),
    Case("nuclear", NuclearBall((2, 3), 1.5), lambda v: [cp.normNuc(_matrix(v, 2, 3)) <= 1.5]),
    Case(
        "nuclear centre",
        NuclearBall((2, 3), 1.5, center=CENTER),
        lambda v: [cp.normNuc(_matrix(v - CENTER, 2, 3)) <= 1.5],
    ),
    Case("soc", SecondOrderCone(), lambda v: [cp.norm2(v[1:]) <= v[0]], bounded=False),
    Case("psd", PSDCone(3), _psd, n=9, bounded=False),
    Case(
        "simplex and box",
        Intersection(Simplex(2.0), Box(0.0, 0.6)),
        lambda v: [v >= 0, cp.sum(v) == 2, v <= 0.6],
        closed_form=False,
    ),
    Case(
        "l1 and box",
        Intersection(L1Ball(2.0), Box(-0.25, 0.6)),
        lambda v: [cp.norm1(v) <= 2, v >= -0.25, v <= 0.6],
        closed_form=False,
        bounded=False,
    ),
    Case(
        "l2 and halfspace",
        Intersection(L2Ball(2.0), Halfspace(NORMAL, -1.0)),
        lambda v: [cp.norm2(v) <= 2, NORMAL @ v <= -1],
        closed_form=False,
        bounded=False,
    ),
    Case(
        "blocks",
        Blocks({(0, 2): L1Ball(1.0), (3, None): Simplex(1.0)}),
        lambda v: [cp.norm1(v[:2]) <= 1, v[3:] >= 0, cp.sum(v[3:]) == 1],
        bounded=False,
    ),
    Case(
        "translated",
        Translated(Simplex(2.0), CENTER),
        lambda v: [v >= CENTER, cp.sum(v - CENTER) == 2],
    ),
    Case("scaled", Scaled(Simplex(2.0), -0.3), lambda v: [v <= 0, cp.sum(v) == -0.6]),
    Case(
        "custom",
        CustomSet(
            lambda x: x - x.mean(),
            minimize_linear=None,
            name="sum zero",
        ),
        lambda v: [cp.sum(v) == 0],
        bounded=False,
    ),
]
IDS = [case.name for case in CASES]


def set_classes() -> list[type[ConvexSet]]:
    """Return the classes of all public sets."""
    public = [getattr(sets, name) for name in sets.__all__]
    classes = [each for each in public if isinstance(each, type) and issubclass(each, ConvexSet)]
    return [each for each in classes if each is not ConvexSet]


def example(kind: type[ConvexSet]) -> Case:
    """Return the example ``Kind(...).project(point)`` in the docstring of a set."""
    namespace = {}
    for each in doctest.DocTestParser().get_examples(kind.__doc__ or ""):
        match ast.parse(each.source).body:
            case [ast.Expr(ast.Call(func=ast.Attribute(value=made, attr="project"), args=[x]))]:
                convex, point = (eval(ast.unparse(node), namespace) for node in (made, x))
                name = f"example of {kind.__name__}"
                # Only what holds for every set is tested: rounding errors and no minimum may occur.
                return Case(name, convex, None, len(point), closed_form=False, bounded=False)
        exec(each.source, namespace)
    raise AssertionError(f"{kind.__name__} needs an example {kind.__name__}(...).project(point)")


EXAMPLES = [example(kind) for kind in set_classes()]
