# SPDX-License-Identifier: Apache-2.0
"""Features of linear models come from the schema alone."""

import dataclasses
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import (
    Categorical,
    Label,
    Numeric,
    Schema,
    Target,
    category_text,
    encode,
    read_table,
)
from armijo.tables.linear import UNKNOWN_LABEL


def with_column(schema, column):
    columns = [column if c.name == column.name else c for c in schema.columns]
    return dataclasses.replace(schema, columns=columns)


def test_the_encoding_by_hand(frame, schema):
    X, y = encode(frame, schema)
    np.testing.assert_array_equal(X, [[0.5, 0, 1, 0], [0.17, 1, 0, 0], [1.0, 0, 0, 1]])
    np.testing.assert_array_equal(y, [1, 0, 1])
    assert X.dtype == np.float64 and y.dtype == np.int64 and X.flags.c_contiguous


def test_the_order_of_columns_and_the_index_do_not_matter(frame, schema):
    turned = frame[frame.columns[::-1]].set_axis([7, 7, 7], axis=0)
    for one, other in zip(encode(frame, schema), encode(turned, schema), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_frame_is_left_alone(frame, schema):
    frame["age"] = frame["age"].astype(float)
    before = frame.copy()
    encode(frame, schema)
    pd.testing.assert_frame_equal(frame, before)


def test_ignored_columns_and_the_target_of_a_prediction_may_be_absent(frame, schema):
    expected = encode(frame, schema)[0]
    for names in (["note"], ["income"], ["note", "income"], []):
        X, y = encode(frame.drop(columns=names), schema, with_target=False)
        np.testing.assert_array_equal(X, expected)
        assert y is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"age": "Age"}, r"lacks 'age' \(did you mean 'Age'\?\) and it has 'Age'"),
        ({"income": "z"}, "it has 'z', which the schema does not name"),
        (
            {"age": "39", "workclass": "Private", "note": "1", "income": "No"},
            "begin with a line of column names",
        ),
        ({"note": "extra"}, "it has 'extra', which the schema does not name"),
        ({"note": "age"}, "names to be text and to differ"),
        ({"note": 3}, "names to be text and to differ"),
    ],
)
def test_columns_that_do_not_fit_are_named(frame, schema, names, message):
    with pytest.raises(TableError, match=message):
        encode(frame.rename(columns=names), schema)


def test_a_table_without_its_target_is_refused(frame, schema):
    with pytest.raises(TableError, match=r"column 'income' \(label\)"):
        encode(frame.drop(columns="income"), schema)


def test_many_missing_columns_are_counted(schema):
    columns = [*(Numeric(f"x{i}", 0, 1) for i in range(9)), schema.response]
    wide = Schema(columns=columns, target="income")
    with pytest.raises(TableError, match="'x4' and 4 more"):
        encode(pd.DataFrame({"income": ["<=50K"]}), wide)


def test_a_frame_without_rows_is_refused(frame, schema):
    with pytest.raises(TableError, match="an empty table"):
        encode(frame.iloc[:0], schema)


def test_missing_numbers_are_in_the_middle_and_infinite_ones_at_the_ends(frame, schema):
    for ages in ([np.nan, np.inf, -3.0], ["old", "inf", "-3"]):
        frame["age"] = ages
        np.testing.assert_array_equal(encode(frame, schema)[0][:, 0], [0.5, 1.0, 0.0])


