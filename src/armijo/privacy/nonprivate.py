# SPDX-License-Identifier: Apache-2.0
"""Accesses without protection, so that an upper bound goes through the same gate."""

from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np

from armijo.privacy.accountant import Accountant, LedgerFactory
from armijo.privacy.budget import Budget, Computed, FloatArray, Neighboring
from armijo.privacy.mechanisms import Mechanism

NOT_PRIVATE = "the method reads the rows without any noise: not private"
"""Broken premise of every run with this accountant."""


@dataclass(frozen=True)
class NonPrivate:
    """An answer without noise: its curve is infinite, every other accountant refuses.

    >>> float(NonPrivate().rdp(np.array([2.0]))[0])
    inf
    """

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return infinity at every order."""
        return np.full(np.shape(orders), np.inf)

    def dp_event(self) -> dpa.DpEvent:
        """Return the event of an access without protection."""
        return dpa.NonPrivateDpEvent()


class NonPrivateAccountant(Accountant):
    """Accountant of a run that promises nothing; its label says so.

    It allows ``accesses`` accesses, each of which costs one.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        accesses: int = 1,
        relation: Neighboring = Neighboring.ADD_REMOVE,
        insecure_deterministic: bool = False,
        leaky_diagnostics: bool = False,
        computed: Computed | None = None,
        ledger: LedgerFactory | None = None,
    ) -> None:
        super().__init__(
            budget,
            relation=relation,
            limits=np.array([float(accesses)]),
            name="none",
            broken_premises=(NOT_PRIVATE,),
            insecure_deterministic=insecure_deterministic,
            leaky_diagnostics=leaky_diagnostics,
            computed=computed,
            ledger=ledger,
        )

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        """Count an access."""
        return np.ones(1)

    def _fits(self, total: FloatArray) -> bool:
        """Hold the number of accesses within the plan."""
        return bool(total[0] <= self.limits[0])
