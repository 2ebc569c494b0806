# SPDX-License-Identifier: Apache-2.0
"""Queries that a private selection chooses by: scores, bounds, sparse rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from armijo.data.query import Rows
from armijo.objectives import LinearObjective
from tests.data.lattice_doubles import few_bits

W = torch.from_numpy(few_bits([0.4, -0.7, 0.2]))
D = torch.from_numpy(few_bits([1.0, 0.5, -0.3]))
STEPS = [0.0, 0.5, 3.0]
rng = np.random.default_rng(2)
X = few_bits(rng.normal(size=(6, 2)))
Y = np.array([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])


def losses(loss, w, rows=X):
    margins = Y * (rows @ w[:2] + w[2])
    if loss == "logistic":
        return np.logaddexp(0, -margins)
    return np.maximum(0, 1 - margins)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
class TestScores:
    def test_along_a_direction(self, loss, form):
        objective = LinearObjective(loss=loss, n_features=2)
        query = objective.step_scores(W, D, STEPS, clip=1.5)
        found = query.contributions(Rows(form(X), Y))
        points = [W.numpy() - eta * D.numpy() for eta in STEPS]
        capped = [np.minimum(losses(loss, point), 1.5) for point in points]
        np.testing.assert_allclose(found, 0.75 - np.array(capped).T, atol=1e-12)
        assert query.bound == 0.75

    def test_at_points(self, loss, form):
        objective = LinearObjective(loss=loss, n_features=2)
        points = torch.tensor(few_bits(rng.normal(size=(40, 3))))
        penalties = rng.random(40)
        kept = [5, 0, 39]
        query = objective.point_scores(points, kept, spread=7.0, penalties=penalties)
        found = query.contributions(Rows(form(X), Y))
        raw = [
            losses(loss, p.numpy()) + c for p, c in zip(points, penalties, strict=True)
        ]
        raw = np.array(raw).T
        middle = (raw.max(axis=1) + raw.min(axis=1)) / 2
        expected = (middle[:, None] - raw) / 3.5
        np.testing.assert_allclose(found, expected[:, kept], atol=1e-12)
        assert query.bound == 1.0

    def test_along_coordinates(self, loss, form):
        objective = LinearObjective(loss=loss, n_features=2)
        penalties, size, thin = rng.random(6), 0.6, X * (np.abs(X) > 0.5)
        query = objective.coordinate_scores(W, size, spread=5.0, penalties=penalties)
        rows = Rows(form(thin), Y, run_cache={})
        moves = size * np.vstack([np.eye(3), -np.eye(3)])
        middle = (penalties.min() + penalties.max()) / 2
        before = losses(loss, W.numpy(), thin)
        expected = [
            (before - losses(loss, W.numpy() + move, thin) + middle - penalty) / 2.5
            for move, penalty in zip(moves, penalties, strict=True)
        ]
        for _ in range(2):  # the second time from entries that were kept
            found = list(query.contributions(rows).each)
            np.testing.assert_allclose(found, expected, atol=1e-12)


def test_steps_of_more_classes():
    objective = LinearObjective(loss="softmax", n_features=2, n_classes=3)
    w, d = (torch.tensor(rng.normal(size=9)) for _ in range(2))
    y = np.array([0, 1, 2, 2, 1, 0])
    query = objective.step_scores(w, d, STEPS, clip=40.0)
    found = query.contributions(Rows(X, y))
    for j, eta in enumerate(STEPS):
        table = (w - eta * d).numpy().reshape(3, 3)
        scores = X @ table[:, :2].T + table[:, 2]
        plain = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(6), y]
        np.testing.assert_allclose(found[:, j], 20 - plain, atol=1e-12)


@given(
    row=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    label=st.sampled_from([-1.0, 1.0]),
    w=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    size=st.floats(1e-3, 2.0),
    loss=st.sampled_from(["logistic", "hinge", "huber"]),
)
def test_moves_along_coordinates_keep_the_bound(row, label, w, size, loss):
    """In the unit cube nothing is clipped: scores stay within one by themselves.

    But for rounding w to 24 bits, in units of the spread: the gate clips that off.
    """
    objective = LinearObjective(loss=loss, n_features=2)
    start = torch.tensor(w, dtype=torch.float64)
    moves = size * torch.eye(3, dtype=torch.float64)
    points = torch.cat([start + moves, start - moves])
    query = objective.point_scores(
        points, range(6), spread=2 * size, penalties=np.zeros(6)
    )
    found = query.contributions(Rows(np.array([row]), np.array([label])))
    assert np.abs(found).max() <= 1 + 8 * 2.0**-22 / (2 * size)


def test_no_rows():
    objective = LinearObjective(loss="logistic", n_features=2)
    rows = Rows(np.zeros((0, 2)), np.zeros(0))
    assert objective.step_scores(W, D, STEPS, clip=2.0).contributions(rows).shape == (
        0,
        3,
    )
    query = objective.point_scores(
        torch.stack([W, D]), range(2), spread=1.0, penalties=np.zeros(2)
    )
    assert query.contributions(rows).shape == (0, 2)
