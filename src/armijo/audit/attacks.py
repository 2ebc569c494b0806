# SPDX-License-Identifier: Apache-2.0
"""Which function of a release tells whether the row was there.

A release is a vector of numbers.  Tried are each number by itself, both ways, the
linear discriminant, and the quadratic one (logarithms of likelihood ratios of Gaussian
distributions).  That a value is NaN or infinite is a release, too, and read as one.
Fitting, choice and threshold use trials of their own, of which the bound knows nothing,
so that any attack gives a valid bound; a good one gives a large bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from armijo.accounting.budget import FloatArray
from armijo.audit.bounds import Counts, lower_rate, upper_rate

Score = Callable[[FloatArray], FloatArray]
Read = Callable[[FloatArray], FloatArray]
"""Turns releases into numbers that can be added and squared."""
Fit = Callable[[FloatArray, FloatArray], Score]
Value = Callable[[FloatArray, FloatArray], FloatArray]
"""What bounds on the two rates of a test are worth."""

_RIDGE = 1e-3  # of a variance of one: directions without variance have an inverse
_MOST_THRESHOLDS = 128
_SMOOTHED = 32  # a score with fewer values is taken value by value
_WORTHLESS = -10.0
_FARTHEST = 1e100  # values beyond it count as it: their squares would be infinite


@dataclass(frozen=True)
class Attack:
    """Say "present" where the score reaches the threshold."""

    score: Score
    threshold: float

    def counts(self, absent: FloatArray, present: FloatArray) -> Counts:
        """Count what the attack says of fresh trials."""
        return Counts(
            true_positives=int(np.sum(self.score(present) >= self.threshold)),
            positives=len(present),
            false_positives=int(np.sum(self.score(absent) >= self.threshold)),
            negatives=len(absent),
        )


def best_attack(
    absent: FloatArray, present: FloatArray, value: Value, confidence: float
) -> Attack:
    """Return the attack that is worth most on trials it was not fitted to.

    Each is fitted to one half and scores the other, and the reverse; the threshold is
    chosen for all these scores, and the winner is fitted again to all trials.

    Parameters
    ----------
    absent, present : array of shape (trials, numbers)
        Releases without and with the row.
    value : callable
        What bounds on true and false positive rate are worth.
    confidence : float
        Of the bounds, as the audit will use them.
    """
    read = _reading(np.concatenate([absent, present]))
    absent, present = read(absent), read(present)
    best, winner, threshold = -np.inf, _column(0, 1.0), np.inf
    for fit in _fits(absent.shape[1]):
        scores = _held_out(fit, absent, present)
        place, worth = _best_threshold(*scores, value, confidence)
        if worth > best:
            best, winner, threshold = worth, fit, place
    score = winner(absent, present)
    return Attack(lambda x: score(read(x)), threshold)


def _reading(seen: FloatArray) -> Read:
    """Return how to read releases: by their finite values, and where they have none.

    A column that says so is added for each number that was NaN, or infinite, in some
    of the trials that make the attack.
    """
    odd = [
        (kind, kind(seen).any(axis=0)) for kind in (np.isnan, np.isposinf, np.isneginf)
    ]

    def read(x: FloatArray) -> FloatArray:
        finite = np.where(np.isfinite(x), np.clip(x, -_FARTHEST, _FARTHEST), 0.0)
        return np.column_stack([finite, *(kind(x)[:, where] for kind, where in odd)])

    return read


def _held_out(
    fit: Fit, absent: FloatArray, present: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Score each half of the trials by what was fitted to the other half."""
    scores = np.empty(len(absent)), np.empty(len(present))
    for half in (0, 1):
        score = fit(absent[1 - half :: 2], present[1 - half :: 2])
        for own, trials in zip(scores, (absent, present), strict=True):
            own[half::2] = score(trials[half::2])
    return scores


def _best_threshold(
    absent: FloatArray, present: FloatArray, value: Value, confidence: float
) -> tuple[float, float]:
    """Return the threshold of the highest value, and the value."""
    values = np.unique(np.concatenate([absent, present]))
    if len(values) > _MOST_THRESHOLDS:
        values = np.unique(np.quantile(values, _shares(len(values))))
    # Between two scores, so that rounding of a score does not decide.
    places = 0.5 * (values[1:] + values[:-1])
    if not len(places):
        return np.inf, -np.inf
    miss = (1 - confidence) / 2
    worth = value(
        lower_rate(_reached(present, places), len(present), miss),
        upper_rate(_reached(absent, places), len(absent), miss),
    )
    worth = _smooth(np.maximum(worth, _WORTHLESS))
    at = int(np.argmax(worth))
    return float(places[at]), float(worth[at])


def _shares(count: int) -> FloatArray:
    """Return shares that are even in their log odds: tails matter as the middle."""
    farthest = np.log(count)
    return np.asarray(expit(np.linspace(-farthest, farthest, _MOST_THRESHOLDS)))


def _smooth(worth: FloatArray) -> FloatArray:
    """Average over near thresholds: the best of many single ones is the luckiest."""
    reach = len(worth) // _SMOOTHED
    padded = np.pad(worth, reach, mode="edge")
    return np.convolve(padded, np.full(2 * reach + 1, 1 / (2 * reach + 1)), "valid")


def _reached(scores: FloatArray, places: FloatArray) -> NDArray[np.int64]:
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), places))


def _fits(width: int) -> Iterator[Fit]:
    for index in range(width):
        yield _column(index, 1.0)
        yield _column(index, -1.0)
    if width > 1:
        yield _linear
    yield _quadratic


def _column(index: int, sign: float) -> Fit:
    return lambda absent, present: lambda x: sign * x[:, index]


def _standardized(absent: FloatArray, present: FloatArray) -> Score:
    """Return the map to mean zero and variance one; constants become zero."""
    both = np.concatenate([absent, present])
    mean, spread = both.mean(axis=0), both.std(axis=0)
    scale = np.where(
        spread > 1e-12 * (1 + np.abs(mean)), 1 / np.maximum(spread, 1e-300), 0.0
    )
    return lambda x: (x - mean) * scale


def _linear(absent: FloatArray, present: FloatArray) -> Score:
    scaled = _standardized(absent, present)
    (low, first), (high, second) = _moments(scaled(absent)), _moments(scaled(present))
    weights = np.linalg.solve(0.5 * (first + second), high - low)
    return lambda x: scaled(x) @ weights


def _quadratic(absent: FloatArray, present: FloatArray) -> Score:
    """Return the log likelihood ratio of two Gaussians, up to a constant."""
    scaled = _standardized(absent, present)
    fitted = [_moments(scaled(sample)) for sample in (absent, present)]

    def score(x: FloatArray) -> FloatArray:
        distances = []
        for mean, covariance in fitted:
            offset = scaled(x) - mean
            solved = np.linalg.solve(covariance, offset.T).T
            distances.append(0.5 * np.sum(offset * solved, axis=1))
        return np.asarray(distances[0] - distances[1])

    return score


def _moments(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance, the latter with a ridge."""
    centered = x - x.mean(axis=0)
    covariance = centered.T @ centered / max(len(x) - 1, 1)
    return x.mean(axis=0), covariance + _RIDGE * np.eye(x.shape[1])
