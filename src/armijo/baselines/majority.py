# SPDX-License-Identifier: Apache-2.0
"""The majority class, chosen privately: what any classifier has to beat.

One exponential mechanism over the classes takes the whole budget; the features are not
read.  The weights are zero and the intercept names the class.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from armijo.baselines.selection import OnlySelection
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.data.query import BoundedQuery, Rows
from armijo.methods.base import Schedule, StepRecord
from armijo.methods.problem import MethodSettings, Problem
from armijo.objectives.base import Objective
from armijo.privacy.budget import FloatArray
from armijo.privacy.planned import reachable


@dataclass(frozen=True, kw_only=True)
class MajorityState:
    """The model and whether it was chosen."""

    w: Tensor
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class Majority:
    """One private vote.

    Attributes
    ----------
    labels : tuple of float
        The public labels as rows carry them: -1 and +1, or class indices.
    selection : OnlySelection
        The vote.  A row counts one half for its class and minus one half for every
        other, so that its scores are never further apart than one.
    """

    labels: tuple[float, ...]
    selection: OnlySelection

    def init(self, w: Tensor) -> MajorityState:
        """Return the first state."""
        return MajorityState(w=w)

    def schedule(self) -> Schedule:
        """Return the one charge."""
        return ((self._vote().mechanism, 1),)

    def plan(self, state: MajorityState) -> BatchPlan:
        """Name the vote."""
        return self._vote()

    def _vote(self) -> BatchPlan:
        """Return the plan of the only batch."""
        return BatchPlan(mechanisms=(self.selection,))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: MajorityState,
        batch_size: float,
    ) -> tuple[MajorityState, StepRecord]:
        """Choose the class and write it into the intercept."""
        query = BoundedQuery(
            contributions=self._votes, bound=self.selection.sensitivity
        )
        chosen = batch.noisy_argmax(query, self.selection)
        record = StepRecord(
            update=state.updates,
            tries=len(self.labels),
            gradients=0,
            search_epsilon=self.selection.epsilon,
        )
        return replace(state, w=self._model(state.w, chosen), updates=1), record

    def _votes(self, rows: Rows) -> FloatArray:
        """Return one half for the class of each row, minus one half for the others.

        A blank row, or one of no class, has no vote.
        """
        if rows.y is None:
            raise ValueError("Expected labels, got none; a classifier needs y.")
        right = np.equal(np.asarray(rows.y)[:, None], np.array(self.labels))
        voting = right.any(axis=1) & ~rows.blanks()
        return np.where(voting[:, None], right - 0.5, 0.0)

    def _model(self, w: Tensor, chosen: int) -> Tensor:
        """Return zero weights with the intercept of the chosen class."""
        binary = self.labels[0] < 0
        table = torch.zeros_like(w).reshape(1 if binary else len(self.labels), -1)
        table[0 if binary else chosen, -1] = self.labels[chosen] if binary else 1.0
        return table.ravel()


@dataclass(frozen=True, kw_only=True)
class MajoritySettings(MethodSettings):
    """Public settings of the majority vote: there are none."""

    def build(self, problem: Problem) -> Majority:
        """Return the vote, which is epsilon-DP with the epsilon of the budget."""
        objective = problem.objective
        if not objective.fit_intercept:
            raise ValueError(
                "Expected fit_intercept=True for method 'majority', got False; the "
                "intercept is what names the class. Nothing was spent."
            )
        labels: tuple[float, ...] = (-1.0, 1.0)
        if objective.outputs > 1:
            labels = tuple(float(k) for k in range(objective.n_classes))
        epsilon = reachable(problem.budget).epsilon
        return Majority(labels=labels, selection=OnlySelection(epsilon, 0.5))
