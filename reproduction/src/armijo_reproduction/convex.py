# SPDX-License-Identifier: Apache-2.0
"""One run of a convex experiment: fit a fold, measure on both of its sides."""

import time
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import sparse

from armijo.accounting.budget import Budget
from armijo.data.query import Matrix, clipped_rows
from armijo.errors import BudgetExceeded, PrivacyLeakWarning
from armijo.estimators.solve import Solution, solve
from armijo.objectives.linear import LinearObjective
from armijo_reproduction import datasets
from armijo_reproduction.spec import Experiment, RunKey, Series, SyntheticTable
from armijo_reproduction.synthetic import synthetic_table, table_like

FOLDS = 10
L2 = 1e-3
_SPARSE = 0.3
Table = tuple[Matrix, Any]


@lru_cache(maxsize=4)
def _table(wanted: str | SyntheticTable, rows: int | None, synthetic: bool) -> Table:
    """Return features and labels -1, +1; of "name/4" every fourth row."""
    if isinstance(wanted, SyntheticTable):
        X, y = synthetic_table(wanted)
    else:
        name, _, part = wanted.partition("/")
        data = table_like(name, rows) if synthetic else datasets.load(name)
        X, y = data.X[:: int(part or 1)], data.y[:: int(part or 1)]
    return X[:rows], 2.0 * y[:rows] - 1.0


@lru_cache(maxsize=2)
def _fold(
    wanted: str | SyntheticTable,
    rows: int | None,
    synthetic: bool,
    number: int,
    dense: bool,
) -> tuple[Any, ...]:
    """Return the two sides of a fold, copied once for all its runs.

    The codes of categories are mostly zeros, which CSR rows leave out.
    """
    X, y = _table(wanted, rows, synthetic)
    train, test = datasets.folds(len(y), FOLDS, seed=0)[number]
    if not dense and np.count_nonzero(X) < _SPARSE * X.size:
        X = sparse.csr_array(X)
    return X[train], y[train], X[test], y[test]


def run_convex(
    experiment: Experiment, key: RunKey, options: Mapping[str, Any], *, synthetic: bool
) -> list[dict[str, Any]]:
    """Make one run and return its row.

    The tables are public, so the runs are seeded; accounting and noise are those of a
    private run.  The objective is unclipped, with the penalty, on the training side
    (``hinge`` for every series of an SVM figure).  The penalty is the paper's unless
    the options have another.
    """
    wanted = experiment.synthetic.get(key.dataset, key.dataset)
    series = experiment.series_named(key.line)
    dense = series.method == "auto"  # it centers the rows, which leaves few zeros
    X, y, X_test, y_test = _fold(wanted, experiment.rows, synthetic, key.fold, dense)
    begun = time.process_time()
    found = _solve(experiment, key, series, options, X, y)
    seconds = time.process_time() - begun
    records = () if found is None else found.records
    w = np.zeros(X.shape[1] + 1) if found is None else found.w
    bound = None if found is None else found.data_norm
    accuracy = np.mean((_margins(w, X_test, bound) >= 0) == (y_test > 0))
    gradients = 0 if found is None else found.gradient_evaluations
    return [
        {
            "accuracy": round(float(accuracy), 5),
            "objective": round(_objective(key.model, w, X, y, bound), 5),
            "gradients": gradients,
            "objectives": 0 if found is None else found.objective_evaluations,
            "batches": len(records),
            "updates": sum(r.step_size is None or r.step_size > 0 for r in records),
            "seconds": round(seconds, 3),
        }
    ]


def _solve(
    experiment: Experiment,
    key: RunKey,
    series: Series,
    options: Mapping[str, Any],
    X: Matrix,
    y: Any,
) -> Solution | None:
    """Run the method; None if its budget does not pay for one step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        try:
            return solve(
                X,
                y,
                method=series.method,
                budget=Budget(epsilon=key.epsilon, delta=experiment.delta),
                loss="hinge" if key.model == "svm" else "logistic",
                options={k: v for k, v in options.items() if k != "l2"},
                n_rows=X.shape[0],
                l2=options.get("l2", L2),
                max_batches=None if series.once else experiment.max_batches,
                accounting=series.accounting,
                seed=key.seed(),
            )
        except BudgetExceeded:
            return None


def _margins(w: Any, X: Matrix, data_norm: float | None) -> Any:
    """Return the scores of rows, scaled as the model wants them."""
    return clipped_rows(X, data_norm) @ w[:-1] + w[-1]


def _objective(model: str, w: Any, X: Matrix, y: Any, data_norm: float | None) -> float:
    """Return the mean loss plus the penalty."""
    objective = LinearObjective(
        loss="hinge" if model == "svm" else "logistic", n_features=X.shape[1], l2=L2
    )
    scores = torch.from_numpy(np.asarray(_margins(w, X, data_norm)))
    losses = objective.losses(scores, torch.from_numpy(y))
    return float(losses.mean()) + objective.penalty(torch.from_numpy(w))
