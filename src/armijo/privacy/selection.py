# SPDX-License-Identifier: Apache-2.0
"""Private selection: run a private mechanism a random number of times, keep the best.

Hyperparameters chosen by trying are paid for here.  The number of runs K is drawn from
a known law and never shown; only the best run is released (Papernot and Steinke 2022).
"Best" is judged by what a run releases anyway.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np

from armijo import _validate
from armijo.privacy.analytic import smallest_safe
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import Mechanism, event_of

SELECTION_ORDERS = np.unique(
    np.rint(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 97)]))
)
"""Orders at which the inner curve is looked at; integers, so that any curve will do."""


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best of K runs of ``inner``, K random with mean ``mean``.

    ``shape`` is that of a truncated negative binomial law: 1 is geometric, 0 is
    logarithmic, any number above -1 is allowed.  None is a Poisson law; when it draws
    no run at all, the answer is one that was fixed beforehand.

    >>> from armijo.privacy.mechanisms import Gaussian
    >>> tuned = RepeatAndSelect(Gaussian(noise_scale=10.0), mean=10.0)
    >>> round(float(tuned.rdp(np.array([20.0]))[0]), 4)
    0.6389
    """

    inner: Mechanism
    mean: float
    shape: float | None = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.finite(mean=self.mean)
        if self.shape is not None:
            _validate.finite(shape=self.shape)
            if self.shape <= -1:
                raise ValueError(
                    f"Expected shape > -1, got {self.shape!r}; give 1 for a geometric "
                    "law or None for a Poisson law."
                )
        if self.mean < 1 or (self.mean == 1 and self.shape is not None):
            raise ValueError(
                f"Expected mean > 1, got {self.mean!r}; give how many runs to expect."
            )

    @property
    def stop_probability(self) -> float:
        """The gamma of the truncated negative binomial law, solved from the mean.

        For shape 1 the chance to stop after each run.  Rounded down, which is safe.
        """
        if self.shape is None:
            raise ValueError(
                "Expected a truncated negative binomial law, got shape None (Poisson); "
                "the mean alone describes it."
            )
        return math.exp(-_solve_rate(self.mean, self.shape))

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return Theorem 2 (Theorem 6 for Poisson) of Papernot and Steinke (2022).

        A bound at a larger order holds at a smaller one as well.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        inner = np.asarray(self.inner.rdp(SELECTION_ORDERS), dtype=float)
        at_grid = self._bound(SELECTION_ORDERS, inner, inner)
        from_above = np.minimum.accumulate(at_grid[::-1])[::-1]
        place = np.searchsorted(SELECTION_ORDERS, a)
        above = np.append(from_above, np.inf)[place]
        curve = np.minimum(self._bound(a, self.inner.rdp(a), inner), above)
        return curve.reshape(np.shape(orders))

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the selection among runs of the inner event."""
        event = event_of(self.inner)
        if event is None:
            return None
        shape = math.inf if self.shape is None else self.shape
        return dpa.dp_event.RepeatAndSelectDpEvent(event, self.mean, shape)

    def _bound(self, a: FloatArray, curve: FloatArray, inner: FloatArray) -> FloatArray:
        """Return the theorem: a run costs ``curve`` at ``a``, ``inner`` on the grid."""
        shared = curve + math.log(self.mean) / (a - 1)
        if self.shape is None:  # Theorem 6, the inner (hat) pair at log(1 + 1/(a-1))
            return shared + self.mean * _inner_delta(inner, -np.log1p(-1 / a))
        # Theorem 2, with the best of all second (hat) orders.
        hat = SELECTION_ORDERS
        rate = _solve_rate(self.mean, self.shape)
        second = (1 - 1 / hat) * inner + rate / hat
        return shared + (1 + self.shape) * np.min(second)


def _inner_delta(curve: FloatArray, epsilons: FloatArray) -> FloatArray:
    """Return the best delta of one run at each epsilon, from its curve.

    Canonne, Kamath and Steinke (2020), Proposition 12, or ``sqrt(1 - exp(-KL))``
    (Bretagnolle and Huber 1979), the divergence at order 2 bounding KL.
    """
    a = SELECTION_ORDERS
    gain = (a - 1) * (curve - epsilons[:, None] + np.log1p(-1 / a)) - np.log(a)
    distance = math.sqrt(-math.expm1(-curve[0]))
    return np.minimum(np.exp(np.minimum(gain.min(axis=1), 0.0)), distance)


@lru_cache(maxsize=256)
def _solve_rate(mean: float, shape: float) -> float:
    """Return ``-log gamma`` of the law with this mean, Papernot and Steinke, Def. 1."""
    return smallest_safe(lambda rate: _log_mean(rate, shape) >= math.log(mean))


def _log_mean(rate: float, shape: float) -> float:
    """Return log of ``shape (1/gamma - 1) / (1 - gamma^shape)``, gamma = e^-rate."""
    return rate + _log_average(rate) - _log_average(shape * rate)


def _log_average(x: float) -> float:
    """Return log of ``(1 - e^-x) / x``, the average of e^-t over t from 0 to x."""
    if x < 0:
        return -x + _log_average(-x)
    return math.log(-math.expm1(-x) / x) if x > 0 else 0.0
