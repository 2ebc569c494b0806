# SPDX-License-Identifier: Apache-2.0
"""The minimum without privacy: what the private methods are measured against.

It goes through the same gate and loop with an accountant that promises nothing, so that
it cannot be mistaken for a private result.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import sparse

from armijo.baselines.empirical_risk import EmpiricalRisk, minimized
from armijo.baselines.one_shot import OneShot
from armijo.data.private import PrivateBatch
from armijo.data.query import Matrix, Rows, row_norms
from armijo.methods.problem import MethodSettings, Problem
from armijo.noise import Randomness
from armijo.privacy.budget import FloatArray
from armijo.privacy.nonprivate import NonPrivate

GRADIENT_TOLERANCE = 1e-7
"""Norm of the gradient of the mean loss at the answer."""


@dataclass(frozen=True, kw_only=True)
class NonPrivateMinimum(OneShot):
    """The exact minimizer of mean loss and penalty on the rows as they are."""

    n_rows: int

    def released(self, batch: PrivateBatch) -> FloatArray:
        """Minimize behind the gate, without noise."""
        return batch.release(self._minimum, self.mechanism)

    def _minimum(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Return the minimizer; rows with a value that is no number are left out."""
        if rows.y is None:
            raise ValueError("Expected labels, got none; a classifier needs y.")
        kept = np.isfinite(row_norms(rows.X)) & np.isfinite(rows.y)
        dtype = torch.int64 if self.objective.loss == "softmax" else torch.float64
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


@dataclass(frozen=True, kw_only=True)
class NonPrivateSettings(MethodSettings):
    """The non-private minimum takes no parameters; the hinge is Huberized."""

    smooth: ClassVar[bool] = True
    private: ClassVar[bool] = False

    def build(self, problem: Problem) -> NonPrivateMinimum:
        """Return the algorithm."""
        return NonPrivateMinimum(
            objective=problem.objective,
            mechanism=NonPrivate(),
            n_rows=problem.n_rows,
        )
