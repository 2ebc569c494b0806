# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation on Adult beside a second implementation, in NumPy alone.

The second one is the algorithm as it is printed (Kifer, Smith and Thakurta 2012,
Algorithm 1, Gaussian noise): it minimizes exactly by Newton's method, spends nothing on
the error of a solver and shares no code with the package.
"""

import math

import numpy as np
import pytest

from armijo.baselines import ObjPertKST
from armijo.errors import PrivacyLeakWarning
from armijo.estimators import PrivateLogisticRegression
from armijo_reproduction.datasets import available, folds, load

EPSILON, DELTA, L2 = 0.1, 1e-8, 1e-3
DRAWS = 24


@pytest.fixture(scope="module")
def split():
    """Rows and labels (0 and 1) of the first of ten folds, to train and to test."""
    if not available("adult"):
        pytest.skip("the files of adult are not on this machine")
    data = load("adult", download=False)
    train, test = folds(len(data.y), 10, seed=0)[0]
    return data.X[train], data.y[train], data.X[test], data.y[test]


def in_ball(X):
    """Rows cut to norm one, with a constant feature, all divided by root two."""
    cut = X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    return np.column_stack([cut, np.ones(len(X))]) / math.sqrt(2.0)


def minimum(Z, ridge, b):
    """Minimize ``sum log(1 + exp(-z.w)) + ridge/2 |w|^2 + b.w`` by Newton's method."""

    def value(w):
        return np.logaddexp(0, -Z @ w).sum() + 0.5 * ridge * w @ w + b @ w

    w = np.zeros(Z.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(Z @ w))
        gradient = -Z.T @ p + ridge * w + b
        hessian = (Z.T * (p * (1 - p))) @ Z + ridge * np.eye(len(w))
        step, size = np.linalg.solve(hessian, gradient), 1.0
        if gradient @ step < 1e-7:  # twice what is left of the value
            return w
        while value(w - size * step) > value(w) - 1e-4 * size * gradient @ step:
            size /= 2
            assert size > 1e-6, "Newton's method stalls"
        w = w - size * step
    raise AssertionError("Newton's method does not end")


def printed(split, *, noise=1.0):
    """Accuracies of the printed algorithm, its noise multiplied by ``noise``."""
    X, y, held_out, truth = split
    Z = in_ball(X) * np.where(y == 1, 1.0, -1.0)[:, None]
    deviation = math.sqrt(8 * math.log(2 / DELTA) + 4 * EPSILON) / EPSILON
    ridge = max(2 * 0.25 / EPSILON, len(X) * L2)  # a penalty of the model's own counts
    rng, found = np.random.default_rng(7), []
    for _ in range(DRAWS):
        b = noise * deviation * rng.standard_normal(Z.shape[1])
        scores = in_ball(held_out) @ minimum(Z, ridge, b)
        found.append(np.mean((scores >= 0) == (truth == 1)))
    return np.array(found)


def ours(split):
    """Accuracies of the estimator, seeded, which takes the guarantee away."""
    X, y, held_out, truth = split
    found = []
    for draw in range(DRAWS):
        model = PrivateLogisticRegression(
            method=ObjPertKST(data_norm=1.0),
            epsilon=EPSILON,
            delta=DELTA,
            l2=L2,
            classes=[0, 1],
            n_rows=len(X),
            random_state=draw,
        )
        found.append(model.fit(X, y).score(held_out, truth))
    return np.array(found)


def deviations_apart(first, second):
    """Difference of two means in standard errors of it."""
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / DRAWS)
    return abs(first.mean() - second.mean()) / error


@pytest.mark.slow
@pytest.mark.filterwarnings(
    f"ignore::{PrivacyLeakWarning.__module__}.PrivacyLeakWarning"
)
def test_mean_accuracy_is_that_of_the_printed_algorithm(split):
    found = ours(split)
    assert deviations_apart(found, printed(split)) < 3
    assert deviations_apart(found, printed(split, noise=0.5)) > 5
