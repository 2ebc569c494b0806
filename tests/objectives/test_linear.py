# SPDX-License-Identifier: Apache-2.0
"""Linear objectives against a loop over single examples in plain NumPy."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Gaussian
from armijo.data import fixed_point, lattice, sources
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.data.lattice import RoundedRows
from armijo.data.query import BoundedQuery, Rows
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, solve
from armijo.methods.armijo_search import ArmijoSearch
from armijo.methods.base import Direction
from armijo.objectives import LinearObjective
from armijo.objectives.losses import FAR, Huber, Logistic, Loss
from armijo.objectives.losses import LOSSES as MARGIN_LOSSES
from armijo.registry import make_method
from tests.data.lattice_doubles import few_bits, on_lattice

LOSSES = ("logistic", "hinge", "huber", "softmax")
FEATURES = 4


def objective_of(loss, **settings):
    return LinearObjective(loss=loss, n_features=FEATURES, n_classes=3, **settings)


def problem(loss, rows, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, FEATURES)) * rng.uniform(0.2, 3.0, size=(rows, 1))
    X[rng.random(X.shape) < 0.3] = 0.0
    X = on_lattice(X)
    if loss == "softmax":
        return X, rng.integers(0, 3, size=rows)
    return X, rng.choice([-1.0, 1.0], size=rows)


def parameters(objective, seed=1):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(few_bits(rng.normal(size=objective.size)))


def stored(X, form, tmp_path):
    """Return the rows in one of the forms that are taken without a copy."""
    if form == "memmap":
        path = tmp_path / "rows.bin"
        path.write_bytes(X.tobytes() or b"\0")
        return np.memmap(path, dtype=X.dtype, mode="r", shape=X.shape)
    if form.startswith("csr"):
        X = sparse.csr_matrix(X)
    return X.astype(np.float32 if form.endswith("32") else np.float64)


def margin_parts(loss, margin, width=0.5):
    """Return value and slope of a margin loss."""
    if loss == "logistic":
        return math.log(1 + math.exp(-margin)), -1 / (1 + math.exp(margin))
    if loss == "hinge":
        return (1 - margin, -1.0) if margin < 1 else (0.0, 0.0)
    if margin < 1 - width:
        return 1 - margin, -1.0
    gap = max(0.0, 1 + width - margin)
    return gap**2 / (4 * width), -gap / (2 * width)


def one_example(objective, w, x, label):
    """Return loss and gradient of one row."""
    row = np.append(x, 1.0) if objective.fit_intercept else np.asarray(x, dtype=float)
    scores = w.reshape(objective.outputs, -1) @ row
    if objective.loss == "softmax":
        total = sum(math.exp(score) for score in scores)
        slopes = np.exp(scores) / total - np.eye(objective.n_classes)[int(label)]
        return math.log(total) - scores[int(label)], np.outer(slopes, row).ravel()
    value, slope = margin_parts(objective.loss, label * scores[0])
    return value, slope * label * row


def loop_gradient(objective, w, X, y, clip):
    total = np.zeros(objective.size)
    for x, label in zip(X, y, strict=True):
        _, gradient = one_example(objective, w, x, label)
        total += gradient / max(1.0, np.linalg.norm(gradient) / clip)
    return total


def loop_drop(objective, w, step, step_size, X, y, *, form, clip):
    total = 0.0
    for x, label in zip(X, y, strict=True):
        before, _ = one_example(objective, w, x, label)
        after, _ = one_example(objective, w - step_size * step, x, label)
        if form == "loss":
            total += min(before, clip) - min(after, clip)
        else:
            total += max(-clip, min(clip, before - after))
    return total


def gate_gradient(objective, w, X, y, clip):
    query = objective.gradient_sum(w, clip=clip)
    total = fixed_point.vector_sum(query.contributions(Rows(X, y)), query.bound)
    return total * (clip / fixed_point.STEPS)


def gate_drop(objective, w, step, step_size, X, y, *, form, clip):
    query = objective.loss_drop_sum(w, step, step_size, form=form, clip=clip)
    total = fixed_point.number_sum(query.contributions(Rows(X, y)), query.bound)
    return total * (clip / fixed_point.STEPS)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
class TestAgainstTheLoop:
    @pytest.mark.parametrize("form", ["f64", "f32", "csr", "csr32", "memmap"])
    @pytest.mark.parametrize("rows", [0, 1, 7])
    def test_gradient_sum(self, loss, intercept, rows, form, tmp_path):
        objective = objective_of(loss, fit_intercept=intercept)
        X, y = problem(loss, rows)
        w = parameters(objective)
        X = stored(X, form, tmp_path)
        plain = X.toarray() if sparse.issparse(X) else X
        for clip in (0.7, 50.0):
            expected = loop_gradient(objective, w.numpy(), plain, y, clip)
            found = gate_gradient(objective, w, X, y, clip)
            # Half a lattice step of rounding, and sqrt(d)/2 of room left for it.
            slack = 3 * rows * clip / fixed_point.STEPS + 5e-6 * form.endswith("32")
            np.testing.assert_allclose(found, expected, rtol=0, atol=slack + 1e-12)
            query = objective.gradient_sum(w, clip=clip)
            outer = query.contributions(Rows(X, y))
            exact = fixed_point.plain_vector_sum(outer, clip)
            slack = 1e-5 if form.endswith("32") else 1e-10
            np.testing.assert_allclose(exact, expected, rtol=0, atol=slack)

    @pytest.mark.parametrize("form", ["loss", "difference"])
    @pytest.mark.parametrize("rows", [0, 1, 7])
    def test_loss_drop_sum(self, loss, intercept, rows, form):
        objective = objective_of(loss, fit_intercept=intercept)
        X, y = problem(loss, rows)
        w, step = parameters(objective), parameters(objective, 2)
        slack = rows * 1.5 / fixed_point.STEPS + 1e-12
        for step_size in (0.05, 0.8):
            asked = {"form": form, "clip": 1.0}
            args = (w.numpy(), step.numpy(), step_size, X, y)
            expected = loop_drop(objective, *args, **asked)
            for data in (X, sparse.csr_matrix(X)):
                found = gate_drop(objective, w, step, step_size, data, y, **asked)
                assert found == pytest.approx(expected, abs=slack)


@pytest.mark.parametrize("form", ["loss", "difference"])
@pytest.mark.parametrize("loss", LOSSES)
@given(
    seed=st.integers(0, 10**6),
    clip=st.sampled_from([1e-3, 0.3, 1.0, 40.0]),
    value=st.sampled_from([0.0, 1.0, 1e6, -1e200, math.inf, math.nan]),
)
def test_one_row_moves_each_sum_by_at_most_its_bound(loss, form, seed, clip, value):
    """In lattice steps, hence exactly (accounting notes, property 13)."""
    objective = objective_of(loss)
    X, y = problem(loss, 5, seed)
    X[2, 0] = value
    w, step = parameters(objective, seed), parameters(objective, seed + 1)
    without = np.arange(5) != 2
    drop = objective.loss_drop_sum(w, step, 0.5, form=form, clip=clip)
    gradient = objective.gradient_sum(w, clip=clip)
    drops, vectors = [], []
    for chosen in (slice(None), without):
        rows = Rows(X[chosen], y[chosen])
        drops.append(fixed_point.number_sum(drop.contributions(rows), drop.bound))
        outer = gradient.contributions(rows)
        vectors.append(fixed_point.vector_sum(outer, gradient.bound))
    assert abs(drops[0] - drops[1]) <= fixed_point.STEPS
    moved = (vectors[0] - vectors[1]).astype(object)
    assert sum(moved * moved) <= fixed_point.STEPS**2


class TestLosses:
    @pytest.mark.parametrize(
        ("loss", "margin", "value", "slope"),
        [
            ("logistic", 0.0, math.log(2), -0.5),
            ("logistic", 2.0, 0.12692801104297263, -0.11920292202211755),
            ("logistic", -1.0, 1.3132616875182228, -0.7310585786300049),
            ("logistic", -1000.0, 1000.0, -1.0),
            ("logistic", 1000.0, 0.0, 0.0),
            ("hinge", 0.25, 0.75, -1.0),
            ("hinge", 1.0, 0.0, 0.0),
            ("huber", -3.0, 4.0, -1.0),
            ("huber", 0.5, 0.5, -1.0),
            ("huber", 0.75, 0.28125, -0.75),
            ("huber", 1.0, 0.125, -0.5),
            ("huber", 1.5, 0.0, 0.0),
            ("huber", 2.0, 0.0, 0.0),
        ],
    )
    def test_values_by_hand(self, loss, margin, value, slope):
        found = MARGIN_LOSSES[loss]
        at = torch.tensor([margin], dtype=torch.float64)
        assert float(found.value(at)) == pytest.approx(value, rel=1e-14)
        assert float(found.slope(at)) == pytest.approx(slope, rel=1e-14)

    @given(m=st.floats(-1500, 1500), change=st.floats(-700, 700))
    def test_logistic_drops_are_differences_of_losses(self, m, change):
        at = torch.tensor([m, m - change], dtype=torch.float64)
        before, after = Logistic().value(at).tolist()
        drop = Logistic().drops(at[:1], torch.full_like(at[:1], 2 * change))(0.5)
        assert float(drop[0]) == pytest.approx(before - after, rel=1e-13, abs=4e-13)

    @pytest.mark.parametrize("m", [-2000.0, -800.0, -3.0, 0.0, 150.0])
    @pytest.mark.parametrize("change", [-2000.0, -720.0, 720.0, 2000.0])
    def test_a_margin_that_moves_far_is_clipped_on_the_right_side(self, m, change):
        at = torch.tensor([m, m - change], dtype=torch.float64)
        before, after = Logistic().value(at).tolist()
        drop = Logistic().drops(at[:1], torch.full_like(at[:1], change))(1.0)
        expected = max(-FAR, min(FAR, before - after))
        assert max(-FAR, min(FAR, float(drop[0]))) == pytest.approx(expected, abs=1e-13)

    def test_huber_width(self):
        narrow = Huber(0.1)
        at = torch.tensor([0.85, 1.0, 1.05], dtype=torch.float64)
        assert narrow.value(at).tolist() == pytest.approx([0.15, 0.025, 0.00625])
        assert narrow.slope(at).tolist() == pytest.approx([-1.0, -0.5, -0.25])

    def test_softmax_by_hand(self):
        objective = objective_of("softmax")
        scores = torch.tensor([[0.0, 0, 0], [1, 2, 3], [1000, 0, 0]]).double()
        y = torch.tensor([1, 2, 1])
        expected = [math.log(3), 0.4076059644443804, 1000.0]
        assert objective.losses(scores, y).tolist() == pytest.approx(expected)
        slopes = objective.score_gradients(scores, y)
        assert slopes[0].tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3])
        assert slopes[2].tolist() == pytest.approx([1.0, -1.0, 0.0])

    @given(scores=st.tuples(*[st.floats(-8, 8)] * 3), y=st.integers(0, 2))
    def test_derivative_of_softmax(self, scores, y):
        objective, label = objective_of("softmax"), torch.tensor([y])
        at = torch.tensor([scores], dtype=torch.float64)
        slopes = objective.score_gradients(at, label)[0]
        for k, nudge in enumerate(1e-5 * torch.eye(3, dtype=torch.float64)):
            high, low = (objective.losses(at + x, label) for x in (nudge, -nudge))
            assert float(high - low) / 2e-5 == pytest.approx(float(slopes[k]), abs=1e-6)


class TestProducts:
    def count_products(self, monkeypatch):
        calls = []
        real = lattice.product

        def counted(X, weights):
            calls.append(weights.copy())
            return real(X, weights)

        monkeypatch.setattr(lattice, "product", counted)
        return calls

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("form", ["loss", "difference"])
    def test_a_step_needs_two(self, loss, form, monkeypatch):
        """The gradient, and a search of twenty candidates, all on one batch."""
        calls = self.count_products(monkeypatch)
        objective, rows = objective_of(loss), Rows(*problem(loss, 40))
        w, asked = parameters(objective), []
        objective.gradient_sum(w, clip=3.0).contributions(rows)

        class Batch:
            expected_size = 40.0

            def first_above(self, queries, mechanism):
                asked.extend(query.contributions(rows) for query in queries)

        search = ArmijoSearch(form=form)
        search.choose(
            Batch(),
            objective,
            w,
            Direction(vector=parameters(objective, 5)),
            mechanism=search.mechanism(1.0),
            initial_step=2.0,
            loss_clip=1.0,
            max_grad_norm=3.0,
        )
        assert len(asked) == 20
        assert len({values.tobytes() for values in asked}) > 10
        assert len(calls) == 2

    def test_other_parameters_are_computed_anew(self, monkeypatch):
        calls = self.count_products(monkeypatch)
        objective = objective_of("logistic")
        X, y = problem("logistic", 6)
        rows = Rows(X, y)
        for seed in (1, 2):
            w = parameters(objective, seed)
            query = objective.gradient_sum(w, clip=9.0)
            total = fixed_point.plain_vector_sum(query.contributions(rows), 9.0)
            expected = loop_gradient(objective, w.numpy(), X, y, 9.0)
            np.testing.assert_allclose(total, expected, atol=1e-10)
        assert len(calls) == 2


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_memmap_is_rounded_and_not_changed(tmp_path, dtype, most, monkeypatch):
    """A large one as it is read, block by block; a small one once."""
    monkeypatch.setattr(sources, "_MOST_KEPT", most)
    X, y = problem("logistic", 9)
    X = (X * 1.1).astype(dtype)
    mapped = stored(X, "memmap", tmp_path)
    seen, objective = [], objective_of("logistic")
    inner = objective.gradient_sum(parameters(objective), clip=3.0)

    def contributions(rows):
        seen.append(inner.contributions(rows).X)
        return inner.contributions(rows)

    gaussian = Gaussian.from_rho(0.1, 3.0)
    accountant = PrivacyFilter(Budget(epsilon=8.0, delta=1e-5))
    data = PrivateDataset(mapped, y, n_rows=9, accountant=accountant)
    batch = data.open(BatchPlan(mechanisms=(gaussian,)))
    batch.noisy_sum(BoundedQuery(contributions=contributions, bound=3.0), gaussian)
    assert len(seen) == 1
    if not most:
        assert isinstance(seen[0], RoundedRows) and seen[0].X is mapped
    np.testing.assert_array_equal(np.asarray(seen[0]), on_lattice(X))
    np.testing.assert_array_equal(mapped, X)


class TestPenalty:
    def test_values_include_the_intercept(self):
        objective = LinearObjective(loss="hinge", n_features=1, l2=0.5)
        w = torch.tensor([3.0, -4.0], dtype=torch.float64)
        assert objective.penalty(w) == 6.25
        assert objective.penalty_gradient(w).tolist() == [1.5, -2.0]
        step = torch.tensor([1.0, 2.0], dtype=torch.float64)
        drop = objective.penalty_drop(w, step)
        assert [drop(2.0), drop(0.1)] == pytest.approx([-10.0, -0.2625])

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("form", ["loss", "difference"])
    def test_changes_no_contribution_and_no_bound(self, loss, form):
        X, y = problem(loss, 7)
        found = []
        for l2 in (0.0, 1e-3, 10.0):
            objective = objective_of(loss, l2=l2)
            w, step = parameters(objective), parameters(objective, 2)
            gradient = objective.gradient_sum(w, clip=0.7)
            drop = objective.loss_drop_sum(w, step, 0.3, form=form, clip=0.4)
            vectors = gradient.contributions(Rows(X, y))
            total = fixed_point.vector_sum(vectors, 0.7).tolist()
            numbers = drop.contributions(Rows(X, y)).tolist()
            found.append((gradient.bound, total, drop.bound, numbers))
        assert found[0] == found[1] == found[2]
        assert found[0][::2] == (0.7, 0.4)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("loss", "squared"), ("n_features", 0), ("n_classes", 1), ("l2", -1e-3)],
    )
    def test_bad_ones_are_refused(self, name, value):
        with pytest.raises(ValueError, match=f"Expected.*{name}"):
            LinearObjective(**{"loss": "hinge", "n_features": 2, name: value})

    def test_sizes(self):
        assert objective_of("logistic").size == FEATURES + 1
        assert objective_of("logistic", fit_intercept=False).size == FEATURES
        assert objective_of("softmax").size == 3 * (FEATURES + 1)

    def test_labels_are_needed(self):
        objective = objective_of("logistic")
        query = objective.gradient_sum(parameters(objective), clip=1.0)
        with pytest.raises(ValueError, match="needs y"):
            query.contributions(Rows(np.ones((2, FEATURES)), None))


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


BUDGET = Budget(epsilon=8.0, delta=1e-5)
METHODS = {
    "auto": {},
    "blsgd": {"search_form": "difference", "expected_steps": 15},
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
    "loss",
    [*MARGIN_LOSSES.values(), Huber(0.1), RootHinge()],
    ids=lambda loss: repr(loss),
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
