"""Exact projections, points that are hard to project, and the two engines that must agree."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pcfed import kernels


def exact_simplex(a, total):
    """Project onto the simplex with fractions."""
    a = [Fraction(float(v)) for v in a]
    size, theta = Fraction(0), Fraction(0)
    for k, v in enumerate(sorted(a, reverse=True), 1):
        size += v
        if v * k > size - Fraction(total):
            theta = (size - Fraction(total)) / k
    return np.array([float(max(v - theta, 0)) for v in a])


def exact_l1(x, radius):
    """Project onto the l1 ball with fractions; x is outside."""
    return np.copysign(exact_simplex(np.abs(x), radius), x)


def long_l1(x, radius):
    """Project many entries onto the l1 ball in extended precision; x is outside."""
    a = np.abs(x).astype(np.longdouble)
    falling = np.sort(a)[::-1]
    excess = np.cumsum(falling) - np.longdouble(radius)
    k = max(1, np.count_nonzero(falling * np.arange(1, a.size + 1) > excess))
    return np.copysign(np.maximum(a - excess[k - 1] / k, 0), x)


def hard_points(rng, kind, n):
    x = rng.standard_normal(n)
    return {
        "plain": x,
        "whole numbers": np.round(2 * x),
        "near ties": 1 + 2.0**-52 * rng.integers(-5, 6, n),
        "float32 ties": 1 + 1e-7 * x,
        "scales": x * 10.0 ** rng.integers(-8, 9, n),
        "large offset": 1e8 + 1e-7 * x,
        "ties": np.where(rng.random(n) < 0.5, 1.0, x),
        "zeros": x * (rng.random(n) < 0.1),
        "dust": np.append(10.0 ** rng.uniform(-30, -12, n - 1), 1.0),
        "sorted": np.sort(x),
        "clusters": rng.integers(0, 3, n) + 1e-9 * x,
    }[kind]


KINDS = (
    "plain",
    "whole numbers",
    "near ties",
    "float32 ties",
    "scales",
    "large offset",
    "ties",
    "zeros",
    "dust",
    "sorted",
    "clusters",
)


def use_numpy(monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda name: None)


ENGINES = {"compiled": lambda monkeypatch: None, "numpy": use_numpy}
