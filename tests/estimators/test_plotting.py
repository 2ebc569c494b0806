# SPDX-License-Identifier: Apache-2.0
"""Pictures: the right numbers in the right axes, for any run there can be."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from armijo.accounting.budget import Budget, Guarantee, Neighboring
from armijo.estimators import PrivateLogisticRegression
from armijo.methods import BLSGD
from armijo.plotting import (
    draw_angles,
    draw_budgets,
    draw_spent,
    draw_steps,
    plot_history,
)


@pytest.fixture(autouse=True)
def no_window():
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def history(steps=(2.0, 0.0, 1.28, 0.0, 0.4)):
    n = len(steps)
    return pd.DataFrame(
        {
            "batch": np.arange(10, 10 + n),
            "update": np.cumsum(np.array(steps) > 0),
            "step_size": np.array(steps, dtype=float),
            "tries": np.full(n, 3),
            "direction_norm": np.linspace(1, 2, n),
            "angle": [None, 120.0, 80.0, 95.0, 60.0][:n],
            "gradient_rho": 0.005 * 1.3 ** np.arange(n),
            "search_epsilon": np.linspace(0.1, 0.2, n),
            "max_grad_norm": np.full(n, 3.0),
            "loss_clip": np.full(n, 1.0),
            "initial_step": np.linspace(2.0, 1.5, n),
            "epsilon": np.linspace(0.2, 0.9, n),
        }
    )


def guarantee(**settings):
    return Guarantee(
        budget=Budget(epsilon=1.5, delta=1e-5),
        relation=Neighboring.ADD_REMOVE,
        accountant="filter-rdp",
        **settings,
    )


def lines(ax):
    """Return the drawn data by label."""
    return {
        line.get_label(): (
            np.array(line.get_xdata(), dtype=float),
            np.array(line.get_ydata(), dtype=float),
        )
        for line in ax.get_lines()
    }


def assert_line(found, x, y):
    np.testing.assert_allclose(found[0], x)
    np.testing.assert_allclose(found[1], y)


def test_three_axes_with_the_right_data():
    table = history()
    axes = plot_history(table, guarantee())
    assert len(axes) == 3
    batch = table["batch"]
    steps, budgets, spent = (lines(ax) for ax in axes)
    assert_line(steps["chosen step size"], [10, 12, 14], [2.0, 1.28, 0.4])
    assert_line(steps["first candidate"], batch, table["initial_step"])
    np.testing.assert_array_equal(steps["none found"][0], [11, 13])
    gradient = np.sqrt(2 * table["gradient_rho"])
    assert_line(budgets["gradient: sqrt(2 rho)"], batch, gradient)
    assert_line(budgets["search: epsilon"], batch, table["search_epsilon"])
    assert_line(spent["spent"], batch, table["epsilon"])
    assert spent["guaranteed: 1.5"][1].tolist() == [1.5, 1.5]
    assert [ax.get_ylabel() for ax in axes] == [
        "step size",
        "budget per batch",
        "epsilon",
    ]
    assert axes[2].get_xlabel() == "batch"
    assert axes[0].get_yscale() == "log"
    assert axes[2].get_ylim()[0] == 0
    assert all(ax.get_legend() is not None for ax in axes)


def test_axes_may_be_given():
    _, given = plt.subplots(1, 3)
    axes = plot_history(history(), guarantee(), given)
    assert axes is given
    assert all(ax.get_lines() for ax in given)
    assert len(plt.get_fignums()) == 1


def test_a_void_promise_is_called_so():
    _, ax = plt.subplots()
    draw_spent(ax, history(), guarantee(broken_premises=("seeded",)))
    assert "label only: no guarantee: 1.5" in lines(ax)
    assert not any(label.startswith("guaranteed") for label in lines(ax))


def test_a_run_that_always_found_a_step():
    _, ax = plt.subplots()
    draw_steps(ax, history((2.0, 1.0)))
    assert set(lines(ax)) == {"chosen step size", "first candidate"}


def test_a_run_that_never_found_a_step():
    _, ax = plt.subplots()
    draw_steps(ax, history((0.0, 0.0, 0.0)))
    found = lines(ax)
    assert set(found) == {"none found", "first candidate"}
    assert len(found["none found"][0]) == 3


def test_a_run_without_a_batch():
    axes = plot_history(history(()), guarantee())
    assert set(lines(axes[0])) == set()
    assert len(lines(axes[2])["spent"][0]) == 0
    axes[0].figure.canvas.draw()


def test_budgets_start_at_zero():
    _, ax = plt.subplots()
    draw_budgets(ax, history())
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylim()[1] > 0.2


def test_angles():
    _, ax = plt.subplots()
    table = history()
    draw_angles(ax, table)
    x, y = (np.array(axis, dtype=float) for axis in ax.get_lines()[0].get_data())
    np.testing.assert_array_equal(x, table["batch"])
    np.testing.assert_array_equal(y, [np.nan, 120.0, 80.0, 95.0, 60.0])
    assert ax.get_lines()[1].get_ydata()[0] == 90
    assert ax.get_ylim() == (0, 180)


@pytest.mark.parametrize("batches", [1, 6])
def test_a_fitted_model_draws_itself(batches):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    model = PrivateLogisticRegression(
        method=BLSGD(gradient_rho=0.05, search_epsilon=0.3),
        epsilon=4.0,
        max_batches=batches,
        classes=[0, 1],
        n_rows=300,
    ).fit(X, (X[:, 0] > 0).astype(int))
    axes = model.plot_history()
    found = lines(axes[2])
    assert_line(found["spent"], model.history_["batch"], model.history_["epsilon"])
    assert "guaranteed: 4" in found
    axes[0].figure.canvas.draw()


def test_a_model_that_was_not_fitted_does_not():
    with pytest.raises(NotFittedError):
        PrivateLogisticRegression().plot_history()
