# SPDX-License-Identifier: Apache-2.0
"""From the errors of a test to a lower bound on epsilon.

A test says "present" or "absent" of one row.  Differential privacy bounds how well any
test can do, so that a test which does better rules a claim out.  The true rates of the
test are not known, only counts of independent trials; Clopper and Pearson (1934) bound
them exactly, each with half of the allowed probability to be wrong, so that both bounds
hold together with the stated confidence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.accounting.calibration import smallest
from armijo.accounting.mechanisms import gaussian_delta

_LARGEST_EPSILON = 700.0  # e^epsilon is still a float


def lower_rate(hits: ArrayLike, trials: int, miss: float) -> FloatArray:
    """Return a rate that the true one falls below with probability ``miss`` at most.

    Clopper and Pearson (1934): the rate with which so many hits or more have the
    probability ``miss``, a quantile of a beta distribution; zero without a hit.

    >>> float(lower_rate(10, 10, 0.05).round(6))
    0.741134
    """
    k = np.asarray(hits, dtype=float)
    safe = np.maximum(k, 1.0)
    return np.where(k > 0, betaincinv(safe, trials - safe + 1, miss), 0.0)


def upper_rate(hits: ArrayLike, trials: int, miss: float) -> FloatArray:
    """Return a rate that the true one exceeds with probability ``miss`` at most."""
    return 1 - lower_rate(trials - np.asarray(hits, dtype=float), trials, miss)


def epsilon_of_test(
    true_positive: ArrayLike, false_positive: ArrayLike, delta: float
) -> FloatArray:
    """Return the smallest epsilon at ``delta`` that allows a test with these rates.

    ``TPR <= e^eps FPR + delta`` and ``1 - FPR <= e^eps (1 - TPR) + delta`` (Kairouz, Oh
    and Viswanath 2015, Theorem 2.1); minus infinity where any epsilon does.  It rises
    with the first rate and falls with the second, so that bounds may be put in.

    >>> float(np.exp(epsilon_of_test(0.75, 0.25, 0.0)).round(9))
    3.0
    """
    tpr = np.asarray(true_positive, dtype=float)
    fpr = np.asarray(false_positive, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        present = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        absent = np.log(np.maximum(1 - fpr - delta, 0.0)) - np.log1p(-tpr)
        best = np.fmax(present, absent)
    return np.where(np.isnan(best), -np.inf, best)


def mu_of_test(true_positive: ArrayLike, false_positive: ArrayLike) -> FloatArray:
    """Return the smallest mu whose Gaussian trade-off allows a test with these rates.

    ``mu = Phi^-1(TPR) - Phi^-1(FPR)``, Dong, Roth and Su (2022), equation 6.
    """
    with np.errstate(invalid="ignore"):
        mu = ndtri(np.asarray(true_positive)) - ndtri(np.asarray(false_positive))
    return np.where(np.isnan(mu), -np.inf, mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon at ``delta`` of a mechanism whose trade-off is Gaussian.

    Dong, Roth and Su (2022), Corollary 1, which is the profile of Balle and Wang.

    >>> round(gaussian_epsilon(1 / 3.73, 1e-5), 3)
    1.0
    """
    _validate.open_unit(delta=delta)
    if mu <= 0 or gaussian_delta(0.0, 1 / mu) <= delta:
        return 0.0
    if gaussian_delta(_LARGEST_EPSILON, 1 / mu) > delta:
        return _LARGEST_EPSILON
    return smallest(lambda epsilon: gaussian_delta(epsilon, 1 / mu) <= delta)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How a fixed test did on trials that had no part in its making.

    Attributes
    ----------
    true_positives, positives : int
        How often it said "present", of the trials where the row was.
    false_positives, negatives : int
        How often it said "present", of the trials where the row was not.
    """

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def __post_init__(self) -> None:
        _validate.at_least(1, positives=self.positives, negatives=self.negatives)
        _validate.at_least(
            0,
            true_positives=self.true_positives,
            false_positives=self.false_positives,
        )
        if (
            self.true_positives > self.positives
            or self.false_positives > self.negatives
        ):
            raise ValueError(f"Expected no more hits than trials, got {self!r}.")

    def rates(self, confidence: float) -> tuple[float, float]:
        """Bound both rates at once: the first from below, the second from above."""
        _validate.open_unit(confidence=confidence)
        miss = (1 - confidence) / 2
        return (
            float(lower_rate(self.true_positives, self.positives, miss)),
            float(upper_rate(self.false_positives, self.negatives, miss)),
        )

    def epsilon(self, delta: float, confidence: float) -> float:
        """Return a lower bound on epsilon at ``delta``, for any mechanism."""
        return max(float(epsilon_of_test(*self.rates(confidence), delta)), 0.0)

    def gaussian_epsilon(self, delta: float, confidence: float) -> float:
        """Return the tighter bound for a mechanism whose trade-off is Gaussian.

        The counts bound mu from below, and mu says epsilon at every delta (after Nasr
        et al. 2023, with confidence bounds instead of their credible region).  For any
        other mechanism this number means nothing.
        """
        return gaussian_epsilon(float(mu_of_test(*self.rates(confidence))), delta)
