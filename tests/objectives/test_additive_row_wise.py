# SPDX-License-Identifier: Apache-2.0
"""What a row of a coded table adds to each release: at most its weight, in any company.

Every release of a run is asked again, at the values that were released, about a row
alone and about other tables with it and without it.  What is compared are the integers
to which the gate adds noise, as Python's.
"""

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from armijo.data import integer_rows
from armijo.data.coded import CodedRows, CodedTable
from armijo.data.query import CertifiedSum, Rows
from armijo.methods import additive, descent
from armijo.objectives.cells import Layout
from tests.objectives.table_doubles import (
    COLUMNS,
    LOSSES,
    all_queries,
    inserted,
    sums,
    table_of,
)

NAN, INF, TINY = math.nan, math.inf, 5e-324
NOBODY = CodedTable(COLUMNS, tuple(np.empty(0) for _ in COLUMNS))
ROWS = {
    "usual": (37.0, 2e4, 100.0, 1, 3),
    "all missing": (NAN, NAN, NAN, -1, -1),
    "infinite": (INF, INF, INF, 0, 0),
    "minus infinite": (-INF, -INF, -INF, 1, 39),
    "huge": (1e308, -1e308, 1.7e308, 1, 5),
    "denormal": (TINY, -TINY, TINY, 0, 0),
    "no level": (1.0, 1.0, 1.0, 7, 2.0**40),
    "levels that are no numbers": (1.0, 1.0, 1.0, NAN, INF),
    "levels of any size": (1.0, 1.0, 1.0, 1e300, -1e300),
    "at borders": (100.0, 2.0**14, 0.0, 0, 1),
    "at other borders": (0.0, -0.0, -1.0, 0, 1),
}
ALL, USUAL = tuple(ROWS.values()), (ROWS["usual"],)
LABELS = {
    "logistic": (1.0, -1.0),
    "softmax": (0.0, 2.0),
    "squared": (50.0, 1e308, -1e308, TINY),
    "huber": (50.0, -1e308),
}
BLANKS = {
    "logistic": (0.0, NAN, INF, -INF, 1e300, 0.5),
    "softmax": (3.0, -1.0, 0.5, NAN, INF, 1e300),
    "squared": (NAN, INF, -INF),
    "huber": (NAN, INF),
}


def alone(row, label):
    return inserted(NOBODY, np.empty(0), row, label, 0)


def company(size, loss, seed):
    """Return other rows: usual ones, and some that nobody should notice."""
    table, y = table_of(size, loss, seed)
    cells = [column.astype(float) for column in table.cells]
    odd = list(ROWS.values())[1:]
    for place in range(0, size, 3):
        for column, cell in zip(cells, odd[place % len(odd)], strict=True):
            column[place] = cell
    y[::5] = BLANKS[loss][seed % len(BLANKS[loss])]
    weight = np.random.default_rng(seed).random(size)
    weight[1::7] = NAN
    return CodedTable(COLUMNS, tuple(cells)), y, weight


def queries(loss, class_weight=None):
    found = all_queries(loss, class_weight)
    return {name: query for name, (query, _) in found.items()}


def steps(loss, bits):
    """Return how many steps one bound has, for each release."""
    X, y, _ = CodedRows(*alone(ROWS["usual"], 1.0)).take(None)
    finest = {
        name: query.contributions(Rows(X, y)).finest
        for name, query in queries(loss).items()
    }
    return {name: 2 ** min(bits, most) for name, most in finest.items()}


