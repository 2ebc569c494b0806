# SPDX-License-Identifier: Apache-2.0
"""The privacy filter: budgets, retries and stopping times may be chosen on the way.

One order, fixed before any row is seen: if no access is started whose conditional cost
would push the sum above ``rdp_limit(order)``, the whole adaptive run is (order,
limit)-RDP (Feldman and Zrnic 2021; Lecuyer 2021).  Going on while *any* of several
orders is within its limit would be off by more than a factor 2 (docs/proofs.md).
"""

from typing import Unpack

import numpy as np

from armijo import _validate
from armijo.accounting.accountant import Accountant, RunTerms
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.conversion import best_order, rdp_limit
from armijo.accounting.mechanisms import Mechanism


class PrivacyFilter(Accountant):
    """Accountant for runs that decide while they run.

    Parameters
    ----------
    budget : Budget
        The preset guarantee, which is also what gets reported.
    order : int or None
        The Renyi order, fixed for the life of the filter; None picks
        :func:`armijo.accounting.conversion.best_order`.
    **terms
        The terms of the run, as for :class:`armijo.accounting.accountant.Accountant`.

    Examples
    --------
    >>> from armijo.accounting.mechanisms import Gaussian
    >>> watch = PrivacyFilter(Budget(epsilon=1.0, delta=1e-8))
    >>> watch.charge(Gaussian.from_rho(0.01), label="first")
    0
    >>> watch.affords(Gaussian.from_rho(0.01))
    False
    """

    def __init__(
        self, budget: Budget, *, order: int | None = None, **terms: Unpack[RunTerms]
    ) -> None:
        order = best_order(budget) if order is None else order
        _validate.at_least(2, order=order)
        limit = float(rdp_limit(order, budget))
        if limit <= 0:
            raise ValueError(
                f"Expected an order that can prove epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}, got {order}; the conversion alone costs more. "
                f"Order {best_order(budget)} would do."
            )
        self._order = order
        super().__init__(budget, limits=np.array([limit]), name="filter-rdp", **terms)

    @property
    def order(self) -> int:
        """The order in use; it never changes."""
        return self._order

    def header(self) -> dict[str, object]:
        """Add the order to the ledger's first line."""
        return {**super().header(), "orders": [float(self._order)]}

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        return np.asarray(mechanism.rdp(np.array([float(self._order)])), dtype=float)

    def _fits(self, total: FloatArray) -> bool:
        # With room for the rounding of "sum plus cost": the exact sum keeps it too.
        return bool(total[0] * (1 + 1e-12) <= self.limits[0])
