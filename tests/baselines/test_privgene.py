# SPDX-License-Identifier: Apache-2.0
"""PrivGene: laws on enumerated neighbors, limits without noise, both forms."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import planned_epsilon
from armijo.baselines.privgene import PrivGene, largest_spread
from armijo.data.gate import PrivateDataset
from armijo.methods import minimize
from armijo.methods.base import Problem
from armijo.objectives import LinearObjective
from tests.baselines.choice_law import blobs, log_laws, run, zeros
from tests.data.gate_doubles import FreeAccountant
from tests.training.files import content, survived

EPSILON = 0.6
TINY = LinearObjective(loss="logistic", n_features=1)
ROWS = [([x], y) for x, y in itertools.product((0.0, 0.5, 1.0), (-1.0, 1.0))]


def built(objective=TINY, *, epsilon=0.8, delta=1e-8, n_rows=43_957, **settings):
    """Return the method; by default with the epsilon that needs no solving."""
    settings = {"selection": "pure", **settings}
    budget = Budget(epsilon=epsilon, delta=delta)
    problem = Problem(objective=objective, n_rows=n_rows)
    return PrivGene(**settings).calibrate(budget, problem)


def with_epsilon(method, epsilon=EPSILON):
    """Return the method with a selection of known epsilon."""
    return replace(method, epsilon=epsilon)


def table(rows):
    X = np.array([x for x, _ in rows], dtype=float).reshape(len(rows), -1)
    return X if len(rows) else np.zeros((0, 1)), np.array([y for _, y in rows])


class Laws:
    """Laws of the first draws of a method at a given point."""

    def __init__(self, monkeypatch, method, objective, w=None, **more):
        self._parts = monkeypatch, method
        self._objective, self._more = objective, more
        start = zeros(objective) if w is None else torch.tensor(w, dtype=torch.float64)
        self.state = method.init(start)

    def __call__(self, rows):
        patch, method = self._parts
        X, y = table(rows)
        return log_laws(patch, method, self.state, X, y, self._objective, **self._more)


METHODS = {
    "simplified": {},
    "original": {"variant": "original", "population_size": 9, "parents": 3},
}


@pytest.mark.parametrize("variant", METHODS)
class TestNeighbors:
    @pytest.mark.parametrize("loss", ["logistic", "hinge", "huber"])
    @pytest.mark.parametrize("w", [[0.0, 0.0], [1.3, -0.4]])
    def test_one_row_more(self, monkeypatch, variant, loss, w):
        """All tables of two rows from a grid, and every third row."""
        objective = LinearObjective(loss=loss, n_features=1)
        method = with_epsilon(built(objective, n_rows=3, **METHODS[variant]))
        laws = Laws(monkeypatch, method, objective, w)
        largest = 0.0
        for pair in itertools.combinations_with_replacement(ROWS, 2):
            before = laws(list(pair))
            for row in ROWS:
                after = laws([*pair, row])
                for old, new in zip(before, after, strict=True):
                    largest = max(largest, float(np.ptp(new - old)))
                    assert np.abs(new - old).max() <= EPSILON * (1 + 1e-9)
        assert 0.2 * EPSILON < largest <= EPSILON * (1 + 1e-9)

    def test_one_row_exchanged(self, monkeypatch, variant):
        settings = {**METHODS[variant], "relation": "replace-one"}
        method = with_epsilon(built(n_rows=2, **settings))
        assert method.last_draw.sensitivity == 2.0
        relation = Neighboring.REPLACE_ONE
        laws = Laws(monkeypatch, method, TINY, relation=relation)
        largest = 0.0
        for kept, out, new in itertools.product(ROWS, repeat=3):
            for old, fresh in zip(laws([kept, out]), laws([kept, new]), strict=True):
                largest = max(largest, float(np.ptp(fresh - old)))
        assert 0.2 * EPSILON < largest <= EPSILON * (1 + 1e-9)

    @given(x=st.floats(allow_nan=True, allow_infinity=True), y=st.sampled_from([-1, 1]))
    def test_features_outside_the_unit_interval_cost_no_more(self, variant, x, y):
        method = with_epsilon(built(n_rows=3, **METHODS[variant]))
        with pytest.MonkeyPatch.context() as patch:
            laws = Laws(patch, method, TINY, [0.5, -1.0])
            before = laws([([0.3], 1.0), ([0.9], -1.0)])
            after = laws([([0.3], 1.0), ([0.9], -1.0), ([x], float(y))])
        for old, new in zip(before, after, strict=True):
            assert np.abs(new - old).max() <= EPSILON * (1 + 1e-9)


class TestSimplified:
    @pytest.mark.parametrize(
        ("relation", "gamma"), [(None, 2.0), (Neighboring.REPLACE_ONE, 4.0)]
    )
    def test_weights(self, monkeypatch, relation, gamma):
        """exp(epsilon f / Gamma) with Gamma = 2 s, or 4 s where rows are exchanged."""
        method = with_epsilon(built(n_rows=4, relation=relation))
        relation = relation or Neighboring.ADD_REMOVE
        w = [0.7, -0.2]
        laws = Laws(monkeypatch, method, TINY, w, relation=relation)
        rows = [([0.2], 1.0), ([0.9], -1.0), ([1.0], 1.0), ([0.4], -1.0)]
        X, y = table(rows)
        X = np.column_stack([X, np.ones(4)])
        moves = np.vstack([np.eye(2), -np.eye(2)]) * 0.5
        sums = [np.logaddexp(0, -y * (X @ (w + move))).sum() for move in moves]
        scores = -EPSILON * np.array(sums) / (gamma * 0.5)
        expected = scores - np.log(np.exp(scores).sum())
        np.testing.assert_allclose(laws(rows)[0], expected, atol=1e-5)

    def test_weights_of_the_svm(self, monkeypatch):
        """10 hinge + ||w||^2 / 2 over 20 s, up to the penalty's share of Gamma."""
        objective = LinearObjective(loss="hinge", n_features=1)
        rows = [([0.2], 1.0), ([0.9], -1.0), ([1.0], 1.0), ([0.4], -1.0)] * 50
        method = with_epsilon(built(objective, n_rows=200))
        w = np.array([0.7, -0.2])
        X, y = table(rows)
        X = np.column_stack([X, np.ones(200)])
        points = w + np.vstack([np.eye(2), -np.eye(2)]) * 0.5
        hinge = np.array([np.maximum(0, 1 - y * (X @ p)).sum() for p in points])
        squares = points[:, 0] ** 2
        gamma = 2 * 10 * 0.5 + np.ptp(squares / 2) / 200
        scores = -EPSILON * (10 * hinge + squares / 2) / gamma
        expected = scores - np.log(np.exp(scores).sum())
        laws = Laws(monkeypatch, method, objective, w)
        np.testing.assert_allclose(laws(rows)[0], expected, rtol=0, atol=1e-3)
        free = with_epsilon(built(objective, n_rows=200, penalty=0.0))
        without = Laws(monkeypatch, free, objective, w)(rows)[0]
        assert np.abs(without - expected).max() > 2e-2

    def test_a_large_penalty_widens_gamma(self, monkeypatch):
        """It counts in full: no score is cut off at the bound."""
        rows = [([0.0], 1.0), ([1.0], 1.0), ([1.0], -1.0)]
        method = with_epsilon(built(n_rows=3, penalty=6.0))
        w = np.array([1.5, 0.0])
        X, y = table(rows)
        X = np.column_stack([X, np.ones(3)])
        points = w + np.vstack([np.eye(2), -np.eye(2)]) * 0.5
        sums = np.array([np.logaddexp(0, -y * (X @ p)).sum() for p in points])
        squares = 3.0 * points[:, 0] ** 2
        scores = -EPSILON * (sums + squares) / (1.0 + np.ptp(squares) / 3)
        expected = scores - np.log(np.exp(scores).sum())
        law = Laws(monkeypatch, method, TINY, w)(rows)[0]
        np.testing.assert_allclose(law, expected, atol=1e-5)

    def test_generations(self):
        """The counts of Lee and Kifer on folds of Adult."""
        counts = [
            built(epsilon=epsilon).steps for epsilon in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
        ]
        assert counts == [3, 5, 11, 22, 44, 88]
        assert built(n_rows=5).steps == 1

    def test_the_replica_and_the_gain(self):
        replica = built(relation="replace-one")
        assert replica.epsilon == pytest.approx(math.sqrt(2 * 8.502247e-3 / 44))
        assert planned_epsilon(replica.schedule(), 1e-8)[0] < 0.5
        solved = built(selection="bounded")
        assert solved.epsilon > 2 * replica.epsilon
        assert 0.799 < planned_epsilon(solved.schedule(), 1e-8)[0] <= 0.8

    def test_huge_budgets_pick_the_best_move(self):
        X, y = blobs(120)
        objective = LinearObjective(loss="logistic", n_features=3)
        method = with_epsilon(built(objective, n_rows=120, steps=12), 1e12)
        data = PrivateDataset(X, y, n_rows=120, accountant=FreeAccountant())
        state = method.init(zeros(objective))
        found = list(minimize(objective, data, method, state, max_batches=12))
        w, size, features = np.zeros(4), 0.5, np.column_stack([X, np.ones(120)])
        for state, record in found:
            moves = [sign * size * e for sign in (1, -1) for e in np.eye(4)]
            sums = [
                np.logaddexp(0, -y * (features @ (w + move))).sum() for move in moves
            ]
            w = w + moves[int(np.argmin(sums))]
            np.testing.assert_allclose(state.w.numpy(), w, atol=1e-12)
            assert record.step_size == pytest.approx(size)
            assert (record.tries, record.gradients) == (8, 0)
            size *= 0.95
        assert np.abs(w).max() > 1


