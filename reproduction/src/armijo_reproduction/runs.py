# SPDX-License-Identifier: Apache-2.0
"""One run of an experiment: fit a fold, or train a network and measure its curve.

The tables and images are public, so the runs are seeded; accounting and noise are those
of a private run.
"""

import math
import time
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.accounting.mechanisms import Mechanism, Subsampled
from armijo.accounting.paper import ORDERS, printed_epsilon
from armijo.data.query import Matrix, clipped_rows
from armijo.errors import BudgetExceeded, PrivacyLeakWarning
from armijo.estimators import Solution, solve
from armijo.methods.base import Schedule
from armijo.networks import models
from armijo.networks.train import Trainer, evaluating
from armijo.objectives.ghost.params import flat_parameters
from armijo.objectives.linear import LinearObjective
from armijo.registry import NETWORK, make_method
from armijo_reproduction import datasets
from armijo_reproduction.datasets import synthetic as generated
from armijo_reproduction.spec import Experiment, RunKey, SyntheticTable

FOLDS = 10
L2 = 1e-3
_SPARSE = 0.3  # the share of entries that are not zero, up to which rows are CSR
_CHUNK = 100  # activations of so many images stay in the cache
Images = tuple[Tensor, Tensor, Tensor, Tensor]


@lru_cache(maxsize=4)
def _table(
    wanted: str | SyntheticTable, rows: int | None, synthetic: bool
) -> tuple[Matrix, Any]:
    """Return features and labels -1, +1; of "name/4" every fourth row."""
    if isinstance(wanted, SyntheticTable):
        X, y = generated.synthetic_table(wanted)
    else:
        name, _, part = wanted.partition("/")
        data = generated.table_like(name, rows) if synthetic else datasets.load(name)
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
    """Fit one fold, measure on both of its sides, and return the row.

    The objective is unclipped, with the penalty, on the training side (``hinge`` for
    every series of an SVM figure).
    """
    wanted = experiment.synthetic.get(key.dataset, key.dataset)
    dense = experiment.series_named(key.line).method == "auto"  # centering fills rows
    X, y, X_test, y_test = _fold(wanted, experiment.rows, synthetic, key.fold, dense)
    begun = time.process_time()
    solution = _solve(experiment, key, options, X, y)
    seconds = time.process_time() - begun
    records = () if solution is None else solution.records
    w = np.zeros(X.shape[1] + 1) if solution is None else solution.w
    bound = None if solution is None else solution.data_norm
    accuracy = np.mean((_margins(w, X_test, bound) >= 0) == (y_test > 0))
    return [
        {
            "accuracy": round(float(accuracy), 5),
            "objective": round(_objective(key.model, w, X, y, bound), 5),
            "gradients": 0 if solution is None else solution.gradient_evaluations,
            "objectives": 0 if solution is None else solution.objective_evaluations,
            "batches": len(records),
            "updates": sum(r.step_size is None or r.step_size > 0 for r in records),
            "seconds": round(seconds, 3),
        }
    ]


