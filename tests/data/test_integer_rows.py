# SPDX-License-Identifier: Apache-2.0
"""Rows of integers: sums compared with a row at a time in Python's integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armijo.data import integer_rows
from armijo.data.integer_rows import (
    FEATURE_BITS,
    LARGEST_FEATURE,
    IntegerRows,
    count_sum,
    moment_sum,
    product_sum,
    vector_sum,
)

STEP = 2.0**-FEATURE_BITS
ANY = st.floats(width=64)  # NaN and infinities among them
NEAR = st.floats(-9, 9)
UNIT = st.floats(0, 1)
N, D, K = 4, 3, 2


def rows_of(X, weight=None, **more):
    """Return rows that compute their features from a table."""
    X = np.asarray(X, dtype=float)
    weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=float)

    def fill(part, out):
        out[:] = X[part]

    return IntegerRows.filled(X.shape[1], fill, weight, **more)


def on_lattice(X):
    """Return features as whole numbers of Python."""
    with np.errstate(over="ignore"):
        steps = np.rint(X / STEP)
    whole = np.nan_to_num(np.clip(steps, -LARGEST_FEATURE, LARGEST_FEATURE))
    return [[int(value) for value in row] for row in whole]


def toward_zero(value):
    return math.trunc(Fraction(value))


def square(values):
    return sum(int(value) ** 2 for value in values)


class TestRows:
    @given(arrays(float, (N, D), elements=ANY))
    def test_features_are_rounded_and_cut_each_alone(self, X):
        expected, rows = on_lattice(X), rows_of(X)
        assert rows.block(slice(None)).tolist() == expected
        assert rows.squares.tolist() == [square(row) for row in expected]

    @given(arrays(float, (N, D), elements=NEAR), arrays(float, (D, K), elements=NEAR))
    def test_products_are_those_of_fractions(self, X, w):
        """Weights keep 24 bits of the largest of their column, tiny ones fewer."""
        found = rows_of(X).product(w)
        for i, row in enumerate(on_lattice(X)):
            for k in range(K):
                pairs = zip(row, w[:, k], strict=True)
                exact = sum(Fraction(x) * Fraction(v) for x, v in pairs)
                scale = D * LARGEST_FEATURE * np.abs(w[:, k]).max() * STEP
                error = abs(Fraction(found[i, k]) - exact * Fraction(STEP))
                assert error <= Fraction(scale) * Fraction(2.0**-23) + Fraction(
                    2.0**-900
                )

    def test_rows_that_are_not_held_are_the_same(self):
        X = np.random.default_rng(0).normal(size=(50, 7)) * 3
        base = rows_of(X[:, :4])
        w = np.random.default_rng(1).normal(size=(7, 2))
        kept = rows_of(X).product(w)
        for memory in (0, 50 * 7 * 4, 50 * 7 * 8):
            rows = rows_of(X, memory=memory)
            assert (rows.held is None) == (memory == 0)
            assert (rows.product(w) == kept).all()

            def fill(part, out):
                out[:] = X[part, 4:]

            joined = IntegerRows.filled(
                7, fill, np.ones(50), before=base, memory=memory
            )
            assert (joined.product(w) == kept).all()
            assert (joined.squares == rows.squares).all()

    def test_nothing_is_shown(self):
        assert repr(rows_of(np.full((2, 1), 0.1234))) == "IntegerRows(features=1)"


def summed(coefficients, rows, constant, bound):
    """Return the sum of products with known coefficients."""
    k = coefficients.shape[1]
    known = lambda part, _: coefficients[part]  # noqa: E731
    return product_sum(known, k, rows, constant, bound)


class TestProductSum:
    @given(
        arrays(float, (N, K), elements=ANY),
        arrays(float, (N, D), elements=ANY),
        arrays(float, N, elements=UNIT),
        st.sampled_from([0.0, 1e-9, 0.3, 40.0]),
        st.sampled_from([1.0, 0.01, 300.0]),
        st.sampled_from([32, 24, 5]),
    )
    def test_each_row_adds_whole_numbers_within_its_weight(
        self, coefficients, X, weight, constant, bound, bits
    ):
        rows = rows_of(X, weight)
        found = summed(coefficients, rows, constant, bound)
        assert bits <= found.finest
        parts = []
        for i in range(N):
            one = rows_of(X[i : i + 1], weight[i : i + 1])
            alone = summed(coefficients[i : i + 1], one, constant, bound)
            parts.append(alone.integers(bits).tolist())
            most = Fraction(weight[i]) * 2**bits
            assert square(parts[-1]) <= most**2
        total = [sum(column) for column in zip(*parts, strict=True)]
        assert found.integers(bits).tolist() == total

    @given(
        arrays(float, (N, K), elements=st.floats(-1, 1)),
        arrays(float, (N, D), elements=NEAR),
    )
    def test_integers_are_the_plain_sum(self, coefficients, X):
        rows = rows_of(X, np.linspace(0, 1, N))
        found = summed(coefficients, rows, 0.5, 1.0)
        whole = found.integers(found.finest).numpy() * 2.0**-found.finest
        # A coefficient loses less than a step, of which a feature has at most 2**17.
        lost = N * 2.0 ** (17 - found.finest)
        assert np.abs(whole - found.plain().numpy()).max() <= lost

    def test_long_rows_are_scaled_to_the_bound(self):
        X, slopes = np.array([[3.0, 4.0]]), np.array([[2.0]])
        found = summed(slopes, rows_of(X), 0.0, 1.0).plain()
        assert found.tolist() == pytest.approx([0.6, 0.8])
        short = summed(slopes * 0.01, rows_of(X), 0.0, 1.0).plain()
        assert short.tolist() == pytest.approx([0.06, 0.08])

    def test_sums_beyond_single_blocks_are_exact(self, monkeypatch):
        rng = np.random.default_rng(2)
        X, s = rng.normal(size=(300, D)), rng.normal(size=(300, K))
        once = summed(s, rows_of(X), 0.3, 1.0).integers(32)
        monkeypatch.setattr(integer_rows, "_BLOCK", 11)
        assert summed(s, rows_of(X), 0.3, 1.0).integers(32).tolist() == once.tolist()


class TestVectorSum:
    @given(
        arrays(float, (N, K), elements=ANY),
        arrays(float, N, elements=UNIT),
        st.sampled_from([1.0, math.sqrt(3), 0.01]),
        st.sampled_from([24, 23, 6]),
    )
    def test_vectors_are_clipped_weighted_and_cut(self, values, weight, bound, bits):
        found = vector_sum(values, weight, bound)
        parts = []
        for i in range(N):
            alone = vector_sum(values[i : i + 1], weight[i : i + 1], bound)
            parts.append(alone.integers(bits).tolist())
            assert square(parts[-1]) <= (Fraction(weight[i]) * 2**bits) ** 2
            if not np.isfinite(values[i]).all():
                assert not any(parts[-1])
        total = [sum(column) for column in zip(*parts, strict=True)]
        assert found.integers(bits).tolist() == total

    @given(arrays(float, (N, K), elements=st.floats(-0.5, 0.5)))
    def test_short_vectors_are_kept(self, values):
        found = vector_sum(values, np.ones(N), 1.0).integers(24).tolist()
        exact = [
            sum(toward_zero(Fraction(v) * 2**24) for v in column) for column in values.T
        ]
        assert found == exact


FACTORS = (0.5, 1.0, 0.25, 0.75, 1.0)[:K]


class TestCounts:
    @given(
        arrays(np.int64, (K, N), elements=st.integers(0, 4)),
        arrays(float, N, elements=UNIT),
        st.sampled_from([24, 23, 6]),
    )
    def test_a_row_adds_its_weight_to_one_cell_of_each_column(
        self, places, weight, bits
    ):
        numbered = [column + 5 * k for k, column in enumerate(places)]
        for factors in (None, FACTORS):
            used = factors or (1.0,) * K
            bound = math.sqrt(sum(factor**2 for factor in used))
            found = count_sum(lambda: iter(numbered), 5 * K, weight, bound, factors)
            room = Fraction(1 - 2.0**-40)
            one = math.floor(Fraction(2**bits) / Fraction(bound) * room)
            expected = [0] * (5 * K)
            for column, factor in zip(numbered, used, strict=True):
                for cell, own in zip(column, weight, strict=True):
                    expected[cell] += toward_zero(own * (one * factor))
            assert found.integers(bits).tolist() == expected
            for own in weight:
                added = sum(toward_zero(own * (one * factor)) ** 2 for factor in used)
                assert added <= (Fraction(own) * 2**bits) ** 2

    def test_plain_counts_are_a_histogram(self):
        rng = np.random.default_rng(0)
        cells = rng.integers(0, 9, 1000)
        found = count_sum(lambda: iter([cells]), 9, np.ones(1000), 1.0).plain()
        assert found.tolist() == np.histogram(cells, bins=np.arange(10))[0].tolist()

    def test_parts_of_many_rows_add_up(self, monkeypatch):
        rng = np.random.default_rng(0)
        cells, weight = rng.integers(0, 9, 1000), rng.random(1000)
        once = count_sum(lambda: iter([cells]), 9, weight, 1.0).integers(24)
        monkeypatch.setattr(integer_rows, "_COUNTED_ROWS", 7)
        again = count_sum(lambda: iter([cells]), 9, weight, 1.0).integers(24)
        assert again.tolist() == once.tolist()
        assert again.dtype == once.dtype and "int64" in str(once.dtype)


class TestMoments:
    @given(
        arrays(float, (N, D), elements=NEAR),
        arrays(float, N, elements=UNIT),
        st.sampled_from([1e-6, 1.0, 5.0]),
        st.sampled_from([24, 23, 7]),
    )
    def test_each_row_adds_at_most_its_weight(self, X, weight, radius, bits):
        found = moment_sum(rows_of(X, weight), radius).integers(bits)
        total = np.zeros(D * D, dtype=object)
        for i in range(N):
            one = moment_sum(rows_of(X[i : i + 1], weight[i : i + 1]), radius)
            own = one.integers(bits).tolist()
            assert square(own) <= (Fraction(weight[i]) * 2**bits) ** 2
            total = total + np.array(own, dtype=object)
        assert found.tolist() == total.tolist()

    @given(arrays(float, (N, D), elements=NEAR), st.sampled_from([24, 23, 7]))
    def test_weights_of_zero_and_one_need_no_second_factor(self, X, bits):
        weight = np.array([1.0, 0.0, 1.0, 1.0])
        both = moment_sum(rows_of(X, weight), 2.0).integers(bits)
        fast = moment_sum(rows_of(X, weight, whole=True), 2.0).integers(bits)
        assert both.tolist() == fast.tolist()

    def test_they_are_those_of_clipped_rows(self):
        X = np.random.default_rng(0).normal(size=(500, D))
        u = X / np.maximum(np.linalg.norm(X, axis=1), 1.3)[:, None]
        found = moment_sum(rows_of(X), 1.3)
        assert found.plain().reshape(D, D).numpy() == pytest.approx(u.T @ u, rel=1e-3)
        # Twelve bits of a factor, cut toward zero.
        whole = found.integers(24).double().numpy().reshape(D, D) * 2.0**-24
        assert whole == pytest.approx(u.T @ u, abs=500 * 2 * 2.0**-12)


def test_budgets_of_bits():
    """What the module says: products of so many rows are below 2**53."""
    largest = LARGEST_FEATURE * int(integer_rows._MOST)
    assert largest * integer_rows.EXACT_ROWS <= 2**53
    assert 2**integer_rows._VECTOR_BITS * integer_rows._COUNTED_ROWS <= 2**53
    # A row's entry is at most one bound, 2**32 steps: int64 adds up 2**30 rows.
    finest = summed(np.ones((1, 1)), rows_of(np.ones((1, 1))), 0.0, 1.0).finest
    assert 2**finest * 2**30 < 2**63
