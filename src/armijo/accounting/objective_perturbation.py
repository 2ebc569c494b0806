# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: what a random linear term in the objective guarantees.

The minimizer of ``sum of losses + strong_convexity/2 |w|^2 + b.w`` is released.  The
loss is that of a linear model: convex, gradient of one row at most ``lipschitz`` long,
its only Hessian eigenvalue at most ``smoothness``.  Scales are those of the *sum* of
losses unless a class says otherwise, and a class says in ``relation`` which neighbors
its proof covers.  First the tight analysis and its calibration, then the older ones of
Kifer et al., Chaudhuri et al. and Iyengar et al.  A minimizer that a solver finds only
nearly also needs :class:`armijo.accounting.output_perturbation.WithOutputNoise`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import erf, log_ndtr

from armijo import _validate
from armijo._validate import Count, NonNegative, Positive, Share
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.conversion import gaussian_delta, gaussian_noise, smallest
from armijo.accounting.mechanisms import Mechanism, PureDP

_SCAN = (1.0, 1.5, 2.0, 3.0, 5.0)
_CLOSE = 1.1  # noise this near to the best is worth a smaller regularizer
_FAR = 1.3  # noise this far above one Gaussian release asks for a larger one


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Mechanism):
    """Gaussian ``b`` with the tight analysis of Redberg, Koskela and Wang (2023).

    ``noise_scale`` is the standard deviation of ``b``; ``strong_convexity`` (lambda)
    must exceed ``smoothness`` (beta).

    >>> release = ObjectivePerturbation(noise_scale=25.01, strong_convexity=43.957)
    >>> release.delta_at(0.2) <= 1e-8
    True
    """

    noise_scale: Positive
    strong_convexity: Positive
    lipschitz: Positive = 1.0
    smoothness: Positive = 0.25
    relation: ClassVar[Neighboring] = Neighboring.ADD_REMOVE

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_flat(self.strong_convexity, self.smoothness)

    @property
    def jacobian_cost(self) -> float:
        """What the change of variables costs: ``kappa = -log(1 - beta/lambda)``."""
        return -math.log1p(-self.smoothness / self.strong_convexity)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return ``kappa + a s^2/2 + log(2 Phi((a-1) s))/(a-1)``, s = L/noise.

        Redberg, Koskela and Wang (2023), the Renyi bound, its moment of a folded
        normal distribution written out.
        """
        a, ratio = np.asarray(orders, dtype=float), self.lipschitz / self.noise_scale
        folded = np.log1p(erf((a - 1) * ratio / math.sqrt(2))) / (a - 1)
        return np.asarray(self.jacobian_cost + a * ratio**2 / 2 + folded)

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


def _refuse_flat(strong_convexity: float, minimum: float) -> None:
    if strong_convexity <= minimum:
        raise ValueError(
            f"Expected strong_convexity > {minimum:g}, got {strong_convexity!r}; add "
            "regularization (the proof needs it for this smoothness and epsilon)."
        )


def _least_convexity(budget: Budget, smoothness: float) -> float:
    """Return the lambda at which the Jacobian alone costs epsilon."""
    return -smoothness / math.expm1(-budget.epsilon)


def least_noise(
    budget: Budget, *, strong_convexity: float, smoothness: float = 0.25
) -> ObjectivePerturbation:
    """Return the release with the smallest noise, by its profile.

    >>> release = least_noise(Budget(epsilon=0.2, delta=1e-8), strong_convexity=43.957)
    >>> round(release.noise_scale, 4)
    25.0025
    """
    _validate.positive(strong_convexity=strong_convexity, smoothness=smoothness)
    _refuse_flat(strong_convexity, _least_convexity(budget, smoothness))

    def release(noise: float) -> ObjectivePerturbation:
        return ObjectivePerturbation(
            noise_scale=noise, strong_convexity=strong_convexity, smoothness=smoothness
        )

    return release(
        smallest(lambda noise: release(noise).delta_at(budget.epsilon) <= budget.delta)
    )


def calibrate_objective(
    budget: Budget, *, l2_sum: float, smoothness: float = 0.25
) -> ObjectivePerturbation:
    """Return the release with the least regularization that hardly costs noise.

    Scans ``l2_sum`` times 1, 1.5, 2, 3, 5 and takes the smallest whose noise is within
    10 % of the best.  Where ``l2_sum`` (the l2 coefficient times the public number of
    rows) is too small for that, the scan goes on from ``2 smoothness / epsilon``.
    """
    _validate.positive(l2_sum=l2_sum, smoothness=smoothness)
    least = _least_convexity(budget, smoothness)

    def scan(start: float) -> list[ObjectivePerturbation]:
        usable = [start * factor for factor in _SCAN if start * factor > least]
        return [
            least_noise(budget, strong_convexity=convexity, smoothness=smoothness)
            for convexity in usable
        ]

    releases, enough = scan(l2_sum), _FAR * gaussian_noise(budget)
    if all(release.noise_scale > enough for release in releases):
        releases += scan(max(l2_sum, 2 * smoothness / budget.epsilon, least))
    best = min(release.noise_scale for release in releases)
    close = [one for one in releases if one.noise_scale <= _CLOSE * best]
    return min(close, key=lambda release: release.strong_convexity)


class _ProvedPair(Mechanism):
    """A proof of one (epsilon, delta), and of no Renyi curve: that is infinite."""

    epsilon: float
    delta: float

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return infinity: no curve is proved."""
        return np.full(np.shape(orders), np.inf)

    def delta_at(self, epsilon: float) -> float:
        """Return delta from the proved epsilon on, one below it."""
        _validate.non_negative(epsilon=epsilon)
        return self.delta if epsilon >= self.epsilon else 1.0


