# SPDX-License-Identifier: Apache-2.0
"""Poisson subsampling of a composition: one batch, one mechanism, one amplification.

All releases computed from one Poisson batch form *one* mechanism: their un-amplified
curves are summed and amplified once.  The factor 3 of Zhu and Wang (2019) is not
needed for any mechanism whose curve bounds both directions (docs/proofs.md, Theorem B),
so for every integer order a >= 2

    eps'(a) = log{1 + sum_{l=2}^a C(a,l) q^l (1-q)^{a-l} (e^{(l-1) eps(l)} - 1)}/(a-1)
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from armijo import _validate
from armijo.privacy.above_threshold import AboveThreshold
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import Composed, Mechanism, NoisyMax, Repeated, event_of

LARGEST_ORDER = 2**18
"""The best order of an epsilon of 1e-4 at delta 1e-5; larger budgets need less."""


def poisson_rdp(order: int, rate: float, curve: FloatArray) -> float:
    """Amplify a curve by Poisson sampling, formula (AMP) above.

    Parameters
    ----------
    order : int
        An integer of 2 or more.
    rate : float
        Probability q with which one row enters the batch; 0 costs nothing and 1 is no
        amplification.
    curve : array
        ``curve[l]`` bounds both directions at order l; entries 0 and 1 are ignored.
    """
    _validate.at_least(2, order=order)
    _validate.non_negative(rate=rate)
    curve = np.asarray(curve, dtype=float)
    if rate == 0:
        return 0.0
    _validate.rate(rate=rate)
    if rate == 1:
        return float(curve[order])
    return min(_amplified(order, rate, curve), float(curve[order]))


def _amplified(order: int, rate: float, curve: FloatArray) -> float:
    """Return (AMP) itself, in logarithms: neither huge nor tiny terms are lost."""
    exponent = np.arange(1, order) * curve[2 : order + 1]
    with np.errstate(divide="ignore"):
        log_growth = np.where(
            exponent > 30, exponent, np.log(np.expm1(np.minimum(exponent, 30)))
        )
    total = float(logsumexp(log_binomial_weights(order, rate) + log_growth))
    return (math.log1p(math.exp(total)) if total < 30 else total) / (order - 1)


@lru_cache(maxsize=512)
def log_binomial_weights(order: int, rate: float) -> FloatArray:
    """Return log of C(order, l) q^l (1-q)^(order-l) for l = 2..order."""
    terms = np.arange(2, order + 1)
    table = gammaln(order + 1) - gammaln(terms + 1) - gammaln(order - terms + 1)
    table += terms * math.log(rate) + (order - terms) * math.log1p(-rate)
    table.setflags(write=False)
    return np.asarray(table)


def integer_curve(mechanism: Mechanism, top: int) -> FloatArray:
    """Return ``curve[l]`` for l = 0..top (entries 0 and 1 are zero).

    A curve that takes a search at each order is evaluated at knots only: (l-1) eps(l)
    is the cumulant of the privacy loss, hence convex in l, so its chords are upper
    bounds between the knots.
    """
    if isinstance(mechanism, Composed):
        return np.sum(
            [integer_curve(part, top) for part in mechanism.mechanisms], axis=0
        )
    if isinstance(mechanism, Repeated):
        return mechanism.count * integer_curve(mechanism.inner, top)
    if isinstance(mechanism, AboveThreshold | NoisyMax):
        return _chord_curve(mechanism, top)
    curve = np.zeros(top + 1)
    curve[2:] = mechanism.rdp(np.arange(2.0, top + 1))
    return curve


def knots(top: int) -> FloatArray:
    """Return the integer orders at which a costly curve is evaluated."""
    dense = np.arange(2, min(top, 32) + 1)
    sparse = np.rint(np.geomspace(min(top, 32), top, 60))
    return np.unique(np.concatenate([dense, sparse])).astype(float)


@lru_cache(maxsize=128)
def _chord_curve(mechanism: AboveThreshold | NoisyMax, top: int) -> FloatArray:
    """Interpolate (l-1) eps(l) linearly between the knots."""
    at = knots(top)
    orders = np.arange(2.0, top + 1)
    curve = np.zeros(top + 1)
    curve[2:] = np.interp(orders, at, (at - 1) * mechanism.rdp(at)) / (orders - 1)
    curve.setflags(write=False)
    return curve


@dataclass(frozen=True)
class Subsampled:
    """A mechanism run on one Poisson batch of rate ``rate``; integer orders only.

    >>> from armijo.privacy.mechanisms import Gaussian
    >>> cost = Subsampled(Gaussian.from_rho(5e-5), 0.1).rdp(np.array([8.0]))
    >>> float(cost[0].round(15))
    4.000414048e-06
    """

    inner: Mechanism
    rate: float

    def __post_init__(self) -> None:
        """Check the rate."""
        _validate.rate(rate=self.rate)

    def rdp(self, orders: ArrayLike) -> FloatArray:
        """Return the amplified curve; at rate 1 the curve itself.

        Orders above ``LARGEST_ORDER`` cost infinity, as if they could not be used:
        every order below gives a valid promise, and the sum over so many terms would
        take minutes and gigabytes.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        if self.rate == 1:
            return self.inner.rdp(np.asarray(orders, dtype=float))
        if np.any(a != np.rint(a)) or np.any(a < 2):
            raise ValueError(
                f"Expected integer orders >= 2 for a Poisson batch, got {orders!r}; "
                "the amplification formula holds for those only."
            )
        usable = a <= LARGEST_ORDER
        amplified = np.full(a.shape, np.inf)
        if usable.any():
            curve = integer_curve(self.inner, int(a[usable].max()))
            amplified[usable] = [
                poisson_rdp(int(order), self.rate, curve) for order in a[usable]
            ]
        return amplified.reshape(np.shape(orders))

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the Poisson-sampled event; at rate 1 the event itself."""
        event = event_of(self.inner)
        if event is None or self.rate == 1:
            return event
        return dpa.PoissonSampledDpEvent(self.rate, event)
