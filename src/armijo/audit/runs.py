# SPDX-License-Identifier: Apache-2.0
"""Games for runs of every method: the same loop, gate and accountant as always.

Rows have one feature and no intercept, so that a gradient is one number.  The row in
question pulls against a row that stays (none where rows are sampled).  Both are far
longer than the clips, and steps are so short that they stay so: each query then moves
by its whole sensitivity at every step, which is what the accountant reckons with.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch

from armijo.accounting.accountant import Accountant
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.audit.games import Claim
from armijo.data.private import PrivateDataset
from armijo.methods.base import Method, Problem, StepRecord, minimize
from armijo.noise import Randomness
from armijo.objectives.linear import LinearObjective
from armijo.training.accounts import accountant_for

MOST_BATCHES = 16
"""Ends a run that its accountant never ends."""

_OBSERVED = 2  # batches of which more than the end is looked at
_STEP_NUMBERS = 3
_EXTRAS = ("radius", "step_size", "loss_clip")  # of a state, beside its weights


Table = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGame:
    """A run, observed by all that it releases.

    Attributes
    ----------
    name : str
        What the game is called.
    budget : Budget
        The promise of the run.
    objective : LinearObjective
        The problem.
    settings : Method
        The method.
    tables : tuple of tables
        Features and labels without and with the row in question.
    gaussian, pure : bool
        Whether the trade-off of the run is Gaussian; whether delta is not used.
    most_batches : int
        Where a run is cut.
    """

    name: str
    budget: Budget
    objective: LinearObjective
    settings: Method[Any]
    tables: tuple[Table, Table]
    gaussian: bool = False
    pure: bool = False
    most_batches: int = MOST_BATCHES

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given."""
        delta = 0.0 if self.pure else self.budget.delta
        return Claim(self.budget.epsilon, delta, self.gaussian)

    @property
    def n_rows(self) -> int:
        """The public number of rows, the same for both tables."""
        return len(self.tables[1][0])

    @cached_property
    def _method(self) -> Method[Any]:
        """The method with its noise."""
        return self.settings.calibrate(
            self.budget, Problem(objective=self.objective, n_rows=self.n_rows)
        )

    @cached_property
    def _start(self) -> Any:
        """The first state."""
        return self._method.init(torch.zeros(self.objective.size, dtype=torch.float64))

    @cached_property
    def _unused(self) -> Accountant:
        """An accountant that nothing is charged to, the model of others: costly."""
        relation = self.settings.relation or Neighboring.ADD_REMOVE
        return accountant_for(self._method, self._start, self.budget, relation=relation)

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Run to the end of the budget and return what was released."""
        X, y = self.tables[present]
        data = PrivateDataset(
            X,
            y,
            n_rows=self.n_rows,
            accountant=self._unused.unused(),
            randomness=randomness,
        )
        run = minimize(
            self.objective,
            data,
            self._method,
            self._start,
            max_batches=self.most_batches,
        )
        return observed(self._start, run)


def observed(start: Any, run: Iterable[tuple[Any, StepRecord]]) -> FloatArray:
    """Return the released numbers of a run: its first batches, its length, its end."""
    state, steps, count = start, [], 0
    for new, record in run:
        steps.append(_step(state, new, record) if count < _OBSERVED else [])
        state, count = new, count + 1
    steps += [[0.0] * _STEP_NUMBERS] * max(_OBSERVED - count, 0)
    extras = [float(getattr(state, name, None) or 0.0) for name in _EXTRAS]
    return np.array([*chain(*steps), count, *state.w.tolist(), *extras])


def _step(before: Any, after: Any, record: StepRecord) -> list[float]:
    """Return the direction of a step and how long the search for its size was.

    A search is easier along the pull of the row, hence with a sign.
    """
    pending = getattr(after, "pending", None)
    moved = before.w - after.w if pending is None else pending.vector
    direction = math.copysign(record.direction_norm or 0.0, float(moved[0]))
    sign = math.copysign(1.0, direction)
    return [direction, sign * record.tries, sign * (record.step_size == 0)]
