# SPDX-License-Identifier: Apache-2.0
"""What to compare with: the majority class, and the minimum without privacy.

The majority class is what any classifier has to beat.  One exponential mechanism over
the classes takes the whole budget; the features are not read.  The weights are zero and
the intercept names the class.

The minimum goes through the same gate and loop with an accountant that guarantees
nothing, so that it cannot be mistaken for a private result.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from armijo._validate import NonNegative, Positive
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.calibration import reachable
from armijo.accounting.mechanisms import NonPrivate, OnlySelection
from armijo.baselines.empirical_risk import EmpiricalRisk, minimized
from armijo.data.gate import PrivateBatch
from armijo.data.query import BoundedQuery, Matrix, Rows, row_norms
from armijo.methods.base import SOLVED, OneShot, Problem, StepRecord
from armijo.methods.sgd import DPAdam
from armijo.objectives.linear import as_linear
from armijo.randomness import Randomness


@dataclass(frozen=True, kw_only=True)
class Majority(OneShot):
    """One private vote.

    A row counts one half for its class and minus one half for every other, so that its
    scores are never further apart than one.
    """

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Return the vote, which is epsilon-DP with the epsilon of the budget."""
        if not problem.linear.fit_intercept:
            raise ValueError(
                "Expected fit_intercept=True for method 'majority', got False; the "
                "intercept is what names the class. Nothing was spent."
            )
        vote = OnlySelection(reachable(budget).epsilon, 0.5)
        return replace(self, problem=problem, mechanism=vote)

    @property
    def labels(self) -> tuple[float, ...]:
        """The public labels as rows carry them: -1 and +1, or class indices."""
        if self.objective.outputs == 1:
            return (-1.0, 1.0)
        return tuple(map(float, range(self.objective.n_classes)))

    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Choose the class and write it into the intercept."""
        query = BoundedQuery(contributions=self._votes, bound=0.5)
        chosen = batch.noisy_argmax(query, self.mechanism)
        table = np.zeros((self.objective.outputs, w.numel() // self.objective.outputs))
        if self.objective.outputs == 1:
            table[0, -1] = self.labels[chosen]
        else:
            table[chosen, -1] = 1.0
        record = StepRecord(
            update=0,
            tries=len(self.labels),
            gradients=0,
            search_epsilon=self.mechanism.epsilon,
        )
        return table.ravel(), record

    def _votes(self, rows: Rows) -> FloatArray:
        """Return one half for the class of each row, minus one half for the others.

        A blank row, or one of no class, has no vote.
        """
        y = self.objective.labels(rows).numpy()
        right = np.equal(y[:, None], np.array(self.labels))
        voting = right.any(axis=1) & ~rows.blanks()
        return np.where(voting[:, None], right - 0.5, 0.0)


@dataclass(frozen=True, kw_only=True)
class NonPrivateAdam(DPAdam):
    """Adam on Poisson batches of a network, without clipping and without noise."""

    step_size: Positive | None = 1e-3
    max_grad_norm: Positive | None = field(default=1e6, metadata={SOLVED: True})
    noise_multiplier: NonNegative | None = field(default=0.0, metadata={SOLVED: True})
    private: ClassVar[bool] = False

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Return the method: no budget bounds it."""
        return self.completed(problem)


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
        as_linear(problem.objective)
        return replace(self, problem=problem, mechanism=NonPrivate())

    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Minimize behind the gate, without noise."""
        minimum = batch.release(self._minimum, self.mechanism)
        return minimum, StepRecord(update=0, gradients=None)

    def _minimum(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Return the minimizer; rows with non-finite values are left out."""
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
    ones = np.ones((X.shape[0], int(fit_intercept)))
    if sparse.issparse(X):
        return sparse.csr_matrix(sparse.hstack([X, ones]), dtype=np.float64)
    return np.concatenate([np.asarray(X, dtype=np.float64), ones], axis=1)
