# SPDX-License-Identifier: Apache-2.0
"""Outpert-GD: one row never moves the end by more than is charged for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.mechanisms import Gaussian
from tests.baselines.one_shot_doubles import (
    BUDGET,
    answered,
    built,
    fitted,
    mean_gradient,
    objective,
    rows_of,
    table,
    unit_rows,
)

ROWS = st.tuples(
    arrays.arrays(np.float64, 3, elements=st.floats(-5, 5)),
    st.sampled_from([-1.0, 1.0]),
)
GOALS = st.builds(
    objective,
    loss=st.sampled_from(["logistic", "huber"]),
    l2=st.sampled_from([0.0, 1e-3, 0.1, 2.0]),
    fit_intercept=st.booleans(),
)


def with_row(X, y, place, row):
    X, y = X.copy(), y.copy()
    X[place], y[place] = row
    return X, y


def plain_descent(X, y, goal, *, steps, step_size, n):
    Z = unit_rows(X, y, 1.0, goal.fit_intercept)
    w = np.zeros(Z.shape[1])
    for _ in range(steps):
        w = w - step_size * mean_gradient(w, Z, goal.loss, goal.l2, n)
    return w


@settings(max_examples=150)
@given(
    goal=GOALS,
    row=ROWS,
    seed=st.integers(0, 50),
    n=st.integers(1, 12),
    steps=st.integers(1, 40),
    step=st.sampled_from([None, 0.3, 1.0, 3.0]),
)
def test_an_exchanged_row_stays_within_the_sensitivity(goal, row, seed, n, steps, step):
    X, y = table(n, seed)
    method = built("outpert-gd", n, goal, steps=steps, step_size=step)
    here = method.descended(rows_of(X, y))
    there = method.descended(rows_of(*with_row(X, y, seed % n, row)))
    assert np.linalg.norm(here - there) <= method.mechanism.sensitivity


@settings(max_examples=100)
@given(
    goal=GOALS,
    row=ROWS,
    seed=st.integers(0, 50),
    n=st.integers(1, 12),
    steps=st.integers(1, 40),
)
def test_a_zeroed_row_moves_half_as_far(goal, row, seed, n, steps):
    X, y = with_row(*table(n, seed), seed % n, row)
    method = built("outpert-gd", n, goal, steps=steps, relation="zero-out")
    zeroed = with_row(X, y, seed % n, (np.nan, 1.0))
    moved = method.descended(rows_of(X, y)) - method.descended(rows_of(*zeroed))
    assert np.linalg.norm(moved) <= method.mechanism.sensitivity
    exchanged = built("outpert-gd", n, goal, steps=steps)
    assert method.mechanism.sensitivity == exchanged.mechanism.sensitivity / 2


def test_the_bound_is_attained():
    """One row against its opposite, a loss whose slope is one, a single step."""
    goal = objective("huber", fit_intercept=False)
    X, y = np.full((4, 3), 1.0), np.ones(4)
    method = built("outpert-gd", 4, goal, steps=1)
    moved = method.descended(rows_of(X, y)) - method.descended(
        rows_of(*with_row(X, y, 0, (-1.0, 1.0)))
    )
    assert np.linalg.norm(moved) == pytest.approx(method.mechanism.sensitivity)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_it_is_plain_descent(loss, intercept):
    goal = objective(loss, fit_intercept=intercept)
    X, y = table(50)
    method = built("outpert-gd", 50, goal, steps=30, step_size=1.5)
    free = replace(method, mechanism=Gaussian(noise_scale=0.0))
    expected = plain_descent(X, y, goal, steps=30, step_size=1.5, n=50)
    radius = math.sqrt(2) if intercept else 1.0
    found = answered(free, X, y)
    np.testing.assert_allclose(found, expected / radius, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 0.1


class TestVariants:
    def test_published_sensitivity_and_noise(self):
        budget = Budget(epsilon=0.2, delta=1e-8)
        method = built("outpert-gd", 1000, budget=budget, variant="replica")
        assert (method.steps, method.step_size) == (50, 1.0)
        assert method.mechanism.sensitivity == pytest.approx(3 * 50 / 1000)
        # 30.9143: the golden value of sqrt(2 log(2/delta))/epsilon.
        noise = method.mechanism.noise_multiplier
        assert noise == pytest.approx(30.9143, abs=1e-3)

    def test_the_replica_has_the_noise_that_a_large_epsilon_needs(self):
        """Where the published rule, which is proved below one, would be too little."""
        budget = Budget(epsilon=30.0, delta=1e-2)
        printed = math.sqrt(2 * math.log(2 / budget.delta)) / budget.epsilon
        method = built("outpert-gd", 1000, budget=budget, variant="replica")
        assert method.mechanism.noise_multiplier > printed

    def test_improved_is_the_longest_contracting_step(self):
        budget = Budget(epsilon=0.2, delta=1e-8)
        method = built("outpert-gd", 1000, objective(l2=1e-3), budget=budget)
        assert method.step_size == pytest.approx(1.98 / 0.251)
        assert method.mechanism.noise_multiplier == pytest.approx(23.675, rel=2e-3)

    @pytest.mark.parametrize("name", ["replace-one", "zero-out"])
    def test_relation(self, name):
        X, y = table()
        relation = Neighboring(name)
        result = fitted("outpert-gd", X, y, asked={"relation": name})
        assert result.accountant.guarantee.relation is relation


class TestWholeRun:
    @pytest.mark.parametrize("variant", ["improved", "replica"])
    def test_budget(self, variant):
        X, y = table()
        result = fitted("outpert-gd", X, y, seed=None, asked={"variant": variant})
        spent = result.accountant.epsilon_spent()
        assert (0.95 if variant == "improved" else 0.5) <= spent <= BUDGET.epsilon
        assert result.accountant.guarantee.accountant == "planned-profile"
        assert result.accountant.guarantee.holds
        assert [record.gradients for record in result.records] == [50]

    def test_a_row_that_is_no_number_counts_as_nothing(self):
        X, y = table(30)
        bad = X.copy()
        bad[4, 1] = np.nan
        method = built("outpert-gd", 30)
        kept = np.arange(30) != 4
        expected = method.descended(rows_of(X[kept], y[kept]))
        np.testing.assert_allclose(method.descended(rows_of(bad, y)), expected)
        assert np.all(np.isfinite(fitted("outpert-gd", bad, y).w))

    def test_more_rows_than_declared_do_not_make_it_rougher(self):
        """Divided by the number that is there: replace-one makes it public."""
        X, y = table(40)
        method = built("outpert-gd", 10)
        expected = built("outpert-gd", 40).descended(rows_of(X, y))
        np.testing.assert_allclose(method.descended(rows_of(X, y)), expected)


def test_a_replica_whose_steps_do_not_contract_is_refused():
    with pytest.raises(ValueError, match="step_size <="):
        built("outpert-gd", 100, variant="replica", step_size=10.0)


def test_another_objective_is_refused():
    method = built("outpert-gd", 10)
    with pytest.raises(ValueError, match="for which the noise"):
        method.step(None, objective("huber"), None)
