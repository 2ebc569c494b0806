# SPDX-License-Identifier: Apache-2.0
"""The audit of one trained model: many canaries, each with a coin of its own.

Steinke, Nasr and Jagielski (2023).  Each of m canaries is a row of the training table
with probability one half.  From the model the auditor guesses, for the canaries that it
is most sure of, which were there.  For an (epsilon, 0)-private model the number of
right guesses is at most that of as many coins with bias ``e^eps / (1 + e^eps)``,
however the guesses depend on one another; delta adds a little to the p-value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from scipy.special import expit

from armijo import _validate
from armijo.audit.games import Claim, Outcome, randomness_of
from armijo.estimators.solve import solve
from armijo.noise import poisson_coins
from armijo.privacy.budget import Budget, FloatArray

DELTA = 1e-5
"""Of the audited model: the theorem pays for m times delta, hence far below 1/m."""

GUESSED = 0.2
"""Share of the canaries that are guessed, half of them "present"; fixed beforehand."""

FEWEST_CANARIES = 20

SETTINGS: dict[str, dict[str, Any]] = {
    # So short a step changes no gradient: each canary is clipped in every batch.
    "sgd": {"rate": 1.0, "steps": 4, "step_size": 1e-6, "grad_clip": 1.0},
    "auto": {"steps": 4, "feature_norm": 10.0},
}
"""Methods whose models are audited."""

_FEATURE = 10.0  # of a canary: longer than every clip
_PRECISION = 1e-6  # of the bound, which is rounded down


def guess_p_value(
    *, canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Bound the chance of so many right guesses about an (epsilon, delta)-DP model.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: with W binomial of ``guesses``
    trials and bias ``e^eps / (1 + e^eps)``,

    ``P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i``.

    >>> round(guess_p_value(canaries=4, guesses=4, right=4, epsilon=0.0, delta=0.0), 9)
    0.0625
    """
    _validate.at_least(1, canaries=canaries, guesses=guesses)
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(
            f"Expected 0 <= right <= guesses <= canaries, got {right}, {guesses} and "
            f"{canaries}."
        )
    _validate.non_negative(epsilon=epsilon, delta=delta)
    law = stats.binom(guesses, expit(epsilon))
    below = np.cumsum(law.pmf(np.arange(right - 1, -1, -1)))
    steepest = np.max(below / np.arange(1, right + 1), initial=0.0)
    return min(float(law.sf(right - 1)) + 2 * canaries * delta * float(steepest), 1.0)


def guess_epsilon(
    *, canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the largest epsilon that the guesses rule out, or zero."""
    _validate.open_unit(confidence=confidence)

    def ruled_out(epsilon: float) -> bool:
        p_value = guess_p_value(
            canaries=canaries,
            guesses=guesses,
            right=right,
            epsilon=epsilon,
            delta=delta,
        )
        return p_value <= 1 - confidence

    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while ruled_out(high):
        low, high = high, 2 * high
    while high - low > _PRECISION:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """A linear model trained once on rows with one feature each, all different.

    Attributes
    ----------
    method : str
        One of :data:`SETTINGS`.
    budget : Budget
        The promise of the model.
    """

    method: str
    budget: Budget

    @property
    def name(self) -> str:
        """What the audit is called."""
        return f"one-run-{self.method}"

    def play(self, *, canaries: int, confidence: float, seed: int | None) -> Outcome:
        """Toss the coins, train, guess and bound."""
        _validate.at_least(FEWEST_CANARIES, canaries=canaries)
        coins = randomness_of(seed, 0).of_charge(0).stream("sampling")
        there = np.zeros(canaries, dtype=bool)
        there[poisson_coins(canaries, 0.5, coins)] = True
        half = round(0.5 * GUESSED * canaries)
        right = right_guesses(self._scores(there, seed), there, half)
        epsilon = guess_epsilon(
            canaries=canaries,
            guesses=2 * half,
            right=right,
            delta=self.budget.delta,
            confidence=confidence,
        )
        return Outcome(
            name=self.name,
            claim=Claim(self.budget.epsilon, self.budget.delta),
            epsilon=epsilon,
            bound="one-run",
            confidence=confidence,
            trials=canaries,
            detail={"guesses": 2 * half, "right": right},
        )

    def _scores(self, there: NDArray[np.bool_], seed: int | None) -> FloatArray:
        """Train on the canaries that are there; a weight is the score of its own."""
        canaries = sparse.identity(len(there), format="csr") * _FEATURE
        X = sparse.csr_matrix(canaries[np.flatnonzero(there)])
        found = solve(
            X,
            np.ones(X.shape[0]),
            method=self.method,
            budget=self.budget,
            options=SETTINGS[self.method],
            n_rows=len(there) // 2,
            l2=0.0,
            fit_intercept=False,
            seed=seed,
        )
        return found.w


def right_guesses(scores: FloatArray, there: NDArray[np.bool_], half: int) -> int:
    """Guess "present" for the highest scores, "absent" for the lowest, and count."""
    order = np.argsort(scores)
    return int(np.sum(there[order[-half:]]) + np.sum(~there[order[:half]]))
