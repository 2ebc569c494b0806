# SPDX-License-Identifier: Apache-2.0
"""The older objective perturbations: Kifer et al., Chaudhuri et al., Iyengar et al.

Same problem as in :mod:`armijo.privacy.objective_perturbation`, looser proofs.  Each
promises one (epsilon, delta) and, unless it is pure, no Renyi curve: that is infinite.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from armijo import _validate
from armijo.privacy.analytic import pure_delta
from armijo.privacy.budget import Budget, FloatArray, Neighboring
from armijo.privacy.mechanisms import PureDP


def kst_noise(budget: Budget, lipschitz: float = 1.0) -> float:
    """Return the deviation of ``b``: ``L sqrt(8 log(2/delta) + 4 epsilon) / epsilon``.

    Kifer, Smith and Thakurta (2012), Algorithm 1 with Gaussian noise (sum scale).

    >>> round(kst_noise(Budget(epsilon=0.2, delta=1e-8)), 4)
    61.99
    """
    _validate.positive(lipschitz=lipschitz)
    variance = 8 * math.log(2 / budget.delta) + 4 * budget.epsilon
    return lipschitz * math.sqrt(variance) / budget.epsilon


def kst_convexity(budget: Budget, smoothness: float = 0.25) -> float:
    """Return the least strong convexity: ``2 smoothness / epsilon`` (sum scale).

    Kifer, Smith and Thakurta (2012), Algorithm 1: with it the Jacobian costs half of
    epsilon.  A regularizer that is there already counts towards it.
    """
    _validate.positive(smoothness=smoothness)
    return 2 * smoothness / budget.epsilon


@dataclass(frozen=True, kw_only=True)
class KiferObjective:
    """Gaussian ``b`` as calibrated by Kifer, Smith and Thakurta (2012), sum scale.

    The objective needs *at least* ``strong_convexity``, on every coordinate.
    """

    epsilon: float
    delta: float
    lipschitz: float = 1.0
    smoothness: float = 0.25
    relation: ClassVar[Neighboring] = Neighboring.ADD_REMOVE

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.positive(lipschitz=self.lipschitz, smoothness=self.smoothness)
        Budget(epsilon=self.epsilon, delta=self.delta)

    @property
    def _budget(self) -> Budget:
        """The promise."""
        return Budget(epsilon=self.epsilon, delta=self.delta)

    @property
    def noise_scale(self) -> float:
        """Deviation of every coordinate of ``b``."""
        return kst_noise(self._budget, self.lipschitz)

    @property
    def strong_convexity(self) -> float:
        """The curvature that the proof needs."""
        return kst_convexity(self._budget, self.smoothness)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return infinity: no curve is proved."""
        return np.full(np.shape(orders), np.inf)

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def delta_at(self, epsilon: float) -> float:
        """Return delta from the proved epsilon on, one below it."""
        return _step_profile(self, epsilon)


@dataclass(frozen=True, kw_only=True)
class ChaudhuriObjective:
    """Pure epsilon-DP: ``b`` with a Gamma norm and a uniform direction.

    Chaudhuri, Monteleoni and Sarwate (2011), Theorem 9, for rows of norm one at most
    and losses of slope one at most.  The scale is that of the *mean*: minimized is
    ``mean loss + (l2 + extra_convexity)/2 |w|^2 + b.w / n_rows``, ``n_rows`` public.
    """

    epsilon: float
    l2: float
    n_rows: int
    smoothness: float = 0.25
    relation: ClassVar[Neighboring] = Neighboring.REPLACE_ONE

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.positive(epsilon=self.epsilon, l2=self.l2, smoothness=self.smoothness)
        _validate.at_least(1, n_rows=self.n_rows)

    @property
    def _rest(self) -> float:
        """What the Jacobian leaves of epsilon; the printed logarithm is a square."""
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
        """Scale of the Gamma law of the norm of ``b``; its shape is the dimension."""
        return 2 / self.epsilon_prime

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the tight curve of pure epsilon-DP."""
        return PureDP(self.epsilon).rdp(orders)

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def delta_at(self, epsilon: float) -> float:
        """Return delta of the worst mechanism of pure epsilon-DP."""
        return pure_delta(epsilon, self.epsilon)


@dataclass(frozen=True, kw_only=True)
class ApproximateMinima:
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

    epsilon: float
    delta: float
    n_rows: int
    gradient_tolerance: float
    lipschitz: float = 1.0
    smoothness: float = 0.25
    output_share: float = 0.01
    noise_share: float | None = None
    relation: ClassVar[Neighboring] = Neighboring.REPLACE_ONE

    def __post_init__(self) -> None:
        """Check the settings and the two premises of the proof."""
        Budget(epsilon=self.epsilon, delta=self.delta)
        _validate.at_least(1, n_rows=self.n_rows)
        _validate.non_negative(gradient_tolerance=self.gradient_tolerance)
        _validate.positive(lipschitz=self.lipschitz, smoothness=self.smoothness)
        _validate.open_unit(output_share=self.output_share, noise_share=self._noise)
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
        """The share of ``b``, given or by the rule."""
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
        """Deviation of ``b``, for gradients of the mean that differ by ``2 L / n``."""
        return 2 * self.lipschitz / self.n_rows * self._multipliers[0]

    @property
    def output_noise_scale(self) -> float:
        """Deviation of the noise on the answer.

        Each answer is within ``n gamma / Lambda`` of its exact minimizer, so the two
        errors differ by up to *twice* that; the factor two is missing in print.
        """
        radius = self.n_rows * self.gradient_tolerance / self.strong_convexity
        return 2 * radius * self._multipliers[1]

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return infinity: no curve is proved."""
        return np.full(np.shape(orders), np.inf)

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def delta_at(self, epsilon: float) -> float:
        """Return delta from the proved epsilon on, one below it."""
        return _step_profile(self, epsilon)


def _tail_multiplier(epsilon: float, delta: float) -> float:
    """Return ``(1 + sqrt(2 log(1/delta))) / epsilon`` (Nikolov et al. 2013)."""
    return (1 + math.sqrt(-2 * math.log(delta))) / epsilon


def _step_profile(promise: KiferObjective | ApproximateMinima, epsilon: float) -> float:
    """Return what one proved pair says about another epsilon."""
    _validate.non_negative(epsilon=epsilon)
    return promise.delta if epsilon >= promise.epsilon else 1.0