def _solve(
    experiment: Experiment, key: RunKey, options: Mapping[str, Any], X: Matrix, y: Any
) -> Solution | None:
    """Run the method; None if its budget does not pay for one step."""
    series = experiment.series_named(key.line)
    own = {name: value for name, value in options.items() if name != "l2"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        try:
            return solve(
                X,
                y,
                method=make_method(series.method, own),
                budget=Budget(epsilon=key.epsilon, delta=experiment.delta),
                loss="hinge" if key.model == "svm" else "logistic",
                n_rows=X.shape[0],
                l2=options.get("l2", L2),
                max_batches=None if series.once else experiment.max_batches,
                accounting=series.accounting,
                seed=key.seed(),
            )
        except BudgetExceeded:
            return None


def _margins(w: Any, X: Matrix, data_norm: float | None) -> Any:
    return clipped_rows(X, data_norm) @ w[:-1] + w[-1]


def _objective(model: str, w: Any, X: Matrix, y: Any, data_norm: float | None) -> float:
    objective = LinearObjective(
        loss="hinge" if model == "svm" else "logistic", n_features=X.shape[1], l2=L2
    )
    scores = torch.from_numpy(np.asarray(_margins(w, X, data_norm)))
    losses = objective.losses(scores, torch.from_numpy(y))
    return float(losses.mean()) + objective.penalty(torch.from_numpy(w))


@lru_cache(maxsize=1)
def _images(name: str, rows: int | None, synthetic: bool) -> Images:
    if synthetic:
        parts = generated.images_like(name, rows)
    else:
        kept, test = datasets.load(name).published_split()
        parts = (kept.X[:rows], kept.y[:rows], test.X, test.y)
    return tuple(torch.from_numpy(part) for part in parts)  # type: ignore[return-value]


def run_network(
    experiment: Experiment, key: RunKey, options: Mapping[str, Any], *, synthetic: bool
) -> list[dict[str, Any]]:
    """Train one network and return a row for every evaluation.

    ``spent`` is the sound epsilon of the steps so far, ``printed`` the label that the
    paper's formulas, which know equal steps only, would put on them.
    """
    X, y, X_test, y_test = _images(key.dataset, experiment.rows, synthetic)
    series = experiment.series_named(key.line)
    torch.manual_seed(key.seed())
    model = getattr(models, key.model)()
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        run = Trainer(
            model,
            nn.CrossEntropyLoss(reduction="none"),
            (X, y),
            Budget(epsilon=key.epsilon, delta=experiment.delta),
            method=make_method(series.method, options, table=NETWORK),
            sampling_prob=experiment.sampling_prob,
            steps=experiment.steps,
            n_rows=len(y),
            seed=key.seed(),
        )
        return _curve(experiment, run, model, (X, y, X_test, y_test), begun)


def _curve(
    experiment: Experiment, run: Trainer, model: nn.Module, data: Images, begun: float
) -> list[dict[str, Any]]:
    """Make the steps and measure every so many of them."""
    X, y, X_test, y_test = data
    first = run.method.plan(run.method.init(flat_parameters(model))).mechanism
    # Steps are alike if no method says otherwise.
    schedule = run.method.schedule() or ((first, experiment.steps),)
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(run, start=1):
        if number % experiment.evaluate_every and number != experiment.steps:
            continue
        seconds = time.process_time() - begun
        tests = None if number == experiment.steps else experiment.quick
        accuracy, _ = _measured(model, X_test[:tests], y_test[:tests])
        kept = experiment.measured
        _, objective = _measured(model, X[:kept], y[:kept])
        spent, published = _epsilons(_begun(schedule, number), experiment.delta)
        rows.append(
            {
                "iteration": number,
                "accuracy": round(accuracy, 5),
                "objective": round(objective, 5),
                "spent": spent,
                "printed": published,
                "step_size": record.step_size,
                "seconds": round(seconds, 3),
            }
        )
    return rows


def _begun(schedule: Schedule, steps: int) -> Schedule:
    """Return the charges of the first steps of a schedule.

    >>> _begun((("search", 1), ("plain", 3), ("search", 1)), 3)
    (('search', 1), ('plain', 2))
    """
    charges: list[tuple[Mechanism, int]] = []
    for mechanism, count in schedule:
        if steps > 0:
            charges.append((mechanism, min(count, steps)))
        steps -= count
    return tuple(charges)


@lru_cache(maxsize=256)
def _epsilons(charges: Schedule, delta: float) -> tuple[float | None, float | None]:
    """Return the sound epsilon of charges, and the published label of equal ones."""
    for mechanism, _ in charges:
        if not isinstance(mechanism, Subsampled):
            return None, None
        if not math.isfinite(mechanism.rdp(ORDERS[:1])[0]):
            return None, None
    sound = round(planned_epsilon(charges, delta)[0], 5)
    if len(charges) > 1:
        return sound, None
    ((step, steps),) = charges
    return sound, round(printed_epsilon(step, steps, delta), 5)


@torch.no_grad()
def _measured(model: nn.Module, X: Tensor, y: Tensor) -> tuple[float, float]:
    """Return accuracy and mean loss, in eval mode and in chunks."""
    correct, loss = 0.0, 0.0
    with evaluating(model):
        for first in range(0, len(y), _CHUNK):
            part = slice(first, first + _CHUNK)
            scores = model(X[part])
            correct += float((scores.argmax(1) == y[part]).sum())
            loss += float(nn.functional.cross_entropy(scores, y[part], reduction="sum"))
    return correct / len(y), loss / len(y)
