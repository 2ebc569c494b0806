# SPDX-License-Identifier: Apache-2.0
"""Hindsight-tuned DP-SGD: the best of a grid, and it says that it is not private."""

import numpy as np
import pytest

from armijo.accounting.budget import Budget
from armijo.estimators.hindsight import (
    HINDSIGHT,
    Setting,
    hindsight_tuned_sgd,
    setting_grid,
)
from armijo.estimators.linear import PrivateLinearSVC, PrivateLogisticRegression
from armijo.methods import DPSGD

BUDGET = Budget(epsilon=0.5, delta=1e-6)
GRID = tuple(
    Setting(step_size=1.0, max_grad_norm=1.0, steps=steps, sampling_prob=1.0)
    for steps in (60, 3, 9)
)


def tables():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = np.where(X @ [1.0, 2.0] > 0, "b", "a")
    return X[:600], y[:600], X[600:], y[600:]


def tuned(**more):
    return hindsight_tuned_sgd(
        *tables(), **{"budget": BUDGET, "grid": GRID, "random_state": 1, **more}
    )


def test_the_best_by_test_accuracy_is_returned():
    found = tuned(random_state=2)  # with 1, all three settings tie
    assert len(set(found.accuracies)) > 1
    assert found.accuracy == max(found.accuracies)
    assert found.setting is GRID[int(np.argmax(found.accuracies))]
    _, _, X_test, y_test = tables()
    assert found.model.score(X_test, y_test) == found.accuracy > 0.8


def test_each_run_is_the_estimators_own():
    found = tuned(grid=GRID[1:2])
    X, y, X_test, y_test = tables()
    alone = PrivateLogisticRegression(
        method=DPSGD(sampling_prob=1.0, steps=3, step_size=1.0, max_grad_norm=1.0),
        epsilon=0.5,
        delta=1e-6,
        classes=["a", "b"],
        random_state=1,
    ).fit(X, y)
    np.testing.assert_array_equal(found.model.coef_, alone.coef_)
    assert found.accuracy == alone.score(X_test, y_test)


def test_it_says_that_it_is_not_private():
    found = tuned(random_state=None, grid=GRID[1:2])
    assert found.guarantee.broken_premises == (HINDSIGHT,)
    assert not found.guarantee.holds
    assert not found.model.privacy_.guarantee.holds
    for text in (str(found), str(found.model.privacy_)):
        assert "NO GUARANTEE" in text
        assert "not private, an upper bound" in text


def test_a_support_vector_machine_too():
    found = tuned(loss="hinge", grid=GRID[1:2])
    assert type(found.model) is PrivateLinearSVC
    assert found.model.loss == "hinge"


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="loss"):
        tuned(loss="squared")
    with pytest.raises(ValueError, match="grid"):
        tuned(grid=())


def test_the_grid_holds_every_combination():
    grid = setting_grid(step_sizes=(1.0, 2.0), grad_clips=(3.0,), steps=(5, 6, 7))
    assert len(set(grid)) == 6
    assert Setting(step_size=2.0, max_grad_norm=3.0, steps=6, sampling_prob=0.1) in grid
