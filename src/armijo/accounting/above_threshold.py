# SPDX-License-Identifier: Apache-2.0
"""AboveThreshold: which query is the first to pass a noisy threshold.

The sparse vector mechanism with one answer, a cap on the number of queries and a "none
found" output.  A query i with public sensitivity ``D_i`` is compared as
``q_i / D_i + nu_i >= lambda`` (the threshold is zero, so each query may be rescaled by
its own sensitivity): all scales here are in units of the sensitivity.

The functions below the class give the growth factor V of Theorem A (docs/proofs.md):
what a run of comparisons leaks.  Shift the neighbor's threshold by ``t`` of the
sensitivity.  One comparison against a threshold ``u`` then passes with probability S(u)
here and S(u + s) there, where the worst ``s`` is ``t - 1`` or ``t + 1`` (convexity in
S(u + s), so interior shifts and every pattern of signs are covered).  With ``F = 1 -
S`` and order ``a``

    T(u) = S(u)^a S(u+s)^(1-a),  B(u) = F(u)^a F(u+s)^(1-a),
    V_0 = 1,  V_j = sup over u and s of T(u) + V_{j-1} B(u),

and ``V_inf = max(1, sup T / (1 - B))`` where B stays below one.  All functions work on
flat arrays of problems (one order and one shift each), in logarithms, with ``u`` in
units of the query noise.  A supremum that is missed makes the bound invalid, so where
the maximum may lie is argued at each search.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import log_ndtr

from armijo import _validate
from armijo._validate import Count, NonNegative
from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Mechanism, PureDP, chord_curve, laplace_rdp

SAFETY = 1 + 1e-6
"""Covers what numerical maximization may miss of a supremum (relative)."""

_LEAST_SCALE = 1e-30  # less noise is none: its costs would overflow
_SHIFTS = {"laplace": 64, "gaussian": 16}
_CAPPED_LAPLACE_UP_TO = 12  # V_12 is within some percent of V_inf: longer is waste
LOG2 = np.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, kw_only=True)
class AboveThreshold(Mechanism):
    """First of at most ``max_queries`` queries that passes, or none.

    Attributes
    ----------
    kind : {"laplace", "gaussian"}
        The noise of threshold and queries.
    threshold_scale, query_scale : float
        Scale b of the Laplace, sigma of the Gaussian noise, in units of the query
        sensitivity.  Threshold scale zero means a noiseless threshold; query scale
        zero is no privacy at all: its curve is infinite.
    max_queries : int or None
        The cap.  It is part of the Gaussian guarantee (no order has a finite bound
        without one); None, for Laplace noise only, is any number.

    Notes
    -----
    The curve is the smallest over t of ``eps_thr(a; t) + log V(a; t) / (a - 1)``, where
    the threshold noise is shifted by t and V is the growth factor.  Every t gives a
    valid bound; t = 1 contains Zhu and Wang (2020, Theorem 8), t = 0 does not use the
    threshold noise at all.
    """

    kind: Literal["laplace", "gaussian"]
    threshold_scale: NonNegative
    query_scale: NonNegative
    max_queries: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_queries is None and self.kind == "gaussian":
            raise ValueError(
                "Expected max_queries for Gaussian noise, got None; without a cap no "
                "Renyi order has a finite bound. Give the most candidates to try."
            )

    @classmethod
    def laplace(
        cls, epsilon: float, max_queries: int | None = None
    ) -> "AboveThreshold":
        """Return Chen and Lee's split: epsilon/2 for the threshold, epsilon/4 each."""
        if epsilon != math.inf:
            _validate.positive(search_epsilon=epsilon)
        return cls(
            kind="laplace",
            threshold_scale=2 / epsilon,
            query_scale=4 / epsilon,
            max_queries=max_queries,
        )

    @classmethod
    def gaussian(cls, rho: float, max_queries: int) -> "AboveThreshold":
        """Return Chen and Lee's split: variances 3/(2 rho) and 3/rho."""
        if rho != math.inf:
            _validate.positive(search_rho=rho)
        return cls(
            kind="gaussian",
            threshold_scale=math.sqrt(1.5 / rho),
            query_scale=math.sqrt(3 / rho),
            max_queries=max_queries,
        )

    @property
    def add_remove_only(self) -> bool:
        """A comparison moves by one sensitivity: true."""
        return True

    @property
    def epsilon(self) -> float:
        """Pure-DP cost, Dwork and Roth (2014), Theorem 3.23; infinite if none."""
        if self.kind == "gaussian" or 0 in (self.threshold_scale, self.query_scale):
            return math.inf
        return 1 / self.threshold_scale + 2 / self.query_scale

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Bound the Renyi divergence at each order (docs/proofs.md, A)."""
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        if min(self.query_scale, self.threshold_scale or math.inf) < _LEAST_SCALE:
            return np.full(np.shape(orders), np.inf)
        curve = _curve(self, tuple(a.tolist()))
        return curve.reshape(np.shape(orders)).copy()

    def integer_curve(self, top: int) -> FloatArray:
        """Return the chords between some orders."""
        return chord_curve(self, top)

    def noise_ratios(self) -> tuple[float, ...]:
        """Return both scales, of the threshold and of the queries."""
        return self.threshold_scale, self.query_scale

    def shifted_bound(self, a: FloatArray, t: FloatArray) -> FloatArray:
        """Return the bound for shifts ``t``, one for each order, before the safety."""
        if self.kind == "gaussian":
            log_v = gaussian_capped(a, t, self.query_scale, self.max_queries or 1)
        else:
            log_v = laplace_unlimited(a, t, 1 / self.query_scale)
            if (
                self.max_queries is not None
                and self.max_queries <= _CAPPED_LAPLACE_UP_TO
            ):
                capped = laplace_capped(a, t, 1 / self.query_scale, self.max_queries)
                log_v = np.minimum(log_v, capped)
        return self._threshold(a, t) + log_v / (a - 1)

    def _threshold(self, a: FloatArray, t: FloatArray) -> FloatArray:
        """Return the threshold noise's own curve at shift ``t``."""
        if self.threshold_scale == 0:
            return np.where(t == 0, 0.0, np.inf)
        if self.kind == "gaussian":
            return a * (t / self.threshold_scale) ** 2 / 2
        return laplace_rdp(a, t / self.threshold_scale)


