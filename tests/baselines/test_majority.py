# SPDX-License-Identifier: Apache-2.0
"""The private majority vote."""

import math

import numpy as np
import pytest

from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import OnlySelection
from armijo.baselines.trivial import Majority
from armijo.methods.base import Problem
from armijo.objectives import LinearObjective
from tests.baselines.choice_law import log_laws, run, zeros

BINARY = LinearObjective(loss="logistic", n_features=2)
THREE = LinearObjective(loss="softmax", n_features=2, n_classes=3)


def built(objective=BINARY, epsilon=1.0):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    return Majority().calibrate(budget, Problem(objective=objective, n_rows=10))


@pytest.mark.parametrize(("label", "rows"), [(-1.0, 70), (1.0, 40)])
def test_the_intercept_names_the_class(label, rows):
    y = np.append(np.full(rows, label), -label)
    w = run("majority", np.zeros((rows + 1, 2)), y).w
    assert w.tolist() == [0.0, 0.0, label]


def test_more_classes():
    y = np.repeat([0, 1, 2], [5, 10, 80])
    w = run("majority", np.zeros((95, 2)), y, objective=THREE).w
    assert w.reshape(3, 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1.0]]


@pytest.mark.parametrize("objective", [BINARY, THREE])
def test_law_and_neighbors(monkeypatch, objective):
    """Weights exp(epsilon count), and one more vote moves them by epsilon at most."""
    method = built(objective, epsilon=0.4)
    labels = np.array(method.labels)
    state = method.init(zeros(objective))
    y = labels[[0, 1, 1, 0, 1]]

    def law(votes):
        X = np.zeros((len(votes), 2))
        return log_laws(monkeypatch, method, state, X, votes, objective)[0]

    before = law(y)
    counts = (y[:, None] == labels).sum(axis=0)
    expected = 0.4 * counts - np.log(np.exp(0.4 * counts).sum())
    np.testing.assert_allclose(before, expected, atol=1e-6)
    for label in labels:
        change = law(np.append(y, label)) - before
        assert np.abs(change).max() <= 0.4
        assert np.ptp(change) == pytest.approx(0.4, rel=1e-6)


def test_the_whole_budget_in_one_charge():
    result = run("majority", np.zeros((4, 2)), np.array([1.0, -1, 1, 1]), epsilon=0.3)
    assert result.accountant.n_charges == 1
    assert result.records[0].epsilon == pytest.approx(0.3, rel=1e-4)
    assert result.records[0].epsilon <= 0.3
    assert result.accountant.budget.epsilon == 0.3
    mechanism = result.accountant.plan[0][0].inner
    assert mechanism == OnlySelection(0.3 * (1 - 1e-9), 0.5)


def test_no_rows_and_no_numbers():
    assert abs(run("majority", np.zeros((0, 2)), np.zeros(0)).w[-1]) == 1
    X = np.full((60, 2), math.nan)
    weights = [run("majority", X, y).w.tolist() for y in (np.ones(60), -np.ones(60))]
    assert weights[0] == weights[1]  # rows that are left out have no vote


def test_without_an_intercept_it_is_refused():
    objective = LinearObjective(loss="logistic", n_features=2, fit_intercept=False)
    with pytest.raises(ValueError, match="Expected fit_intercept=True"):
        built(objective)


def test_unknown_labels_vote_for_nobody(monkeypatch):
    method = built()
    state = method.init(zeros(BINARY))
    X, y = np.zeros((3, 2)), np.array([math.nan, 5.0, 0.0])
    (law,) = log_laws(monkeypatch, method, state, X, y, BINARY)
    np.testing.assert_allclose(law, -math.log(2), atol=1e-12)
    assert isinstance(method, Majority)
