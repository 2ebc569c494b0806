# SPDX-License-Identifier: Apache-2.0
"""Objective and output perturbation: one release that hides a whole computation.

**Objective perturbation** releases the minimizer of ``sum of losses +
strong_convexity/2 |w|^2 + b.w``.  The loss is that of a linear model: convex, gradient
of one row at most ``lipschitz`` long, its only Hessian eigenvalue at most
``smoothness``.  Scales are those of the *sum* of losses unless a class says otherwise,
and a class says in ``relation`` which neighbors its proof covers.  First the tight
analysis and its calibration, then the older ones of Kifer et al., Chaudhuri et al. and
Iyengar et al.  A minimizer that a solver finds only nearly also needs
:class:`WithOutputNoise`.

**Output perturbation** asks how far one row can move the result of a gradient descent.
A gradient step on a convex smooth objective shrinks the distance of two runs by
:func:`contraction`; the one row that differs adds a bounded push.  Unrolled, that is
the sensitivity of the last (or averaged) iterate, and Gaussian noise on it is private.
Losses have gradients of norm one and smoothness ``smoothness`` at most per row, and
``l2/2 |w|^2`` is added to their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import erf, log_ndtr

from armijo import _validate
from armijo._validate import Count, NonNegative, Positive, Share
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import (
    ROUNDING,
    gaussian_noise,
    rdp_limit,
    reachable,
    smallest,
)
from armijo.accounting.mechanisms import Gaussian, Mechanism, PureDP, gaussian_delta

_SCAN = (1.0, 1.5, 2.0, 3.0, 5.0)
_CLOSE = 1.1  # noise this near to the best is worth a smaller regularizer
_FAR = 1.3  # noise this far above one Gaussian release asks for a larger one
OUTPUT_SHARE = 0.01
"""Share of epsilon and delta that is set aside for the noise on the answer."""


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
        return np.full(np.shape(orders), np.inf)

    def delta_at(self, epsilon: float) -> float:
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


def contraction(step_size: float, l2: float, smoothness: float) -> float:
    """Return the Lipschitz constant of one gradient step.

    ``max(|1 - step l2|, |1 - step (smoothness + l2)|)``, as the Hessian lies between
    ``l2`` and ``smoothness + l2``; above one the step is too long.

    >>> contraction(0.5, 0.0, 1.0)
    1.0
    """
    _validate.positive(step_size=step_size, smoothness=smoothness)
    _validate.non_negative(l2=l2)
    return max(abs(1 - step_size * l2), abs(1 - step_size * (smoothness + l2)))


def gd_sensitivity(
    *,
    step_size: float,
    steps: int,
    n_rows: int,
    l2: float = 0.0,
    smoothness: float = 0.25,
    relation: Neighboring = Neighboring.REPLACE_ONE,
    published: bool = False,
) -> float:
    """Return how far full gradient descent can move, by unrolling its recursion.

    ``s <- c s + k step / n``, k = 2 where a row is replaced and 1 where it only comes,
    goes or is zeroed out, hence ``(k step / n) (1 - c^T) / (1 - c)``; any step size.
    ``n_rows`` is the constant that sums are divided by.  Without replacement it has to
    be public and at least the number of rows of the smaller of the two data sets, or
    the mean loss would be less smooth than assumed.

    ``published`` is ``3 step T / n`` of Zhang, Zheng, Mou and Wang (2017), convex case,
    replace-one, for replicas; refused where steps are so long that they do not
    contract.

    >>> gd_sensitivity(step_size=1.0, steps=50, n_rows=1000)
    0.1
    """
    _validate.at_least(1, steps=steps, n_rows=n_rows)
    c = contraction(step_size, l2, smoothness)
    if published and c > 1:
        raise ValueError(
            f"Expected step_size <= {2 / (smoothness + l2):g}, got {step_size!r}; "
            "shorten the step, or take variant='improved'."
        )
    if published:
        return 3 * steps * step_size / n_rows
    touched = 2 if relation is Neighboring.REPLACE_ONE else 1
    push = touched * step_size / n_rows
    if c in (0.0, 1.0):
        return push * (steps if c else 1)
    return push * math.expm1(steps * math.log(c)) / (c - 1)


def rsgd_step_size(step_size: float, epoch: int, n_batches: int) -> float:
    """Return the step of an epoch (from 0): ``step_size / sqrt(epoch + 1)``.

    Constant when all rows are one batch.  Chen, Lee and Kifer (2019).
    """
    return step_size if n_batches == 1 else step_size / math.sqrt(epoch + 1)


def rsgd_sensitivities(
    *,
    step_size: float,
    epochs: int,
    n_batches: int,
    batch_size: int,
    l2: float = 0.0,
    smoothness: float = 0.25,
) -> tuple[float, ...]:
    """Bound the *average* iterate of permuted SGD, for each batch the row may be in.

    Every step multiplies all bounds by the contraction; the step of batch j adds
    ``2 step / batch_size`` to the bound of j; averaging the iterates averages the
    bounds (Chen, Lee and Kifer 2019).  ``batch_size`` is that of the smallest
    batch; one row is replaced; steps are those of :func:`rsgd_step_size`.
    """
    _validate.at_least(1, epochs=epochs, n_batches=n_batches, batch_size=batch_size)
    _validate.positive(step_size=step_size)
    now, total = np.zeros(n_batches), np.zeros(n_batches)
    for epoch in range(epochs):
        step = rsgd_step_size(step_size, epoch, n_batches)
        c = contraction(step, l2, smoothness)
        for batch in range(n_batches):
            now *= c
            now[batch] += 2 * step / batch_size
            total += now
    return tuple((total / (epochs * n_batches)).tolist())


@dataclass(frozen=True, kw_only=True)
class PermutedMixture(Mechanism):
    """A Gaussian release whose sensitivity depends on a secret, uniform batch index.

    The row that differs is in batch k with probability 1/m and then moves the answer by
    ``sensitivities[k]`` at most.  That needs a secret permutation under which *every
    batch is equally likely*: batches of one size, or a random choice of which are
    larger.  Without it only :attr:`worst_case` is private.

    >>> release = PermutedMixture(sensitivities=(0.1, 0.3), noise_scale=1.0)
    >>> bool(release.rdp(8.0) < release.worst_case.rdp(8.0))
    True
    """

    sensitivities: tuple[float, ...]
    noise_scale: Positive
    relation: ClassVar[Neighboring] = Neighboring.REPLACE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sensitivities, tuple) or not self.sensitivities:
            raise ValueError(
                f"Expected a tuple of sensitivities, got {self.sensitivities!r}; give "
                "one for each batch."
            )
        for sensitivity in self.sensitivities:
            _validate.positive(sensitivity=sensitivity)

    @property
    def sensitivity(self) -> float:
        """The least of all batches, of which the rounding of an answer is most."""
        return min(self.sensitivities)

    @property
    def worst_case(self) -> Gaussian:
        """The release without the secret: the row is in the worst batch."""
        return Gaussian(
            noise_scale=self.noise_scale, sensitivity=max(self.sensitivities)
        )

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return ``log[mean_k exp(a (a-1) s_k^2 / (2 noise^2))] / (a-1)``.

        Joint convexity of ``exp((a-1) D_a)``, van Erven and Harremoes (2014); Chen, Lee
        and Kifer (2019).
        """
        a = np.asarray(orders, dtype=float)
        ratios = np.array(self.sensitivities) / self.noise_scale
        exponents = (a * (a - 1) / 2)[..., None] * ratios**2
        top = exponents.max(axis=-1)
        # From the largest down: neither large exponents nor tiny costs lose digits.
        below = np.expm1(exponents - top[..., None]).mean(axis=-1)
        return np.asarray((top + np.log1p(below)) / (a - 1))

    def delta_at(self, epsilon: float) -> float:
        """Return the mean of the profiles: tighter than the curve.

        The hockey-stick divergence is jointly convex like every f-divergence.
        """
        noise = self.noise_scale
        deltas = [gaussian_delta(epsilon, noise / each) for each in self.sensitivities]
        return math.fsum(deltas) / len(deltas)


