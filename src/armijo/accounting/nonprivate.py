# SPDX-License-Identifier: Apache-2.0
"""Accesses without protection, so that an upper bound goes through the same gate."""

from dataclasses import dataclass
from typing import Unpack

import dp_accounting as dpa
import numpy as np

from armijo.accounting.accountant import Accountant, RunTerms
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import Mechanism

NOT_PRIVATE = "the method reads the rows without any noise: not private"
"""Broken premise of every run with this accountant."""


@dataclass(frozen=True)
class NonPrivate(Mechanism):
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
    """Accountant of a run that guarantees nothing; its label says so.

    It allows ``accesses`` accesses, each of which costs one; the terms of the run are
    those of :class:`armijo.accounting.accountant.Accountant`.
    """

    def __init__(
        self, budget: Budget, *, accesses: int = 1, **terms: Unpack[RunTerms]
    ) -> None:
        super().__init__(
            budget,
            limits=np.array([float(accesses)]),
            name="none",
            broken_premises=(NOT_PRIVATE,),
            **terms,
        )

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        return np.ones(1)

    def _fits(self, total: FloatArray) -> bool:
        return bool(total[0] <= self.limits[0])
