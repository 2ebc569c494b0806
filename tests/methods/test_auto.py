# SPDX-License-Identifier: Apache-2.0
"""The automatic method: what it pays, its limits, and tables it must not fail on."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize as scipy_minimize

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, solve
from armijo.methods.auto import MOST_FEATURES, Auto
from armijo.methods.base import Problem, minimize
from armijo.methods.descent import Standardization
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice
from tests.training.files import survived

BUDGET = Budget(epsilon=1.0, delta=1e-6)


def problem(n_features=4, n_rows=500, **settings):
    settings = {"loss": "logistic", "l2": 1e-3, **settings}
    objective = LinearObjective(n_features=n_features, **settings)
    return Problem(objective=objective, n_rows=n_rows)


def table(n=600, d=4, seed=0, positive=0.5, scale=1.0):
    """Features of different spread with an offset, and noisy labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.linspace(0.5, 2, d) + rng.normal(size=d)
    scores = (X - X.mean(axis=0)) @ rng.normal(size=d)
    scores += 0.5 * rng.logistic(size=n)
    y = np.where(scores > np.quantile(scores, 1 - positive), 1.0, -1.0)
    return X * scale, y


def silent(X, y, steps=300, norm=None, average_iterates=True, **settings):
    """Run without noise; return the weights and the states."""
    found = problem(X.shape[1], X.shape[0], **settings)
    choices = Auto(steps=steps, data_norm=norm, average_iterates=average_iterates)
    method = replace(choices, noise_multiplier=0.0, problem=found)
    data = PrivateDataset(X, y, n_rows=len(y), accountant=FreeAccountant())
    start = method.init(torch.zeros(found.objective.size, dtype=torch.float64))
    batches = sum(count for _, count in method.schedule())
    states = minimize(found.objective, data, method, start, max_batches=batches)
    return [state for state, _ in states]


def minimum(X, y, l2):
    """Minimize mean logistic loss plus the penalty of features of variance one."""
    d = X.shape[1]
    spread = ((X - X.mean(axis=0)) ** 2).sum(axis=1).mean() / d

    def value(w):
        losses = np.logaddexp(0, -y * (X @ w[:-1] + w[-1]))
        return losses.mean() + 0.5 * l2 * spread * (w[:-1] @ w[:-1])

    return scipy_minimize(value, np.zeros(d + 1), tol=1e-12).x


class TestLimitWithoutNoise:
    @pytest.mark.parametrize("l2", [0.0, 0.01, 1.0])
    def test_finds_the_minimum(self, l2):
        X, y = table()
        longest = float(np.linalg.norm(X, axis=1).max())
        found = silent(X, y, l2=l2, norm=longest)[-1].w.numpy()
        assert found == pytest.approx(minimum(X, y, l2), rel=2e-3, abs=2e-3)

    def test_prepares_the_exact_moments(self):
        X, y = table()
        X = on_lattice(X)
        state = silent(X, y, steps=1, norm=100.0)[-1]
        assert state.center.numpy() == pytest.approx(X.mean(axis=0), rel=1e-9)
        u = (X - state.center.numpy()) / state.radius
        u /= np.maximum(np.linalg.norm(u, axis=1), 1)[:, None]
        vectors = state.vectors.numpy().reshape(4, 4)
        found = vectors @ np.diag(state.values.numpy()) @ vectors.T
        assert found == pytest.approx(u.T @ u / len(u), abs=2e-3)

    def test_scale_of_the_table_does_not_matter(self):
        X, y = table()
        plain = silent(X, y, steps=10)[-1].w.numpy()
        large = silent(X * 1024, y, steps=10)[-1].w.numpy()
        assert large[:-1] * 1024 == pytest.approx(plain[:-1], rel=1e-9)
        assert large[-1] == pytest.approx(plain[-1], rel=1e-9)

    @pytest.mark.parametrize("loss", ["hinge", "huber"])
    def test_margin_losses_separate(self, loss):
        X, y = table()
        w = silent(X, y, steps=40, loss=loss)[-1].w.numpy()
        plain = minimum(X, y, 1e-3)
        right = np.mean((X @ plain[:-1] + plain[-1]) * y > 0)
        assert np.mean((X @ w[:-1] + w[-1]) * y > 0) >= right - 0.02

    def test_more_than_two_classes(self):
        X, _ = table(n=900)
        labels = np.digitize(
            X[:, 0] + X[:, 1], np.quantile(X[:, 0] + X[:, 1], [0.3, 0.6])
        )
        w = silent(X, labels, steps=60, loss="softmax", n_classes=3)[-1].w.numpy()
        blocks = w.reshape(3, -1)
        found = (X @ blocks[:, :-1].T + blocks[:, -1]).argmax(axis=1)
        assert np.mean(found == labels) > 0.9

    def test_sparse_rows_are_the_same_rows(self):
        X, y = table()
        X[X < 0] = 0.0
        dense = silent(X, y, steps=5)[-1].w.numpy()
        found = silent(sparse.csr_matrix(X), y, steps=5)[-1].w.numpy()
        assert found == pytest.approx(dense, rel=1e-9)

    def test_without_an_intercept(self):
        X, y = table()
        states = silent(X, y, steps=300, l2=0.0, fit_intercept=False)
        assert states[-1].w.shape == (4,)
        assert not states[-1].center.any()

        def value(w):
            return np.logaddexp(0, -y * (X @ w)).mean()

        best = scipy_minimize(value, np.zeros(4), tol=1e-12).x
        assert states[-1].w.numpy() == pytest.approx(best, rel=2e-3, abs=2e-3)


