# SPDX-License-Identifier: Apache-2.0
"""Budgets of private selections: from (epsilon, delta) to the epsilon of each draw.

A draw with weights ``exp(epsilon u / Gamma)``, where no two scores u of one row are
further apart than Gamma, has ``epsilon``-bounded range.  That is ``epsilon``-DP, hence
``epsilon^2 / 2``-zCDP, which earlier papers charge; but it is also
``epsilon^2 / 8``-zCDP (Cesar and Rogers 2021), so that the same budget buys twice the
epsilon.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.accounting.mechanisms import ExponentialMechanism, pure_delta
from armijo.methods.base import Schedule

SelectionRule = Literal["bounded", "pure"]
"""What a selection's budget buys: by its bounded range, or as pure DP (replicas)."""

_TOLERANCE = 1e-4  # of the logarithm of the solved epsilon


def selection_epsilon(rho: float, rule: SelectionRule) -> float:
    """Return the epsilon that a selection gets for ``rho``.

    >>> selection_epsilon(0.5, "pure"), selection_epsilon(0.5, "bounded")
    (1.0, 2.0)
    """
    return math.sqrt((8 if rule == "bounded" else 2) * rho)


def concentrated_rho(budget: Budget) -> float:
    """Return ``(sqrt(L + epsilon) - sqrt(L))^2`` with ``L = log(1/delta)``.

    The largest rho whose zCDP implies the budget by ``rho + 2 sqrt(rho L)``, Bun and
    Steinke (2016), Proposition 1.3.

    >>> round(concentrated_rho(Budget(epsilon=0.8, delta=1e-8)), 9)
    0.008502247
    """
    length = -math.log(budget.delta)
    root = math.sqrt(length + budget.epsilon) + math.sqrt(length)
    return (budget.epsilon / root) ** 2


def affordable_epsilon(
    budget: Budget, schedule: Callable[[float], Schedule], start: float
) -> float:
    """Return the largest epsilon of a draw with which a whole schedule fits.

    Parameters
    ----------
    budget : Budget
        The guarantee of the whole.
    schedule : callable
        The charges of a run whose draws have a given epsilon; more of it costs more.
    start : float
        A first guess.
    """

    def excess(log_epsilon: float) -> float:
        cost, _ = planned_epsilon(schedule(math.exp(log_epsilon)), budget.delta)
        return math.log(max(cost, 1e-12) / budget.epsilon)

    low = high = math.log(start)
    while excess(low) > 0:
        low -= 0.7
    while excess(high) <= 0:
        high += 0.7
    solved = float(brentq(excess, low, high, xtol=_TOLERANCE))
    while excess(solved) > -1e-9:  # keep the budget, whatever the order of a sum
        solved -= _TOLERANCE
    return math.exp(solved)


@dataclass(frozen=True)
class OnlySelection(ExponentialMechanism):
    """A selection that is a whole run: its pure epsilon holds for any delta.

    Renyi curves cannot say so at a finite order.
    """

    def delta_at(self, epsilon: float) -> float:
        """Return delta of the worst ``epsilon``-DP mechanism."""
        return pure_delta(epsilon, self.epsilon)
