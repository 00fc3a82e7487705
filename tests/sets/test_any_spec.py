"""Any specification gives a set that projects, or an error message of one line."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pcfed.sets import ConvexSet, ProjectionError, parse_set
from pcfed.sets.parse import sets_by_name

from .cases import CASES

MANY = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
NAMES = list(sets_by_name())
MAX_LENGTH = 500
MAX_ENTRIES = 10**5  # sets with more may need too much memory


def attempt(spec):
    """Read a specification and project; errors have messages of one line."""
    try:
        project(parse_set(spec))
        return
    except ValueError as error:
        caught = error
    message = str(caught)
    assert type(caught) is ValueError
    assert 0 < len(message) <= MAX_LENGTH
    assert message.isprintable()


def project(found):
    """Project a point, unless there is no projection."""
    assert isinstance(found, ConvexSet)
    n = 4 if found.n is None else found.n
    if n <= MAX_ENTRIES:
        with suppress(ValueError, ProjectionError):
            assert found.project(np.linspace(-2.0, 3.0, n)).shape == (n,)


# -- text -----------------------------------------------------------------------------------------

TEXTS = [str(case.set) for case in CASES] + NAMES
PIECES = ["", "(", ")", "[", "]", ",", "-", "=", "*", "**", ".", ":", "'", "\n", "\0", "nan", "inf"]
PIECES += ["None", "True", "1j", "1e999", "set=", "l1(1)", "x" * 999, "9" * 400, "9" * 5000]


def changed(text):
    """A text with a part of it replaced."""
    place = st.integers(0, len(text))
    return st.builds(
        lambda i, j, new: text[: min(i, j)] + new + text[max(i, j) :],
        place,
        place,
        st.sampled_from(PIECES) | st.text(max_size=3),
    )


@MANY
@given(st.text(max_size=60))
@example("x" * 9999)
@example("l1(" + "[" * 400 + "]" * 400 + ")")
@example("l1(" + "-" * 4000 + "1)")
@example("l1(a" + ".a" * 4000 + ")")
@example("l1(0x" + "f" * 5000 + ")")
@example("box(array([1j, 1]), 2)")
@example("intersection(" + "l1(1), " * 999 + "3)")
@example("scaled(" * 200 + "l1(1)" + ", -1)" * 200)
def test_any_text(text):
    attempt(text)


@MANY
@given(st.sampled_from(TEXTS).flatmap(changed))
def test_any_change_of_a_valid_text(text):
    attempt(text)


# -- tables ---------------------------------------------------------------------------------------

ODD = [True, False, -1, 0, 1, 2, -0.0, 5e-324, 1e-200, 1e150, 1e308, -1e308, 2**70, 10**400]
ODD += [math.nan, math.inf, -math.inf]
LEAVES = st.sampled_from([None, *ODD, *TEXTS]) | st.text(max_size=5)


def nested(inner):
    """Lists and tables."""
    names = [*NAMES, "radius", "center", "set", "offset", "factor", "a", "A", "b", "0:2", "2:"]
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=2)


VALUES = st.recursive(LEAVES, nested, max_leaves=6)


@MANY
@given(VALUES)
def test_any_value(value):
    attempt(value)


@MANY
@given(st.sampled_from(NAMES), VALUES)
@example("l1", 10**5000)
def test_any_argument(name, value):
    attempt({name: value})


NUMBER = st.sampled_from(ODD) | st.floats(0, 9)
VECTOR = st.lists(NUMBER, min_size=2, max_size=2)
MATRIX = st.lists(VECTOR, min_size=1, max_size=2)
SIZE = st.integers(0, 3)
FORMS = {
    "l1": ({"radius": NUMBER}, {"center": VECTOR, "weights": VECTOR}),
    "l2": ({"radius": NUMBER}, {"center": VECTOR}),
    "linf": ({"radius": NUMBER}, {"center": VECTOR}),
    "group_l1": ({"groups": st.lists(SIZE, max_size=3), "radius": NUMBER}, {"center": VECTOR}),
    "nuclear": ({"shape": st.tuples(SIZE, SIZE), "radius": NUMBER}, {"center": VECTOR}),
    "box": ({"lower": NUMBER | VECTOR, "upper": NUMBER | VECTOR}, {}),
    "simplex": ({"total": NUMBER}, {}),
    "halfspace": ({"a": VECTOR, "b": NUMBER}, {}),
    "hyperplane": ({"a": VECTOR, "b": NUMBER}, {}),
    "affine": ({"A": MATRIX, "b": VECTOR}, {}),
    "polyhedron": ({"A": MATRIX, "b": VECTOR}, {"C": MATRIX, "d": VECTOR}),
    "psd": ({"size": SIZE}, {}),
}


def table(name, required, optional):
    return st.fixed_dictionaries({name: st.fixed_dictionaries(required, optional=optional)})


def combined(inner):
    """Sets that are made of sets."""
    return (
        st.fixed_dictionaries({"intersection": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"blocks": st.fixed_dictionaries({"0:2": inner, "2:4": inner})})
        | table("translated", {"set": inner, "offset": VECTOR}, {})
        | table("scaled", {"set": inner, "factor": NUMBER}, {})
    )


PLAIN = st.one_of([table(name, *form) for name, form in FORMS.items()])


@settings(MANY, max_examples=600)
@given(st.recursive(PLAIN, combined, max_leaves=4))
@example({"hyperplane": {"a": [1e308, 0], "b": 1e308}})
@example({"hyperplane": {"a": [10**400, 0], "b": 1}})
def test_any_numbers_in_the_right_form(spec):
    attempt(spec)


@pytest.mark.parametrize("levels", [1, 20, 24, 25, 26, 100, 5000])
def test_sets_in_sets(levels):
    spec = {"scaled": ["scaled(" * 20 + "l1(1)" + ", -1)" * 20, -1]}
    for _ in range(levels):
        spec = {"scaled": [spec, -1]}
    attempt(spec)


def test_a_list_that_holds_itself():
    endless = [1]
    endless += [endless, endless]
    attempt({"box": endless})
