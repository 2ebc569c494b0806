# SPDX-License-Identifier: Apache-2.0
"""A loss that the package does not know is one class: every method takes it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from armijo.accounting.budget import Budget
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, solve
from armijo.objectives.losses import LOSSES, Huber, Loss
from armijo.registry import make_method

BUDGET = Budget(epsilon=8.0, delta=1e-5)
METHODS = {
    "auto": {},
    "blsgd": {"search_form": "difference"},
    "sgd": {},
    "objpert": {"data_norm": 2.0},
    "outpert-gd": {"data_norm": 2.0},
    "privgene": {},
    "nonprivate": {},
}


@dataclass(frozen=True)
class RootHinge(Loss):
    """``(t + sqrt(1 + t^2)) / 2`` with ``t = 1 - m``: a hinge without corners."""

    name: ClassVar[str] = "root"

    @property
    def smoothness(self):
        return 0.5

    def value(self, m):
        t = 1 - m
        return (t + torch.sqrt(1 + t * t)) / 2

    def slope(self, m):
        t = 1 - m
        return -(1 + t / torch.sqrt(1 + t * t)) / 2

    def curvature(self, m):
        return (1 + (1 - m) ** 2) ** -1.5 / 2

    def margin_at(self, steepness):
        c = 2 * steepness - 1
        return 1 - c / torch.sqrt(1 - c * c)


def table(n=2000):
    rng = np.random.default_rng(5)
    X = rng.uniform(size=(n, 2))
    return X, np.where(X[:, 0] > X[:, 1], 1.0, -1.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_new_loss_is_fitted(method):
    X, y = table()
    chosen = make_method(method, METHODS[method])
    found = solve(X, y, method=chosen, budget=BUDGET, loss=RootHinge(), seed=1)
    known = solve(X, y, method=chosen, budget=BUDGET, loss="huber", seed=1)
    assert np.mean((X @ found.w[:-1] + found.w[-1]) * y > 0) > 0.8
    assert found.w.tolist() != known.w.tolist()


def test_the_estimator_for_margins_takes_it():
    X, y = table()
    model = PrivateLinearSVC(loss=RootHinge(), epsilon=8.0, classes=[-1, 1])
    assert model.fit(X, y).score(X, y) > 0.9
    other = PrivateLogisticRegression(loss=RootHinge(), classes=[-1, 1])
    with pytest.raises(ValueError, match="Expected loss"):
        other.fit(X, y)


@pytest.mark.parametrize(
    "loss", [*LOSSES.values(), Huber(0.1), RootHinge()], ids=lambda loss: repr(loss)
)
class TestEveryLoss:
    def test_slope_and_curvature_are_derivatives(self, loss):
        m = torch.linspace(-4, 4, 401, dtype=torch.float64) + 0.00123
        width = 1e-6
        rise = (loss.value(m + width) - loss.value(m - width)) / (2 * width)
        torch.testing.assert_close(loss.slope(m), rise, atol=1e-7, rtol=0)
        bend = (loss.slope(m + width) - loss.slope(m - width)) / (2 * width)
        torch.testing.assert_close(loss.curvature(m), bend, atol=1e-6, rtol=0)

    def test_slopes_lie_within_one_and_rise(self, loss):
        slope = loss.slope(torch.linspace(-50, 50, 2001, dtype=torch.float64))
        assert -1 <= slope.min() and slope.max() <= 0
        assert (slope.diff() >= -1e-15).all()

    def test_a_steepness_is_reached_where_it_says(self, loss):
        steepness = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
        m = loss.margin_at(steepness)
        assert (loss.slope(m - 1e-9) <= -steepness + 1e-6).all()
        assert (loss.slope(m + 1e-9) >= -steepness - 1e-6).all()

    def test_smoothness_bounds_the_curvature(self, loss):
        m = torch.linspace(-4, 4, 4001, dtype=torch.float64)
        assert loss.curvature(m).max() <= loss.smoothness
        smooth = loss.smooth_version
        assert smooth is not None and np.isfinite(smooth.smoothness)

    def test_drops_are_differences(self, loss):
        m, change = torch.randn(50).double(), torch.randn(50).double()
        drops = loss.drops(m, change)
        if drops is not None:
            expected = loss.value(m) - loss.value(m - 0.3 * change)
            np.testing.assert_allclose(drops(0.3), expected.numpy(), atol=1e-14)


def test_a_width_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="width"):
        Huber(0.0)
