# SPDX-License-Identifier: Apache-2.0
"""The two-dataset game: tell from a release whether one row was there.

Many trials are made on each of two neighboring data sets, which are chosen so that one
row moves every query as far as it may.  The first part of the trials makes the attack;
the others, which it has not seen, are counted, and the counts bound epsilon.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.audit.attacks import Value, best_attack
from armijo.audit.bounds import Counts, epsilon_of_test, mu_of_test
from armijo.randomness import Randomness, fresh_key

FEWEST_TRIALS = 20

ATTACK_SHARE = 0.3
"""Part of the trials that the attack is made from."""


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