class TestOriginal:
    def built(self, objective=TINY, **settings):
        return built(objective, variant="original", **settings)

    def test_schedule(self):
        method = self.built(epsilon=0.2, selection="bounded")
        assert (method.population_size, method.parents, method.steps) == (200, 10, 11)
        (first, generations), (last, once) = method.schedule()
        assert (generations, once) == (10, 1)
        assert first.inner.mechanisms == (method.parent_draw,) * 10
        assert last.inner == method.last_draw
        shares = method.epsilon / method.parent_draw.epsilon
        assert shares == pytest.approx(math.sqrt(10))
        assert 0.199 < planned_epsilon(method.schedule(), 1e-8)[0] <= 0.2
        assert len(self.built(n_rows=5).schedule()) == 1

    def test_parents_are_drawn_without_replacement(self, monkeypatch):
        method = self.built(population_size=6, parents=4)
        laws = Laws(monkeypatch, method, TINY)(ROWS)
        assert [len(law) for law in laws] == [6, 5, 4, 3]

    def test_children_mix_parents_and_move_one_coordinate(self):
        method = self.built(population_size=50, parents=2, step_size=0.5)
        parents = [torch.arange(6.0) + 10, torch.arange(6.0) - 10]
        children = method._children(parents, 3)
        assert len(children) == 50
        bound = 0.5 * 0.95**3
        origins = set()
        for child in children:
            near = [(child - parent).abs() <= bound for parent in parents]
            assert torch.all(near[0] | near[1])
            exact = [(child == parent) for parent in parents]
            assert int((exact[0] | exact[1]).sum()) >= 5
            signs = (child > 5).int()
            assert int(signs.diff().abs().sum()) <= 1  # one cut at most
            origins.add(tuple(signs.tolist()))
        assert len(origins) > 6

    def test_children_are_public_and_repeatable(self):
        first, again = (self.built().init(zeros(TINY)) for _ in range(2))
        other = self.built(population_seed=1).init(zeros(TINY))
        assert content(first) == content(again)
        assert content(first) != content(other)

    def test_a_single_parameter_has_no_cut(self):
        objective = LinearObjective(loss="logistic", n_features=1, fit_intercept=False)
        state = self.built(objective).init(zeros(objective))
        assert {child.numel() for child in state.population} == {1}

    def test_huge_budgets_keep_the_best(self):
        X, y = blobs(120)
        objective = LinearObjective(loss="logistic", n_features=3)
        method = self.built(objective, n_rows=120, steps=6, population_size=40)
        method = with_epsilon(method, 1e12)
        data = PrivateDataset(X, y, n_rows=120, accountant=FreeAccountant())
        state = method.init(zeros(objective))
        features = np.column_stack([X, np.ones(120)])
        for _ in range(6):
            losses = [
                np.logaddexp(0, -y * (features @ point.numpy())).sum()
                for point in state.population
            ]
            best = state.population[int(np.argmin(losses))]
            ((state, _),) = minimize(objective, data, method, state, max_batches=1)
            np.testing.assert_allclose(state.w.numpy(), best.numpy(), atol=1e-12)

    def test_state_survives_a_checkpoint(self):
        method = self.built(population_size=7, parents=2)
        state = method.init(zeros(TINY))
        again = survived(state)
        assert content(again) == content(state)


