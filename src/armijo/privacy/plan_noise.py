# SPDX-License-Identifier: Apache-2.0
"""How much noise a whole plan needs, when its mechanisms share one scale."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from armijo.privacy.budget import Budget, FloatArray, between, order_grid, rdp_limit
from armijo.privacy.mechanisms import Composed, Mechanism, Repeated
from armijo.privacy.planned import Plan, merged, planned_epsilon

_TINY = 1e-12  # a large delta may make epsilon zero, which has no logarithm
COARSENESS = 5.0
"""Of the loss distribution while noise is sought; costs 0.05 % noise."""


def noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget.

    ``plan_at(scale)`` names every charge of a run; more scale must mean less cost.
    Solved on Renyi curves, then refined by a few secant steps in (log noise, log
    epsilon) where the plan has a privacy loss distribution.  The result always keeps
    the budget: the last evaluation is on the safe side.

    >>> from armijo.privacy.mechanisms import Gaussian
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_for_plan(budget, lambda z: [(Gaussian(noise_scale=z), 1)]), 3)
    3.731
    """

    def planned(scale: float) -> tuple[float, str]:
        return planned_epsilon(plan_at(scale), budget.delta, coarseness=COARSENESS)

    start = renyi_noise_for_plan(budget, plan_at)
    if planned(start)[1] == "planned-rdp":
        return start
    return _secant(lambda scale: planned(scale)[0], start, budget.epsilon)


def renyi_noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget by its Renyi curves."""

    def share_at(scale: float) -> float:
        charges = merged(plan_at(scale))
        parts = tuple(Repeated(part, count) for part, count in charges)
        return best_share(budget, Composed(parts))[0]

    return _solve_log(share_at, budget)


def _solve_log(share_at: Callable[[float], float], budget: Budget) -> float:
    """Solve a falling share(noise) = 1 of the budget by bracketing in log noise."""
    low, high = 0.0, 0.0
    while share_at(math.exp(high)) > 1:
        high += 1.0
        if high > 40:
            raise ValueError(
                f"No noise reaches epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}: what else is done costs more; lower the budget of "
                "the search or the number of runs, or raise epsilon."
            )
    while share_at(math.exp(low)) <= 1:
        low -= 1.0
        if low < -8:  # so much epsilon that hardly any noise is needed
            return math.exp(low)
    root = brentq(lambda z: math.log(share_at(math.exp(z))), low, high, xtol=1e-7)
    return math.exp(root + 2e-7)


def _secant(epsilon_at: Callable[[float], float], start: float, target: float) -> float:
    """Refine ``start`` (which keeps the target) on a tighter, costlier epsilon."""
    safe = previous = start
    value = max(epsilon_at(previous), _TINY)
    noise = previous * max((value / target) ** 0.9, 0.8)
    for _ in range(12):
        new = max(epsilon_at(noise), _TINY)
        if new <= target:
            safe = noise
            if new >= target * (1 - 2e-4):
                break
        if new == value or noise == previous:
            break  # epsilon does not follow the noise any more
        slope = math.log(new / value) / math.log(noise / previous)
        previous, value = noise, new
        factor = (target * (1 - 1e-4) / new) ** (1 / slope)
        noise *= min(max(factor, 0.7), 1.4)
    return safe


def best_share(budget: Budget, step: Mechanism) -> tuple[float, int]:
    """Return the smallest share of a limit that one step uses, and at which order."""
    orders = order_grid(budget).astype(float)
    shares = _shares(budget, step, orders)
    orders = between(orders, int(np.argmin(shares)))
    shares = _shares(budget, step, orders)
    at = int(np.argmin(shares))
    return float(shares[at]), int(orders[at])


def _shares(budget: Budget, step: Mechanism, orders: FloatArray) -> FloatArray:
    """Return cost over limit; infinite where the order has no limit left."""
    limits = rdp_limit(orders, budget)
    usable = np.maximum(limits, 1e-300)
    with np.errstate(over="ignore"):  # a share too large for a double is infinite
        return np.where(limits > 0, step.rdp(orders) / usable, np.inf)
