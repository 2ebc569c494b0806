# SPDX-License-Identifier: Apache-2.0
"""The automatic method: what it pays, its limits, and tables it must not fail on."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from scipy.optimize import minimize as scipy_minimize

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.data import fixed_point
from armijo.data.gate import PrivateDataset
from armijo.data.lattice import CenteredRows
from armijo.data.query import LatticeSum, OuterProduct, Rows
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, solve
from armijo.methods import auto
from armijo.methods.auto import MOST_FEATURES, Auto
from armijo.methods.base import Problem, minimize
from armijo.methods.descent import (
    FACTORS,
    Curvature,
    Standardization,
    ThreePoints,
    spectrum,
)
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


D = 3
OBJECTIVE = LinearObjective(loss="logistic", n_features=D)
ANY = st.floats(-1e6, 1e6) | st.sampled_from([0.0, math.nan, math.inf, 1e300, -1e-300])
TABLES = arrays(float, st.tuples(st.integers(1, 6), st.just(D)), elements=ANY)
CENTERS = arrays(float, D, elements=st.floats(-100, 100))
WEIGHTS = arrays(float, D + 1, elements=st.floats(-50, 50))
SCALES = st.floats(1e-3, 1e3)


def total(query, X, y=None):
    """The sum that the gate would add noise to."""
    if y is None:
        y = np.ones(len(X))
    found = query.contributions(Rows(X, y))
    if isinstance(found, LatticeSum):
        return found.steps / fixed_point.STEPS
    return fixed_point.vector_sum(found, query.bound) * query.bound / fixed_point.STEPS


def moved(query, X, y=None):
    """How far the last row moves the sum."""
    y = np.ones(len(X)) if y is None else y
    return np.linalg.norm(total(query, X, y) - total(query, X[:-1], y[:-1]))


def frame(loss="logistic", center=None, radius=1.0, clip=0.7, constant=0.4):
    objective = LinearObjective(loss=loss, n_features=D)
    center = np.zeros(D) if center is None else center
    return Standardization(
        objective=objective, center=center, radius=radius, constant=constant, clip=clip
    )


class TestSensitivity:
    @given(TABLES)
    def test_histogram(self, X):
        query = auto.norm_histogram(OBJECTIVE)
        assert moved(query, X) <= query.bound
        assert total(query, X).sum() <= len(X)

    @given(TABLES, CENTERS, SCALES)
    def test_second_moments(self, X, center, radius):
        query = auto.second_moments(OBJECTIVE, center, radius)
        assert moved(query, X) <= query.bound

    @given(TABLES, SCALES)
    def test_sums_of_rows_and_squares(self, X, norm):
        for query in (auto.row_sum(OBJECTIVE, norm), auto.square_sum(OBJECTIVE, norm)):
            assert moved(query, X) <= query.bound

    @given(TABLES, SCALES)
    def test_squares_need_no_clip(self, X, norm):
        found = auto.square_sum(OBJECTIVE, norm).contributions(Rows(X, None))
        assert np.nanmax(np.abs(found), initial=0.0) <= 1

    @given(TABLES, CENTERS, SCALES, WEIGHTS, st.sampled_from(["logistic", "hinge"]))
    def test_gradients_and_drops(self, X, center, radius, w, loss):
        here = frame(loss, center, radius)
        y = np.where(np.arange(len(X)) % 2 == 0, 1.0, -1.0)
        point = torch.from_numpy(w)
        model = here.model(point)
        assert moved(here.gradient_sum(model), X, y) <= 1
        points = ThreePoints(frame=here, sizes=FACTORS, rms_score=0.3)
        query = points.query(model, here.model(0.5 * point))
        assert moved(query, X, y) <= math.sqrt(3)


class TestExactness:
    def test_second_moments_do_not_depend_on_the_order(self):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(20_000, D))
        query = auto.second_moments(OBJECTIVE, np.full(D, 0.1), 1.3)
        assert total(query, X).tolist() == total(query, X[::-1]).tolist()
        halves = total(query, X[:777]) + total(query, X[777:])
        assert halves.tolist() == total(query, X).tolist()

    def test_second_moments_are_those_of_clipped_rows(self):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(500, D))
        u = (X - 0.1) / 1.3
        u /= np.maximum(np.linalg.norm(u, axis=1), 1)[:, None]
        found = total(auto.second_moments(OBJECTIVE, np.full(D, 0.1), 1.3), X)
        assert found.reshape(D, D) == pytest.approx(u.T @ u, rel=2e-3)

    def test_histogram_counts_norms(self):
        X = np.zeros((7, D))
        X[:5, 0] = 0.9 * math.sqrt(D)
        X[5, 1] = 1e-30
        counts = total(auto.norm_histogram(OBJECTIVE), X)
        assert counts[40] == 5
        assert counts[0] == 1
        assert counts.sum() == 6  # a row of zeros says nothing of the scale

    def test_the_view_is_centered(self):
        X = np.arange(12.0).reshape(4, D)
        view = CenteredRows(X, np.ones(D))
        assert view[1:3].tolist() == (X - 1)[1:3].tolist()
        assert np.asarray(view).tolist() == (X - 1).tolist()
        whole, part = np.asarray(view), view[:1]
        part[:] = 7.0
        assert whole.tolist() == (X - 1).tolist()


class TestScale:
    @pytest.mark.parametrize("norm", [1e-3, 0.05, 1.0, 40.0, 1e4])
    def test_a_clear_norm_is_found(self, norm):
        X = np.random.default_rng(0).normal(size=(5000, D))
        X *= norm / np.linalg.norm(X, axis=1)[:, None]
        counts = total(auto.norm_histogram(OBJECTIVE), X)
        noise = 50.0
        counts = counts + noise * np.random.default_rng(1).normal(size=counts.size)
        found = auto.chosen_norm(counts, noise, D)
        assert norm <= found <= 2 * norm

    def test_noise_alone_is_nearly_always_no_scale(self):
        rng = np.random.default_rng(2)
        found = [auto.chosen_norm(rng.normal(size=81), 1.0, D) for _ in range(300)]
        unknown = math.sqrt(D) * 2.0**auto.OCTAVES
        assert np.mean(np.array(found) == unknown) > 0.9

    def test_the_radius_errs_upward(self):
        center = np.array([1.0, 0.0, 0.0])
        assert auto.radius(5.0, center, 3.0, 0.0) == 2.0
        assert auto.radius(5.0, center, 3.0, 0.05) > 2.0
        assert auto.radius(-9.0, center, 3.0, 0.0) == pytest.approx(0.3)
        assert auto.radius(99.0, center, 3.0, 0.0) == 3.0

    def test_a_mean_within_its_noise_is_zero(self):
        assert not auto.shrunk_mean(np.full(4, 0.1), 0.2).any()
        kept = auto.shrunk_mean(np.full(4, 10.0), 0.2)
        assert kept == pytest.approx(np.full(4, 10.0), rel=1e-3)


class TestStandardization:
    @given(CENTERS, st.floats(0.1, 10), WEIGHTS)
    def test_a_model_scores_rows_as_standardized_weights_do(
        self, center, radius, point
    ):
        here = frame(center=center, radius=radius)
        X = np.random.default_rng(0).normal(size=(5, D)) * 10
        z = np.column_stack([(X - center) / radius, np.full(5, 0.4)])
        model = here.model(torch.from_numpy(point)).numpy()
        scale = 1 + np.abs(z).max() * np.abs(point).max() * 10
        found = X @ model[:-1] + model[-1]
        assert found == pytest.approx(z @ point, abs=1e-10 * scale / radius * 100)

    @pytest.mark.parametrize("loss", ["logistic", "hinge", "huber"])
    def test_losses_have_the_slopes_of_the_clipped_gradients(self, loss):
        here = frame(loss, center=np.array([0.3, -0.2, 0.1]), radius=1.7)
        rng = np.random.default_rng(3)
        X = on_lattice(rng.normal(size=(40, D)) * 3)
        y = np.where(rng.random(40) < 0.5, 1.0, -1.0)
        point = torch.from_numpy(rng.normal(size=D + 1))
        rows = Rows(X, y)
        h, numeric = 1e-6, []
        for j in range(D + 1):
            step = torch.zeros(D + 1, dtype=torch.float64)
            step[j] = h
            values = []
            for sign in (1, -1):
                model = here.model(point + sign * step).numpy()
                # Weights are rounded to 24 bits in scores; h would be lost there.
                scores = torch.from_numpy(X @ model[:-1] + model[-1])
                losses = here.losses(
                    scores, torch.from_numpy(y), here.slope_limits(rows)
                )
                values.append(float(losses.sum()))
            numeric.append((values[0] - values[1]) / (2 * h))
        found = total(here.gradient_sum(here.model(point)), X, y) * here.clip
        assert found == pytest.approx(np.array(numeric), abs=1e-4)

    def test_the_penalty_has_its_gradient(self):
        here = frame()
        point = torch.tensor([1.0, -2.0, 0.5, 9.0], dtype=torch.float64)
        expected = here.curvature * np.array([1.0, -2.0, 0.5, 0.0])
        assert here.penalty_gradient(point).numpy() == pytest.approx(expected)
        assert here.penalty(point) == pytest.approx(0.5 * here.curvature * 5.25)


class TestDirectionAndChoice:
    def test_the_direction_solves_the_damped_system(self):
        rng = np.random.default_rng(0)
        root = rng.normal(size=(D, D))
        A = root @ root.T
        values, vectors = spectrum((A * 10).ravel(), 10.0)
        curvature = Curvature(values=values, vectors=vectors, constant=0.5)
        g = torch.from_numpy(rng.normal(size=(2, D + 1)))
        found = curvature.direction(g, 0.3, 0.7).numpy()
        weights = np.linalg.solve(A + 0.3 * np.eye(D), g[:, :D].numpy().T).T
        assert found[:, :D] == pytest.approx(weights)
        assert found[:, D] == pytest.approx(g[:, D].numpy() / (0.25 + 0.7))
        square = sum(w @ A @ w for w in g[:, :D].numpy())
        square += 0.25 * float((g[:, D] ** 2).sum())
        assert curvature.rms_score(g) == pytest.approx(math.sqrt(square))

    def test_noise_below_zero_is_no_curvature(self):
        values, vectors = spectrum(np.diag([-1.0, 2.0]).ravel(), 1.0)
        curvature = Curvature(values=values, vectors=vectors, constant=0.5)
        g = torch.tensor([[3.0, 3.0, 0.0]], dtype=torch.float64)
        found = curvature.direction(g, 0.5, 1.0).numpy()
        assert found[0, :2] == pytest.approx([6.0, 1.2])  # 3/(0 + .5) and 3/(2 + .5)
        assert curvature.rms_score(g) == pytest.approx(math.sqrt(2 * 9.0))

    def test_evidence_is_standardized_under_noise_and_sees_a_signal(self):
        rng = np.random.default_rng(0)
        vectors = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        curvature = Curvature(
            values=np.array([-1.0, 0, 0.1, 0.2, 1, 2, 4, 8]),
            vectors=vectors,
            constant=0.5,
        )
        draws = rng.normal(size=(4000, 2, 9)) * 3.0
        found = [curvature.evidence(torch.from_numpy(g), 3.0) for g in draws]
        assert np.mean(found) == pytest.approx(0.0, abs=0.06)
        assert np.std(found) == pytest.approx(1.0, abs=0.1)
        weights = np.zeros((2, 9))
        weights[:, :8] = 12.0 * vectors[:, -1]  # along the largest eigenvalue
        strong = curvature.evidence(torch.from_numpy(draws[0] + weights), 3.0)
        weights[:, :8] = 12.0 * vectors[:, 1]  # where features do not vary
        weak = curvature.evidence(torch.from_numpy(draws[0] + weights), 3.0)
        assert strong > 5 > weak
        assert curvature.evidence(torch.from_numpy(draws[0]), 0.0) > 1e6

    @pytest.mark.parametrize(
        ("drops", "noise", "expected"),
        [
            ([1.0, 2.0, 3.0], 0.0, 2.0),
            ([3.0, 2.0, 1.0], 0.0, 0.5),
            ([2.1, 2.0, 1.0], 0.1, 1.0),
            ([2.0, 2.0, 2.0], 0.0, 1.0),
        ],
    )
    def test_a_step_must_win_clearly(self, drops, noise, expected):
        points = ThreePoints(frame=frame(), sizes=FACTORS, rms_score=1.0)
        sums = np.array(drops) / points.scales
        assert points.chosen(sums, noise, 1.0, np.zeros(3)) == expected

    def test_the_penalty_counts(self):
        points = ThreePoints(frame=frame(), sizes=FACTORS, rms_score=1.0)
        penalty = np.array([5.0, 0.0, 0.0])
        assert points.chosen(np.zeros(3), 0.0, 1.0, penalty) == 0.5

    def test_gradients_are_outer_products_of_the_view(self):
        """Not formed: memory stays that of a block."""
        here = frame()
        w = torch.zeros(D + 1, dtype=torch.float64)
        found = here.gradient_sum(w).contributions(Rows(np.ones((2, D)), np.ones(2)))
        assert isinstance(found, OuterProduct)
        assert isinstance(found.X, CenteredRows)
