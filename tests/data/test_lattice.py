# SPDX-License-Identifier: Apache-2.0
"""Rounded rows, exact products and norms: functions of the row, in any company."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from armijo.data.lattice import (
    LARGEST,
    ROW_BITS,
    SIGNIFICAND,
    RoundedRows,
    blanks,
    canonical,
    lattice_norms,
    product,
    rounded,
    row_norms,
    slice_bits,
)

ANY = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
TABLES = arrays(float, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=ANY)
WIDTHS = (1, 2, 3, 17, 100, 124, 128, 129, 784, 2048, 2049, 30_011, 200_000)


def bits(values):
    return np.ascontiguousarray(values).view(np.uint64).tolist()


def rows_of_all_kinds(n, d, dtype, seed=0):
    """Return rows of many scales, among them the largest floats and denormals."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.exp(3 * rng.normal(size=(n, 1)))
    X[rng.random(X.shape) < 0.2] = 0.0
    info = np.finfo(dtype)
    scales = (1.0, float(info.max) / 64, float(info.tiny), 2.0**400, 1e-6, 0.0)
    with np.errstate(over="ignore"):
        for k, scale in enumerate(scales):
            X[k :: 2 * len(scales)] *= scale
        X[5 :: 2 * len(scales), 0] = float(info.smallest_subnormal)
        return X.astype(dtype)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", WIDTHS)
