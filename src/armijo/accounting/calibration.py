# SPDX-License-Identifier: Apache-2.0
"""The inverse problem: how much noise, or which epsilon, for a plan or a few steps.

:func:`noise_for_plan` solves for the one scale that all mechanisms of a plan share; the
other functions ask it, or the accountants, about runs of equal steps.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from armijo import _validate
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.conversion import (
    between,
    order_grid,
    rdp_limit,
    smallest_epsilon,
)
from armijo.accounting.mechanisms import Composed, Gaussian, Mechanism, Repeated
from armijo.accounting.planned import Plan, merged, planned_epsilon
from armijo.accounting.subsampling import Subsampled
from armijo.errors import BudgetExceeded

AccountantName = Literal["planned", "adaptive"]
_TINY = 1e-12  # a large delta may make epsilon zero, which has no logarithm
COARSENESS = 5.0
"""Of the loss distribution while noise is sought; costs 0.05 % noise."""


def noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget.

    ``plan_at(scale)`` names every charge of a run; more scale must mean less cost.
    Solved on Renyi curves, then refined by a few secant steps in (log noise, log
    epsilon) where the plan has a privacy loss distribution.  The result always keeps
    the budget: the last evaluation is on the safe side.

    >>> from armijo.accounting.mechanisms import Gaussian
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


def step_mechanism(
    sampling_prob: float, noise_multiplier: float, search: Mechanism | None = None
) -> Subsampled:
    """Return one step: a Gaussian gradient and perhaps a search on one batch."""
    _validate.positive(noise_multiplier=noise_multiplier)
    gradient = Gaussian(noise_scale=noise_multiplier)
    inner = gradient if search is None else Composed((gradient, search))
    return Subsampled(inner, sampling_prob)


def epsilon_of(
    step: Mechanism,
    steps: int,
    delta: float,
    *,
    accountant: AccountantName = "planned",
) -> tuple[float, str]:
    """Return epsilon of ``steps`` equal steps and which accountant proves it.

    ``"adaptive"`` is the smallest preset epsilon with which a privacy filter affords
    them, its order chosen for these costs beforehand.
    """
    _validate.at_least(1, steps=steps)
    _validate.choice(("planned", "adaptive"), accountant=accountant)
    if accountant == "planned":
        return planned_epsilon([(step, steps)], delta)
    by_filter = smallest_epsilon(lambda orders: steps * step.rdp(orders), delta)
    return by_filter, "filter-rdp"


@lru_cache(maxsize=256, typed=True)
def noise_multiplier_for(
    budget: Budget,
    *,
    sampling_prob: float,
    steps: int,
    search: Mechanism | None = None,
    accountant: AccountantName = "planned",
) -> float:
    """Return the smallest noise multiplier with which ``steps`` steps keep the budget.

    See :func:`noise_for_plan`; ``"adaptive"`` stays with the Renyi curves that a filter
    adds up.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_multiplier_for(budget, sampling_prob=1.0, steps=1), 3)
    3.731
    """
    _validate.sampling_prob(sampling_prob=sampling_prob)
    _validate.at_least(1, steps=steps)
    _validate.choice(("planned", "adaptive"), accountant=accountant)
    solve = noise_for_plan if accountant == "planned" else renyi_noise_for_plan
    return solve(
        budget, lambda noise: [(step_mechanism(sampling_prob, noise, search), steps)]
    )


def affordable_steps(
    budget: Budget, *, sampling_prob: float, noise_multiplier: float, most: int
) -> int:
    """Return how many of ``most`` steps with given noise keep the budget, when planned.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> affordable_steps(budget, sampling_prob=0.01, noise_multiplier=1.0, most=900)
    254
    """
    _validate.at_least(1, most=most)
    step = step_mechanism(sampling_prob, noise_multiplier)

    def needed(steps: int) -> float:
        return planned_epsilon([(step, steps)], budget.delta)[0]

    if needed(1) > budget.epsilon:
        raise BudgetExceeded(
            f"One step with noise_multiplier {noise_multiplier:g} at "
            f"sampling_prob {sampling_prob:g} "
            f"costs epsilon {needed(1):.4g}, the budget is {budget.epsilon:g}; raise "
            "the noise or epsilon, or leave the noise to be solved. Nothing was spent."
        )
    if needed(most) <= budget.epsilon:
        return most
    return bisect_left(
        range(1, most), True, lo=1, key=lambda steps: needed(steps) > budget.epsilon
    )


def order_for(budget: Budget, step: Mechanism) -> int:
    """Return the order at which the budget affords most of these steps.

    Chosen from public settings before any row is seen, as the filter requires.
    """
    return best_share(budget, step)[1]


@dataclass(frozen=True, kw_only=True)
class StepBudget:
    """Budgets of one line-search step: gradient rho and search epsilon."""

    gradient_rho: float
    search_epsilon: float


@lru_cache(maxsize=256, typed=True)
def line_search_budget(
    budget: Budget,
    *,
    sampling_prob: float,
    steps: int,
    search: Callable[[float], Mechanism] = AboveThreshold.laplace,
) -> StepBudget:
    """Return the per-step budgets that let ``steps`` line-search steps fit exactly.

    Gradient and search share a batch and are charged jointly; the search, made by
    ``search(search_epsilon)``, gets ``search_epsilon = sqrt(2 gradient_rho)``, the
    split of Chen and Lee.
    """
    _validate.sampling_prob(sampling_prob=sampling_prob)
    _validate.at_least(1, steps=steps)

    noise = renyi_noise_for_plan(
        budget, lambda z: [(step_mechanism(sampling_prob, z, search(1 / z)), steps)]
    )
    return StepBudget(gradient_rho=0.5 / noise**2, search_epsilon=1 / noise)