@dataclass(frozen=True, kw_only=True)
class KiferObjective(_ProvedPair):
    """Gaussian ``b`` as calibrated by Kifer, Smith and Thakurta (2012), sum scale.

    >>> round(KiferObjective(epsilon=0.2, delta=1e-8).noise_scale, 4)
    61.99
    """

    epsilon: Positive
    delta: Share
    lipschitz: Positive = 1.0
    smoothness: Positive = 0.25
    relation: ClassVar[Neighboring] = Neighboring.ADD_REMOVE

    @property
    def noise_scale(self) -> float:
        """Standard deviation, ``L sqrt(8 log(2/delta) + 4 epsilon) / epsilon``.

        Kifer, Smith and Thakurta (2012), Algorithm 1 with Gaussian noise.
        """
        variance = 8 * math.log(2 / self.delta) + 4 * self.epsilon
        return self.lipschitz * math.sqrt(variance) / self.epsilon

    @property
    def strong_convexity(self) -> float:
        """The least curvature, on every coordinate: ``2 smoothness / epsilon``.

        With it the Jacobian costs half of epsilon.  A regularizer that is there already
        counts towards it.
        """
        return 2 * self.smoothness / self.epsilon


@dataclass(frozen=True, kw_only=True)
class ChaudhuriObjective(PureDP):
    """Pure epsilon-DP: ``b`` with a Gamma norm and a uniform direction.

    Chaudhuri, Monteleoni and Sarwate (2011), Theorem 9, for rows of norm one at most
    and losses of slope one at most.  The scale is that of the *mean*: minimized is
    ``mean loss + (l2 + extra_convexity)/2 |w|^2 + b.w / n_rows``, ``n_rows`` public.
    """

    l2: Positive
    n_rows: Count
    smoothness: Positive = 0.25
    relation: ClassVar[Neighboring] = Neighboring.REPLACE_ONE

    @property
    def _rest(self) -> float:
        """What the Jacobian leaves of epsilon; the published logarithm is a square."""
        curvature = self.smoothness / (self.n_rows * self.l2)
        return self.epsilon - 2 * math.log1p(curvature)

    @property
    def epsilon_prime(self) -> float:
        """The part of epsilon that the noise may use."""
        return self._rest if self._rest > 0 else self.epsilon / 2

    @property
    def extra_convexity(self) -> float:
        """What is added to ``l2`` so that the Jacobian costs half of epsilon."""
        if self._rest > 0:
            return 0.0
        needed = self.smoothness / (self.n_rows * math.expm1(self.epsilon / 4))
        return max(needed - self.l2, 0.0)

    @property
    def norm_scale(self) -> float:
        """Scale of the Gamma distribution of ``|b|``; its shape is the dimension."""
        return 2 / self.epsilon_prime


