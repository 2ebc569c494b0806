# SPDX-License-Identifier: Apache-2.0
"""One release on rows within a public norm: what output and objective noise stand on.

A row is scaled down to ``data_norm`` R, the constant feature is appended, and all is
divided by ``sqrt(R^2 + 1)`` and multiplied by its label: what a method sees are vectors
z of norm one at most, and losses ``l(w.z)`` of slope one at most.  It is a map of each
row on its own, so neighbors stay neighbors: rows come on their lattices, in CSR with no
entry stored twice (:mod:`armijo.data.lattice`), so what is measured is what is scaled.

A method with one access is a whole computation on the rows, released once.  How many
iterations it took depends on the rows and is not released.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from armijo._validate import Positive
from armijo.accounting.budget import FloatArray
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.data.query import Matrix, Rows
from armijo.methods.base import (
    Method,
    Problem,
    Schedule,
    StepRecord,
    calibrated,
    solved,
)
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective


@dataclass(frozen=True, kw_only=True)
class OneShotState:
    """The released parameters."""

    w: Tensor


@dataclass(frozen=True, kw_only=True)
class OneShot(Method[OneShotState]):
    """A method that is one release.

    Attributes
    ----------
    problem : Problem or None
        What the noise was computed for; no other objective is taken.
    mechanism : Mechanism or None
        What the release is charged as, from calibration.
    """

    problem: Problem | None = solved()
    mechanism: Any = solved()

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        return calibrated(problem=self.problem).linear

    @property
    def n_rows(self) -> int:
        """The public number of rows that it was calibrated for."""
        return calibrated(problem=self.problem).n_rows

    @property
    def gradients(self) -> int | None:
        """Passes over rows; None where their number depends on the rows."""
        return None

    def init(self, w: Tensor) -> OneShotState:
        """Return the first state."""
        return OneShotState(w=w)

    def schedule(self) -> Schedule:
        """Return the one charge."""
        return ((self._batch().mechanism, 1),)

    def plan(self, state: OneShotState) -> BatchPlan:
        """Name the release."""
        return self._batch()

    def _batch(self) -> BatchPlan:
        """Return the plan of the only batch, which is all rows."""
        return BatchPlan(mechanisms=(self.mechanism,))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: OneShotState,
        batch_size: float,
    ) -> tuple[OneShotState, StepRecord]:
        """Make the release."""
        if objective != self.objective:
            raise ValueError(
                f"Expected the objective {self.objective!r}, for which the noise was "
                f"computed, got {objective!r}; build the method for the objective."
            )
        w = torch.from_numpy(self.released(batch))
        return OneShotState(w=w), StepRecord(update=0, gradients=self.gradients)

    @abstractmethod
    def released(self, batch: PrivateBatch) -> FloatArray:
        """Return the parameters, through the gate."""


@dataclass(frozen=True, kw_only=True)
class BoundedRows:
    """The map from private rows to vectors in the unit ball, and back for weights.

    >>> BoundedRows(data_norm=1.0, fit_intercept=False).radius
    1.0
    """

    data_norm: float
    fit_intercept: bool

    @property
    def radius(self) -> float:
        """The norm that a row with its constant feature may have."""
        if not self.fit_intercept:
            return self.data_norm
        return math.hypot(self.data_norm, 1.0)

    def signed(self, rows: Rows) -> Matrix:
        """Return the vectors ``y (x, 1) / radius``, dense or CSR, in float64.

        A row with a value that is no finite number, or a label that is no class,
        becomes zero: its loss is a constant and its gradient nothing.
        """
        norms = rows.lengths()
        labels = _labels(rows)
        # For the float error of the norm of so many numbers.
        room = 1 - 1e-12 - rows.X.shape[1] * 2.0**-52
        kept = np.isfinite(norms) & (np.abs(labels) == 1)
        sign = np.where(kept, labels, 0.0) * (room / self.radius)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factor = np.where(kept, np.minimum(self.data_norm / norms, 1.0), 0.0)
        constant = sign[:, None] if self.fit_intercept else np.empty((rows.size, 0))
        if sparse.issparse(rows.X):
            return _sparse(rows.X, factor * sign, constant, kept)
        return _dense(rows.X, factor * sign, constant, kept)

    def unscaled(self, w: FloatArray) -> FloatArray:
        """Return weights for rows clipped to ``data_norm`` with a constant one."""
        return np.asarray(w / self.radius)


def _labels(rows: Rows) -> FloatArray:
    """Return the labels as floats."""
    if rows.y is None:
        raise ValueError("Expected labels, got none; a classifier needs y.")
    return np.asarray(rows.y, dtype=float)


def _dense(
    X: Matrix, factor: FloatArray, constant: FloatArray, kept: NDArray[np.bool_]
) -> FloatArray:
    """Scale dense rows into a new array with room for the constant."""
    n, d = X.shape
    signed = np.empty((n, d + constant.shape[1]))
    signed[:, :d] = X
    signed[~kept, :d] = 0.0  # zero times infinity is no number
    signed[:, :d] *= factor[:, None]
    signed[:, d:] = constant
    return signed


def _sparse(
    X: Matrix, factor: FloatArray, constant: FloatArray, kept: NDArray[np.bool_]
) -> Matrix:
    """Scale the stored entries of CSR rows and append the constant."""
    X = sparse.csr_matrix(X, dtype=np.float64, copy=True)
    length = np.diff(X.indptr)
    data = np.where(np.repeat(kept, length), X.data, 0.0)
    X.data = data * np.repeat(factor, length)
    return sparse.csr_matrix(sparse.hstack([X, sparse.csr_matrix(constant)]))


def loss_smoothness(objective: LinearObjective) -> float:
    """Return the bound on the second derivative of the loss.

    >>> loss_smoothness(LinearObjective(loss="logistic", n_features=3))
    0.25
    """
    if objective.outputs > 1 or objective.kink:
        raise ValueError(
            f"Expected a smooth loss of one margin, as logistic or huber, got "
            f"{objective.loss!r}; the proof needs it. Nothing was spent."
        )
    return objective.margin_loss.smoothness


@dataclass(frozen=True, kw_only=True)
class BoundedRelease(OneShot):
    """The methods whose proof needs a bound on the norm of a row.

    Attributes
    ----------
    data_norm : float
        Public bound on the norm of a row without its constant feature; longer rows are
        scaled down to it.  There is no default, and it is never read from the data.
    """

    multi_class: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    method: ClassVar[str] = ""

    data_norm: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_norm is None:
            raise ValueError(
                f"Method {self.method!r} asks for data_norm, a public bound on the "
                "norm of a row (longer rows are scaled down to it); it is never read "
                "from the data. Give one, such as 1.0. Nothing was spent."
            )

    @property
    def prediction_norm(self) -> float | None:
        """The norm to which rows are clipped in training, hence also to predict."""
        return self.data_norm

    @property
    def rows(self) -> BoundedRows:
        """The map of the rows into the unit ball."""
        return BoundedRows(
            data_norm=calibrated(data_norm=self.data_norm),
            fit_intercept=self.objective.fit_intercept,
        )
