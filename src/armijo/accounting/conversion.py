# SPDX-License-Identifier: Apache-2.0
"""From Renyi curves and closed profiles to (epsilon, delta), and the solvers for both.

A run is judged at Renyi orders; :func:`rdp_limit` says how much Renyi divergence an
order may use up for the guarantee ``Budget(epsilon, delta)`` to hold, and
:func:`rdp_to_epsilon` is its inverse.  A single Gaussian release has a closed privacy
profile (Balle and Wang 2018), and so has the worst mechanism that is purely private.
:func:`smallest` turns any profile or curve that falls with the noise into the noise
that a budget asks for; :func:`zoom_max` finds the suprema behind such curves.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr

from armijo import _validate
from armijo.accounting.budget import Budget, FloatArray

_ROOT_TWO = math.sqrt(2.0)
_REACH = 1e18  # how far from its start a solution is sought


def rdp_to_epsilon(order: ArrayLike, rdp: ArrayLike, delta: float) -> FloatArray:
    """Convert Renyi divergence at an order to epsilon at ``delta``.

    ``epsilon = R + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)``, Canonne, Kamath
    and Steinke (2020), Proposition 12; never below zero.

    >>> float(rdp_to_epsilon(31, 0.5, 1e-8).round(12))
    0.966766628493
    """
    _validate.open_unit(delta=delta)
    a = np.asarray(order, dtype=float)
    slack = np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return np.maximum(np.asarray(rdp, dtype=float) + slack, 0.0)


def rdp_limit(order: ArrayLike, budget: Budget) -> FloatArray:
    """Return the largest Renyi divergence at ``order`` that still keeps the budget.

    The inverse of :func:`rdp_to_epsilon`; zero or negative where the order cannot be
    used for this budget.
    """
    a = np.asarray(order, dtype=float)
    return (
        budget.epsilon
        - np.log1p(-1 / a)
        + (math.log(budget.delta) + np.log(a)) / (a - 1)
    )


_LARGEST_ORDER = 2**40


def best_order(budget: Budget) -> int:
    """Return the integer order that affords most when costs are linear in the order.

    ``argmax rdp_limit(a) / a``, the choice of accounting rule for every setting whose
    noise multiplier is about 2 or more.  The optimum lies near
    ``2 log(1/delta) / epsilon``, so all integers up to twice that are tried, as far as
    doubles tell neighboring integers safely apart; below that epsilon of about 1e-11 a
    smaller order is as valid.

    >>> best_order(Budget(epsilon=1.0, delta=1e-8))
    31
    """
    reach = -4 * math.log(budget.delta) / budget.epsilon
    low, high = 2.0, float(max(64, math.ceil(min(reach, _LARGEST_ORDER))))
    while True:  # the ratio has one maximum: close in on it, whatever the reach
        orders = np.unique(np.rint(np.geomspace(low, high, 2048)))
        at = int(np.argmax(rdp_limit(orders, budget) / orders))
        if orders.size == high - low + 1:
            return int(orders[at])
        low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]


def order_grid(budget: Budget) -> NDArray[np.int64]:
    """Return integer orders from 2 to well past the best one, dense at first."""
    top = 4 * best_order(budget)
    sparse = np.geomspace(64, max(top, 65), 120)
    grid = np.concatenate([np.arange(2, 65), np.rint(sparse)])
    return np.unique(grid).astype(np.int64)


def between(orders: FloatArray, at: int) -> FloatArray:
    """Return the integers around one order of a grid (at most 64 of them)."""
    low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]
    return np.unique(np.rint(np.linspace(low, high, 64)))


def smallest_epsilon(curve: Callable[[FloatArray], FloatArray], delta: float) -> float:
    """Return epsilon of a Renyi curve at the best of all useful integer orders.

    Which orders are useful depends on the answer: the grid is moved to larger orders
    as long as that finds a much smaller epsilon, then refined around the best.
    """
    best, guess = math.inf, 1.0
    while guess >= 1e-4:
        orders = order_grid(Budget(epsilon=guess, delta=delta)).astype(float)
        epsilons = rdp_to_epsilon(orders, curve(orders), delta)
        best = min(best, float(np.min(epsilons)))
        if best > guess / 2:
            break
        guess = min(best, guess / 5)
    near = between(orders, int(np.argmin(epsilons)))
    return min(best, float(np.min(rdp_to_epsilon(near, curve(near), delta))))


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Return the exact delta of one Gaussian release at ``epsilon``.

    ``Phi(1/2s - epsilon s) - e^epsilon Phi(-1/2s - epsilon s)`` with the noise
    multiplier s, Balle and Wang (2018), Theorem 8.  Written with the scaled
    complementary error function: nothing overflows, and small deltas keep their digits.

    >>> gaussian_delta(1.0, 3.731) < 1e-5 < gaussian_delta(1.0, 3.73)
    True
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.positive(noise_multiplier=noise_multiplier)
    half = 0.5 / noise_multiplier
    low, high = epsilon * noise_multiplier - half, epsilon * noise_multiplier + half
    # e^epsilon Phi(-high) = e^{-low^2/2} erfcx(high/sqrt 2)/2: high^2 - low^2 = 2 eps.
    scale = 0.5 * math.exp(-0.5 * low * low)
    second = erfcx(high / _ROOT_TWO)
    if low < 0:  # there erfcx(low) may overflow, and Phi(-low) is at least one half
        return max(float(ndtr(-low) - scale * second), 0.0)
    return max(float(scale * (erfcx(low / _ROOT_TWO) - second)), 0.0)


def pure_delta(epsilon: float, proved: float) -> float:
    """Return the worst delta at ``epsilon`` of a mechanism that is ``proved``-DP.

    ``(e^E - e^epsilon) / (1 + e^E)`` below the proved E, else zero: that of randomized
    response, Kairouz, Oh and Viswanath (2015), Theorem 3.3.

    >>> pure_delta(1.0, 1.0), round(pure_delta(0.0, 1.0), 6)
    (0.0, 0.462117)
    """
    _validate.non_negative(epsilon=epsilon)
    if epsilon >= proved:
        return 0.0
    return -math.expm1(epsilon - proved) / (1 + math.exp(-proved))


def gaussian_noise(budget: Budget) -> float:
    """Return the smallest noise multiplier of one Gaussian release in the budget.

    Balle and Wang (2018), Algorithm 1, solved by :func:`smallest`.

    >>> round(gaussian_noise(Budget(epsilon=0.2, delta=1e-8)), 4)
    23.6747
    """
    return smallest(lambda noise: gaussian_delta(budget.epsilon, noise) <= budget.delta)


def smallest(
    keeps: Callable[[float], bool],
    start: float = 1.0,
    rtol: float = 1e-12,
    *,
    arithmetic: bool = False,
) -> float:
    """Return the smallest positive number that ``keeps``, to a relative precision.

    Parameters
    ----------
    keeps : callable
        False below the solution and true from there on.
    start : float, default=1.0
        Where to look first; the solution may be far from it.
    rtol : float, default=1e-12
        How far above the solution the answer may be.
    arithmetic : bool, default=False
        Whether to halve at the arithmetic mean instead of the geometric.

    Returns
    -------
    float
        A number for which ``keeps`` was evaluated and true.

    Raises
    ------
    ValueError
        If nothing up to ``1e18 * start`` keeps.
    """
    _validate.positive(start=start)
    high = start
    while not keeps(high):
        high *= 2
        if high > _REACH * start:
            raise ValueError(
                f"Expected a budget that some noise keeps, found none up to {high:g}; "
                "raise epsilon, or lower what else is charged to it."
            )
    low = high / 2
    while keeps(low):
        low, high = low / 2, low
        if high < start / _REACH:  # so much budget that hardly any noise is needed
            return high
    while high > low * (1 + rtol):
        geometric = math.sqrt(low) * math.sqrt(high)
        middle = (low + high) / 2 if arithmetic else geometric
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


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
