# SPDX-License-Identifier: Apache-2.0
"""Exact values of a run, for debugging on rows that are not private.

Nothing here is private.  A run that records it has a guarantee that says so, in its
statement, its ledger and its report, whatever was charged.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo.data.query import Matrix, clipped_rows
from armijo.objectives.linear import LinearObjective


class LeakyDiagnostics:
    """Records exact values of all rows after each batch: NOT private.

    Parameters
    ----------
    X, y : arrays
        The rows, and labels as the objective takes them.
    objective : LinearObjective
        The unclipped objective.
    data_norm : float or None
        The norm to which the method scales rows down.
    """

    def __init__(
        self,
        X: Matrix,
        y: NDArray[Any],
        objective: LinearObjective,
        data_norm: float | None,
    ) -> None:
        y = np.asarray(y)
        known = np.flatnonzero(np.isfinite(y) if objective.outputs == 1 else y >= 0)
        if known.size < len(y):  # blank rows have no loss
            X, y = X[known], y[known]
        self._X, self._y = clipped_rows(X, data_norm), torch.from_numpy(y)
        self._objective = objective
        self._values: list[dict[str, float]] = []

    def __call__(self, batch: int, w: Tensor) -> None:
        """Take the parameters after a batch."""
        objective = self._objective
        scores = objective.scores(w, self._X)
        losses = objective.losses(scores, self._y)
        if objective.outputs == 1:
            right = (scores >= 0) == (self._y > 0)
        else:
            right = scores.argmax(dim=1) == self._y
        self._values.append(
            {
                "batch": batch,
                "leaky_objective": float(losses.mean()) + objective.penalty(w),
                "leaky_accuracy": float(right.double().mean()),
                "leaky_largest_loss": float(losses.max()),
            }
        )

    def table(self) -> pd.DataFrame:
        """Return one row for each batch."""
        names = ("objective", "accuracy", "largest_loss")
        columns = ["batch", *(f"leaky_{name}" for name in names)]
        return pd.DataFrame(self._values, columns=columns)
