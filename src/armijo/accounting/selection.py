# SPDX-License-Identifier: Apache-2.0
"""Private selection: run a private mechanism a random number of times, keep the best.

Hyperparameters chosen by trying are paid for here.  The number of runs K is geometric
and never shown; only the best run is released (Papernot and Steinke 2022).  "Best" is
judged by what a run releases anyway.
"""

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Mechanism

SELECTION_ORDERS = np.unique(
    np.rint(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 97)]))
)
"""Orders at which the inner curve is looked at; integers, so that any curve will do."""


@dataclass(frozen=True)
class RepeatAndSelect(Mechanism):
    """The best of K runs of ``inner``, K geometric with mean ``mean``.

    >>> from armijo.accounting.mechanisms import Gaussian
    >>> tuned = RepeatAndSelect(Gaussian(noise_scale=10.0), mean=10.0)
    >>> round(float(tuned.rdp(np.array([20.0]))[0]), 4)
    0.6389
    """

    inner: Mechanism
    mean: float

    def __post_init__(self) -> None:
        _validate.finite(mean=self.mean)
        if self.mean <= 1:
            raise ValueError(
                f"Expected mean > 1, got {self.mean!r}; give how many runs to expect."
            )

    @property
    def stop_probability(self) -> float:
        """The probability to stop after each run, rounded down, which is safe."""
        return math.exp(-self._rate)

    @property
    def _rate(self) -> float:
        return math.log(self.mean) * (1 + 1e-12)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return Theorem 2 of Papernot and Steinke (2022) for the geometric law.

        A bound at a larger order holds at a smaller one as well.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        hat = SELECTION_ORDERS
        inner = self.inner.rdp(hat)
        # The best of all second (hat) orders, for all first ones alike.
        second = 2 * np.min((1 - 1 / hat) * inner + self._rate / hat)
        at_grid = inner + math.log(self.mean) / (hat - 1)
        from_above = np.minimum.accumulate(at_grid[::-1])[::-1]
        above = np.append(from_above, np.inf)[np.searchsorted(hat, a)]
        own = self.inner.rdp(a) + math.log(self.mean) / (a - 1)
        return (np.minimum(own, above) + second).reshape(np.shape(orders))

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the selection among runs; its shape 1 is the geometric law."""
        event = self.inner.dp_event()
        if event is None:
            return None
        return dpa.dp_event.RepeatAndSelectDpEvent(event, self.mean, 1.0)