def differing(loss, sizes=(1, 2, 17, 600, 2500), rows=USUAL):
    """Return the releases to which a row adds other integers in some company."""
    asked, found = queries(loss), set()
    label, blank = LABELS[loss][0], BLANKS[loss][0]
    for row, (seed, size) in product(rows, enumerate(sizes)):
        own = sums(asked, *alone(row, label), np.array([1 / 3]))
        table, y, weight = company(size, loss, seed)
        without = sums(asked, table, y, weight)
        for place in sorted({0, size // 2, size}):
            weights = np.insert(weight, place, 1 / 3)
            total = sums(asked, *inserted(table, y, row, label, place), weights)
            other = sums(asked, *inserted(table, y, row, blank, place), weights)
            for name in asked:
                moved = total[name] - without[name]
                if (moved != own[name]).any() or (other[name] != without[name]).any():
                    found.add(name)
    return found


def too_long(loss, weight, bits, copies=1, rows=ALL):
    """Return the releases to which rows add more than the weight of all of them."""
    found, one = set(), steps(loss, bits)
    for row, label in product(rows, LABELS[loss]):
        table, y = alone(row, label)
        many = np.zeros(copies, dtype=int)
        weights = np.full(copies, weight)
        for name, total in sums(
            queries(loss), table[many], y[many], weights, bits
        ).items():
            if square(total) > (Fraction(weight) * copies * one[name]) ** 2:
                found.add(name)
    return found


def square(values):
    return sum(value**2 for value in values)


@pytest.mark.parametrize("loss", LOSSES)
class TestEveryRelease:
    def test_a_row_adds_the_same_in_any_company(self, loss):
        assert differing(loss) == set()

    def test_so_does_a_row_that_is_odd(self, loss):
        assert differing(loss, (4,), ALL[1:]) == set()

    @pytest.mark.parametrize("bits", [40, 23, 7])
    def test_a_row_adds_at_most_its_weight(self, loss, bits):
        for weight in (1.0, 1 / 3, TINY):
            assert too_long(loss, weight, bits) == set()

    @pytest.mark.parametrize("copies", [3, 49, 200])
    def test_rows_of_one_person_add_at_most_one_together(self, loss, copies):
        """A weight of one over m is rounded; so are the products: toward zero."""
        rows = tuple(ROWS[name] for name in ("usual", "huge", "at borders"))
        for bits in (40, 7):
            assert too_long(loss, 1 / copies, bits, copies, rows) == set()

    def test_some_row_adds_nearly_its_weight(self, loss):
        """Else the bound would hold of anything."""
        most, one = dict.fromkeys(queries(loss), 0.0), steps(loss, 40)
        for row, label in product(ROWS.values(), LABELS[loss]):
            for name, total in sums(queries(loss), *alone(row, label)).items():
                most[name] = max(most[name], math.sqrt(square(total)) / one[name])
        for name, share in most.items():
            small = "recalibration" in name or "drops" in name
            assert share >= (0.02 if small else 0.2), name

    def test_a_row_without_a_label_adds_nothing_and_warns_of_nothing(self, loss):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for row, label in product(ROWS.values(), BLANKS[loss]):
                found = sums(queries(loss), *alone(row, label))
                assert not any(total.any() for total in found.values()), (row, label)

    def test_weights_are_cut_to_the_unit_interval(self, loss):
        table, y = alone(ROWS["usual"], LABELS[loss][0])
        whole = sums(queries(loss), table, y)
        for weight in (1.0, 5.0, 1e308, INF):
            found = sums(queries(loss), table, y, np.array([weight]))
            assert all((found[name] == whole[name]).all() for name in whole), weight
        for weight in (0.0, -1.0, NAN, -INF):
            found = sums(queries(loss), table, y, np.array([weight]))
            assert not any(total.any() for total in found.values()), weight

    def test_threads_and_memory_change_nothing(self, loss, monkeypatch):
        given = company(1500, loss, 1)
        with threadpool_limits(1):
            once = sums(queries(loss), *given)

        def same():
            found = sums(queries(loss), *given)
            return all((found[name] == once[name]).all() for name in once)

        with threadpool_limits(2):
            assert same()
        for place, value in (("_BLOCK", 9999), ("_HELD", 0), ("_MEMORY_SHARE", 0.0)):
            with monkeypatch.context() as patch:
                patch.setattr(integer_rows, place, value)
                assert same(), place

    def test_the_noise_is_for_the_bound_of_the_query(self, loss):
        for name, (query, mechanism) in all_queries(loss).items():
            assert query.bound <= mechanism.sensitivity, name


class TestClassWeights:
    @pytest.mark.parametrize("class_weight", ["balanced", (0.25, 1.0), (3.0, 0.0)])
    def test_they_only_make_contributions_smaller(self, class_weight):
        asked, one = queries("logistic", class_weight), steps("logistic", 24)
        for label in (1.0, -1.0):
            given = *alone(ROWS["usual"], label), np.array([0.7])
            for name, total in sums(asked, *given, 24).items():
                assert square(total) <= (Fraction(0.7) * one[name]) ** 2, name

    def test_a_class_of_weight_zero_adds_to_counts_only(self):
        asked = queries("logistic", (3.0, 0.0))
        for name, total in sums(asked, *alone(ROWS["usual"], 1.0)).items():
            assert total.any() == name.startswith(("scales", "counts")), name


class TestPlantedBugs:
    """The same comparisons find what they are there for."""

    def test_rounding_to_nearest(self, monkeypatch):
        monkeypatch.setattr(np, "trunc", np.rint)
        assert "counts 0 0" in too_long("logistic", 1 / 70, 7, 70, USUAL)
        assert "scales 0 0" in too_long("logistic", 1 / 150, 7, 150, USUAL)

    def test_no_clipping(self, monkeypatch):
        monkeypatch.setattr(
            integer_rows, "_clipped", lambda values, lengths, bound: values.copy()
        )
        found = too_long("squared", 1.0, 23)
        assert {"step 0 0 gradient", "step 1 9 gradient"} <= found

    def test_weights_before_clipping(self, monkeypatch):
        real = descent.product_sum

        def early(slopes, outputs, rows, constant, bound):
            def weighted(part, block):
                return slopes(part, block) * rows.weight[part, None]

            whole = replace(rows, weight=np.ones(len(rows)))
            return real(weighted, outputs, whole, constant, bound)

        monkeypatch.setattr(descent, "product_sum", early)
        assert "step 1 9 gradient" in too_long("squared", 1 / 3, 24)

    def test_weights_that_are_forgotten(self, monkeypatch):
        monkeypatch.setattr(additive, "weights", lambda rows: np.ones(rows.size))
        found = too_long("logistic", 1 / 3, 24, 3, USUAL)
        assert {"counts 0 0", "moments 0 0", "step 0 0 gradient"} <= found

    def test_two_cells_of_a_column(self, monkeypatch):
        real = Layout.places

        def doubled(self, columns):
            for places in real(self, columns):
                yield places
                yield np.zeros_like(places)

        monkeypatch.setattr(Layout, "places", doubled)
        assert "counts 0 0" in too_long("logistic", 1.0, 24)

    def test_factors_that_are_forgotten(self, monkeypatch):
        real = additive.count_sum
        monkeypatch.setattr(additive, "count_sum", lambda *given: real(*given[:4]))
        assert too_long("logistic", 1.0, 24) == {"scales 0 0"}

    def test_a_branch_on_the_batch(self, monkeypatch):
        real = descent.multiplier

        def branching(weights):
            times = real(weights)
            return lambda block: times(block) * (1 + 1e-3 * (len(block) > 600))

        monkeypatch.setattr(descent, "multiplier", branching)
        assert "step 1 9 gradient" in differing("logistic")

    def test_sums_in_single_precision(self, monkeypatch):
        real = descent.moment_sum

        def rounded(rows, radius):
            exact = real(rows, radius)
            return CertifiedSum(
                lambda bits: exact.integers(bits).float().long(),
                exact.plain,
                exact.dtype,
                exact.finest,
            )

        monkeypatch.setattr(descent, "moment_sum", rounded)
        assert differing("logistic") == {"moments 0 0", "moments 1 0"}