@dataclass(frozen=True, kw_only=True)
class ApproximateMinima(_ProvedPair):
    """Approximate minima perturbation (AMP), Iyengar et al. (2019), Algorithm 1.

    The scale is that of the *mean*: minimized is ``mean loss + strong_convexity /
    (2 n_rows) |w|^2 + b.w`` until the gradient norm is ``gradient_tolerance`` at most,
    and Gaussian noise is added to the answer.

    Attributes
    ----------
    output_share : float, default=0.01
        Share of epsilon and of delta that pays for the noise on the answer.
    noise_share : float or None
        Share of the rest of epsilon that pays for ``b``, the remainder pays for the
        Jacobian; None takes the share that Iyengar et al. fitted to epsilon.
    """

    epsilon: Positive
    delta: Share
    n_rows: Count
    gradient_tolerance: NonNegative
    lipschitz: Positive = 1.0
    smoothness: Positive = 0.25
    output_share: Share = 0.01
    noise_share: Share | None = None
    relation: ClassVar[Neighboring] = Neighboring.REPLACE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.open_unit(noise_share=self._noise)
        if self._jacobian >= 1:
            raise ValueError(
                f"Expected less than 1 of epsilon {self.epsilon:g} for the Jacobian, "
                f"got {self._jacobian:g}; raise noise_share (now {self._noise:g})."
            )
        # The tail bound behind both noises holds for a multiplier of at least 1/2.
        if min(self._multipliers) < 0.5:
            raise ValueError(
                f"Expected a budget within reach of the proof, got epsilon "
                f"{self.epsilon!r} at delta {self.delta!r}; lower epsilon or delta."
            )

    @property
    def _noise(self) -> float:
        if self.noise_share is not None:
            return self.noise_share
        fitted = min(0.88671 + 0.0186607 / self.epsilon**0.372906, 0.99)
        return max(fitted, 1 - 1 / self.epsilon + 0.001)

    @property
    def _jacobian(self) -> float:
        """The epsilon that the Jacobian may use (epsilon_1 - epsilon_3)."""
        return self.epsilon * (1 - self.output_share) * (1 - self._noise)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Noise over sensitivity of ``b`` and of the answer."""
        share = self.output_share
        epsilon = self.epsilon * (1 - share) * self._noise
        first = _tail_multiplier(epsilon, self.delta * (1 - share))
        return first, _tail_multiplier(self.epsilon * share, self.delta * share)

    @property
    def strong_convexity(self) -> float:
        """``Lambda = 2 smoothness / (epsilon_1 - epsilon_3)``, sum scale."""
        return 2 * self.smoothness / self._jacobian

    @property
    def noise_scale(self) -> float:
        """Standard deviation of ``b``; mean gradients differ by ``2 L / n``."""
        return 2 * self.lipschitz / self.n_rows * self._multipliers[0]

    @property
    def output_noise_scale(self) -> float:
        """Standard deviation of the noise on the answer.

        Each answer is within ``n gamma / Lambda`` of its exact minimizer, so the two
        errors differ by up to *twice* that; the factor two is missing in print.
        """
        radius = self.n_rows * self.gradient_tolerance / self.strong_convexity
        return 2 * radius * self._multipliers[1]


def _tail_multiplier(epsilon: float, delta: float) -> float:
    """Return ``(1 + sqrt(2 log(1/delta))) / epsilon`` (Nikolov et al. 2013)."""
    return (1 + math.sqrt(-2 * math.log(delta))) / epsilon
