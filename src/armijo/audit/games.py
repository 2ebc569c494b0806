# SPDX-License-Identifier: Apache-2.0
"""The two-dataset game: tell from a release whether one row was there.

Many trials are made on each of two neighboring data sets, which are chosen so that one
row moves every query as far as it may.  The first part of the trials makes the attack;
the others, which it has not seen, are counted, and the counts bound epsilon.

An attack is a function of a release, which is a vector of numbers.  Tried are each
number by itself, both ways, the linear discriminant, and the quadratic one (logarithms
of likelihood ratios of Gaussian distributions).  That a value is NaN or infinite is a
release, too, and read as one.  Fitting, choice and threshold use trials of their own,
of which the bound knows nothing, so that any attack gives a valid bound; a good one
gives a large bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.audit.bounds import (
    Counts,
    epsilon_of_test,
    lower_rate,
    mu_of_test,
    upper_rate,
)
from armijo.randomness import Randomness, fresh_key

Score = Callable[[FloatArray], FloatArray]
Read = Callable[[FloatArray], FloatArray]
"""Turns releases into numbers that can be added and squared."""
Fit = Callable[[FloatArray, FloatArray], Score]
Value = Callable[[FloatArray, FloatArray], FloatArray]
"""What bounds on the two rates of a test are worth."""

FEWEST_TRIALS = 20

ATTACK_SHARE = 0.3
"""Part of the trials that the attack is made from."""

_RIDGE = 1e-3  # of a variance of one: directions without variance have an inverse
_MOST_THRESHOLDS = 128
_SMOOTHED = 32  # a score with fewer values is taken value by value
_WORTHLESS = -10.0
_FARTHEST = 1e100  # values beyond it count as it: their squares would be infinite


@dataclass(frozen=True)
class Claim:
    """The guarantee of a release; delta zero is pure privacy.

    ``gaussian`` says that the worst trade-off of the mechanism is that of a Gaussian
    release, hence that one number mu says epsilon at every delta.
    """

    epsilon: float
    delta: float
    gaussian: bool = False


class Game(Protocol):
    """Something that is released, with two neighboring data sets."""

    @property
    def name(self) -> str:
        """What the game is called."""

    @property
    def claim(self) -> Claim:
        """The guarantee of the release."""

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once, with or without the row, as a vector of fixed length."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Claimed and audited epsilon of one game.

    Attributes
    ----------
    name : str
        The game.
    claim : Claim
        The guarantee.
    epsilon : float
        Lower bound on the epsilon of what was released, at the claimed delta.
    bound : str
        How it was computed: "clopper-pearson", "gaussian" or "one-run".
    confidence : float
        With which the bound holds.
    trials : int
        Releases (canaries, for one run) of which the bound was computed.
    detail : dict
        The counts.
    """

    name: str
    claim: Claim
    epsilon: float
    bound: str
    confidence: float
    trials: int
    detail: dict[str, float | int]

    @property
    def exceeds(self) -> bool:
        """Whether the claim is refuted."""
        return self.epsilon > self.claim.epsilon


def play_game(
    game: Game,
    *,
    trials: int,
    confidence: float,
    seed: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Outcome:
    """Play, attack and bound.

    Parameters
    ----------
    game : Game
        What is released.
    trials : int
        Releases on each of the two data sets.
    confidence : float
        Of the bound.
    seed : int or None
        Repeats the game; None draws from the operating system.
    progress : callable
        Called after each release with the number of releases so far.
    """
    _validate.at_least(FEWEST_TRIALS, trials=trials)
    _validate.open_unit(confidence=confidence)
    absent, present = _released(game, trials, seed, progress)
    cut = int(ATTACK_SHARE * trials)
    attack = best_attack(absent[:cut], present[:cut], _value(game.claim), confidence)
    return _judged(game, attack.counts(absent[cut:], present[cut:]), confidence)


def _released(
    game: Game, trials: int, seed: int | None, progress: Callable[[int], object]
) -> tuple[FloatArray, FloatArray]:
    samples: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    for number in range(2 * trials):
        present = bool(number % 2)
        samples[present].append(game.play(present, randomness_of(seed, number)))
        progress(number + 1)
    return np.array(samples[0]), np.array(samples[1])


def randomness_of(seed: int | None, number: int) -> Randomness:
    """Return the streams of a run key, as a fit has them: a secret one or a seed's."""
    if seed is None:
        return Randomness(fresh_key())
    _validate.at_least(0, seed=seed)
    words = np.random.SeedSequence([seed, number]).generate_state(8, np.uint32)
    return Randomness(words.tobytes())


def _value(claim: Claim) -> Value:
    """Return what an attack is chosen by: the bound that will be reported."""
    if claim.gaussian:
        return mu_of_test
    return lambda tpr, fpr: epsilon_of_test(tpr, fpr, claim.delta)


def _judged(game: Game, counts: Counts, confidence: float) -> Outcome:
    """Bound epsilon by the counts; both bounds hold on the same event."""
    claim = game.claim
    bounds = {"clopper-pearson": counts.epsilon(claim.delta, confidence)}
    if claim.gaussian:
        bounds["gaussian"] = counts.gaussian_epsilon(claim.delta, confidence)
    bound = max(bounds, key=lambda name: bounds[name])
    return Outcome(
        name=game.name,
        claim=claim,
        epsilon=bounds[bound],
        bound=bound,
        confidence=confidence,
        trials=counts.positives + counts.negatives,
        detail=asdict(counts),
    )


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
    centered = x - x.mean(axis=0)
    covariance = centered.T @ centered / max(len(x) - 1, 1)
    return x.mean(axis=0), covariance + _RIDGE * np.eye(x.shape[1])