@lru_cache(maxsize=256)
def _curve(mechanism: AboveThreshold, orders: tuple[float, ...]) -> FloatArray:
    """Minimize the bound over a grid of shifts, coarse first, then near the best."""
    a = np.array(orders)
    n = _SHIFTS[mechanism.kind] if mechanism.threshold_scale else 0
    stride = 4
    best, at = _best_of(mechanism, a, np.arange(0, n + 1, stride)[:, None] + 0 * a)
    while n and stride > 1:
        stride //= 2
        tries = np.clip(np.array([at - stride, at + stride]), 0, n)
        near, where = _best_of(mechanism, a, tries)
        best, at = np.minimum(best, near), np.where(near < best, where, at)
    if math.isfinite(mechanism.epsilon):
        best = np.minimum(best, PureDP(mechanism.epsilon).rdp(a))
    return np.asarray(best * SAFETY)


def _best_of(
    mechanism: AboveThreshold, a: FloatArray, j: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Try shifts j/n (a row each); return the smallest bounds and where they are."""
    t = j / _SHIFTS[mechanism.kind]
    bounds = mechanism.shifted_bound(np.broadcast_to(a, t.shape).ravel(), t.ravel())
    bounds = bounds.reshape(t.shape)
    row = np.argmin(bounds, axis=0)[None]
    return (
        np.take_along_axis(bounds, row, axis=0)[0],
        np.take_along_axis(j, row, axis=0)[0],
    )


def laplace_unlimited(a: FloatArray, t: FloatArray, epsilon2: float) -> FloatArray:
    """Return log V_inf for Laplace queries; infinite where shift ``t`` is unusable."""
    worst = np.zeros_like(a)
    for s in (t + 1, t - 1):
        d = s * epsilon2
        value = np.where(d == 0, 0.0, _laplace_ratio_sup(a, d))
        worst = np.maximum(worst, value)
    return worst


def _laplace_log_terms(
    x: FloatArray, a: FloatArray, d: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return log T and log B at ``x`` for query noise Lap(1)."""
    top = a * _laplace_log_cdf(-x) + (1 - a) * _laplace_log_cdf(-x - d)
    bottom = a * _laplace_log_cdf(x) + (1 - a) * _laplace_log_cdf(x + d)
    return top, bottom


def _laplace_log_cdf(x: FloatArray) -> FloatArray:
    return np.where(x < 0, x - LOG2, np.log1p(-0.5 * np.exp(-np.abs(x))))


def _laplace_ratio_sup(a: FloatArray, d: FloatArray) -> FloatArray:
    """Return sup of log T/(1-B), infinite if B reaches one.

    Left and right of the kinks 0 and -d all four probabilities are affine in
    ``exp(-|x|)`` and ``p^a q^(1-a)`` is jointly convex, so T + c B is convex there for
    every c >= 0 and T/(1-B) is quasiconvex: its maximum is at an end, that is at a
    kink or in a limit.  Only the interval between the kinks needs a search.
    """
    low, high = np.minimum(0.0, -d), np.maximum(0.0, -d)
    usable = _laplace_bottom_sup(a, d) < 0

    def ratio(x: FloatArray) -> FloatArray:
        top, bottom = _laplace_log_terms(x, a[:, None], d[:, None])
        return top - np.log(-np.expm1(np.minimum(bottom, -1e-300)))

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # u -> infinity: T and 1 - B vanish together (de l'Hospital in exp(-u)).
        limit = (a - 1) * d - np.log(a - (a - 1) * np.exp(-d))
        inner = zoom_max(ratio, low, high, points=33, rounds=4)
    value = np.maximum(inner, np.where(np.isnan(limit), np.inf, limit))
    return np.where(usable, np.maximum(value, 0.0), np.inf)


def _laplace_bottom_sup(a: FloatArray, d: FloatArray) -> FloatArray:
    """Return sup over finite u of log B when d < 0 (it is negative when d > 0).

    Left of the kinks B rises; right of them it is convex in ``exp(-x)`` with limit one,
    hence below one iff it is at the kink; between them log B is concave with its
    stationary point at ``exp(-x) = 2 (a-1) / (2a-1)``.
    """
    stationary = np.log((2 * a - 1) / (2 * (a - 1)))
    x = np.clip(stationary, 0.0, np.maximum(-d, 0.0))
    kinks = [_laplace_log_terms(point, a, d)[1] for point in (x, np.maximum(-d, 0.0))]
    return np.where(d < 0, np.maximum(*kinks), -1.0)


def laplace_capped(
    a: FloatArray, t: FloatArray, epsilon2: float, cap: int
) -> FloatArray:
    """Return log V_cap for Laplace queries; finite for every shift.

    T + V B is convex in ``exp(-|x|)`` outside the kinks (see above), so each step of
    the recursion searches the kinks and the interval between them.
    """
    log_v = np.zeros_like(a)
    for _ in range(cap):
        step = log_v.copy()
        for s in (t + 1, t - 1):
            d = s * epsilon2

            def total(
                x: FloatArray, d: FloatArray = d, log_v: FloatArray = log_v
            ) -> FloatArray:
                top, bottom = _laplace_log_terms(x, a[:, None], d[:, None])
                return np.logaddexp(top, bottom + log_v[:, None])

            low, high = np.minimum(0.0, -d), np.maximum(0.0, -d)
            step = np.maximum(step, zoom_max(total, low, high, points=17, rounds=5))
        if np.all(step - log_v <= 1e-15):
            break
        log_v = step
    return log_v


def gaussian_capped(
    a: FloatArray, t: FloatArray, sigma2: float, cap: int
) -> FloatArray:
    """Return log V_cap for Gaussian queries by the backward recursion."""
    step = _GaussianStep(np.tile(a, 2), np.concatenate([t + 1, t - 1]) / sigma2)
    log_v = np.zeros_like(a)
    for j in range(cap):
        # Where the maximum sits moves continuously with V, less and less, but it may
        # jump between the two windows: scan the whole grid at 0, 1, 2, 8, 32, 128, ...
        scan = j < 2 or (j & (j - 1) == 0 and j.bit_length() % 2 == 0)
        raised = step.advance(np.tile(log_v, 2), scan=scan)
        log_v = np.maximum(log_v, raised.reshape(2, -1).max(axis=0))
    return log_v


def zoom_max(
    function: Callable[[FloatArray], FloatArray],
    low: FloatArray,
    high: FloatArray,
    *,
    points: int,
    rounds: int,
) -> FloatArray:
    """Maximize row by row on [low, high]: a grid, then ever finer grids at its peak."""
    rows = np.arange(low.size)
    best = np.full(low.size, -np.inf)
    for _ in range(rounds + 1):
        x = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, points)
        y = function(x)
        peak = np.argmax(y, axis=1)
        best = np.maximum(best, y[rows, peak])
        low = x[rows, np.maximum(peak - 1, 0)]
        high = x[rows, np.minimum(peak + 1, points - 1)]
        points = 17
    return best


