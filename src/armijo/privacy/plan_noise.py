# SPDX-License-Identifier: Apache-2.0
"""How much noise a whole plan needs, when its mechanisms share one scale."""

from collections.abc import Callable

from armijo.privacy.budget import Budget
from armijo.privacy.calibrate import COARSENESS, best_share, secant, solve_log
from armijo.privacy.mechanisms import Composed, Repeated
from armijo.privacy.planned import Plan, merged, planned_epsilon


def noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget.

    ``plan_at(scale)`` names every charge of a run; more scale must mean less cost.
    Solved on Renyi curves, then refined where the plan has a privacy loss
    distribution.  The last evaluation is on the safe side.

    >>> from armijo.privacy.mechanisms import Gaussian
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_for_plan(budget, lambda z: [(Gaussian(noise_scale=z), 1)]), 3)
    3.731
    """

    def by_rdp(scale: float) -> float:
        charges = merged(plan_at(scale))
        parts = tuple(Repeated(part, count) for part, count in charges)
        return best_share(budget, Composed(parts))[0]

    start = solve_log(by_rdp, budget)
    if planned_epsilon(plan_at(start), budget.delta)[1] == "planned-rdp":
        return start

    def by_plan(scale: float) -> float:
        plan = plan_at(scale)
        return planned_epsilon(plan, budget.delta, coarseness=COARSENESS)[0]

    return secant(by_plan, start, budget.epsilon)
