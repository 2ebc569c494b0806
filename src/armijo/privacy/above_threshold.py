# SPDX-License-Identifier: Apache-2.0
"""AboveThreshold: which query is the first to pass a noisy threshold.

The sparse vector mechanism with one answer, a cap on the number of queries and a "none
found" output.  A query i with public sensitivity ``D_i`` is compared as
``q_i / D_i + nu_i >= lambda`` (the threshold is zero, so each query may be rescaled by
its own sensitivity): all scales here are in units of the sensitivity.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from armijo import _validate
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import PureDP, laplace_rdp
from armijo.privacy.partial_shift import (
    gaussian_capped,
    laplace_capped,
    laplace_unlimited,
)

SAFETY = 1 + 1e-6
"""Covers what numerical maximization may miss of a supremum (relative)."""

_LEAST_SCALE = 1e-30  # less noise is none: its costs would overflow
_SHIFTS = {"laplace": 64, "gaussian": 16}
_CAPPED_LAPLACE_UP_TO = 12  # V_12 is within some percent of V_inf: longer is waste


@dataclass(frozen=True, kw_only=True)
class AboveThreshold:
    """First of at most ``max_queries`` queries that passes, or none.

    Attributes
    ----------
    kind : {"laplace", "gaussian"}
        The noise of threshold and queries.
    threshold_scale, query_scale : float
        Scale b of the Laplace, sigma of the Gaussian noise, in units of the query
        sensitivity.  Threshold scale zero means a noiseless threshold; query scale
        zero is no privacy at all: its curve is infinite.
    max_queries : int or None
        The cap.  It is part of the Gaussian guarantee (no order has a finite bound
        without one); None, for Laplace noise only, is any number.

    Notes
    -----
    The curve is the smallest over t of ``eps_thr(a; t) + log V(a; t) / (a - 1)``, where
    the threshold noise is shifted by t and V is the growth factor of
    :mod:`armijo.privacy.partial_shift`.  Every t gives a valid bound; t = 1 contains
    Zhu and Wang (2020, Theorem 8), t = 0 does not use the threshold noise at all.
    """

    kind: Literal["laplace", "gaussian"]
    threshold_scale: float
    query_scale: float
    max_queries: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.choice(("laplace", "gaussian"), kind=self.kind)
        _validate.non_negative(threshold_scale=self.threshold_scale)
        _validate.non_negative(query_scale=self.query_scale)
        if self.max_queries is not None:
            _validate.at_least(1, max_queries=self.max_queries)
        elif self.kind == "gaussian":
            raise ValueError(
                "Expected max_queries for Gaussian noise, got None; without a cap no "
                "Renyi order has a finite bound. Give the most candidates to try."
            )

    @classmethod
    def laplace(
        cls, epsilon: float, max_queries: int | None = None
    ) -> "AboveThreshold":
        """Return Chen and Lee's split: epsilon/2 for the threshold, epsilon/4 each."""
        if epsilon != math.inf:
            _validate.positive(search_epsilon=epsilon)
        return cls(
            kind="laplace",
            threshold_scale=2 / epsilon,
            query_scale=4 / epsilon,
            max_queries=max_queries,
        )

    @classmethod
    def gaussian(cls, rho: float, max_queries: int) -> "AboveThreshold":
        """Return Chen and Lee's split: variances 3/(2 rho) and 3/rho."""
        if rho != math.inf:
            _validate.positive(search_rho=rho)
        return cls(
            kind="gaussian",
            threshold_scale=math.sqrt(1.5 / rho),
            query_scale=math.sqrt(3 / rho),
            max_queries=max_queries,
        )

    @property
    def epsilon(self) -> float:
        """Pure-DP cost, Dwork and Roth (2014), Theorem 3.23; infinite if none."""
        if self.kind == "gaussian" or 0 in (self.threshold_scale, self.query_scale):
            return math.inf
        return 1 / self.threshold_scale + 2 / self.query_scale

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Bound the Renyi divergence at each order (docs/proofs.md, A)."""
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        if min(self.query_scale, self.threshold_scale or math.inf) < _LEAST_SCALE:
            return np.full(np.shape(orders), np.inf)
        curve = _curve(self, tuple(a.tolist()))
        return curve.reshape(np.shape(orders)).copy()

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def shifted_bound(self, a: FloatArray, t: FloatArray) -> FloatArray:
        """Return the bound for shifts ``t``, one for each order, before the safety."""
        if self.kind == "gaussian":
            log_v = gaussian_capped(a, t, self.query_scale, self.max_queries or 1)
        else:
            log_v = laplace_unlimited(a, t, 1 / self.query_scale)
            if (
                self.max_queries is not None
                and self.max_queries <= _CAPPED_LAPLACE_UP_TO
            ):
                capped = laplace_capped(a, t, 1 / self.query_scale, self.max_queries)
                log_v = np.minimum(log_v, capped)
        return self._threshold(a, t) + log_v / (a - 1)

    def _threshold(self, a: FloatArray, t: FloatArray) -> FloatArray:
        """Return the threshold noise's own curve at shift ``t``."""
        if self.threshold_scale == 0:
            return np.where(t == 0, 0.0, np.inf)
        if self.kind == "gaussian":
            return a * (t / self.threshold_scale) ** 2 / 2
        return laplace_rdp(a, t / self.threshold_scale)


@lru_cache(maxsize=256)
def _curve(mechanism: AboveThreshold, orders: tuple[float, ...]) -> FloatArray:
    """Minimize the bound over a grid of shifts, coarse first, then near the best."""
    a = np.array(orders)
    n = _SHIFTS[mechanism.kind] if mechanism.threshold_scale else 0
    stride = 4
    best, at = _best_of(mechanism, a, np.arange(0, n + 1, stride)[:, None] + 0 * a)
    while n and stride > 1:
        stride //= 2
        tries = np.clip(np.array([at - stride, at + stride]), 0, n)
        near, where = _best_of(mechanism, a, tries)
        best, at = np.minimum(best, near), np.where(near < best, where, at)
    if math.isfinite(mechanism.epsilon):
        best = np.minimum(best, PureDP(mechanism.epsilon).rdp(a))
    return np.asarray(best * SAFETY)


def _best_of(
    mechanism: AboveThreshold, a: FloatArray, j: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Try shifts j/n (a row each); return the smallest bounds and where they are."""
    t = j / _SHIFTS[mechanism.kind]
    bounds = mechanism.shifted_bound(np.broadcast_to(a, t.shape).ravel(), t.ravel())
    bounds = bounds.reshape(t.shape)
    row = np.argmin(bounds, axis=0)[None]
    return (
        np.take_along_axis(bounds, row, axis=0)[0],
        np.take_along_axis(j, row, axis=0)[0],
    )
