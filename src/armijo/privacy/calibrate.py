# SPDX-License-Identifier: Apache-2.0
"""The inverse problem: how much noise, or which epsilon, for a number of steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from armijo import _validate
from armijo.errors import BudgetExceeded
from armijo.privacy.above_threshold import AboveThreshold
from armijo.privacy.budget import Budget, smallest_epsilon
from armijo.privacy.mechanisms import Composed, Gaussian, Mechanism
from armijo.privacy.plan_noise import (
    best_share,
    noise_for_plan,
    renyi_noise_for_plan,
)
from armijo.privacy.planned import planned_epsilon
from armijo.privacy.subsampling import Subsampled

AccountantName = Literal["planned", "adaptive"]


def step_mechanism(
    rate: float, noise_multiplier: float, search: Mechanism | None = None
) -> Subsampled:
    """Return one step: a Gaussian gradient and perhaps a search on one batch."""
    _validate.positive(noise_multiplier=noise_multiplier)
    gradient = Gaussian(noise_scale=noise_multiplier)
    inner = gradient if search is None else Composed((gradient, search))
    return Subsampled(inner, rate)


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
    return _filter_epsilon(step, steps, delta), "filter-rdp"


def _filter_epsilon(step: Mechanism, steps: int, delta: float) -> float:
    """Return the best single-order epsilon of equal steps."""
    return smallest_epsilon(lambda orders: steps * step.rdp(orders), delta)


@lru_cache(maxsize=256, typed=True)
def noise_multiplier_for(
    budget: Budget,
    *,
    rate: float,
    steps: int,
    search: Mechanism | None = None,
    accountant: AccountantName = "planned",
) -> float:
    """Return the smallest noise multiplier with which ``steps`` steps keep the budget.

    See :func:`armijo.privacy.plan_noise.noise_for_plan`; ``"adaptive"`` stays with the
    Renyi curves that a filter adds up.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_multiplier_for(budget, rate=1.0, steps=1), 3)
    3.731
    """
    _validate.rate(rate=rate)
    _validate.at_least(1, steps=steps)
    _validate.choice(("planned", "adaptive"), accountant=accountant)
    solve = noise_for_plan if accountant == "planned" else renyi_noise_for_plan
    return solve(budget, lambda noise: [(step_mechanism(rate, noise, search), steps)])


def affordable_steps(
    budget: Budget, *, rate: float, noise_multiplier: float, most: int
) -> int:
    """Return how many of ``most`` steps with given noise keep the budget, when planned.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> affordable_steps(budget, rate=0.01, noise_multiplier=1.0, most=900)
    254
    """
    _validate.at_least(1, most=most)
    step = step_mechanism(rate, noise_multiplier)

    def fits(steps: int) -> bool:
        return planned_epsilon([(step, steps)], budget.delta)[0] <= budget.epsilon

    if not fits(1):
        needed = planned_epsilon([(step, 1)], budget.delta)[0]
        raise BudgetExceeded(
            f"One step with noise_multiplier {noise_multiplier:g} at rate {rate:g} "
            f"costs epsilon {needed:.4g}, the budget is {budget.epsilon:g}; raise the "
            "noise or epsilon, or leave the noise to be solved. Nothing was spent."
        )
    low, high = 1, most + 1
    if fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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
    rate: float,
    steps: int,
    search: Callable[[float], Mechanism] = AboveThreshold.laplace,
) -> StepBudget:
    """Return the per-step budgets that let ``steps`` line-search steps fit exactly.

    Gradient and search share a batch and are charged jointly; the search, made by
    ``search(search_epsilon)``, gets ``search_epsilon = sqrt(2 gradient_rho)``, the
    split of Chen and Lee.
    """
    _validate.rate(rate=rate)
    _validate.at_least(1, steps=steps)

    noise = renyi_noise_for_plan(
        budget, lambda z: [(step_mechanism(rate, z, search(1 / z)), steps)]
    )
    return StepBudget(gradient_rho=0.5 / noise**2, search_epsilon=1 / noise)
