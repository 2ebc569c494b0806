# SPDX-License-Identifier: Apache-2.0
"""Rows made to break a bound or to make a run speak, through whole methods."""

import numpy as np
import pytest
from scipy import sparse

from armijo.baselines.perturbation import BoundedRows
from armijo.data import fixed_point
from armijo.data.query import OuterProduct, Rows
from tests.baselines.one_shot_doubles import built, fitted, rows_of

BOUNDED = ("outpert-gd", "outpert-rsgd", "objpert", "amp")


def in_parts(dtype, large, small):
    """Return rows whose only entry is stored as ``large``, ``small``, ``-large``."""
    data = np.array([large, small, -large] * 2, dtype=dtype)
    columns = [0, 0, 0, 1, 1, 1]
    return sparse.csr_matrix((data, columns, [0, 3, 6]), shape=(2, 3))


@pytest.mark.parametrize(
    ("dtype", "large", "small"),
    [(np.float32, 3e9, 100.0), (np.float64, 3e300, 1e5), (np.float64, 1e17, 7.0)],
)
class TestEntriesInParts:
    """The norm came from one sum of the parts and the vector from another."""

    def test_rows_stay_in_the_unit_ball(self, dtype, large, small):
        for intercept in (True, False):
            rows = BoundedRows(data_norm=1.0, fit_intercept=intercept)
            X = in_parts(dtype, large, small)
            signed = rows.signed(rows_of(X, np.ones(2)))
            assert np.linalg.norm(signed.toarray(), axis=1).max() <= 1.0
            stored = np.add.reduceat(np.abs(signed.data), signed.indptr[:-1])
            assert stored.max() <= 2.0

    def test_the_gate_keeps_its_bound(self, dtype, large, small):
        X = in_parts(dtype, large, small)[:1]
        for rows in (Rows(X, np.ones(1)).X, X):
            steps = fixed_point.vector_sum(OuterProduct(np.ones((1, 1)), rows), 1.0)
            assert sum(int(step) ** 2 for step in steps) <= fixed_point.STEPS**2

    @pytest.mark.parametrize("method", BOUNDED)
    def test_a_method_sees_the_row_that_it_is(self, method, dtype, large, small):
        X, y = in_parts(dtype, large, small), np.array([1.0, -1.0])
        whole = X.astype(np.float64)
        whole.sum_duplicates()
        algorithm = built(method, 2)
        seen = [algorithm.rows.signed(rows_of(form, y)) for form in (X, whole)]
        assert (seen[0] != seen[1]).nnz == 0
        found = [fitted(method, form, y).w for form in (X, whole)]
        np.testing.assert_array_equal(*found)
