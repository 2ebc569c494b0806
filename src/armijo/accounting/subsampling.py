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
from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Gaussian, Mechanism

LARGEST_ORDER = 2**18
"""The best order of an epsilon of 1e-4 at delta 1e-5; larger budgets need less."""


def poisson_rdp(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """Amplify a curve by Poisson sampling, formula (AMP) above.

    Parameters
    ----------
    order : int
        An integer of 2 or more.
    sampling_prob : float
        Probability q with which one row enters the batch; 0 costs nothing and 1 is no
        amplification.
    curve : array
        ``curve[l]`` bounds both directions at order l; entries 0 and 1 are ignored.
    """
    _validate.at_least(2, order=order)
    _validate.non_negative(sampling_prob=sampling_prob)
    curve = np.asarray(curve, dtype=float)
    if sampling_prob == 0:
        return 0.0
    _validate.sampling_prob(sampling_prob=sampling_prob)
    if sampling_prob == 1:
        return float(curve[order])
    return min(_amplified(order, sampling_prob, curve), float(curve[order]))


def _amplified(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """Return (AMP) itself, in logarithms: neither huge nor tiny terms are lost."""
    exponent = np.arange(1, order) * curve[2 : order + 1]
    with np.errstate(divide="ignore"):
        log_growth = np.where(
            exponent > 30, exponent, np.log(np.expm1(np.minimum(exponent, 30)))
        )
    total = float(logsumexp(log_binomial_weights(order, sampling_prob) + log_growth))
    return (math.log1p(math.exp(total)) if total < 30 else total) / (order - 1)


@lru_cache(maxsize=512)
def log_binomial_weights(order: int, sampling_prob: float) -> FloatArray:
    """Return log of C(order, l) q^l (1-q)^(order-l) for l = 2..order."""
    terms = np.arange(2, order + 1)
    table = gammaln(order + 1) - gammaln(terms + 1) - gammaln(order - terms + 1)
    table += terms * math.log(sampling_prob) + (order - terms) * math.log1p(
        -sampling_prob
    )
    table.setflags(write=False)
    return np.asarray(table)


@dataclass(frozen=True)
class Subsampled(Mechanism):
    """A mechanism run on one Poisson batch; integer orders only.

    >>> cost = Subsampled(Gaussian.from_rho(5e-5), 0.1).rdp(np.array([8.0]))
    >>> float(cost[0].round(15))
    4.000414048e-06
    """

    inner: Mechanism
    sampling_prob: float

    def __post_init__(self) -> None:
        _validate.sampling_prob(sampling_prob=self.sampling_prob)

    def rdp(self, orders: ArrayLike) -> FloatArray:
        """Return the amplified curve; at sampling probability 1 the curve itself.

        Orders above ``LARGEST_ORDER`` cost infinity, as if they could not be used:
        every order below gives a valid guarantee, and the sum over so many terms would
        take minutes and gigabytes.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        if self.sampling_prob == 1:
            return self.inner.rdp(np.asarray(orders, dtype=float))
        if np.any(a != np.rint(a)) or np.any(a < 2):
            raise ValueError(
                f"Expected integer orders >= 2 for a Poisson batch, got {orders!r}; "
                "the amplification formula holds for those only."
            )
        usable = a <= LARGEST_ORDER
        amplified = np.full(a.shape, np.inf)
        if usable.any():
            curve = self.inner.integer_curve(int(a[usable].max()))
            amplified[usable] = [
                poisson_rdp(int(order), self.sampling_prob, curve)
                for order in a[usable]
            ]
        return amplified.reshape(np.shape(orders))

    def delta_at(self, epsilon: float) -> float:
        """Return what is proved of the mechanism itself, if all rows take part."""
        return self.inner.delta_at(epsilon) if self.sampling_prob == 1 else 1.0

    def as_gaussian(self) -> Gaussian | None:
        """Return the Gaussian that it is if all rows take part."""
        return self.inner.as_gaussian() if self.sampling_prob == 1 else None

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the Poisson-sampled event; at probability 1 the event itself."""
        event = self.inner.dp_event()
        if event is None or self.sampling_prob == 1:
            return event
        return dpa.PoissonSampledDpEvent(self.sampling_prob, event)
