# SPDX-License-Identifier: Apache-2.0
"""One call for researchers: any method on arrays."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.accounting.accountants import PrivacyStatement
from armijo.accounting.budget import Budget, Guarantee, Neighboring, as_budget
from armijo.data.query import Matrix
from armijo.data.sources import ArrayRows
from armijo.estimators.base import for_loss, positions
from armijo.methods.base import Method, StepRecord
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.objectives.losses import Loss
from armijo.randomness import Seed, as_seed
from armijo.registry import make_method
from armijo.training.run import Accounting, Run, RunFiles


@dataclass(frozen=True)
class Solution:
    """What a run leaves.

    Attributes
    ----------
    w : array
        Weights, the intercept last (one such row for each class with softmax).
    privacy : PrivacyStatement
        The guarantee, its relation and the charges behind it.
    gradient_evaluations, objective_evaluations : int or None
        Passes over the rows of a batch; None where the number depends on the rows.
    records : tuple of StepRecord
        The released values of each batch.
    data_norm : float or None
        The norm to which rows are to be scaled down before a score.
    """

    w: NDArray[np.float64]
    privacy: PrivacyStatement
    gradient_evaluations: int | None
    objective_evaluations: int
    records: tuple[StepRecord, ...]
    data_norm: float | None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee and the neighboring relation of its proof."""
        return self.privacy.guarantee

    @property
    def epsilon_spent(self) -> float:
        """How much of the budget was used."""
        return self.privacy.epsilon_spent

    def __repr__(self) -> str:
        """Name sizes and the guarantee; the weights are in ``w``."""
        return (
            f"Solution(w of {self.w.size} numbers, {len(self.records)} batches, "
            f"{self.privacy!r})"
        )


def solve(
    X: Matrix,
    y: NDArray[Any],
    *,
    method: str | Method[Any],
    budget: Budget | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    loss: str | Loss = "logistic",
    n_rows: int | None = None,
    n_classes: int = 2,
    l2: float = 1e-3,
    fit_intercept: bool = True,
    max_batches: int | None = None,
    accounting: Accounting = "sound",
    seed: Seed = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Solution:
    """Run any method.

    Parameters
    ----------
    X, y : arrays
        Rows, and labels -1 and +1 (class indices for softmax).  A row with another
        label is blank: it adds nothing to any sum, and nothing tells of it.
    method : str or Method
        One of :data:`armijo.registry.METHODS`, or an object with its options, such as
        ``DPSGD(steps=50)``.
    budget : Budget or None
        The (epsilon, delta) of the guarantee.
    epsilon, delta : float or None
        The same as two numbers, instead of ``budget``.
    loss : {"logistic", "hinge", "huber", "softmax"} or Loss
        A method that needs a smooth loss gets "huber" for "hinge".  An object of
        :class:`armijo.objectives.losses.Loss` is any other loss of a margin.
    n_rows : int or None
        The public number of rows; None takes the number found, and the guarantee is
        under the zero-out relation.
    n_classes, l2, fit_intercept
        The problem.
    max_batches, accounting, ledger
        As in the estimators.
    seed : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws batches and noise from the operating system.  A seeded run repeats
        and carries no guarantee.  ``random_state`` of the estimators means the same.

    Returns
    -------
    Solution
        Weights, guarantee and released values.

    Examples
    --------
    >>> X, y = np.array([[0.0], [1.0]] * 500), np.array([-1.0, 1.0] * 500)
    >>> found = solve(X, y, method="sgd", budget=Budget(epsilon=1.0, delta=1e-6))
    >>> found.guarantee.relation.value, found.gradient_evaluations
    ('zero-out', 50)
    """
    budget = as_budget(budget, epsilon=epsilon, delta=delta)
    known = None if n_rows is None else _validate.row_count(n_rows)
    chosen = make_method(method)
    y = np.asarray(y)
    if getattr(X, "ndim", 0) != 2 or y.ndim != 1:
        raise ValueError(
            "Expected X to be an array or a CSR matrix of rows by columns and y to "
            f"have a label for each row, got {type(X).__name__} and labels of "
            f"{y.ndim} dimensions. Nothing was spent."
        )
    if loss == SOFTMAX:
        y = positions(y, np.arange(n_classes))
    else:
        y = for_loss(positions(y, np.array([-1, 1])), 2)
    objective = LinearObjective(
        loss=loss,
        n_features=X.shape[1],
        n_classes=n_classes,
        fit_intercept=fit_intercept,
        l2=l2,
    )
    run = Run(
        objective.smoothed() if chosen.smooth else objective,
        ArrayRows(X, y),
        chosen,
        budget,
        n_rows=X.shape[0] if known is None else known,
        relation=Neighboring.ZERO_OUT if known is None else Neighboring.ADD_REMOVE,
        accounting=accounting,
        max_batches=max_batches,
        seed=as_seed(seed),
        files=RunFiles(ledger=ledger),
    ).complete()
    gradients = [record.gradients for record in run.records]
    return Solution(
        w=run.w.numpy().copy(),
        privacy=run.privacy,
        gradient_evaluations=(
            None if None in gradients else sum(count or 0 for count in gradients)
        ),
        objective_evaluations=sum(record.tries for record in run.records),
        records=tuple(run.records),
        data_norm=chosen.prediction_norm,
    )