class _GaussianStep:
    """sup over u of T + V B, followed as V grows.

    The maxima sit near 0 or near ``(a-1) d`` (the mode of the dominant Gaussian tail:
    tops for d > 0, bottoms for d < 0) and have width about one, so a grid of spacing
    1/2 over both windows finds the basins; Newton steps polish the best point of each.
    The problems come in two halves, one for each sign of the shift; those whose second
    window is not the first are searched twice.
    """

    def __init__(self, a: FloatArray, d: FloatArray) -> None:
        center = (a - 1) * d
        self.far = np.flatnonzero(np.abs(center) > 2)
        self.size = a.size
        owner = np.concatenate([np.arange(a.size), self.far])
        self.a, self.d = a[owner], d[owner]
        middle = np.concatenate([np.zeros(a.size), center[self.far]])
        self.grid = np.linspace(-12, 12, 49) + middle[:, None]
        self.top, self.bottom = self._logs(self.grid)
        self.owner = owner
        self.x = self.drift = np.zeros(owner.size)

    def _logs(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        a, d = self.a[:, None], self.d[:, None]
        top = a * log_ndtr(-x) + (1 - a) * log_ndtr(-x - d)
        return top, a * log_ndtr(x) + (1 - a) * log_ndtr(x + d)

    def advance(self, log_v: FloatArray, *, scan: bool) -> FloatArray:
        """Return log sup(T + V B) for the current V."""
        before = self.x
        best = self._scan(log_v) if scan else np.full(log_v.size, -np.inf)
        if not scan:
            self.x = self.x + self.drift  # where it went last time, it goes on to go
        for _ in range(8):
            with np.errstate(over="ignore", invalid="ignore"):  # hazards without noise
                value, gain = self._newton(log_v[self.owner])
            best = np.maximum(best, self._per_problem(value))
            leader = np.maximum(np.tile(best.reshape(2, -1).max(axis=0), 2), log_v)
            if np.all(value + gain <= leader[self.owner] * (1 + 1e-10)):
                break
        self.drift = np.clip(self.x - before, -0.5, 0.5)
        return best

    def _per_problem(self, value: FloatArray) -> FloatArray:
        """Return the better of the two windows of each problem."""
        best = value[: self.size].copy()
        best[self.far] = np.maximum(best[self.far], value[self.size :])
        return best

    def _scan(self, log_v: FloatArray) -> FloatArray:
        """Put each search at the best grid point of its window."""
        total = np.logaddexp(self.top, self.bottom + log_v[self.owner][:, None])
        peak = np.argmax(total, axis=1)[:, None]
        self.x = np.take_along_axis(self.grid, peak, axis=1)[:, 0]
        return self._per_problem(np.take_along_axis(total, peak, axis=1)[:, 0])

    def _newton(self, log_v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Move every search uphill; return the values and the rise to come."""
        x, a, d = self.x, self.a, self.d
        logs = [log_ndtr(y) for y in (-x, -x - d, x, x + d)]
        top = a * logs[0] + (1 - a) * logs[1]
        bottom = a * logs[2] + (1 - a) * logs[3] + log_v
        total = np.logaddexp(top, bottom)
        # Hazards phi/S and phi/F give the derivatives: (log S)' = -h, h' = h (h - x).
        here, there = (-0.5 * y * y - _HALF_LOG_TWO_PI for y in (x, x + d))
        h1, h2 = np.exp(here - logs[0]), np.exp(there - logs[1])
        r1, r2 = np.exp(here - logs[2]), np.exp(there - logs[3])
        top1, bottom1 = (a - 1) * h2 - a * h1, a * r1 - (a - 1) * r2
        top2 = (a - 1) * h2 * (h2 - x - d) - a * h1 * (h1 - x)
        bottom2 = (a - 1) * r2 * (r2 + x + d) - a * r1 * (r1 + x)
        p = np.exp(bottom - total)
        slope = (1 - p) * top1 + p * bottom1
        bend = (1 - p) * top2 + p * bottom2 + p * (1 - p) * (bottom1 - top1) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(bend < 0, -slope / bend, np.sign(slope) * 0.1)
        step = np.clip(np.nan_to_num(step), -1.0, 1.0)
        self.x = x + step
        return total, np.abs(slope * step)
