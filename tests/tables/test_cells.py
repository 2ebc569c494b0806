# SPDX-License-Identifier: Apache-2.0
"""One meaning per cell, whatever the file it came from."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.tables.cells import (
    category_text,
    distinct_texts,
    listed,
    shown,
    suggestion,
    to_numbers,
)


@pytest.mark.parametrize(
    ("same", "text"),
    [
        (
            (
                1,
                1.0,
                "1",
                "1.0",
                " 1 ",
                "1.",
                np.int8(1),
                np.float32(1),
                Decimal("1.00"),
            ),
            "1",
        ),
        ((True, "True", "true", "TRUE", np.True_), "True"),
        ((False, "false"), "False"),
        ((0, 0.0, -0.0, "-0", "-0.0", "+0"), "0"),
        ((0.1, "0.1", np.float32(0.1)), "0.1"),
        ((1e16, "1e+16"), "1e+16"),
        ((9007199254740993, "9007199254740993"), "9007199254740993"),
    ],
)
def test_equal_categories_have_one_text(same, text):
    assert {category_text(value) for value in same} == {text}


@pytest.mark.parametrize("text", ["01", "1.5", "1.50", "A.0", "1.0.0", "NA", "None"])
def test_other_texts_stay(text):
    assert category_text(text) == text


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans()))
def test_a_category_text_is_its_own_category_text(value):
    assert category_text(category_text(value)) == category_text(value)


@given(st.floats(allow_nan=False))
def test_a_number_is_the_category_that_its_csv_text_is(value):
    assert category_text(value) == category_text(repr(value))


def test_mixed_objects_are_compared_by_text():
    codes, texts = distinct_texts(pd.Series([True, 1, "1", None, [1]], dtype=object))
    found = [texts[code] if code >= 0 else None for code in codes]
    assert found == ["True", "1", "1", None, "[1]"]


@pytest.mark.parametrize(
    "series",
    [
        pd.Series(["1.5", " -2 ", "+3", None, "1e3"], dtype="str"),
        pd.Series(["1.5", "-2", "3", "na", "1000"], dtype="str"),
        pd.Series(["1.5", "-2", "3", " ", "1_000"], dtype="str").replace(
            "1_000", "1e3"
        ),
        pd.Series([1.5, "-2", Decimal(3), None, 1000], dtype=object),
        pd.Series(["1.5", "-2", "3", None, "1e3"], dtype=object),
        pd.Series([1.5, -2, 3, np.nan, 1000]),
        pd.Series([1.5, -2, 3, None, 1000], dtype="Float64"),
        pd.Series([1.5, -2, 3, None, 1000], dtype="category"),
    ],
)
def test_numbers_are_read_from_every_type(series):
    values, bad = to_numbers(series)
    np.testing.assert_array_equal(values, [1.5, -2.0, 3.0, np.nan, 1000.0])
    assert not bad.any()


@pytest.mark.parametrize(
    "series",
    [
        pd.Series(["a", None, "1_000", "0x10", "1,5"], dtype="str"),
        pd.Series([True, None, False, True, True], dtype="boolean"),
        pd.Series([1j, np.nan, 2, 3, 4]),
        pd.Series([b"1", None, b"2", b"3", b"4"], dtype=object),
        pd.Series(["\ud800", None, "\ud800", "a", "b"], dtype=object),
    ],
)
def test_what_is_no_number_is_marked(series):
    np.testing.assert_array_equal(
        to_numbers(series)[1], [True, False, True, True, True]
    )


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_text_gives_exactly_the_printed_number(numbers):
    values, bad = to_numbers(pd.Series([repr(n) for n in numbers], dtype="str"))
    assert values.tolist() == numbers and not bad.any()


def test_messages_stay_short():
    assert shown("x" * 100) == repr("x" * 60 + "...")
    assert shown("a\nb") == r"'a\nb'"
    assert listed(range(7)) == "'0', '1', '2', '3', '4' and 2 more"


def test_nothing_close_is_no_suggestion():
    assert suggestion("zebra", ["Private"]) == ""
