# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: what a random linear term in the objective promises.

The minimizer of ``sum of losses + strong_convexity/2 |w|^2 + b.w`` is released.  The
loss is that of a linear model: convex, gradient of one row at most ``lipschitz`` long,
its only Hessian eigenvalue at most ``smoothness``.  Scales are those of the *sum* of
losses.  A class says in ``relation`` which neighbors its proof
covers.  This file has the tight analysis and its calibration, the older ones are in
:mod:`armijo.privacy.objective_classics`.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import erf, log_ndtr

from armijo import _validate
from armijo.privacy.analytic import (
    dense_orders,
    gaussian_delta,
    gaussian_noise,
    rdp_keeps,
    smallest_safe,
)
from armijo.privacy.budget import Budget, FloatArray, Neighboring

_SCAN = (1.0, 1.5, 2.0, 3.0, 5.0)
_CLOSE = 1.1  # noise this near to the best is worth a smaller regularizer
_FAR = 1.3  # noise this far above one Gaussian release asks for a larger one


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation:
    """Gaussian ``b`` with the tight analysis of Redberg, Koskela and Wang (2023).

    ``noise_scale`` is the deviation of ``b``; ``strong_convexity`` (lambda) must exceed
    ``smoothness`` (beta).

    >>> release = ObjectivePerturbation(noise_scale=25.01, strong_convexity=43.957)
    >>> release.delta_at(0.2) <= 1e-8
    True
    """

    noise_scale: float
    strong_convexity: float
    lipschitz: float = 1.0
    smoothness: float = 0.25
    relation: ClassVar[Neighboring] = Neighboring.ADD_REMOVE

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.positive(noise_scale=self.noise_scale, lipschitz=self.lipschitz)
        _check_convexity(self.strong_convexity, self.smoothness, self.smoothness)

    @property
    def jacobian_cost(self) -> float:
        """What the change of variables costs: ``kappa = -log(1 - beta/lambda)``."""
        return -math.log1p(-self.smoothness / self.strong_convexity)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return ``kappa + a s^2/2 + log(2 Phi((a-1) s))/(a-1)``, s = L/noise.

        Redberg, Koskela and Wang (2023), the Renyi bound, its moment of a folded
        normal law written out.
        """
        a, ratio = np.asarray(orders, dtype=float), self.lipschitz / self.noise_scale
        folded = np.log1p(erf((a - 1) * ratio / math.sqrt(2))) / (a - 1)
        return np.asarray(self.jacobian_cost + a * ratio**2 / 2 + folded)

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def delta_at(self, epsilon: float) -> float:
        """Return the privacy profile, Redberg, Koskela and Wang (2023).

        With H the profile of a Gaussian release: ``2 H(epsilon - kappa)`` as long as
        ``epsilon - kappa >= s^2/2``.  Below that the second case of the theorem,
        ``1 - e^h + 2 e^h H(s^2/2)`` with ``h = epsilon - kappa - s^2/2``, is
        ``1 - 2 e^(epsilon - kappa) Phi(-s)``.
        """
        _validate.non_negative(epsilon=epsilon)
        ratio = self.lipschitz / self.noise_scale
        rest = epsilon - self.jacobian_cost
        if rest >= ratio * ratio / 2:
            return 2 * gaussian_delta(rest, self.noise_scale / self.lipschitz)
        log_kept = rest + math.log(2) + float(log_ndtr(-ratio))
        return max(-math.expm1(log_kept), 0.0)


def _check_convexity(
    strong_convexity: float, smoothness: float, minimum: float
) -> None:
    """Refuse too little curvature."""
    _validate.positive(strong_convexity=strong_convexity, smoothness=smoothness)
    if strong_convexity <= minimum:
        raise ValueError(
            f"Expected strong_convexity > {minimum:g}, got {strong_convexity!r}; add "
            "regularization (the proof needs it for this smoothness and epsilon)."
        )


def _least_convexity(budget: Budget, smoothness: float) -> float:
    """Return the lambda at which the Jacobian alone costs epsilon."""
    return -smoothness / math.expm1(-budget.epsilon)


def _unit_noise(
    budget: Budget, strong_convexity: float, lipschitz: float, smoothness: float
) -> ObjectivePerturbation:
    """Return the release with one unit of noise, if more noise can keep the budget."""
    _validate.positive(lipschitz=lipschitz, smoothness=smoothness)
    least = _least_convexity(budget, smoothness)
    _check_convexity(strong_convexity, smoothness, least)
    return ObjectivePerturbation(
        noise_scale=lipschitz,
        strong_convexity=strong_convexity,
        lipschitz=lipschitz,
        smoothness=smoothness,
    )


def objective_noise(
    budget: Budget,
    *,
    strong_convexity: float,
    lipschitz: float = 1.0,
    smoothness: float = 0.25,
) -> float:
    """Return the smallest noise of :class:`ObjectivePerturbation`, by its profile.

    >>> noise = objective_noise(Budget(epsilon=0.2, delta=1e-8),
    ...                         strong_convexity=43.957)
    >>> round(noise, 4)
    25.0025
    """
    release = _unit_noise(budget, strong_convexity, lipschitz, smoothness)

    def keeps(noise: float) -> bool:
        release_at = replace(release, noise_scale=noise)
        return release_at.delta_at(budget.epsilon) <= budget.delta

    return smallest_safe(keeps, lipschitz)


def objective_noise_rdp(
    budget: Budget,
    *,
    strong_convexity: float,
    lipschitz: float = 1.0,
    smoothness: float = 0.25,
    classical: bool = False,
) -> float:
    """Return the smallest noise by the Renyi curve: more than by the profile.

    ``classical`` converts by Mironov's Proposition 3 for comparison with older tables.
    """
    release = _unit_noise(budget, strong_convexity, lipschitz, smoothness)
    # The Jacobian's cost does not fall with the noise: only the rest picks the order.
    rest = budget.epsilon - release.jacobian_cost
    orders = dense_orders(Budget(epsilon=rest, delta=budget.delta))

    def keeps(noise: float) -> bool:
        release_at = replace(release, noise_scale=noise)
        return rdp_keeps(release_at, budget, orders, classical=classical)

    return smallest_safe(keeps, lipschitz)


def calibrate_objective(
    budget: Budget, *, l2_sum: float, lipschitz: float = 1.0, smoothness: float = 0.25
) -> ObjectivePerturbation:
    """Return the release with the least regularization that hardly costs noise.

    Scans ``l2_sum`` times 1, 1.5, 2, 3, 5 and takes the smallest whose noise is within
    10 % of the best.  Where ``l2_sum`` (the l2 coefficient times the public number of
    rows) is too small for that, the scan goes on from ``2 smoothness / epsilon``.
    """
    _validate.positive(l2_sum=l2_sum, lipschitz=lipschitz, smoothness=smoothness)
    least = _least_convexity(budget, smoothness)

    def scan(start: float) -> dict[float, float]:
        usable = [start * factor for factor in _SCAN if start * factor > least]
        settings = {"lipschitz": lipschitz, "smoothness": smoothness}
        return {
            convexity: objective_noise(budget, strong_convexity=convexity, **settings)
            for convexity in usable
        }

    noises = scan(l2_sum)
    enough = _FAR * lipschitz * gaussian_noise(budget)
    if min(noises.values(), default=math.inf) > enough:
        noises |= scan(max(l2_sum, 2 * smoothness / budget.epsilon, least))
    best = min(noises.values())
    convexity = min(each for each, noise in noises.items() if noise <= _CLOSE * best)
    return ObjectivePerturbation(
        noise_scale=noises[convexity],
        strong_convexity=convexity,
        lipschitz=lipschitz,
        smoothness=smoothness,
    )


def output_noise(tolerance: float, strong_convexity: float, budget: Budget) -> float:
    """Return the noise on a minimizer that was found only approximately.

    A gradient of norm ``tolerance`` is at most ``tolerance / strong_convexity`` away
    from the exact minimizer, two such answers differ by twice that; ``budget`` is the
    share set aside for it (Redberg, Koskela and Wang 2023, approximate minima).
    """
    _validate.non_negative(tolerance=tolerance)
    _validate.positive(strong_convexity=strong_convexity)
    sensitivity = 2 * tolerance / strong_convexity
    return sensitivity * gaussian_noise(budget) * (1 + 1e-12)  # rounded to be safe
