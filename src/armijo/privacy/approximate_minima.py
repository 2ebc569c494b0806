# SPDX-License-Identifier: Apache-2.0
"""A minimizer that a solver finds only nearly: noise on the answer pays for the rest.

The proofs of objective perturbation are about the exact minimizer.  A solver stops at a
gradient of norm tau, hence within ``tau / lambda`` of it; given the exact minimizer,
two neighbors' answers differ by ``2 tau / lambda`` at most, and noise for that
sensitivity makes the error private as well (Iyengar et al. 2019; Redberg, Koskela and
Wang 2023).  The two releases are composed: their epsilons and their deltas add up.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from armijo import _validate
from armijo.privacy.analytic import gaussian_delta
from armijo.privacy.budget import Budget, FloatArray
from armijo.privacy.mechanisms import Gaussian, PureDP
from armijo.privacy.planned import ROUNDING, reachable

OUTPUT_SHARE = 0.01
"""Share of epsilon and delta that is set aside for the noise on the answer."""


class ProfiledRelease(Protocol):
    """A release with a Renyi curve (perhaps infinite) and a profile of its own."""

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Bound the Renyi divergence."""
        ...

    def delta_at(self, epsilon: float) -> float:
        """Return the smallest proved delta."""
        ...


@dataclass(frozen=True, kw_only=True)
class WithOutputNoise:
    """A release of an exact answer, and noise that hides the error of the solver.

    Attributes
    ----------
    first : mechanism with a profile
        What its proof says of the exact minimizer.
    second : Gaussian or PureDP
        The noise on the answer, with twice the solver's error as its sensitivity.
    second_epsilon : float
        The part of every epsilon that is the second's.

    >>> from armijo.privacy.objective_perturbation import ObjectivePerturbation
    >>> exact = ObjectivePerturbation(noise_scale=25.01, strong_convexity=43.957)
    >>> noisy = WithOutputNoise(
    ...     first=exact, second=Gaussian(noise_scale=4000.0), second_epsilon=0.002
    ... )
    >>> noisy.delta_at(0.202) - exact.delta_at(0.2) < 1e-10
    True
    """

    first: ProfiledRelease
    second: Gaussian | PureDP
    second_epsilon: float

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.positive(second_epsilon=self.second_epsilon)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the sum of the curves."""
        return np.asarray(self.first.rdp(orders) + self.second.rdp(orders))

    def dp_event(self) -> None:
        """Return None: dp-accounting has no event for it."""

    def delta_at(self, epsilon: float) -> float:
        """Return ``delta_1(epsilon - e2) + delta_2(e2)``: basic composition."""
        _validate.non_negative(epsilon=epsilon)
        rest = epsilon - self.second_epsilon
        if rest < 0:
            return 1.0
        return min(self.first.delta_at(rest) + self._second_delta(), 1.0)

    def _second_delta(self) -> float:
        """Return delta of the noise on the answer at its own epsilon."""
        if isinstance(self.second, PureDP):
            return 0.0 if self.second_epsilon >= self.second.epsilon else 1.0
        return gaussian_delta(self.second_epsilon, self.second.noise_multiplier)


def with_output_share(budget: Budget) -> tuple[Budget, Budget]:
    """Return the budgets of the exact answer and of the noise on it.

    >>> first, second = with_output_share(Budget(epsilon=1.0, delta=1e-5))
    >>> round(first.epsilon, 6), round(second.epsilon, 6)
    (0.99, 0.01)
    """
    whole = reachable(budget)
    second = Budget(
        epsilon=whole.epsilon * OUTPUT_SHARE, delta=whole.delta * OUTPUT_SHARE
    )
    first = Budget(
        epsilon=whole.epsilon - second.epsilon,
        delta=whole.delta * (1 - OUTPUT_SHARE) * (1 - ROUNDING),
    )
    return first, second
