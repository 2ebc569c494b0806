# SPDX-License-Identifier: Apache-2.0
"""Which accountant watches a method: by its plan, by a filter, or as printed."""

import math
from functools import lru_cache
from typing import Any, Literal

from armijo import _validate
from armijo.accounting.accountants import (
    Accountant,
    NonPrivateAccountant,
    PlannedAccountant,
    PrivacyFilter,
)
from armijo.accounting.budget import Budget, Computed, Neighboring
from armijo.accounting.calibration import epsilon_of, order_for
from armijo.accounting.mechanisms import Mechanism, Subsampled
from armijo.accounting.paper import PaperAccountant
from armijo.errors import BudgetExceeded
from armijo.methods.base import Method, S

Accounting = Literal["sound", "paper"]


def accountant_for(
    method: Method[S],
    start: S,
    budget: Budget,
    *,
    relation: Neighboring,
    private: bool = True,
    accounting: Accounting = "sound",
    seeded: bool = False,
    leaky: bool = False,
    computed: Computed | None = None,
) -> Accountant:
    """Return the accountant of a method, after checking that one step fits at all.

    Charges that are fixed beforehand are planned, others go through a filter whose
    order is chosen for the first of them.
    """
    _validate.choice(("sound", "paper"), accounting=accounting)
    common: dict[str, Any] = {
        "relation": relation,
        "insecure_deterministic": seeded,
        "leaky_diagnostics": leaky,
        "computed": computed,
    }
    schedule = method.schedule()
    if not private:
        accesses = sum(count for _, count in schedule or ())
        return NonPrivateAccountant(budget, accesses=accesses, **common)
    if schedule is not None:
        return PlannedAccountant(budget, schedule, **common)
    if accounting == "paper":
        return PaperAccountant(budget, **common)
    order = _order_of_filter(budget, method.plan(start).mechanism)
    return PrivacyFilter(budget, order=order, **common)


@lru_cache(maxsize=256)
def _order_of_filter(budget: Budget, step: Subsampled) -> int:
    """Return the order chosen for a first step; kept, since folds ask for the same."""
    _refuse_tiny(budget, step)
    return order_for(budget, step)


def _refuse_tiny(budget: Budget, step: Mechanism) -> None:
    """Say what epsilon would do when not even one step fits."""
    needed, _ = epsilon_of(step, 1, budget.delta, accountant="adaptive")
    if needed > budget.epsilon:
        raise BudgetExceeded(
            f"Epsilon {budget.epsilon:g} at delta {budget.delta:g} is too small for a "
            f"single step, which needs epsilon {_rounded_up(needed):g}; raise epsilon "
            "to that, or lower what a step costs (gradient_rho and search_epsilon, or "
            "more expected steps or splits). Nothing was spent."
        )


def _rounded_up(value: float) -> float:
    """Round up to four digits, so that what a message names is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit) * unit:.4g}")
