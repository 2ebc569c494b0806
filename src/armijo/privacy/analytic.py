# SPDX-License-Identifier: Apache-2.0
"""Closed profiles of one release, and the one solver that its noise comes from.

A single Gaussian release has a closed privacy profile (Balle and Wang 2018), so it
needs neither Renyi curves nor loss distributions; so has the worst mechanism that is
purely private.  :func:`smallest_safe` turns any profile or curve that falls with the
noise into the noise that a budget asks for.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import erfcx, ndtr

from armijo import _validate
from armijo.privacy.budget import Budget, FloatArray, rdp_limit
from armijo.privacy.mechanisms import Mechanism

_ROOT_TWO = math.sqrt(2.0)
_PRECISION = 1e-12  # relative, of every noise that is solved for
_REACH = 1e18  # how far from its start a solution is sought


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

    Balle and Wang (2018), Algorithm 1, solved by bisection.

    >>> round(gaussian_noise(Budget(epsilon=0.2, delta=1e-8)), 4)
    23.6747
    """
    return smallest_safe(
        lambda noise: gaussian_delta(budget.epsilon, noise) <= budget.delta
    )


def smallest_safe(keeps: Callable[[float], bool], start: float = 1.0) -> float:
    """Return the smallest positive number that ``keeps``, to twelve digits.

    Parameters
    ----------
    keeps : callable
        False below the solution and true from there on.
    start : float, default=1.0
        Where to look first; the solution may be far from it.

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
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def dense_orders(budget: Budget) -> FloatArray:
    """Return 2,000 real orders, from near one to well past the best for the budget.

    At least 1.5 to 2,560; the best order for a cost linear in the order is about
    ``1 + 2 log(1/delta) / epsilon``, or ``1 + sqrt(log(1/delta) / epsilon)`` when
    epsilon is large.
    """
    ratio = -math.log(budget.delta) / budget.epsilon
    low, high = min(0.5, 0.2 * math.sqrt(ratio)), max(2559.0, 16 * ratio)
    return 1 + np.geomspace(low, high, 2000)


def rdp_keeps(
    mechanism: Mechanism,
    budget: Budget,
    orders: FloatArray,
    *,
    classical: bool = False,
) -> bool:
    """Say whether the curve of a mechanism keeps the budget at one of the orders.

    ``classical`` converts with ``epsilon = R + log(1/delta) / (a - 1)``, Mironov
    (2017), Proposition 3, as older papers do, not with the tighter :func:`rdp_limit`.
    """
    limits = rdp_limit(orders, budget)
    if classical:
        limits = budget.epsilon + math.log(budget.delta) / (orders - 1)
    return bool(np.any(mechanism.rdp(orders) <= limits))