def test_a_row_alone_has_the_bits_it_has_in_any_block(d, dtype, form):
    n = 13 if d > 2049 else 401 if d > 129 else 2001
    X, rng = rows_of_all_kinds(n, d, dtype), np.random.default_rng(1)
    sizes = (1, 3, 8) if n < 100 else (1, 2, 3, 7, 127, 400)
    table, mirrored = rounded(form(X)), rounded(form(X[::-1]))
    norms = row_norms(table)
    assert bits(lattice_norms(table)) == bits(norms)
    several = [rng.normal(size=(d, columns)) for columns in (1, 3)]
    scores = [product(table, weights) for weights in several]
    for weights, whole in zip(several, scores, strict=True):
        assert np.isfinite(whole).any()
        assert bits(product(mirrored, weights)) == bits(whole[::-1])
    for size in sizes:
        for start in {0, 1, n // 2, n - size}:
            part = slice(start, min(start + size, n))
            block = rounded(form(X[part]))
            assert bits(row_norms(block)) == bits(norms[part])
            for weights, whole in zip(several, scores, strict=True):
                assert bits(product(block, weights)) == bits(whole[part])


@pytest.mark.parametrize("d", [1, 3, 124, 129, 784, 2048, 2049, 5_003])
def test_scores_are_near_those_of_exact_arithmetic(d):
    rng = np.random.default_rng(d)
    X, w = rng.normal(size=(4, d)), rng.normal(size=(d, 2))
    X[1] *= 1e-300
    X[2] *= 1e120
    found = product(rounded(X), w)
    for i in range(4):
        for j in range(2):
            exact = sum(
                Fraction(a) * Fraction(b)
                for a, b in zip(X[i].tolist(), w[:, j].tolist(), strict=True)
            )
            size = Fraction(np.linalg.norm(X[i] / np.abs(X[i]).max()))
            size *= Fraction(np.abs(X[i]).max()) * Fraction(np.linalg.norm(w[:, j]))
            assert abs(Fraction(float(found[i, j])) - exact) <= size * Fraction(1e-6)


@pytest.mark.parametrize("d", [*WIDTHS, 2**19, 2**19 + 1, 2**23])
def test_the_budget_of_bits(d):
    each, count = slice_bits(d)
    assert each + ROW_BITS + math.ceil(math.log2(d)) <= SIGNIFICAND
    assert 20 <= each * count


def test_the_worst_row_and_weights_fit_the_budget():
    """All entries at the top of their lattices: the largest sum that can occur."""
    for d in (128, 2048, 30_011):
        X, w = np.ones((3, d)), np.ones((d, 1))
        assert product(rounded(X), w).tolist() == [[d]] * 3


def test_too_many_features_for_the_budget():
    with pytest.raises(ValueError, match="2\\*\\*30"):
        slice_bits(2**31)


@given(TABLES)
def test_rounding_twice_is_rounding_once(X):
    for form in (X, sparse.csr_matrix(X)):
        once = rounded(form)
        again = rounded(once)
        plain = [t.toarray() if sparse.issparse(t) else t for t in (once, again)]
        assert np.array_equal(*plain, equal_nan=True)


@given(TABLES)
def test_rounded_rows_are_near_and_have_few_bits(X):
    table, left_out = rounded(X), blanks(rounded(X))
    top = np.abs(X).max(axis=1)
    assert left_out.tolist() == (~(top <= LARGEST)).tolist()
    assert np.isnan(table[left_out]).all()
    for x, row, most in zip(X, table, top, strict=True):
        if not most <= LARGEST or most == 0:
            continue
        unit = max(Fraction(2) ** (math.frexp(most)[1] - ROW_BITS), Fraction(5e-324))
        for value, found in zip(x.tolist(), row.tolist(), strict=True):
            assert abs(Fraction(value) - Fraction(found)) <= unit / 2
            assert (Fraction(found) / (unit / 2)).denominator == 1


@given(TABLES)
def test_norms_are_upper_bounds_and_near(X):
    X = X * 0.7  # off the lattice
    for form in (X, np.hstack([X] * 20), sparse.csr_matrix(X)):
        norms = row_norms(form)
        plain = form.toarray() if sparse.issparse(form) else form
        for x, norm in zip(plain, norms, strict=True):
            if not np.isfinite(x).all():
                assert not math.isfinite(norm)
                continue
            square = sum(Fraction(v) ** 2 for v in x.tolist())
            if not square < Fraction(1e308) ** 2:
                continue
            room = Fraction(1 + 1e-13)
            assert Fraction(float(norm)) ** 2 * room**2 >= square
            slack = Fraction(1 + 1e-10)
            near = Fraction(float(norm)) - Fraction(1e-323)
            assert near < 0 or near**2 <= square * slack


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_norms_of_lattice_rows_are_roots_of_exact_sums(form):
    X = rounded(np.random.default_rng(2).normal(size=(20, 700)))
    for x, norm in zip(X[:, :500], row_norms(form(X[:, :500])), strict=True):
        square = sum(Fraction(v) ** 2 for v in x.tolist())
        assert norm == math.sqrt(square)
    wide = np.array([math.fsum(v * v for v in x) for x in X])
    np.testing.assert_allclose(row_norms(form(X)), np.sqrt(wide), rtol=1e-15)


@pytest.mark.parametrize("blank", [None, [False, True, False, False]])
def test_a_view_rounds_what_it_is_asked_for(blank):
    X = np.array([[1.0, 1e-9], [3.0, 4.0], [np.inf, 0.0], [0.0, 0.0]])
    mask = None if blank is None else np.array(blank)
    view, table = RoundedRows(X, mask), rounded(X, mask)
    assert view.shape == (4, 2)
    for rows in (slice(1, 3), np.array([3, 1]), np.array([True, True, False, False])):
        np.testing.assert_array_equal(view[rows], table[rows])
    np.testing.assert_array_equal(np.asarray(view), table)
    assert blanks(view).tolist() == blanks(table).tolist()
    weights = np.array([[2.0], [1.0]])
    np.testing.assert_array_equal(product(view, weights), product(table, weights))
    np.testing.assert_array_equal(lattice_norms(view), lattice_norms(table))
    more = np.array([True, False, False, False])
    np.testing.assert_array_equal(rounded(view, more)[:], rounded(table, more))


def test_blank_rows_of_a_sparse_table_need_no_entry():
    X = sparse.csr_matrix(np.array([[0.0, 0.0], [0.0, 2.0], [0.0, 3.0]]))
    table = rounded(X, np.array([True, False, True]))
    assert blanks(table).tolist() == [True, False, True]
    assert table.has_canonical_format
    assert table.toarray()[1].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_parts_of_an_entry_are_added_before_all_else(dtype):
    """In float64: in float32 the small part would be lost or found by the order."""
    data = np.array([3_000_000_000, 100, -3_000_000_000, 7], dtype=dtype)
    X = sparse.csr_matrix((data, [0, 0, 0, 1], [0, 4]), shape=(1, 2))
    found = canonical(X)
    assert found.dtype == np.float64 and found.toarray().tolist() == [[100.0, 7.0]]
    assert row_norms(X).tolist() == [math.sqrt(10049)]
    assert X.nnz == 4  # the table itself is left alone


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_leave_no_score(bad):
    found = product(np.ones((2, 3)), np.array([[1.0, 0.0], [bad, 0.0], [0.0, 2.0]]))
    assert np.isnan(found[:, 0]).all() and found[:, 1].tolist() == [2.0, 2.0]
