# SPDX-License-Identifier: Apache-2.0
"""The growth factor of Theorem A against brute force on dense grids of the whole line.

A supremum that is missed makes the privacy bound invalid, so the oracle here takes no
advantage of where the maximum ought to lie.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr

from armijo.accounting.above_threshold import (
    gaussian_capped,
    laplace_capped,
    laplace_unlimited,
)

FloatArray = NDArray[np.float64]


class Comparison:
    """One comparison at order ``a``, its noise moved by ``d`` noise scales."""

    def __init__(self, kind: str, a: float, d: float) -> None:
        self.kind, self.a, self.d = kind, a, d
        far = (a - 1) * d if kind == "gaussian" else 0.0
        margin = 15.0 if kind == "gaussian" else 45.0
        ends = min(0.0, far, -d) - margin, max(0.0, far, -d) + margin
        coarse = np.arange(*ends, 1 / 24)
        # Between the kinks of a Laplace law sits a peak as narrow as d itself.
        self.x = np.union1d(coarse, np.linspace(min(0.0, -d), max(0.0, -d), 400))
        self.logs = self.terms(self.x)

    def log_cdf(self, x: FloatArray) -> FloatArray:
        if self.kind == "gaussian":
            return log_ndtr(x)
        tail = np.exp(-np.abs(x)) / 2
        return np.where(x < 0, x - math.log(2), np.log1p(-tail))

    def terms(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logarithms of T and B."""
        a, d = self.a, self.d
        top = a * self.log_cdf(-x) + (1 - a) * self.log_cdf(-x - d)
        return top, a * self.log_cdf(x) + (1 - a) * self.log_cdf(x + d)

    def sup(self, combine: object) -> float:
        """Maximize on all of the line: the best point of 40 pieces, then ever finer."""
        x, values = self.x, combine(*self.logs)  # type: ignore[operator]
        pieces = np.array_split(np.arange(x.size), 40)
        peaks = np.array([piece[np.argmax(values[piece])] for piece in pieces])
        # Three cells to each side: two neighbors may be next to the same number.
        low, high = x[np.maximum(peaks - 3, 0)], x[np.minimum(peaks + 3, x.size - 1)]
        best, column = float(values.max()), np.arange(peaks.size)
        for _ in range(8):
            x = low + (high - low) * np.linspace(0, 1, 17)[:, None]
            values = combine(*self.terms(x))  # type: ignore[operator]
            best = max(best, float(values.max()))
            peak = np.argmax(values, axis=0)
            low = x[np.maximum(peak - 1, 0), column]
            high = x[np.minimum(peak + 1, 16), column]
        return best


def brute_capped(kind: str, a: float, t: float, scale: float, cap: int) -> list[float]:
    """log V after 1..cap queries by the recursion of Theorem A, literally."""
    sides = [Comparison(kind, a, s / scale) for s in (t - 1, t + 1)]
    log_v, values = 0.0, []
    for _ in range(cap):
        log_v = max(
            side.sup(lambda top, bottom, v=log_v: np.logaddexp(top, v + bottom))
            for side in sides
        )
        values.append(log_v)
    return values


def brute_unlimited(a: float, t: float, scale: float) -> float:
    """log V for any number of Laplace queries; infinite if B reaches one."""

    def ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            values = top - np.log(-np.expm1(np.minimum(bottom, 0.0)))
        # Far out T and 1 - B are both rounding errors: the limit stands for them.
        return np.where(np.abs(bottom) < 1e-9, -np.inf, values)

    log_v = 0.0
    for s in (t - 1, t + 1):
        side, d = Comparison("laplace", a, s / scale), s / scale
        if s == 0:
            continue
        if side.sup(lambda top, bottom: bottom) > 1e-12:
            return math.inf
        limit = (a - 1) * d - math.log(a - (a - 1) * math.exp(-d))
        log_v = max(log_v, side.sup(ratio), limit)
    return log_v


def shipped(function: object, a: float, t: float, *settings: float) -> float:
    """One value of a growth factor."""
    return float(function(np.array([a]), np.array([t]), *settings)[0])  # type: ignore[operator]


def close(value: float) -> object:
    """Nine digits of log V, and the rounding of logarithms near zero."""
    return pytest.approx(value, rel=1e-9, abs=1e-14)


SHIFTS = [0.0, 1 / 64, 0.25, 0.625, 63 / 64, 1.0]


@pytest.mark.parametrize("scale", [0.5, 4.0, 40.0, 4000.0])
@pytest.mark.parametrize("a", [2.0, 7.0, 40.0, 500.0])
def test_unlimited_laplace_supremum_is_brute_force(a, scale):
    for t in SHIFTS:
        expected = brute_unlimited(a, t, scale)
        assert shipped(laplace_unlimited, a, t, 1 / scale) == close(expected)


@pytest.mark.parametrize("scale", [0.5, 4.0, 40.0, 4000.0])
@pytest.mark.parametrize("a", [2.0, 7.0, 40.0, 500.0])
def test_capped_laplace_supremum_is_brute_force(a, scale):
    for t in SHIFTS:
        expected = brute_capped("laplace", a, t, scale, 12)
        for cap in (1, 2, 5, 12):
            found = shipped(laplace_capped, a, t, 1 / scale, cap)
            assert found == close(expected[cap - 1])


@pytest.mark.parametrize("scale", [1.0, 2.4, 8.0, 250.0])
@pytest.mark.parametrize("a", [2.0, 7.0, 40.0, 500.0])
def test_gaussian_supremum_is_brute_force(a, scale):
    for t in (0.0, 0.3125, 0.75, 1.0):
        expected = brute_capped("gaussian", a, t, scale, 30)
        for cap in (1, 2, 7, 30):
            found = shipped(gaussian_capped, a, t, scale, cap)
            assert found == close(expected[cap - 1])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.8, 1.5, 6.0, 20.0, 1000.0])
@pytest.mark.parametrize("a", [1.5, 3.0, 12.0, 90.0, 500.0])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_suprema_are_brute_force_at_length(kind, a, scale):
    for j in range(0, 17, 2):
        expected = brute_capped(kind, a, j / 16, scale, 30)
        for cap in (1, 3, 10, 20, 30):
            if kind == "gaussian":
                found = shipped(gaussian_capped, a, j / 16, scale, cap)
                assert found == close(expected[cap - 1])
            else:
                found = shipped(laplace_capped, a, j / 16, 1 / scale, cap)
                assert found == close(expected[cap - 1])


@pytest.mark.parametrize("a", [2.0, 30.0])
@pytest.mark.parametrize("t", [0.25, 0.75, 1.0])
def test_laplace_recursion_rises_to_its_limit(a, t):
    limit = shipped(laplace_unlimited, a, t, 0.02)
    values = [shipped(laplace_capped, a, t, 0.02, cap) for cap in (1, 10, 100, 1000)]
    assert values == sorted(values)
    assert values[-1] <= limit * (1 + 1e-12)
    assert values[-1] == pytest.approx(limit, rel=1e-3, abs=0.0)
