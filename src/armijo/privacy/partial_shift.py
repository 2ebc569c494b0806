# SPDX-License-Identifier: Apache-2.0
"""The growth factor V of Theorem A (docs/proofs.md): what a run of comparisons leaks.

Shift the neighbor's threshold by ``t`` of the sensitivity.  One comparison against a
threshold ``u`` then passes with probability S(u) here and S(u + s) there, where the
worst ``s`` is ``t - 1`` or ``t + 1`` (convexity in S(u + s), so interior shifts and
every pattern of signs are covered).  With ``F = 1 - S`` and order ``a``

    T(u) = S(u)^a S(u+s)^(1-a),  B(u) = F(u)^a F(u+s)^(1-a),
    V_0 = 1,  V_j = sup over u and s of T(u) + V_{j-1} B(u),

and ``V_inf = max(1, sup T / (1 - B))`` where B stays below one.  All functions work on
flat arrays of problems (one order and one shift each), in logarithms, with ``u`` in
units of the query noise.  A supremum that is missed makes the bound invalid, so where
the maximum may lie is argued at each search.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from armijo.privacy.budget import FloatArray

LOG2 = np.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


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
    """Return log F(x) of the standard Laplace law."""
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
        """Return log T and log B."""
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
