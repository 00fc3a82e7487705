"""Sets from configuration files, and sets that print as they can be read back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy import array

from pcfed import sets
from pcfed.sets import CustomSet, L1Ball, parse_set
from pcfed.sets.parse import sets_by_name

from .cases import CASES, EXAMPLES, set_classes

READABLE = [case for case in CASES + EXAMPLES if not isinstance(case.set, CustomSet)]


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.name)
def test_sets_read_back_from_their_text(case):
    names = {name: getattr(sets, name) for name in sets.__all__} | {"array": array}
    x = np.linspace(-2.0, 3.0, case.n)
    for again in (eval(repr(case.set), names), parse_set(str(case.set))):
        assert repr(again) == repr(case.set)
        assert again.project(x).tobytes() == case.set.project(x).tobytes()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"l1": 85}, "L1Ball(radius=85.0)"),
        ({"L1Ball": {"radius": 85}}, "L1Ball(radius=85.0)"),
        ("l1(85)", "L1Ball(radius=85.0)"),
        (" L1Ball( radius = 85.0 ) ", "L1Ball(radius=85.0)"),
        (L1Ball(85), "L1Ball(radius=85.0)"),
        ({"l2": 1.0}, "L2Ball(radius=1.0)"),
        ({"linf": [1.0]}, "LinfBall(radius=1.0)"),
        ({"l1": {"radius": 1, "weights": [1, 2]}}, "L1Ball(radius=1.0, weights=array([1.0, 2.0]))"),
        ({"box": [0, 1]}, "Box(lower=0.0, upper=1.0)"),
        ("box(-inf, [1, 2])", "Box(lower=float('-inf'), upper=array([1.0, 2.0]))"),
        ({"box": {"lower": 0, "upper": math.inf}}, "Box(lower=0.0, upper=float('inf'))"),
        ({"simplex": 1}, "Simplex(total=1.0)"),
        ("non-negative", "NonNegative()"),
        ({"nonnegative": True}, "NonNegative()"),
        ("whole space", "WholeSpace()"),
        ({"halfspace": {"a": [1, 2], "b": 1}}, "Halfspace(a=array([1.0, 2.0]), b=1.0)"),
        ({"group_l1": [[[0, 1], [2]], 3]}, "GroupL1Ball(groups=array([0, 0, 1]), radius=3.0)"),
        ({"nuclear": [[2, 3], 1]}, "NuclearBall(shape=(2, 3), radius=1.0)"),
        ({"psd": 3}, "PSDCone(size=3)"),
        (
            {"intersection": [{"l1": 1}, "nonnegative"]},
            "Intersection(L1Ball(radius=1.0), NonNegative())",
        ),
        ({"blocks": {"0:10": {"l1": 1}}}, "Blocks({(0, 10): L1Ball(radius=1.0)})"),
        ({"blocks": [[0, None, "l2(2)"]]}, "Blocks({(0, None): L2Ball(radius=2.0)})"),
        (
            {"translated": {"set": {"l1": 1}, "offset": [1, 2]}},
            "Translated(set=L1Ball(radius=1.0), offset=array([1.0, 2.0]))",
        ),
        ({"scaled": [{"simplex": 1}, 2]}, "Scaled(set=Simplex(total=1.0), factor=2.0)"),
    ],
    ids=str,
)
def test_specifications(spec, text):
    assert repr(parse_set(spec)) == text


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"l1ba": 85}, r"'l1ba' is not a set; did you mean 'l1'\? Valid names are affine, blocks,"),
        ({"L1Bal": 85}, r"'L1Bal' is not a set; did you mean 'l1'\? Valid"),
        ("simplx(1)", "did you mean 'simplex'"),
        ("qqqq", "'qqqq' is not a set; valid names are affine"),
        (85, "got 85; give for example"),
        ({"l1": 1, "l2": 2}, r"one key, the name of a set, got \['l1', 'l2'\]"),
        ({}, "one key"),
        ({"l1": {"size": 3}}, r"it takes L1Ball\(radius, \*, center=None, weights=None\)"),
        ({"l1": [1, 2, 3]}, "wrong arguments"),
        ({"l1": -1}, "L1Ball: radius must be ≥ 0, got -1"),
        ({"l1": "big"}, "L1Ball: radius must be a finite number, got 'big'"),
        ("l1(", "must read as a call"),
        ("l1(__import__('os').system('true'))", "is not allowed in a set"),
        ("l1(open('x'))", "'open' is not a set"),
        ("l1((lambda: 1)())", "is not allowed"),
        ("array([1])", "is not a set"),
        ({"blocks": 3}, r"blocks must be a mapping of slices or a list of \[start, stop, set\]"),
        ({"blocks": {"a:b": {"l1": 1}}}, "ends of a block must be whole numbers"),
        ({"blocks": [[math.inf, 1, "l1(1)"]]}, "ends of a block must be whole numbers, got inf"),
        ({"intersection": [3]}, "got 3; give for example"),
    ],
    ids=str,
)
def test_errors_list_what_is_valid(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_set(spec)


def test_files_know_every_set_but_custom_ones():
    assert {kind for kind in set_classes() if kind.spec_name is None} == {CustomSet}
    assert set(sets_by_name().values()) == {*set_classes()} - {CustomSet}


def test_custom_sets_print_their_function_and_name():
    assert repr(CustomSet(abs, name="mine")) == "CustomSet(project=abs, name='mine')"
    with pytest.raises(ValueError, match="'CustomSet' is not a set"):
        parse_set("CustomSet(abs)")


def test_very_long_strings_are_refused_before_they_are_parsed(monkeypatch):
    monkeypatch.setattr("pcfed.sets.parse.MAX_SIGNS", 10)
    monkeypatch.setattr("pcfed.sets.parse._evaluate", lambda _: pytest.fail("it was evaluated"))
    with pytest.raises(ValueError, match="at most 10 commas and brackets, got 15; give a table"):
        parse_set("box([0, 0, 0, 0, 0, 0, 0, 0], [1, 1])")


def test_a_failure_of_python_itself_is_one_sentence(monkeypatch):
    def fail(_):
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr("pcfed.sets.parse._evaluate", fail)
    with pytest.raises(ValueError, match="a set must read as a call"):
        parse_set("l1(1)")
