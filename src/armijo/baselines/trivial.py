# SPDX-License-Identifier: Apache-2.0
"""What to compare with: the majority class, and the minimum without privacy.

The majority class is what any classifier has to beat.  One exponential mechanism over
the classes takes the whole budget; the features are not read.  The weights are zero and
the intercept names the class.

The minimum goes through the same gate and loop with an accountant that promises
nothing, so that it cannot be mistaken for a private result.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.nonprivate import NonPrivate
from armijo.accounting.planned import reachable
from armijo.baselines.bounded_rows import OneShot
from armijo.baselines.empirical_risk import EmpiricalRisk, minimized
from armijo.baselines.selection import OnlySelection
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.data.query import BoundedQuery, Matrix, Rows, row_norms
from armijo.methods.base import Method, Problem, Schedule, StepRecord, solved
from armijo.noise import Randomness
from armijo.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class MajorityState:
    """The model and whether it was chosen."""

    w: Tensor
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class Majority(Method[MajorityState]):
    """One private vote.

    Attributes
    ----------
    labels : tuple of float
        The public labels as rows carry them: -1 and +1, or class indices.
    selection : OnlySelection
        The vote.  A row counts one half for its class and minus one half for every
        other, so that its scores are never further apart than one.
    """

    labels: tuple[float, ...] = solved()
    selection: OnlySelection = solved()

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Return the vote, which is epsilon-DP with the epsilon of the budget."""
        objective = problem.linear
        if not objective.fit_intercept:
            raise ValueError(
                "Expected fit_intercept=True for method 'majority', got False; the "
                "intercept is what names the class. Nothing was spent."
            )
        labels: tuple[float, ...] = (-1.0, 1.0)
        if objective.outputs > 1:
            labels = tuple(float(k) for k in range(objective.n_classes))
        epsilon = reachable(budget).epsilon
        return replace(self, labels=labels, selection=OnlySelection(epsilon, 0.5))

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


GRADIENT_TOLERANCE = 1e-7
"""Norm of the gradient of the mean loss at the answer."""


@dataclass(frozen=True, kw_only=True)
class NonPrivateMinimum(OneShot):
    """The exact minimizer of mean loss and penalty on the rows as they are.

    It takes no options; the hinge is Huberized.
    """

    smooth: ClassVar[bool] = True
    private: ClassVar[bool] = False

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Take the problem; there is no noise."""
        return replace(self, problem=problem, mechanism=NonPrivate())

    def released(self, batch: PrivateBatch) -> FloatArray:
        """Minimize behind the gate, without noise."""
        return batch.release(self._minimum, self.mechanism)

    def _minimum(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Return the minimizer; rows with a value that is no number are left out."""
        if rows.y is None:
            raise ValueError("Expected labels, got none; a classifier needs y.")
        kept = np.isfinite(row_norms(rows.X)) & np.isfinite(rows.y)
        dtype = torch.int64 if self.objective.outputs > 1 else torch.float64
        risk = EmpiricalRisk(
            X=_with_constant(rows.X[kept], self.objective.fit_intercept),
            y=torch.as_tensor(np.array(rows.y[kept]), dtype=dtype),
            objective=self.objective,
            ridge=self.n_rows * self.objective.l2,
        )
        return minimized(risk, self.n_rows * GRADIENT_TOLERANCE)


def _with_constant(X: Matrix, fit_intercept: bool) -> Matrix:
    """Return the rows in float64 with a feature one, if there is an intercept."""
    ones = np.ones((X.shape[0], int(fit_intercept)))
    if sparse.issparse(X):
        return sparse.csr_matrix(sparse.hstack([X, ones]), dtype=np.float64)
    return np.concatenate([np.asarray(X, dtype=np.float64), ones], axis=1)
