# SPDX-License-Identifier: Apache-2.0
"""The formulas of Chen and Lee (2020) as published. FOR REPRODUCTION ONLY: NOT VALID.

Nothing here is a differential privacy guarantee.  The published analysis does not hold
as it stands; :data:`BROKEN_PREMISES` says where, and every result that was accounted
with this module carries that list instead of a guarantee.  Sound accounting is
everywhere else in this package and is the default everywhere.
"""

import math
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from armijo import _validate
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant, RunTerms
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import (
    Composed,
    Mechanism,
    Subsampled,
    laplace_rdp,
    log_binomial_weights,
)

BROKEN_PREMISES = (
    "Theorems 2 and 3 bound each stopping index but not their sum; Theorem 3 is false "
    "for long searches",
    "gradient and line search on one batch are amplified separately",
    "budgets chosen during the run are tracked at all orders at once without weights",
    "the realized batch size is used as divisor",
)
"""Why a result under ``accounting="paper"`` carries no guarantee."""

ORDERS = np.arange(2, 501)
"""The published range of orders."""


def theorem2(orders: FloatArray, epsilon1: float, epsilon2: float) -> FloatArray:
    """Return Theorem 2 as published (with the missing exponent sign restored)."""
    return laplace_rdp(orders, epsilon1) + laplace_rdp(orders, 2 * epsilon2)


def theorem3(orders: FloatArray, sigma1: float, sigma2: float) -> FloatArray:
    """Return Theorem 3 as published: ``a (4 s1^2 + s2^2) / (2 s1^2 s2^2)``."""
    v1, v2 = sigma1**2, sigma2**2
    return np.asarray(orders, dtype=float) * (4 * v1 + v2) / (2 * v1 * v2)


def lemma_pss(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """Return the amplification lemma as published, with its factor 3.

    Parameters
    ----------
    order : int
        An integer of 2 or more.
    sampling_prob : float
        Sampling probability.
    curve : array
        ``curve[l]`` is the un-amplified cost at order l.
    """
    _validate.at_least(2, order=order)
    _validate.sampling_prob(sampling_prob=sampling_prob)
    curve = np.asarray(curve, dtype=float)
    if sampling_prob == 1:
        return float(curve[order])
    terms = np.arange(2, order + 1)
    exponent = (terms - 1) * curve[2 : order + 1]
    first = (order - 1) * math.log1p(-sampling_prob) + math.log(
        order * sampling_prob - sampling_prob + 1
    )
    factor = np.where(terms >= 3, math.log(3.0), 0.0)
    rest = log_binomial_weights(order, sampling_prob) + exponent + factor
    return float(logsumexp(np.concatenate([[first], rest]))) / (order - 1)


def proposition1(order: float, rdp: float, delta: float) -> float:
    """Return epsilon by Proposition 1: ``R + log(1/delta) / (a - 1)``."""
    return rdp + math.log(1 / delta) / (order - 1)


def proposition1_limit(order: ArrayLike, budget: Budget) -> FloatArray:
    """Return the published budget of an order."""
    a = np.asarray(order, dtype=float)
    return budget.epsilon - math.log(1 / budget.delta) / (a - 1)


def printed_curve(mechanism: Mechanism, orders: FloatArray) -> FloatArray:
    """Return the published curve of a search, the usual one of anything else."""
    if not isinstance(mechanism, AboveThreshold):
        return mechanism.rdp(orders)
    if mechanism.kind == "laplace":
        return theorem2(
            orders, 1 / mechanism.threshold_scale, 1 / mechanism.query_scale
        )
    return theorem3(orders, mechanism.threshold_scale, mechanism.query_scale)


def printed_cost(mechanism: Mechanism, orders: NDArray[np.int64]) -> FloatArray:
    """Amplify each part on its own, as Algorithm 2 has it, and add."""
    sampling_prob, inner = 1.0, mechanism
    if isinstance(mechanism, Subsampled):
        sampling_prob, inner = mechanism.sampling_prob, mechanism.inner
    parts = inner.mechanisms if isinstance(inner, Composed) else (inner,)
    top = int(orders[-1])
    total = np.zeros(len(orders))
    for part in parts:
        curve = np.zeros(top + 1)
        curve[2:] = printed_curve(part, np.arange(2.0, top + 1))
        total += [lemma_pss(int(order), sampling_prob, curve) for order in orders]
    return total


class PaperAccountant(Accountant):
    """The published bookkeeping: separate amplification, any surviving order.

    Its ``guarantee.holds`` is always False.

    Parameters
    ----------
    budget : Budget
        The *label* of the run.
    **terms
        The terms of the run, as for :class:`armijo.accounting.accountants.Accountant`.
    """

    def __init__(self, budget: Budget, **terms: Unpack[RunTerms]) -> None:
        limits = proposition1_limit(ORDERS, budget)
        if not np.any(limits > 0):
            raise ValueError(
                f"Expected an epsilon that orders up to 500 can express, got "
                f"{budget.epsilon!r} at delta {budget.delta!r}; the published "
                f"conversion needs more than {math.log(1 / budget.delta) / 499:.3g}."
            )
        self._orders = ORDERS[limits > 0]
        super().__init__(
            budget,
            limits=limits[limits > 0],
            name="paper-as-printed",
            broken_premises=BROKEN_PREMISES,
            **terms,
        )

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        return printed_cost(mechanism, self._orders)


def printed_epsilon(step: Mechanism, steps: int, delta: float) -> float:
    """Return the published epsilon of ``steps`` equal steps: a label, no guarantee."""
    _validate.at_least(1, steps=steps)
    _validate.open_unit(delta=delta)
    cost = printed_cost(step, ORDERS)
    return min(
        proposition1(order, steps * each, delta)
        for order, each in zip(ORDERS.tolist(), cost.tolist(), strict=True)
    )
