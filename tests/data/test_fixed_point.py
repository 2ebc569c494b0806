# SPDX-License-Identifier: Apache-2.0
"""Exact sums: the bound holds in integers, whatever the rows are.

Everything is compared in Python integers and fractions, so that a test cannot pass by
the same rounding error that it looks for.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from armijo.data.fixed_point import (
    STEPS,
    lattice_scale,
    number_sum,
    number_sums,
    plain_vector_sum,
    vector_sum,
)
from armijo.data.query import (
    BoundedQuery,
    Columns,
    Contributions,
    OuterProduct,
    row_norms,
)

FloatArray = NDArray[np.float64]
Build = Callable[[FloatArray, FloatArray], Contributions]

ODD = [0.0, 5e-324, 1e-300, 1e-160, -1e-40, -1e-25, 1e20, -1e150, 1e200, 1.7e308]
ODD += [math.inf, -math.inf, math.nan]
COORDINATE = st.one_of(
    st.sampled_from(ODD),
    st.floats(-2.0, 2.0),
    st.integers(-4, 4).map(float),
    st.floats(-1e6, 1e6, width=32),
)
BOUND = st.one_of(st.sampled_from([1.0, 0.37, 2.0**-10, 250.0]), st.floats(1e-9, 1e9))
DTYPE = st.sampled_from([np.float64, np.float32])
DIMENSIONS = st.sampled_from([1, 2, 3, 6])


def matrix(rows: int, columns: int) -> st.SearchStrategy[FloatArray]:
    row = st.lists(COORDINATE, min_size=columns, max_size=columns)
    table = st.lists(row, min_size=rows, max_size=rows)
    return table.map(lambda t: np.array(t, dtype=float).reshape(rows, columns))


@st.composite
def batches(draw: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    """Draw features and coefficients (k = 1 or 5) of up to five rows."""
    rows, k = draw(st.integers(1, 5)), draw(st.sampled_from([1, 5]))
    features = draw(matrix(rows, draw(DIMENSIONS)))
    with np.errstate(over="ignore"):
        features = features.astype(draw(DTYPE))
    plain = st.just(np.ones((rows, k)))
    return features, draw(st.one_of(plain, matrix(rows, k)))


BUILDS: dict[str, Build] = {
    "vectors": lambda X, _: X,
    "outer-dense": lambda X, c: OuterProduct(c, X),
    "outer-fortran": lambda X, c: OuterProduct(c, np.asfortranarray(X)),
    "outer-csr": lambda X, c: OuterProduct(c, sparse.csr_matrix(X)),
    "outer-intercept": lambda X, c: OuterProduct(c, X, constant=0.75),
    "csr-intercept": lambda X, c: OuterProduct(c, sparse.csr_matrix(X), constant=-3.0),
}
CONSTANTS = {"outer-intercept": 0.75, "csr-intercept": -3.0}
every_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


def formed(build: Build, X: FloatArray, c: FloatArray) -> list[FloatArray]:
    """Form the contribution of each example on its own, in float64."""
    if build is BUILDS["vectors"]:
        return list(X.astype(float))
    name = next(name for name, one in BUILDS.items() if one is build)
    extra = [CONSTANTS[name]] if name in CONSTANTS else []
    pairs = zip(X.astype(float).tolist(), c, strict=True)
    return [np.outer(ci, x + extra).ravel() for x, ci in pairs]


def one_by_one(build: Build, X: FloatArray, c: FloatArray, bound: float) -> list:
    """Return the rounded vector of each example on its own, in Python integers."""
    rows = range(X.shape[0])
    sums = [vector_sum(build(X[i : i + 1], c[i : i + 1]), bound) for i in rows]
    return [[int(v) for v in total] for total in sums]


def square(vector: list[int]) -> int:
    return sum(v * v for v in vector)


@every_build
@given(batch=batches(), bound=BOUND)
# 16**2 is zero in uint8, and 1e-24 squared is zero in float32.
@example(batch=(np.full((1, 5), 16, dtype=np.uint8), np.ones((1, 1))), bound=1.0)
@example(batch=(np.full((1, 3), 1e-24, np.float32), np.full((1, 1), 1e25)), bound=1.0)
@example(batch=(np.full((1, 3), 1e-163), np.full((1, 1), 1e140)), bound=1e-30)
# In lattice steps these coefficients overflow, though their products are small.
@example(batch=(np.full((1, 3), 1e-302), np.full((1, 1), 1e302)), bound=1.0)
@example(batch=(np.zeros((1, 3)), np.full((1, 1), 1e305)), bound=1.0)
# The bound over such a norm is a subnormal number.
@example(batch=(np.zeros((1, 1)), np.full((1, 1), 1.7e308)), bound=1e-9)
def test_every_example_keeps_its_bound(build, batch, bound):
    for vector in one_by_one(build, *batch, bound):
        assert square(vector) <= STEPS**2


def test_single_precision_is_no_excuse_for_a_longer_vector():
    rng = np.random.default_rng(2)
    for d in (2, 3, 5):
        X = sparse.csr_matrix(100 * np.abs(rng.normal(size=(400, d)))).astype("f4")
        for vector in one_by_one(BUILDS["outer-csr"], X, np.ones((400, 1)), 1.0):
            assert square(vector) <= STEPS**2


@pytest.mark.parametrize("bound", [5e-324, 1e-305, 1e-170, 1e170, 1.7e308])
def test_an_extreme_bound_is_kept_or_refused(bound):
    block = np.array([[1e-306, 0.0], [1e-165, 1.0], [1e150, 3.0], [0.0, 5e-324]])
    try:
        query = BoundedQuery(contributions=lambda rows: rows.X, bound=bound)
    except ValueError as error:
        assert "bound" in str(error) and repr(bound) in str(error)
        return
    for vector in one_by_one(BUILDS["vectors"], block, block, query.bound):
        assert square(vector) <= STEPS**2


@every_build
@given(batch=batches(), bound=BOUND, data=st.data())
@settings(max_examples=60)
def test_removing_a_row_moves_the_sum_by_exactly_its_vector(build, batch, bound, data):
    X, c = batch
    gone = data.draw(st.integers(0, len(X) - 1))
    kept = np.flatnonzero(np.arange(len(X)) != gone)
    moved = vector_sum(build(X, c), bound) - vector_sum(build(X[kept], c[kept]), bound)
    assert moved.tolist() == one_by_one(build, X, c, bound)[gone]


@every_build
@given(batch=batches(), bound=BOUND, data=st.data())
@settings(max_examples=60)
def test_the_order_of_rows_does_not_matter(build, batch, bound, data):
    X, c = batch
    order = data.draw(st.permutations(range(len(X))))
    total = vector_sum(build(X, c), bound)
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, vector_sum(build(X[order], c[order]), bound))


@every_build
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["features", "coefficients"])
def test_a_row_that_is_no_number_equals_that_row_left_out(build, bad, place):
    if build is BUILDS["vectors"] and place == "coefficients":
        place = "features"
    rng = np.random.default_rng(3)
    X, c = rng.normal(size=(6, 4)), rng.normal(size=(6, 5))
    X[1], c[3] = 0.0, 0.0  # infinity times nothing is no number either
    kept = [0, 1, 3, 4, 5]
    without = vector_sum(build(X[kept], c[kept]), 0.5)
    (X if place == "features" else c)[2, 1] = bad
    np.testing.assert_array_equal(vector_sum(build(X, c), 0.5), without)
    if place == "coefficients":
        X[2] = 0.0
        np.testing.assert_array_equal(vector_sum(build(X, c), 0.5), without)


@every_build
@pytest.mark.parametrize(("d", "k"), [(1, 1), (3, 1), (4, 5)])
def test_an_empty_batch_sums_to_zeros_of_the_right_size(build, d, k):
    total = vector_sum(build(np.zeros((0, d)), np.zeros((0, k))), 1.0)
    assert total.dtype == np.int64
    width = formed(build, np.ones((1, d)), np.ones((1, k)))[0].size
    assert total.tolist() == [0] * width


def oracle(vector: FloatArray, bound: float) -> list[Fraction]:
    """Return the clipped example in lattice steps, before rounding, one at a time."""
    if not np.all(np.isfinite(vector)):
        return [Fraction(0)] * len(vector)
    exact = [Fraction(float(v)) for v in vector]
    norm = math.sqrt(sum(v * v for v in exact))
    room = bound * (1 - 0.5 * math.sqrt(len(vector)) / STEPS)
    factor = Fraction(1) if norm <= room else Fraction(room) / Fraction(norm)
    return [v * factor * STEPS / Fraction(bound) for v in exact]


@every_build
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", [1, 5])
def test_the_sum_is_that_of_a_loop_over_examples(build, dtype, k):
    rng = np.random.default_rng(4)
    X = (rng.normal(size=(40, 7)) * 10.0 ** rng.integers(-3, 4, (40, 1))).astype(dtype)
    X[rng.random(X.shape) < 0.3] = 0
    c, bound = rng.normal(size=(40, k)), 0.8
    X[5, 0] = math.nan
    found = one_by_one(build, X, c, bound)
    for rounded, vector in zip(found, formed(build, X, c), strict=True):
        exact = oracle(vector, bound)
        # Nearest integers, but for the float error of the norm and of the products.
        worst = max(abs(r - e) for r, e in zip(rounded, exact, strict=True))
        assert worst <= Fraction(1, 2) + Fraction(STEPS, 10**11)
    total = [sum(column) for column in zip(*found, strict=True)]
    assert vector_sum(build(X, c), bound).tolist() == total
    plain = plain_vector_sum(build(X, c), bound)
    np.testing.assert_allclose(plain * STEPS / bound, total, atol=0.5 * 40 + 1)


@given(
    numbers=st.lists(st.integers(-2000, 2000), min_size=12, max_size=12),
    k=st.sampled_from([1, 5]),
    dtype=st.sampled_from([np.float64, np.float32, np.int8, np.uint8, np.int64]),
)
def test_sparse_rows_sum_to_the_same_as_dense_ones(numbers, k, dtype):
    X = (np.array(numbers).reshape(4, 3) % 17 * (np.arange(3) != 1)).astype(dtype)
    c = np.linspace(-1.0, 1.0, 4 * k).reshape(4, k)
    pair = [OuterProduct(c, X), OuterProduct(c, sparse.csr_matrix(X))]
    wide, narrow = ([vector_sum(p, b) for p in pair] for b in (2.0**10, 0.5))
    np.testing.assert_array_equal(*wide)
    # Clipped, the two may add up a norm in another order and differ by a tie each.
    assert np.max(np.abs(narrow[0] - narrow[1])) <= 4


@every_build
def test_how_an_array_lies_in_memory_does_not_matter(build):
    rng = np.random.default_rng(6)
    X, c = rng.normal(size=(8, 6)), rng.normal(size=(8, 5))
    expected = vector_sum(build(X[::-1].copy(), c[::-1].copy()), 0.5)
    frozen = X.copy()
    frozen.setflags(write=False)
    for view in (X[::-1], np.asfortranarray(X)[::-1], frozen[::-1]):
        found = vector_sum(build(view, c[::-1]), 0.5)
        np.testing.assert_array_equal(found, expected)
    every_second = vector_sum(build(X[:, ::2], c), 0.5)
    packed = vector_sum(build(X[:, ::2].copy(), c), 0.5)
    np.testing.assert_array_equal(every_second, packed)


def test_rounding_is_to_the_nearest_step_and_nothing_is_lost_in_a_long_sum():
    steps = np.array([0.4, 0.6, -0.6, 1.4, -2.6])
    one = vector_sum(np.array([steps]) / STEPS, 1.0)
    assert one.tolist() == [0, 1, -1, 1, -3]
    rows = np.tile(np.array([[1.0 - 2e-7, 1 / STEPS]]), (200_000, 1))
    rows[::2, 0] *= -1
    rows[0, 0] = 0.0
    first = vector_sum(rows[1:2], 1.0)[0]
    assert vector_sum(rows, 1.0).tolist() == [first, 200_000]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_norm_does_not_depend_on_the_other_rows(order, dtype):
    rng = np.random.default_rng(5)
    X = np.asarray(rng.normal(size=(12, 9000)), dtype=dtype, order=order)
    together = row_norms(X)
    alone = [row_norms(X[i : i + 1])[0] for i in range(12)]
    assert together.tolist() == alone


NUMBER = st.one_of(COORDINATE, st.integers(-(2**31), 2**31).map(lambda n: n / 2**30))


@given(numbers=st.lists(NUMBER, max_size=6), bound=BOUND)
def test_numbers_keep_their_bound_and_add_up_exactly(numbers, bound):
    each = [number_sum(np.array([value]), bound) for value in numbers]
    assert all(isinstance(steps, int) and abs(steps) <= STEPS for steps in each)
    assert number_sum(np.array(numbers, dtype=float), bound) == sum(each)
    assert number_sum(np.array(numbers[::-1], dtype=float), bound) == sum(each)


@given(numerator=st.integers(-(2**31), 2**31), bound=st.integers(-12, 12))
def test_numbers_are_rounded_toward_zero(numerator, bound):
    """With dyadic numbers the quotient is exact, so truncation can be checked."""
    value, bound = numerator * 2.0 ** (bound - 30), 2.0**bound
    exact = Fraction(value) / Fraction(bound) * STEPS
    expected = max(-STEPS, min(STEPS, math.trunc(exact)))
    assert number_sum(np.array([value]), bound) == expected


@pytest.mark.parametrize("bound", [1.0, 0.25, 1e-3, 1e3])
def test_what_is_no_number_counts_as_zero_and_infinity_as_the_bound(bound):
    for value, expected in [
        (math.nan, 0),
        (math.inf, STEPS),
        (-math.inf, -STEPS),
        (1.7e308, STEPS),
        (-1.7e308, -STEPS),
        (5e-324, 0),
    ]:
        assert number_sum(np.array([value]), bound) == expected
    odd = np.array([[math.nan, math.inf], [1.7e308, -math.inf]])
    assert number_sums(odd, bound) == [STEPS, 0]


@given(batch=batches(), bound=BOUND)
@settings(max_examples=50)
def test_several_numbers_a_row_are_several_sums(batch, bound):
    scores = batch[1]
    columns = [number_sum(column, bound) for column in scores.T]
    assert number_sums(scores, bound) == columns
    assert number_sums(Columns(iter(scores.T)), bound) == columns
    assert number_sums(scores[:0], bound) == [0] * scores.shape[1]


def test_an_empty_batch_of_numbers_is_zero():
    assert number_sum(np.zeros(0), 1.0) == 0


@pytest.mark.parametrize(
    ("function", "contributions"),
    [
        (vector_sum, np.zeros(3)),
        (vector_sum, np.zeros((2, 2, 2))),
        (number_sum, np.zeros((3, 1))),
        (number_sum, OuterProduct(np.ones((1, 1)), np.ones((1, 1)))),
        (number_sums, np.zeros(3)),
        (number_sums, OuterProduct(np.ones((1, 1)), np.ones((1, 1)))),
    ],
)
def test_contributions_of_the_wrong_shape_are_refused(function, contributions):
    with pytest.raises(ValueError, match="Expected one"):
        function(contributions, 1.0)


@given(st.floats(0.0, 1e6))
def test_a_noise_scale_is_never_rounded_down(scale):
    steps = lattice_scale(scale)
    assert Fraction(scale) * STEPS <= steps < Fraction(scale) * STEPS + 1


def repeated(X, times):
    """CSR rows in which every entry stands ``times`` times, a part in each place."""
    whole = sparse.csr_array(X)
    return sparse.csr_array(
        (
            np.repeat(whole.data / times, times),
            np.repeat(whole.indices, times),
            whole.indptr * times,
        ),
        shape=whole.shape,
    )


@pytest.mark.parametrize("times", [2, 32])
def test_entries_that_stand_several_times_are_one(times):
    X = np.random.default_rng(0).integers(0, 3, (20, 6)).astype(float) * times
    X[3] = 0.0
    assert row_norms(repeated(X, times)) == pytest.approx(np.linalg.norm(X, axis=1))
    coefficients = np.ones((20, 1))
    found = vector_sum(OuterProduct(coefficients, repeated(X, times)), 5.0)
    expected = vector_sum(OuterProduct(coefficients, X), 5.0)
    assert found.tolist() == expected.tolist()


def test_columns_first_or_rows_first_have_the_norms_of_rows():
    X = np.random.default_rng(0).normal(size=(5, 5)) * 1e-150
    X[0] = 1.0
    norms = row_norms(X)
    assert row_norms(sparse.csc_array(X)) == pytest.approx(norms)
    assert (norms[1:] > 0).all()