def dense_orders(budget: Budget) -> FloatArray:
    """Return 2,000 real orders, from near one to well past the best for the budget.

    At least 1.5 to 2,560; the best order for a cost linear in the order is about
    ``1 + 2 log(1/delta) / epsilon``, or ``1 + sqrt(log(1/delta) / epsilon)`` when
    epsilon is large.
    """
    ratio = -math.log(budget.delta) / budget.epsilon
    low, high = min(0.5, 0.2 * math.sqrt(ratio)), max(2559.0, 16 * ratio)
    return 1 + np.geomspace(low, high, 2000)


def mixture_noise(
    budget: Budget, sensitivities: Sequence[float], *, profile: bool = False
) -> float:
    """Return the smallest noise of a :class:`PermutedMixture` in the budget.

    By its Renyi curve over 2,000 real orders as published, or, with less noise, by its
    ``profile``.
    """
    bounds = tuple(sensitivities)
    PermutedMixture(sensitivities=bounds, noise_scale=1.0)
    orders = dense_orders(budget)
    limits = rdp_limit(orders, budget)

    def keeps(noise: float) -> bool:
        release = PermutedMixture(sensitivities=bounds, noise_scale=noise)
        if profile:
            return release.delta_at(budget.epsilon) <= budget.delta
        return bool(np.any(release.rdp(orders) <= limits))

    return smallest(keeps, max(bounds))


