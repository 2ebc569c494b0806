# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: the minimum is one, the noise is that of the proof."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import root

from armijo._noise.vectors import gaussian_vector, radial_vector
from armijo.accounting.budget import Budget
from armijo.baselines import empirical_risk, perturbation
from armijo.data.query import Rows
from armijo.randomness import Randomness
from tests.baselines.one_shot_doubles import (
    built,
    fitted,
    objective,
    rows_of,
    slopes,
    table,
    unit_rows,
)

FORMS = ("objpert", "objpert-kst", "objpert-pure")
ALL = (*FORMS, "amp")


def perturbed_gradient(method, w, X, y, b):
    goal = method.objective
    Z = unit_rows(X, y, 1.0, goal.fit_intercept)
    return Z.T @ slopes(goal.loss, Z @ w) + method.ridge * w + b


def first_draw(method, seed):
    run = Randomness(seed=seed, insecure_deterministic=True)
    bits = run.for_charge(0).stream("perturbation")
    draw = radial_vector if method.radial else gaussian_vector
    return draw(method.noise_scale, method.objective.size, bits)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("loss", ["logistic", "huber"])
class TestMinimum:
    @pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
    def test_the_gradient_norm_is_within_the_tolerance(self, method, loss, scale):
        X, y = table(80)
        algorithm = built(method, 80, objective(loss))
        b = scale * np.array([1.0, -0.5, 0.25, 2.0])
        w = algorithm.minimum(rows_of(X, y), b)
        norm = np.linalg.norm(perturbed_gradient(algorithm, w, X, y, b))
        # Rows are shrunk by 1e-12 for the float error of their norm.
        assert norm <= algorithm.tolerance + 1e-10

    def test_a_whole_run_releases_that_minimum(self, method, loss):
        """Same seed, same linear term; solved again as a system of equations."""
        X, y = table(80)
        goal = objective(loss)
        algorithm = built(method, 80, goal)
        b = first_draw(algorithm, seed=5)
        expected = root(
            lambda w: perturbed_gradient(algorithm, w, X, y, b), np.zeros(4), tol=1e-12
        ).x
        found = fitted(method, X, y, goal, seed=5).w * math.sqrt(2)
        # Four coordinates, the norm of the pure noise has shape four: 30 scales.
        room = 30 * algorithm.output_noise_scale
        assert np.linalg.norm(found - expected) <= room
        assert room < 1e-2 * np.linalg.norm(expected)


class TestParameters:
    budget = Budget(epsilon=0.2, delta=1e-8)

    def test_tight(self):
        """Close to the golden value: one percent of the budget is set aside."""
        goal = objective(l2=1e-3)
        method = built("objpert", 43957, goal, budget=self.budget)
        assert method.ridge == pytest.approx(43.957)
        assert method.noise_scale == pytest.approx(25.0025, rel=0.015)
        assert method.noise_scale > 25.0025

    def test_kst(self):
        method = built("objpert-kst", 43957, objective(l2=1e-3), budget=self.budget)
        assert method.ridge == pytest.approx(43.957)  # more than 2 beta/epsilon = 2.5
        assert method.noise_scale == pytest.approx(61.99, rel=0.015)
        small = built("objpert-kst", 100, objective(l2=1e-3), budget=self.budget)
        assert small.ridge == pytest.approx(0.5 / (0.99 * 0.2))

    def test_pure_with_enough_penalty(self):
        """Chaudhuri et al. (2011): the logarithm comes off, nothing is added."""
        n, l2, c = 5000, 0.01, 0.25
        method = built("objpert-pure", n, objective(l2=l2), budget=self.budget)
        left = 0.99 * 0.2 - math.log(1 + 2 * c / (n * l2) + (c / (n * l2)) ** 2)
        assert left > 0
        assert method.noise_scale == pytest.approx(2 / left, rel=1e-6)
        assert method.ridge == pytest.approx(n * l2)
        assert method.radial

    def test_pure_with_too_little_penalty(self):
        n, l2, c = 100, 1e-4, 0.25
        method = built("objpert-pure", n, objective(l2=l2), budget=self.budget)
        epsilon = 0.99 * 0.2
        added = c / (n * (math.exp(epsilon / 4) - 1)) - l2
        assert method.noise_scale == pytest.approx(4 / epsilon, rel=1e-6)
        assert method.ridge == pytest.approx(n * (l2 + added), rel=1e-6)

    def test_amp(self):
        n, epsilon, delta = 1000, 0.2, 1e-8
        method = built("amp", n, objective(l2=0.0), budget=self.budget)
        share = min(0.88671 + 0.0186607 / epsilon**0.372906, 0.99)
        rest = 0.99 * epsilon
        ridge = 2 * 0.25 / (rest * (1 - share))
        tail = 1 + math.sqrt(2 * math.log(1 / (0.99 * delta)))
        assert method.ridge == pytest.approx(ridge, rel=1e-6)
        assert method.noise_scale == pytest.approx(2 * tail / (rest * share), rel=1e-6)
        tolerance = 1e-8 * ridge + 1e-12 * n  # less than the published 1/n
        assert method.tolerance == pytest.approx(tolerance, rel=1e-6)
        tail = 1 + math.sqrt(2 * math.log(1 / (0.01 * delta)))
        noise = 2 * tolerance / ridge * tail / (0.01 * epsilon)
        assert method.output_noise_scale == pytest.approx(noise, rel=1e-6)

    def test_amp_tolerance_is_that_of_the_mean(self):
        method = built("amp", 50, gradient_tolerance=1e-9)
        assert method.tolerance == pytest.approx(50e-9)

    def test_a_penalty_counts_towards_the_ridge_of_amp(self):
        assert built("amp", 1000, objective(l2=1.0)).ridge == 1000.0

    @pytest.mark.parametrize("method", ALL)
    def test_output_noise_hides_the_tolerance_and_is_small(self, method):
        algorithm = built(method, 1000)
        radius = algorithm.tolerance / algorithm.ridge
        assert radius < 1e-7
        multiplier = algorithm.output_noise_scale / (2 * radius)
        assert multiplier > 1 / 0.01  # it has one percent of epsilon = 1
        assert algorithm.output_noise_scale < 1e-4

    @pytest.mark.parametrize("method", ALL)
    def test_no_penalty_at_all(self, method):
        algorithm = built(method, 1000, objective(l2=0.0))
        assert algorithm.ridge > 0.25
        assert np.isfinite(algorithm.noise_scale)


