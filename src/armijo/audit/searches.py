# SPDX-License-Identifier: Apache-2.0
"""The game for NoisyBTLS: the length of a private search as the whole release.

One row decides: the long steps harm it by more than its bound and the last, short one
helps it by more than its bound.  With the row, long steps fail more often and the last
one passes more often, which is the worst case of AboveThreshold.  A margin loss falls
or rises all along a line; three classes make a loss that falls first and then rises.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.calibration import order_for, renyi_noise_for_plan
from armijo.accounting.filter import PrivacyFilter
from armijo.audit.games import Claim
from armijo.data.private import BatchPlan, PrivateDataset
from armijo.methods.armijo_search import ArmijoSearch
from armijo.methods.base import Direction
from armijo.noise import Randomness
from armijo.objectives.linear import LinearObjective

_TRIES = 3
_FEATURE = 10.0
# Scores of the three classes at the start, and what a step of one takes from them: the
# second class, which is wrong, loses its lead; the third, wrong too, gets one later.
_WEIGHTS = (0.0, 1.0, -3.0)
_DIRECTION = (0.0, 1.0, -3.0)
_CLIP = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchGame:
    """One search by Laplace or Gaussian noise on all rows.

    Attributes
    ----------
    kind : {"laplace", "gaussian"}
        The noise.
    budget : Budget
        The promise; the noise is solved for it.
    """

    kind: Literal["laplace", "gaussian"]
    budget: Budget

    @property
    def name(self) -> str:
        """What the game is called."""
        return f"search-{self.kind}"

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given."""
        return Claim(self.budget.epsilon, self.budget.delta)

    @cached_property
    def _search(self) -> ArmijoSearch:
        """The search: candidates four, two and one, hardly an Armijo term."""
        return ArmijoSearch(
            kind=self.kind,
            slope=1e-3,
            shrink=0.5,
            max_tries=_TRIES,
            form="difference",
        )

    @cached_property
    def _mechanism(self) -> AboveThreshold:
        """What the search costs: the whole budget."""
        made = self._search.mechanism
        noise = renyi_noise_for_plan(self.budget, lambda z: [(made(1 / z), 1)])
        return made(1 / noise)

    @cached_property
    def _unused(self) -> PrivacyFilter:
        """An accountant that nothing was charged to, to be copied: costly to make."""
        order = order_for(self.budget, self._mechanism)
        return PrivacyFilter(self.budget, order=order)

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Search once; the answer is a vector with a one at the candidate found."""
        data = PrivateDataset(
            np.full((int(present), 1), _FEATURE),
            np.zeros(int(present)),
            n_rows=1,
            accountant=self._unused.unused(),
            randomness=randomness,
        )
        batch = data.open(BatchPlan(mechanisms=(self._mechanism,)), label="search")
        choice = self._search.choose(
            batch,
            LinearObjective(
                loss="softmax", n_features=1, n_classes=3, fit_intercept=False, l2=0.0
            ),
            torch.tensor(_WEIGHTS, dtype=torch.float64),
            Direction(vector=torch.tensor(_DIRECTION, dtype=torch.float64)),
            mechanism=self._mechanism,
            initial_step=2.0 ** (_TRIES - 1),
            loss_clip=1.0,
            max_grad_norm=_CLIP,
            batch_size=1.0,
        )
        return _one_hot(choice.tries - 1 if choice.step_size else _TRIES)


def _one_hot(index: int) -> FloatArray:
    """Return the answer as numbers that a linear discriminant can order freely."""
    answer = np.zeros(_TRIES + 1)
    answer[index] = 1.0
    return answer