class TestBudget:
    @pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
    @pytest.mark.parametrize("settings", [{}, {"data_norm": 2.0, "steps": 7}])
    def test_the_plan_uses_the_budget_and_keeps_it(self, epsilon, settings):
        budget = Budget(epsilon=epsilon, delta=1e-6)
        method = Auto(**settings).calibrate(budget, problem())
        found, name = planned_epsilon(method.schedule(), budget.delta)
        assert name == "planned-profile"
        assert 0.99 * epsilon <= found <= epsilon
        PlannedAccountant(budget, method.schedule())

    @pytest.mark.parametrize("steps", [1, 2, 7, 30, 100])
    @pytest.mark.parametrize("norm", [None, 1.0])
    @pytest.mark.parametrize("search", [0.0, 0.05])
    def test_shares_add_up_to_one_gaussian(self, steps, norm, search):
        settings = Auto(steps=steps, data_norm=norm, search_share=search)
        method = replace(settings, noise_multiplier=3.0, problem=problem())
        total = sum(
            count * float(mechanism.rdp(np.array([2.0]))[0])
            for mechanism, count in method.schedule()
        )
        assert total == pytest.approx(2.0 / (2 * 3.0**2), rel=1e-9)
        batches = sum(count for _, count in method.schedule())
        assert batches == steps + (3 if norm is None else 2)

    def test_many_features_have_no_second_moments(self):
        method = Auto(noise_multiplier=3.0, problem=problem(MOST_FEATURES + 1))
        assert sum(count for _, count in method.schedule()) == 30 + 2

    def test_a_wide_table_runs(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, MOST_FEATURES + 1)) / 30
        y = np.where(X[:, 0] > 0, 1.0, -1.0)
        found = solve(X, y, method="auto", budget=BUDGET, seed=0)
        assert np.isfinite(found.w).all()


class TestRobustness:
    def test_no_collapse_on_an_imbalanced_table(self):
        """Half the rows of the smallest class could be lost, not the largest class."""
        budget = Budget(epsilon=0.05, delta=1e-8)
        for seed in range(3):
            X, y = table(n=2500, d=20, seed=seed, positive=0.1)
            for loss in ("logistic", "hinge"):
                noise = seed + 10  # about one run in a hundred fails by its noise
                w = solve(X, y, method="auto", budget=budget, loss=loss, seed=noise).w
                assert np.mean((X @ w[:-1] + w[-1]) * y > 0) > 0.9 - 0.01

    @pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
    def test_learns_whatever_the_scale(self, scale):
        X, y = table(n=8000, scale=scale)
        found = solve(X, y, method="auto", budget=BUDGET, seed=1)
        assert np.mean((X @ found.w[:-1] + found.w[-1]) * y > 0) > 0.8

    def test_far_rows_and_rows_that_are_no_numbers_change_little(self):
        X, y = table(n=8000)
        X[::50] = np.nan
        X[1::50] *= 1e6
        w = solve(X, y, method="auto", budget=BUDGET, seed=1).w
        sound = np.isfinite(X).all(axis=1)
        assert np.mean((X[sound] @ w[:-1] + w[-1]) * y[sound] > 0) > 0.8

    @pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
    def test_no_rows_and_zero_rows(self, loss):
        for X in (np.zeros((0, 3)), np.zeros((5, 3))):
            y = np.ones(len(X)) if loss != "softmax" else np.ones(len(X), dtype=int)
            found = solve(
                X, y, method="auto", budget=BUDGET, loss=loss, n_rows=100, n_classes=3
            )
            assert np.isfinite(found.w).all()