def test_other_and_missing_categories_are_zeros(frame, schema):
    frame["workclass"] = ["Private", "another", None]
    expected = [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(encode(frame, schema)[0][:, 1:], expected)


def test_numbers_without_bounds_and_targets_without_classes_are_refused(frame, schema):
    loose = with_column(schema, Numeric("age", 0))
    with pytest.raises(TableError, match=r"none of 'age'.*default method"):
        encode(frame, loose)
    with pytest.raises(TableError, match="PrivateRegressor"):
        encode(frame, with_column(schema, Target("income", 0, 1)))


def test_one_class_alone_is_no_error_here(frame, schema):
    frame["income"] = "<=50K"
    np.testing.assert_array_equal(encode(frame, schema)[1], [0, 0, 0])


@pytest.mark.parametrize(
    "cells",
    [
        pd.Series([1, 2, 1]),
        pd.Series([1.0, 2.0, 1.0], dtype="float32"),
        pd.Series([1, 2, 1], dtype="Int64"),
        pd.Series([1, 2, 1], dtype="category"),
        pd.Series(["1", "2.0", " 1 "]),
        pd.Series([1, "2", Decimal("1.0")], dtype=object),
    ],
)
def test_numbers_as_categories_are_one_whatever_their_type(cells):
    schema = Schema(
        columns=(Categorical("a", (1, "2")), Label("y", (2.0, 1))), target="y"
    )
    X, y = encode(pd.DataFrame({"a": cells, "y": cells}), schema)
    np.testing.assert_array_equal(X, [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(y, [1, 0, 1])


def test_truth_values_are_categories(tmp_path):
    schema = Schema(
        columns=(Categorical("a", (True, False)), Label("y", ("u", "v"))), target="y"
    )
    frame = pd.DataFrame({"a": [True, False], "y": ["u", "v"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, read_table(tmp_path / "t.csv")):
        np.testing.assert_array_equal(encode(table, schema)[0], [[1, 0], [0, 1]])


# Pandas writes a lone carriage return without quotes, where it ends the row.
text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1
)
levels = st.lists(
    text.map(category_text).filter(bool), min_size=2, max_size=6, unique=True
)
floats = st.floats(allow_nan=False, allow_infinity=False)
bounds = st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2, unique=True)


@st.composite
def tables(draw):
    """Return a frame of several types and a schema it fits."""
    size = draw(st.integers(1, 8))

    def column(cells):
        return draw(st.lists(cells, min_size=size, max_size=size))

    categories, classes = draw(levels), draw(levels)
    small, large = sorted(draw(bounds))
    frame = pd.DataFrame(
        {
            "number": column(floats),
            "whole": pd.array(column(st.integers(-(2**60), 2**60)), dtype="int64"),
            "text": column(st.sampled_from(categories)),
            "code": pd.array(column(st.none() | st.integers(0, 3)), dtype="Int64"),
            "flag": column(st.booleans()),
            "y": column(st.sampled_from(classes)),
        }
    )
    columns = (
        Numeric("number", small, large),
        Numeric("whole", -(2.0**59), 2.0**59),
        Categorical("text", tuple(categories)),
        Categorical("code", (0, 1, 2)),
        Categorical("flag", (False, True)),
        Label("y", tuple(classes)),
    )
    return frame, Schema(columns=columns, target="y")


@settings(max_examples=40)
@given(table=tables())
def test_csv_and_parquet_give_the_same_rows(tmp_path_factory, table):
    frame, schema = table
    folder = tmp_path_factory.mktemp("tables")
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.csv.gz", index=False, sep=";")
    frame.to_parquet(folder / "t.parquet")
    X, y = encode(frame, schema)
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        again = encode(read_table(folder / name, multiline=True), schema)
        np.testing.assert_array_equal(again[0], X)
        np.testing.assert_array_equal(again[1], y)


@settings(max_examples=60)
@given(table=tables())
def test_features_are_in_the_unit_interval_and_each_row_stands_alone(table):
    frame, schema = table
    X, y = encode(frame, schema)
    assert X.shape == (len(frame), len(schema.feature_names))
    assert (X >= 0).all() and (X <= 1).all()
    assert [schema.classes[place] for place in y] == list(frame["y"])
    alone = encode(frame.iloc[-1:], schema)
    np.testing.assert_array_equal(alone[0], X[-1:])


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("age", None),
        ("age", "old"),
        ("age", "-inf"),
        ("workclass", "x"),
        ("workclass", ""),
        ("income", "none of them"),
        ("income", None),
    ],
)
def test_a_cell_that_does_not_fit_changes_its_own_row_only(frame, schema, column, cell):
    frame = frame.astype(object)
    X, y = encode(frame, schema)
    frame.loc[1, column] = cell
    found_X, found_y = encode(frame, schema)
    assert (found_y[1] == UNKNOWN_LABEL) is np.bool_(column == "income")
    for kept in (0, 2):
        np.testing.assert_array_equal(found_X[kept], X[kept])
        assert found_y[kept] == y[kept]