@pytest.mark.parametrize("method", ALL)
class TestWholeRun:
    @pytest.mark.parametrize("epsilon", [0.01, 0.1, 3.0, 9.0])
    def test_other_budgets(self, method, epsilon):
        X, y = table()
        budget = Budget(epsilon=epsilon, delta=1e-8)
        result = fitted(method, X, y, budget=budget)
        assert result.accountant.epsilon_spent() <= epsilon
        assert np.all(np.isfinite(result.w))

    def test_a_row_that_is_no_number_counts_as_nothing(self, method):
        X, y = table(30)
        bad = X.copy()
        bad[4, 1] = np.nan
        kept = np.arange(30) != 4
        found = fitted(method, bad, y).w
        expected = fitted(method, X[kept], y[kept], n_rows=30).w
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_softmax_is_refused_before_anything_is_spent(self, method):
        X, y = table()
        goal = objective("softmax", n_classes=3)
        with pytest.raises(ValueError, match="two classes"):
            fitted(method, X, y, goal)


@pytest.mark.parametrize("method", ALL)
def test_a_solver_that_gives_up_is_not_told(method, monkeypatch):
    """The answer has the certified norm all the same, by a method that cannot fail."""
    algorithm, rows = built(method, 60), rows_of(*table())
    b = np.array([1.0, -2.0, 0.5, 3.0])
    expected = algorithm.minimum(rows, b)
    monkeypatch.setattr(
        empirical_risk, "_approached", lambda risk, tolerance: np.full(4, 1e9)
    )
    monkeypatch.setattr(empirical_risk, "_polished", lambda risk, w, tolerance: w)
    found = algorithm.minimum(rows, b)
    gradient = algorithm.risk(rows, b).gradient(found)
    assert np.linalg.norm(gradient) <= algorithm.tolerance / 2
    assert np.linalg.norm(found - expected) <= algorithm.tolerance / algorithm.ridge


def test_a_tolerance_that_floats_cannot_reach_ends_at_the_public_start():
    algorithm = replace(built("objpert", 60), tolerance=1e-300)
    found = algorithm.minimum(rows_of(*table()), np.array([1.0, -2.0, 0.5, 3.0]))
    assert found.tolist() == [0.0] * 4


def test_amp_refuses_an_epsilon_beyond_its_proof():
    with pytest.raises(ValueError, match="within reach of the proof"):
        built("amp", 100, budget=Budget(epsilon=20.0, delta=1e-8))


def test_the_solver_is_asked_for_half_the_tolerance(monkeypatch):
    asked = []
    solve = perturbation.certified

    def spy(risk, tolerance, **more):
        asked.append(tolerance)
        return solve(risk, tolerance, **more)

    monkeypatch.setattr(perturbation, "certified", spy)
    algorithm = built("objpert", 10)
    algorithm.minimum(Rows(*table(10)), np.zeros(4))
    assert asked == [algorithm.tolerance / 2]


def test_the_intercept_is_regularized_and_perturbed_like_the_rest():
    X, y = table(40)
    algorithm = built("objpert", 40)
    b = np.array([0.0, 0.0, 0.0, 1e4])
    w = algorithm.minimum(rows_of(X, y), b)
    assert w[3] == pytest.approx(-1e4 / algorithm.ridge, rel=0.01)
