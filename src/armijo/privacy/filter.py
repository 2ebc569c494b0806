# SPDX-License-Identifier: Apache-2.0
"""The privacy filter: budgets, retries and stopping times may be chosen on the way.

One order, fixed before any row is seen: if no access is started whose conditional cost
would push the sum above ``rdp_limit(order)``, the whole adaptive run is (order,
limit)-RDP (Feldman and Zrnic 2021; Lecuyer 2021).  Several orders, going
on while *any* is within its limit, is sound only if their deltas add up to delta: order
a with weight w_a gets the limit of ``(epsilon, w_a delta)`` (docs/proofs.md; without
weights the tight conversion is off by more than a factor 2).
"""

from collections.abc import Mapping

import numpy as np

from armijo import _validate
from armijo.privacy.accountant import Accountant, LedgerFactory
from armijo.privacy.budget import (
    Budget,
    Computed,
    FloatArray,
    Neighboring,
    best_order,
    rdp_limit,
)
from armijo.privacy.mechanisms import Mechanism


class PrivacyFilter(Accountant):
    """Accountant for runs that decide while they run.

    Parameters
    ----------
    budget : Budget
        The preset promise, which is also what gets reported.
    relation : Neighboring, default=ADD_REMOVE
        The neighboring relation.
    orders : int, mapping of int to float, or None
        The one order; or orders with weights that sum to at most one; None picks
        :func:`armijo.privacy.budget.best_order`.  Fixed for the life of the filter.
    insecure_deterministic : bool, default=False
        Say so when randomness comes from a seed: the promise is then void.
    leaky_diagnostics : bool, default=False
        Say so when exact values are recorded beside the run: the promise is void.
    computed : Computed or None
        How numbers are computed, for the guarantee to name.
    ledger : callable or None
        Opens the ledger from the header; None keeps the charges in memory.

    Examples
    --------
    >>> from armijo.privacy.mechanisms import Gaussian
    >>> watch = PrivacyFilter(Budget(epsilon=1.0, delta=1e-8))
    >>> watch.charge(Gaussian.from_rho(0.01), label="first")
    0
    >>> watch.affords(Gaussian.from_rho(0.01))
    False
    """

    def __init__(
        self,
        budget: Budget,
        *,
        relation: Neighboring = Neighboring.ADD_REMOVE,
        orders: int | Mapping[int, float] | None = None,
        insecure_deterministic: bool = False,
        leaky_diagnostics: bool = False,
        computed: Computed | None = None,
        ledger: LedgerFactory | None = None,
    ) -> None:
        weights = _weights(best_order(budget) if orders is None else orders)
        self._orders = np.array(sorted(weights), dtype=float)
        self._deltas = np.array([weights[int(a)] * budget.delta for a in self._orders])
        limits = np.array(
            [
                float(rdp_limit(order, Budget(epsilon=budget.epsilon, delta=delta)))
                for order, delta in zip(self._orders, self._deltas, strict=True)
            ]
        )
        self._drop_unusable(limits, budget)
        super().__init__(
            budget,
            relation=relation,
            limits=limits[limits > 0],
            name="filter-rdp" if len(weights) == 1 else "filter-rdp-weighted",
            insecure_deterministic=insecure_deterministic,
            leaky_diagnostics=leaky_diagnostics,
            computed=computed,
            ledger=ledger,
        )

    def _drop_unusable(self, limits: FloatArray, budget: Budget) -> None:
        """Leave out orders whose conversion alone exceeds epsilon."""
        usable = limits > 0
        if not np.any(usable):
            raise ValueError(
                f"Expected an order that can prove epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}, got {self._orders.tolist()}; the conversion alone "
                f"costs more. Order {best_order(budget)} would do."
            )
        self._orders, self._deltas = self._orders[usable], self._deltas[usable]

    @property
    def orders(self) -> FloatArray:
        """The orders in use; they never change."""
        return self._orders.copy()

    def header(self) -> dict[str, object]:
        """Add the orders to the ledger's first line."""
        return {**super().header(), "orders": self._orders.tolist()}

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        """Return the mechanism's curve at the fixed orders."""
        return np.asarray(mechanism.rdp(self._orders), dtype=float)

    def _fits(self, total: FloatArray) -> bool:
        """Hold at least one order within its limit."""
        # With room for the rounding of "sum plus cost": the exact sum keeps it too.
        return bool(np.any(total * (1 + 1e-12) <= self.limits))


def _weights(orders: int | Mapping[int, float]) -> dict[int, float]:
    """Check orders and weights; one order has the whole delta."""
    weights = dict(orders) if isinstance(orders, Mapping) else {orders: 1.0}
    if not weights:
        raise ValueError("Expected at least one order, got none; name one.")
    for order, weight in weights.items():
        _validate.at_least(2, order=order)
        _validate.positive(weight=weight)
    total = sum(weights.values())
    if total > 1 + 1e-12:
        raise ValueError(
            f"Expected weights that sum to at most 1, got {total!r}; each order pays "
            "its share of delta, so divide the weights by their sum."
        )
    return weights
