# SPDX-License-Identifier: Apache-2.0
"""One call for researchers: any method on arrays, with all that its run released."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo.data.query import Matrix
from armijo.estimators.labels import for_loss, positions
from armijo.estimators.run import RunSettings, train
from armijo.objectives.linear import LinearObjective, LossName
from armijo.optim.accounts import Accounting
from armijo.optim.loop import StepRecord
from armijo.optim.methods import method_settings
from armijo.privacy.budget import Budget, Guarantee, Neighboring


@dataclass(frozen=True)
class Solution:
    """What a run leaves.

    Attributes
    ----------
    w : array
        Weights, the intercept last (one such row for each class with softmax).
    guarantee : Guarantee
        The promise and the neighboring relation of its proof.
    epsilon_spent : float
        How much of the promise was used.
    gradient_evaluations, objective_evaluations : int or None
        Passes over the rows of a batch; None where the number depends on the rows.
    records : tuple of StepRecord
        The released values of each batch.
    row_bound : float or None
        The norm to which rows are to be scaled down before a score.
    """

    w: NDArray[np.float64]
    guarantee: Guarantee
    epsilon_spent: float
    gradient_evaluations: int | None
    objective_evaluations: int
    records: tuple[StepRecord, ...]
    row_bound: float | None


def solve(
    X: Matrix,
    y: NDArray[Any],
    *,
    method: str,
    budget: Budget,
    loss: LossName = "logistic",
    options: Mapping[str, Any] | None = None,
    n_rows: int | None = None,
    n_classes: int = 2,
    l2: float = 1e-3,
    huber_width: float = 0.5,
    fit_intercept: bool = True,
    max_batches: int | None = None,
    accounting: Accounting = "sound",
    seed: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Solution:
    """Run any method by name.

    Parameters
    ----------
    X, y : arrays
        Rows, and labels -1 and +1 (class indices for softmax).  A row with another
        label is blank: it adds nothing to any sum, and nothing tells of it.
    method : str
        One of :data:`armijo.optim.METHODS`.
    budget : Budget
        The promise.
    loss : {"logistic", "hinge", "huber", "softmax"}
        A method that needs a smooth loss gets "huber" for "hinge".
    options : mapping or None
        Parameters of the method.
    n_rows : int or None
        The public number of rows; None takes the number found and promises under the
        zero-out relation.
    n_classes, l2, huber_width, fit_intercept
        The problem.
    max_batches, accounting, ledger
        As in the estimators.
    seed : int or None
        A seeded run repeats and carries no guarantee.

    Examples
    --------
    >>> X, y = np.array([[0.0], [1.0]] * 500), np.array([-1.0, 1.0] * 500)
    >>> found = solve(X, y, method="sgd", budget=Budget(epsilon=1.0, delta=1e-6))
    >>> found.guarantee.relation.value, found.gradient_evaluations
    ('zero-out', 50)
    """
    settings = method_settings(method, options or {})
    if loss == "softmax":
        y = positions(np.asarray(y), np.arange(n_classes))
    else:
        y = for_loss(positions(np.asarray(y), np.array([-1, 1])), 2)
    objective = LinearObjective(
        loss="huber" if settings.smooth and loss == "hinge" else loss,
        n_features=X.shape[1],
        n_classes=n_classes,
        fit_intercept=fit_intercept,
        l2=l2,
        huber_width=huber_width,
    )
    run = RunSettings(
        budget=budget,
        objective=objective,
        method=settings,
        n_rows=X.shape[0] if n_rows is None else n_rows,
        relation=Neighboring.ZERO_OUT if n_rows is None else Neighboring.ADD_REMOVE,
        accounting=accounting,
        max_batches=max_batches,
        seed=seed,
        ledger=ledger,
    )
    result = train(X, y, run)
    gradients = [record.gradients for record in result.records]
    return Solution(
        w=result.w,
        guarantee=result.accountant.guarantee,
        epsilon_spent=result.accountant.epsilon_spent(),
        gradient_evaluations=(
            None if None in gradients else sum(count or 0 for count in gradients)
        ),
        objective_evaluations=sum(record.tries for record in result.records),
        records=tuple(result.records),
        row_bound=settings.row_bound,
    )
