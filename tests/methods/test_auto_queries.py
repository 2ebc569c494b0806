# SPDX-License-Identifier: Apache-2.0
"""Every sum of the automatic method: one row moves it by its bound at most."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armijo.data import fixed_point
from armijo.data.lattice import CenteredRows
from armijo.data.query import LatticeSum, OuterProduct, Rows
from armijo.methods import auto
from armijo.methods.descent import (
    FACTORS,
    Curvature,
    Standardization,
    ThreePoints,
    spectrum,
)
from armijo.objectives.linear import LinearObjective
from tests.data.lattice_doubles import on_lattice

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