@dataclass(frozen=True, kw_only=True)
class WithOutputNoise(Mechanism):
    """A release of an exact answer, and noise that hides the error of the solver.

    The proofs are about the exact minimizer.  A solver stops at a gradient of norm tau,
    hence within ``tau / lambda`` of it; given the exact minimizer, two neighbors'
    answers differ by ``2 tau / lambda`` at most, and noise for that sensitivity makes
    the error private as well (Iyengar et al. 2019; Redberg, Koskela and Wang 2023).
    The two releases are composed: their epsilons and their deltas add up.

    Attributes
    ----------
    first : mechanism with a profile
        What its proof says of the exact minimizer.
    second : Gaussian or PureDP
        The noise on the answer, with twice the solver's error as its sensitivity.
    second_epsilon : float
        The part of every epsilon that is the second's.

    >>> exact = ObjectivePerturbation(noise_scale=25.01, strong_convexity=43.957)
    >>> noisy = WithOutputNoise(
    ...     first=exact, second=Gaussian(noise_scale=4000.0), second_epsilon=0.002
    ... )
    >>> noisy.delta_at(0.202) - exact.delta_at(0.2) < 1e-10
    True
    """

    first: Mechanism
    second: Gaussian | PureDP
    second_epsilon: Positive

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the sum of the curves."""
        return np.asarray(self.first.rdp(orders) + self.second.rdp(orders))

    def delta_at(self, epsilon: float) -> float:
        """Return ``delta_1(epsilon - e2) + delta_2(e2)``: basic composition."""
        _validate.non_negative(epsilon=epsilon)
        rest = epsilon - self.second_epsilon
        if rest < 0:
            return 1.0
        second = self.second.delta_at(self.second_epsilon)
        return min(self.first.delta_at(rest) + second, 1.0)


def with_output_share(budget: Budget) -> tuple[Budget, Budget]:
    """Return the budgets of the exact answer and of the noise on it.

    >>> first, second = with_output_share(Budget(epsilon=1.0, delta=1e-5))
    >>> round(first.epsilon, 6), round(second.epsilon, 6)
    (0.99, 0.01)
    """
    whole, share = reachable(budget), OUTPUT_SHARE
    second = Budget(epsilon=whole.epsilon * share, delta=whole.delta * share)
    first = Budget(
        epsilon=whole.epsilon - second.epsilon,
        delta=whole.delta * (1 - share) * (1 - ROUNDING),
    )
    return first, second


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
