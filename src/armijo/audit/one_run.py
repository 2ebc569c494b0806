# SPDX-License-Identifier: Apache-2.0
"""The audit of one trained model: many canaries, each in the table by a Bernoulli draw.

Steinke, Nasr and Jagielski (2023).  Each of m canaries is a row of the training table
with probability one half.  From the model the auditor guesses, for the canaries that it
is most sure of, which were there.  For an (epsilon, 0)-private model the number of
right guesses is at most that of as many Bernoulli draws of probability
``e^eps / (1 + e^eps)``, however the guesses depend on one another; delta adds a little
to the p-value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse, stats
from scipy.special import expit
from torch import nn

from armijo import _validate
from armijo._noise import PoissonRows
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.calibration import smallest
from armijo.audit.games import Claim, Outcome, randomness_of
from armijo.audit.targets import SMALL_FEATURES
from armijo.estimators import solve
from armijo.images.estimator import PrivateImageClassifier
from armijo.images.synthetic import synthetic_images
from armijo.networks.train import train
from armijo.registry import NETWORK, make_method

DELTA = 1e-5
"""Of the audited model: the theorem pays for m times delta, hence far below 1/m."""

GUESSED = 0.2
"""Share of the canaries that are guessed, half of them "present"; fixed beforehand."""

FEWEST_CANARIES = 20

_PRECISION = 1e-6  # of the bound, which is rounded down
_FEATURE = 10.0  # of a canary: longer than every clip
_STEPS = 4
_OF_A_CLASS = 32  # canaries among images

Canaries = NDArray[np.bool_]
"""Which of the canaries are rows of the table."""


def guess_p_value(
    *, canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Bound the p-value of so many right guesses about an (epsilon, delta)-DP model.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: with W binomial of ``guesses``
    trials and probability ``e^eps / (1 + e^eps)``,

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
    binomial = stats.binom(guesses, expit(epsilon))
    below = np.cumsum(binomial.pmf(np.arange(right - 1, -1, -1)))
    steepest = np.max(below / np.arange(1, right + 1), initial=0.0)
    return min(
        float(binomial.sf(right - 1)) + 2 * canaries * delta * float(steepest), 1.0
    )


def guess_epsilon(
    *, canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the largest epsilon that the guesses rule out, or zero."""
    _validate.open_unit(confidence=confidence)
    counts = {"canaries": canaries, "guesses": guesses, "right": right}

    def possible(epsilon: float) -> bool:
        return guess_p_value(**counts, epsilon=epsilon, delta=delta) > 1 - confidence

    if possible(0.0):
        return 0.0
    return smallest(possible, rtol=_PRECISION) / (1 + _PRECISION)


Trainer = Callable[[Canaries, Budget, int | None], FloatArray]


def linear_scores(method: str, **options: Any) -> Trainer:
    """Train a linear model: each canary has a feature of its own, hence a weight."""

    def scores(present: Canaries, budget: Budget, seed: int | None) -> FloatArray:
        rows = sparse.identity(len(present), format="csr") * _FEATURE
        X = sparse.csr_matrix(rows[np.flatnonzero(present)])
        return solve(
            X,
            np.ones(X.shape[0]),
            method=make_method(method, options),
            budget=budget,
            n_rows=len(present) // 2,
            l2=0.0,
            fit_intercept=False,
            seed=seed,
        ).w

    return scores


def network_scores(method: str, **options: Any) -> Trainer:
    """Train an embedding, as any module is: each canary has an entry of its own."""

    def scores(present: Canaries, budget: Budget, seed: int | None) -> FloatArray:
        model = nn.Embedding(len(present), 1)
        nn.init.zeros_(model.weight)
        named = torch.from_numpy(np.flatnonzero(present))
        train(
            model,
            lambda scores, labels: nn.functional.softplus(-labels * scores[:, 0]),
            (named, torch.ones(len(named))),
            budget,
            # A slope of one half is clipped to a tenth, and so it stays.
            method=make_method(
                method, {"max_grad_norm": 0.1, **options}, table=NETWORK
            ),
            sampling_prob=1.0,
            steps=_STEPS,
            n_rows=len(present) // 2,
            seed=seed,
        )
        return np.asarray(model.weight.detach().numpy()[:, 0], dtype=float)

    return scores


def image_scores(present: Canaries, budget: Budget, seed: int | None) -> FloatArray:
    """Train the classifier of images on synthetic ones with labels drawn at random.

    Canaries share features, and what others add along one's own would hide it.  Few
    share its class as well: those of other classes hardly move its score.
    """
    count = len(present)
    classes = max(count // _OF_A_CLASS, 2)
    images = synthetic_images(count, SMALL_FEATURES.side, 1, seed=1)
    labels = np.random.Generator(np.random.PCG64(2)).integers(classes, size=count)
    model = PrivateImageClassifier(
        epsilon=budget.epsilon,
        delta=budget.delta,
        classes=range(classes),
        n_rows=count // 2,
        features=SMALL_FEATURES,
        random_state=seed,
    ).fit(images[present], labels[present])
    scores = model.decision_function(images)
    return np.asarray(scores[np.arange(count), labels] - scores.mean(axis=1))


TRAINERS: dict[str, Trainer] = {
    # So short a step changes no gradient: each canary is clipped in every batch.
    "sgd": linear_scores(
        "sgd", sampling_prob=1.0, steps=_STEPS, step_size=1e-6, max_grad_norm=1.0
    ),
    "auto": linear_scores("auto", steps=_STEPS, data_norm=_FEATURE),
    "network": network_scores("sgd", step_size=1e-2),
    "network-auto": network_scores("auto"),
    "network-blsgd": network_scores("blsgd"),
    "images": image_scores,
}
"""Models by name, each a score for every canary: a linear one by two methods, one that
goes through :func:`armijo.train` by three, and the classifier of images."""


@dataclass(frozen=True)
class OneRun:
    """A model trained once on canaries.

    Attributes
    ----------
    model : str
        One of :data:`TRAINERS`.
    budget : Budget
        The guaranteed epsilon and delta of the model.
    """

    model: str
    budget: Budget

    def play(self, *, canaries: int, confidence: float, seed: int | None) -> Outcome:
        """Draw the canaries, train, guess and bound."""
        _validate.at_least(FEWEST_CANARIES, canaries=canaries)
        bits = randomness_of(seed, 0).for_charge(0).row_bits()
        present = np.zeros(canaries, dtype=bool)
        present[PoissonRows(0.5, bits).chosen(0, canaries)] = True
        half = round(0.5 * GUESSED * canaries)
        scores = TRAINERS[self.model](present, self.budget, seed)
        right = right_guesses(scores, present, half)
        epsilon = guess_epsilon(
            canaries=canaries,
            guesses=2 * half,
            right=right,
            delta=self.budget.delta,
            confidence=confidence,
        )
        return Outcome(
            name=f"one-run-{self.model}",
            claim=Claim(self.budget.epsilon, self.budget.delta),
            epsilon=epsilon,
            bound="one-run",
            confidence=confidence,
            trials=canaries,
            detail={"guesses": 2 * half, "right": right},
        )


def right_guesses(scores: FloatArray, present: Canaries, half: int) -> int:
    """Guess "present" for the highest scores, "absent" for the lowest, and count."""
    order = np.argsort(scores)
    return int(np.sum(present[order[-half:]]) + np.sum(~present[order[:half]]))