class TestRun:
    def test_the_state_survives_a_checkpoint(self):
        X, y = table()
        for state in silent(X, y, steps=4):
            again = survived(state)
            assert again.w.tolist() == state.w.tolist()
            assert again.batches == state.batches

    def test_the_model_is_the_mean_of_the_second_half(self):
        X, y = table()
        states = silent(X, y, steps=5)[3:]
        mean = sum(state.point for state in states[2:]) / 3
        blocks = mean.numpy()
        weights = blocks[:-1] / states[-1].radius
        assert states[-1].w.numpy()[:-1] == pytest.approx(weights, rel=1e-12)

    def test_steps_follow_the_search_within_their_range(self):
        X, y = table(n=4000)
        found = solve(X, y, method="auto", budget=BUDGET, seed=3)
        sizes = [record.step_size for record in found.records if record.step_size]
        assert len(sizes) == 30
        assert all(1 <= size <= 32 for size in sizes)
        ratios = {b / a for a, b in zip([8.0, *sizes], sizes, strict=False)}
        assert ratios <= {0.5, 1.0, 2.0}

    def test_noise_that_cannot_be_drawn_is_refused_before_the_first_charge(self):
        tiny = Auto(search_share=1e-12)
        with pytest.raises(ValueError, match="Nothing was spent"):
            tiny.calibrate(Budget(epsilon=0.05, delta=1e-6), problem())

    def test_integer_rows_have_the_limits_of_the_same_floats(self):
        X = np.array([[3, 1], [0, 2], [5, 5]], dtype=np.uint8)
        frame = Standardization(
            objective=LinearObjective(loss="logistic", n_features=2),
            center=np.array([2.6, 2.7]),
            radius=2.0,
            constant=0.3,
            clip=0.5,
        )
        found = frame.max_slopes(Rows(X, np.ones(3)))
        assert found == pytest.approx(
            frame.max_slopes(Rows(X.astype(float), np.ones(3)))
        )

    def test_a_scale_that_noise_hides_leaves_the_largest_class(self):
        X, y = table(n=900, d=10, positive=0.3, scale=100.0)
        budget = Budget(epsilon=0.05, delta=1e-6)
        found = [
            solve(X, y, method="auto", budget=budget, seed=seed).w for seed in range(5)
        ]
        right = [np.mean((X @ w[:-1] + w[-1] > 0) == (y > 0)) for w in found]
        assert np.mean(right) >= 0.69

    def test_the_scale_gets_more_where_rows_are_few(self):
        few, many = (
            Auto(noise_multiplier=50.0, problem=problem(n_rows=rows)).shares["norm"]
            for rows in (2_000, 200_000)
        )
        assert few == pytest.approx((8 * 50 / 2000) ** 2)
        assert many == 0.01

    def test_without_a_search_the_step_stays(self):
        X, y = table(n=4000)
        method = Auto(search_share=0.0, first_step=3.0)
        found = solve(X, y, method=method, budget=BUDGET, seed=3)
        sizes = {record.step_size for record in found.records if record.step_size}
        assert sizes == {3.0}
        assert found.objective_evaluations == 0

    def test_without_an_average_the_model_is_the_last_point(self):
        X, y = table()
        last = silent(X, y, steps=5, average_iterates=False)[-1]
        weights = last.point.numpy()[:-1] / last.radius
        assert last.w.numpy()[:-1] == pytest.approx(weights, rel=1e-12)

    def test_relations_of_the_estimators(self):
        X, y = table()
        for kind in (PrivateLogisticRegression, PrivateLinearSVC):
            model = kind(method="auto", classes=[-1, 1]).fit(X, y)
            assert model.privacy_.relation.value == "zero-out"
            assert model.n_iter_ == 33
            assert model.data_norm_ is None

    def test_plans_the_same_whatever_was_released(self):
        """A schedule made beforehand must be met: noise reaches no mechanism."""
        X, y = table()
        method = Auto(steps=3).calibrate(BUDGET, problem(n_rows=600))
        accountant = PlannedAccountant(
            BUDGET, method.schedule(), insecure_deterministic=True
        )
        data = PrivateDataset(
            X,
            y,
            n_rows=600,
            accountant=accountant,
            randomness=Randomness(seed=1, insecure_deterministic=True),
        )
        start = method.init(torch.zeros(5, dtype=torch.float64))
        records = list(minimize(method.objective, data, method, start))
        assert len(records) == accountant.n_charges == 6
        assert math.isclose(records[-1][1].epsilon, accountant.planned_epsilon)