class TestSpread:
    @given(
        points=st.lists(
            st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=2, max_size=5
        )
    )
    def test_it_bounds_scores_on_the_cube_and_is_met(self, points):
        table = torch.tensor(points, dtype=torch.float64)
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
        scores = corners @ table.numpy().T
        widest = float(np.ptp(scores, axis=1).max())
        assert largest_spread(table) == pytest.approx(widest or 1.0)


@pytest.mark.parametrize("variant", METHODS)
class TestRuns:
    def test_the_budget_is_used_and_kept(self, variant):
        X, y = blobs(60)
        result = run("privgene", X, y, steps=4, **METHODS[variant])
        assert 0.95 <= result.records[-1].epsilon <= 1.0
        assert len(result.records) == 4

    def test_the_relation_is_that_of_the_proof(self, variant):
        X, y = blobs(60)
        settings = {**METHODS[variant], "steps": 2}
        own = run("privgene", X, y, **settings).accountant.guarantee.relation
        assert own is Neighboring.ADD_REMOVE
        exchanged = run("privgene", X, y, relation="replace-one", **settings)
        assert exchanged.accountant.guarantee.relation is Neighboring.REPLACE_ONE

    def test_it_learns(self, variant):
        X, y = blobs(4000)
        settings = {} if variant == "simplified" else {"variant": "original"}
        w = run("privgene", X, y, epsilon=8.0, steps=30, **settings).w
        right = np.sign(X @ w[:3] + w[3]) == y
        assert right.mean() > 0.8


def test_more_classes_are_refused():
    objective = LinearObjective(loss="softmax", n_features=3, n_classes=3)
    X, _ = blobs(30)
    with pytest.raises(ValueError, match="Expected two classes"):
        run("privgene", X, np.arange(30) % 3, objective=objective)
