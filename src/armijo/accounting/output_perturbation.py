# SPDX-License-Identifier: Apache-2.0
"""Output perturbation: how far one row can move the result of a gradient descent.

A gradient step on a convex smooth objective shrinks the distance of two runs by
:func:`contraction`; the one row that differs adds a bounded push.  Unrolled, that is
the sensitivity of the last (or averaged) iterate, and Gaussian noise on it is private.
Losses have gradients of norm one and smoothness ``smoothness`` at most per row, and
``l2/2 |w|^2`` is added to their mean.  The last part is about noise on the
answer of objective perturbation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from armijo import _validate
from armijo._validate import Positive
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import ROUNDING, reachable
from armijo.accounting.conversion import (
    gaussian_delta,
    gaussian_noise,
    rdp_limit,
    smallest,
)
from armijo.accounting.mechanisms import Gaussian, Mechanism, PureDP

OUTPUT_SHARE = 0.01
"""Share of epsilon and delta that is set aside for the noise on the answer."""


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

    >>> from armijo.accounting.objective_perturbation import ObjectivePerturbation
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
