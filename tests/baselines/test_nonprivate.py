# SPDX-License-Identifier: Apache-2.0
"""The non-private minimum: the same as scikit-learn's, and never called private."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression
from armijo.registry import make_method
from tests.baselines.one_shot_doubles import fitted, objective, slopes, table


def reference(X, y, l2, classes=2):
    """The intercept is penalized here, so it is a feature for scikit-learn."""
    model = LogisticRegression(
        C=1 / (len(y) * l2), fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    full = np.column_stack([X, np.ones(len(y))])
    return model.fit(full, y).coef_


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_two_classes_as_scikit_learn(wrap, l2):
    X, y = table(300)
    found = fitted("nonprivate", wrap(X), y, objective(l2=l2)).w
    np.testing.assert_allclose(found, reference(X, y, l2)[0], atol=2e-5)


def test_three_classes_as_scikit_learn():
    X, _ = table(300)
    y = np.digitize(X[:, 0] - X[:, 1], [-0.5, 0.5])
    goal = objective("softmax", n_classes=3)
    found = fitted("nonprivate", X, y, goal).w.reshape(3, -1)
    np.testing.assert_allclose(found, reference(X, y, 0.01), atol=2e-5)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_the_gradient_norm(loss):
    X, y = table(200)
    w = fitted("nonprivate", X, y, objective(loss)).w
    Z = y[:, None] * np.column_stack([X, np.ones(200)])
    gradient = Z.T @ slopes(loss, Z @ w) / 200 + 0.01 * w
    assert np.linalg.norm(gradient) <= 1.01e-7


def test_rows_that_are_no_numbers_are_left_out():
    X, y = table(50)
    bad = np.vstack([X, [[np.nan, 1, 1], [np.inf, 0, 0]]])
    more = np.append(y, [1.0, 1.0])
    found = fitted("nonprivate", bad, more, n_rows=50).w
    np.testing.assert_allclose(found, fitted("nonprivate", X, y).w, atol=1e-9)


def test_no_rows():
    assert not fitted("nonprivate", np.empty((0, 3)), np.empty(0), n_rows=9).w.any()


def test_estimators():
    X, y = table(300)
    settings = {"method": "nonprivate", "classes": [-1.0, 1.0]}
    model = PrivateLogisticRegression(**settings).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.data_norm_ is None
    assert PrivateLinearSVC(**settings).fit(X, y).score(X, y) > 0.8


def test_estimator_of_a_bounded_method_clips_what_it_predicts():
    X, y = table(3000)
    model = PrivateLogisticRegression(
        method=make_method("objpert", {"data_norm": 1.0}),
        epsilon=5.0,
        classes=[-1.0, 1.0],
        n_rows=3000,
        l2=1e-3,
    ).fit(X, y)
    assert model.data_norm_ == 1.0
    long = 1e6 * X[:5]
    norms = np.linalg.norm(long, axis=1)[:, None]
    expected = model.decision_function(long / norms)
    np.testing.assert_allclose(model.decision_function(long), expected, rtol=1e-9)
    assert model.score(X, y) > 0.8
