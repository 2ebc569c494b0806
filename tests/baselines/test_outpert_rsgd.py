# SPDX-License-Identifier: Apache-2.0
"""Outpert-RSGD: in every batch, one row moves the average by no more than its bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from armijo._noise.vectors import random_order
from armijo.accounting.budget import Neighboring
from armijo.accounting.mechanisms import Gaussian
from armijo.accounting.perturbation import PermutedMixture
from armijo.randomness import Randomness
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

GOALS = st.builds(
    objective,
    loss=st.sampled_from(["logistic", "huber"]),
    l2=st.sampled_from([0.0, 1e-3, 0.1, 2.0]),
)


def plain_average(X, y, goal, order, *, m, epochs, step_size):
    Z = unit_rows(X, y)
    size = len(order) // m
    w, visited = np.zeros(Z.shape[1]), []
    for epoch in range(epochs):
        step = step_size / math.sqrt(epoch + 1) if m > 1 else step_size
        for batch in range(m):
            chosen = Z[order[batch * size : (batch + 1) * size]]
            w = w - step * mean_gradient(w, chosen, goal.loss, goal.l2, size)
            visited.append(w)
    return np.mean(visited, axis=0)


@settings(max_examples=150)
@given(
    goal=GOALS,
    row=arrays.arrays(np.float64, 3, elements=st.floats(-5, 5)),
    seed=st.integers(0, 50),
    n=st.integers(2, 15),
    batch_size=st.integers(1, 8),
    epochs=st.integers(1, 6),
    place=st.integers(0, 14),
)
def test_empirical_sensitivity(goal, row, seed, n, batch_size, epochs, place):
    X, y = table(n, seed)
    method = built("outpert-rsgd", n, goal, batch_size=batch_size, epochs=epochs)
    order = np.random.default_rng(seed).permutation(n)
    other = X.copy()
    other[order[place % n]] = row
    moved = method.averaged(rows_of(X, y), order) - method.averaged(
        rows_of(other, y), order
    )
    batch = place % n // (n // method.n_batches)
    bounds = (*method.mechanism.sensitivities, 0.0)  # left over: moves nothing
    assert np.linalg.norm(moved) <= bounds[min(batch, method.n_batches)]


def test_the_bound_is_attained():
    goal = objective("huber", fit_intercept=False, l2=0.0)
    X, y = np.ones((6, 3)), np.ones(6)
    other = X.copy()
    other[5] = -1.0
    method = built("outpert-rsgd", 6, goal, batch_size=3, epochs=1, step_size=1e-3)
    moved = method.averaged(rows_of(X, y), np.arange(6)) - method.averaged(
        rows_of(other, y), np.arange(6)
    )
    assert np.linalg.norm(moved) == pytest.approx(method.mechanism.sensitivities[1])


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("batch_size", [7, 10, 100])
def test_without_noise_it_is_plain_permuted_descent(loss, batch_size):
    goal = objective(loss)
    X, y = table(45)
    method = built(
        "outpert-rsgd", 45, goal, batch_size=batch_size, epochs=4, step_size=1.2
    )
    tiny = replace(method, mechanism=replace(method.mechanism, noise_scale=1e-13))
    found = tiny._noisy_average(
        rows_of(X, y), Randomness(seed=3, insecure_deterministic=True).for_charge(0)
    )
    run = Randomness(seed=3, insecure_deterministic=True)
    again = run.for_charge(0).stream("perturbation")
    expected = plain_average(
        X,
        y,
        goal,
        random_order(45, again),
        m=max(45 // batch_size, 1),
        epochs=4,
        step_size=1.2,
    )
    np.testing.assert_allclose(found, expected / math.sqrt(2), rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 0.1


def test_runs_differ_by_their_secret_order_too():
    X, y = table(30)
    method = built("outpert-rsgd", 30, batch_size=5)
    first, second = (
        method.averaged(rows_of(X, y), np.random.default_rng(seed).permutation(30))
        for seed in (0, 1)
    )
    assert np.linalg.norm(first - second) > 1e-6


class TestVariants:
    def test_defaults(self):
        method = built("outpert-rsgd", 43957, objective(l2=1e-3))
        assert method.n_batches == 10
        assert method.epochs == 5
        assert method.step_size == pytest.approx(1.98 / 0.251)
        assert isinstance(method.mechanism, PermutedMixture)

    def test_more_is_known_less_noise_is_needed(self):
        noises = {
            variant: built(
                "outpert-rsgd", 1000, batch_size=20, variant=variant
            ).mechanism.noise_scale
            for variant in ("mixture", "renyi", "worst-case")
        }
        assert noises["mixture"] < noises["renyi"]
        assert noises["mixture"] < noises["worst-case"]

    @pytest.mark.parametrize(
        ("variant", "accountant"),
        [
            ("mixture", "planned-profile"),
            ("renyi", "planned-profile"),
            ("worst-case", "planned-profile"),
        ],
    )
    def test_whole_run(self, variant, accountant):
        X, y = table()
        asked = {"variant": variant, "batch_size": 9}
        result = fitted("outpert-rsgd", X, y, seed=None, asked=asked)
        spent = result.accountant.epsilon_spent()
        assert (0.5 if variant == "renyi" else 0.95) <= spent <= BUDGET.epsilon
        guarantee = result.accountant.guarantee
        assert guarantee.accountant == accountant
        assert guarantee.relation is Neighboring.REPLACE_ONE
        assert guarantee.holds


def test_the_noise_of_the_worst_case_is_what_was_charged():
    X, y = np.full((40, 3), np.nan), np.ones(40)  # nothing but noise is left
    method = built("outpert-rsgd", 40, batch_size=8, variant="worst-case")
    draws = [answered(method, X, y, seed) for seed in range(200)]
    deviation = np.std(np.array(draws) * math.sqrt(2))
    assert deviation == pytest.approx(method.mechanism.noise_scale, rel=0.12)


def test_a_row_that_is_no_number_counts_as_nothing():
    X, y = table(20)
    bad, other = X.copy(), X.copy()
    bad[4, 1], other[4, 0] = np.inf, np.nan
    method = built("outpert-rsgd", 20, batch_size=5)
    order = np.arange(20)
    found = method.averaged(rows_of(bad, y), order)
    np.testing.assert_array_equal(found, method.averaged(rows_of(other, y), order))
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("rows", [0, 3, 50])
def test_another_number_of_rows_than_declared(rows):
    X, y = table(rows)
    result = fitted("outpert-rsgd", X, y, n_rows=20, asked={"batch_size": 5})
    assert np.all(np.isfinite(result.w))


def test_the_worst_case_is_one_gaussian():
    method = built("outpert-rsgd", 100, batch_size=10, variant="worst-case")
    mixture = built("outpert-rsgd", 100, batch_size=10).mechanism
    assert isinstance(method.mechanism, Gaussian)
    assert method.mechanism.sensitivity == max(mixture.sensitivities)
