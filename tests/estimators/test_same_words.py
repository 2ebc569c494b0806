# SPDX-License-Identifier: Apache-2.0
"""Budget, seed and statement mean the same in estimators and in ``solve``."""

import numpy as np
import pytest
from sklearn.base import clone

from armijo import Budget, PrivateLinearSVC, PrivateLogisticRegression, solve

X = np.random.default_rng(4).uniform(size=(200, 3))
y = np.where(X[:, 0] > 0.5, 1.0, -1.0)
BUDGET = Budget(epsilon=2.0, delta=1e-6)


def fitted(**more) -> PrivateLogisticRegression:
    given = {"classes": [-1.0, 1.0], "n_rows": 200, "method": "sgd"} | more
    return PrivateLogisticRegression(**given).fit(X, y)


def solved(**more):
    return solve(X, y, **({"method": "sgd", "n_rows": 200} | more))


@pytest.mark.parametrize(
    "made", [int, np.int64, np.random.RandomState, np.random.default_rng]
)
def test_a_seed_is_a_seed(made):
    model = fitted(budget=BUDGET, random_state=made(7))
    found = solved(budget=BUDGET, seed=made(7))
    assert np.array_equal(found.w[:-1], model.coef_[0])
    assert not found.guarantee.holds and not model.privacy_.guarantee.holds
    assert repr(found.privacy) == repr(model.privacy_)


def test_a_budget_is_one_object_or_two_numbers():
    for privacy in (
        fitted(budget=BUDGET).privacy_,
        fitted(epsilon=2.0, delta=1e-6).privacy_,
        fitted(epsilon=2.0, delta=1e-6, budget=BUDGET).privacy_,
        clone(PrivateLinearSVC(budget=BUDGET, classes=[-1.0, 1.0], method="sgd"))
        .fit(X, y)
        .privacy_,
        solved(budget=BUDGET).privacy,
        solved(epsilon=2.0, delta=1e-6).privacy,
    ):
        assert (privacy.epsilon, privacy.delta) == (2.0, 1e-6)
        assert privacy.budget == BUDGET


@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (fitted, {"n_rows": "2000"}, ("n_rows", "'2000'")),
        (fitted, {"n_rows": 0}, ("n_rows", "got 0")),
        (fitted, {"budget": 1.0}, ("budget", "got 1.0")),
        (fitted, {"budget": BUDGET, "epsilon": 3.0}, ("either budget or", "3.0")),
        (fitted, {"random_state": -1}, ("random_state", "-1")),
        (solved, {"n_rows": "2000", "budget": BUDGET}, ("n_rows", "'2000'")),
        (solved, {"n_rows": 0, "budget": BUDGET}, ("n_rows", "got 0")),
        (solved, {"budget": 1.0}, ("budget", "got 1.0")),
        (solved, {}, ("budget", "epsilon and delta")),
        (solved, {"epsilon": 1.0}, ("delta=None",)),
        (solved, {"budget": BUDGET, "delta": 1e-5}, ("either a budget",)),
        (solved, {"budget": BUDGET, "seed": 0.5}, ("seed", "got 0.5")),
    ],
)
def test_a_slip_is_told_before_anything_is_spent(make, more, words, tmp_path):
    path = tmp_path / "run.ledger"
    with pytest.raises(ValueError) as error:
        make(ledger=path, **more)
    message = str(error.value)
    assert message.startswith("Expected ") and message.endswith("Nothing was spent.")
    assert all(word in message for word in words), message
    assert not path.exists()
