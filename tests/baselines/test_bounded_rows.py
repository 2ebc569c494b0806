# SPDX-License-Identifier: Apache-2.0
"""Rows in the unit ball: the bound holds for every input, one row at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from armijo.baselines.perturbation import BoundedRows, loss_smoothness
from armijo.objectives.linear import LinearObjective
from armijo.objectives.losses import Huber
from tests.baselines.one_shot_doubles import rows_of, table, unit_rows

ANY = st.floats(width=64, allow_nan=True, allow_infinity=True)
TABLES = arrays.arrays(np.float64, (5, 3), elements=ANY)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("norm", [0.1, 1.0, 3.0])
def test_plain_rows(norm, intercept):
    X, y = table(30)
    found = BoundedRows(data_norm=norm, fit_intercept=intercept)
    expected = unit_rows(X, y, norm, intercept)
    np.testing.assert_allclose(found.signed(rows_of(X, y)), expected, atol=1e-11)


@given(X=TABLES, labels=arrays.arrays(np.float64, 5, elements=ANY))
def test_no_input_leaves_the_unit_ball(X, labels):
    for intercept in (True, False):
        bounded = BoundedRows(data_norm=2.0, fit_intercept=intercept)
        for form in (X, sparse.csr_matrix(X)):
            signed = bounded.signed(rows_of(form, labels))
            signed = signed.toarray() if sparse.issparse(signed) else signed
            assert np.all(np.isfinite(signed))
            assert np.all(np.linalg.norm(signed, axis=1) <= 1.0)


@given(X=TABLES, place=st.integers(min_value=0, max_value=4))
def test_a_row_does_not_depend_on_the_others(X, place):
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    bounded = BoundedRows(data_norm=2.0, fit_intercept=True)
    alone = bounded.signed(rows_of(X[[place]], y[[place]]))
    np.testing.assert_array_equal(bounded.signed(rows_of(X, y))[[place]], alone)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix])
def test_a_row_that_is_no_number_becomes_zero_with_its_constant(bad, wrap):
    X, y = table(4)
    X[2, 1] = bad
    signed = BoundedRows(data_norm=1.0, fit_intercept=True).signed(rows_of(wrap(X), y))
    signed = signed.toarray() if sparse.issparse(signed) else signed
    assert not signed[2].any()
    kept = [0, 1, 3]
    np.testing.assert_allclose(signed[kept], unit_rows(X[kept], y[kept]), atol=1e-11)


def test_a_label_that_is_no_class_leaves_its_row_out():
    X, y = table(3)
    y[0], y[1] = np.nan, 50.0
    signed = BoundedRows(data_norm=1.0, fit_intercept=True).signed(rows_of(X, y))
    assert not signed[:2].any()
    np.testing.assert_allclose(signed[2:], unit_rows(X[2:], y[2:]), atol=1e-11)


def test_sparse_rows_stay_sparse_and_equal_dense_ones():
    X, y = table(20)
    X[np.abs(X) < 0.5] = 0.0
    bounded = BoundedRows(data_norm=1.0, fit_intercept=True)
    signed = bounded.signed(rows_of(sparse.csr_matrix(X), y))
    assert sparse.issparse(signed)
    dense = bounded.signed(rows_of(X, y))
    np.testing.assert_allclose(signed.toarray(), dense, atol=1e-15)


def test_weights_go_back_to_clipped_rows():
    X, y = table(10)
    bounded = BoundedRows(data_norm=1.0, fit_intercept=True)
    w = np.array([0.5, -1.0, 2.0, 0.3])
    clipped = X * np.minimum(1, 1 / np.linalg.norm(X, axis=1))[:, None]
    back = bounded.unscaled(w)
    scores = clipped @ back[:3] + back[3]
    signed = bounded.signed(rows_of(X, y))
    np.testing.assert_allclose(scores * y, signed @ w, atol=1e-10)


def test_the_rows_of_the_caller_are_not_changed():
    X, y = table(5)
    X[0, 0] = np.nan
    before = X.copy()
    BoundedRows(data_norm=0.1, fit_intercept=True).signed(rows_of(X, y))
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(("loss", "bound"), [("logistic", 0.25), (Huber(0.1), 5.0)])
def test_smoothness_is_the_largest_slope_of_the_slope(loss, bound):
    objective = LinearObjective(loss=loss, n_features=1)
    assert loss_smoothness(objective) == pytest.approx(bound)


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_a_loss_without_it_is_refused(loss):
    with pytest.raises(ValueError, match="logistic or huber"):
        loss_smoothness(LinearObjective(loss=loss, n_features=1))


def test_entries_that_stand_several_times_do_not_leave_the_ball():
    X = np.full((4, 3), 10.0)
    whole = sparse.csr_array(X)
    parts = (np.repeat(whole.data, 32) / 32, np.repeat(whole.indices, 32))
    stored = sparse.csr_array((*parts, whole.indptr * 32), shape=whole.shape)
    bounded = BoundedRows(data_norm=1.0, fit_intercept=False)
    found = bounded.signed(rows_of(stored, np.ones(4))).toarray()
    assert np.linalg.norm(found, axis=1).max() <= 1.0
    assert found == pytest.approx(bounded.signed(rows_of(X, np.ones(4))))
