# SPDX-License-Identifier: Apache-2.0
"""Frames of three libraries are the same table, and their types say what is public."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

from armijo.errors import TableError
from armijo.tables import (
    Boolean,
    Categorical,
    Date,
    Ignore,
    Numeric,
    Person,
    Schema,
)
from armijo.tables.coder import code_table
from armijo.tables.frames import (
    FROM_DTYPES,
    PUBLIC_CATEGORIES,
    PUBLIC_DTYPES,
    column_of_type,
    is_frame,
    numeric_schema,
    resolved_schema,
    to_frame,
)

CELLS = {
    "age": [31, None, 45],
    "pay": [1e4, 2.5, None],
    "name": ["x", None, "y"],
    "size": ["S", "L", None],
    "good": [True, None, False],
    "born": [datetime.date(2000, 2, 1), None, datetime.date(1999, 1, 1)],
    "seen": [datetime.datetime(2000, 2, 1, 5), None, datetime.datetime(1999, 1, 1)],
}


def pandas_frame():
    return pd.DataFrame(
        {
            "age": pd.array(CELLS["age"], dtype="Int64"),
            "pay": CELLS["pay"],
            "name": pd.array(CELLS["name"], dtype="string"),
            "size": pd.Categorical(CELLS["size"], categories=["S", "M", "L"]),
            "good": pd.array(CELLS["good"], dtype="boolean"),
            "born": pd.array(CELLS["born"], dtype=pd.ArrowDtype(pa.date32())),
            "seen": pd.to_datetime(pd.Series(CELLS["seen"])),
        }
    )


def arrow_table():
    columns = {name: pa.array(cells) for name, cells in CELLS.items()}
    codes = pa.array([0, 2, None], pa.int32())
    columns["size"] = pa.DictionaryArray.from_arrays(codes, ["S", "M", "L"])
    return pa.table(columns)


def polars_frame():
    enum = polars.Series("size", CELLS["size"], dtype=polars.Enum(["S", "M", "L"]))
    return polars.DataFrame(CELLS).with_columns(enum)


FRAMES = [pandas_frame, arrow_table, polars_frame]


@pytest.mark.parametrize("make", FRAMES)
@pytest.mark.parametrize("declared", [None, FROM_DTYPES])
def test_three_libraries_have_the_same_rows(make, declared):
    frame = make()
    assert is_frame(frame) and not is_frame(np.zeros((2, 2)))
    schema, assumed = resolved_schema(declared, to_frame(frame))
    assert schema.columns == (
        Numeric("age"),
        Numeric("pay"),
        Categorical("name"),
        Categorical("size", ("S", "M", "L") if declared else None),
        Boolean("good"),
        Date("born"),
        Date("seen", time=True),
    )
    assert assumed == (PUBLIC_DTYPES, PUBLIC_CATEGORIES)[: 2 if declared else 1]
    expected = code_table(pandas_frame(), schema)
    table = code_table(to_frame(frame), schema)
    for cells, others in zip(table.cells, expected.cells, strict=True):
        np.testing.assert_array_equal(cells, others)
    if declared:
        assert table.cells[3].tolist() == [0, 2, -1]


def test_arrow_types_within_pandas_are_the_same():
    frame = arrow_table().to_pandas(types_mapper=pd.ArrowDtype)
    schema, _ = resolved_schema(None, frame)
    assert schema == resolved_schema(None, pandas_frame())[0]
    expected = code_table(pandas_frame(), schema).cells
    for cells, others in zip(code_table(frame, schema).cells, expected, strict=True):
        np.testing.assert_array_equal(cells, others)
    nested = pd.ArrowDtype(pa.dictionary(pa.int8(), pa.list_(pa.string())))
    assert column_of_type("x", nested) is None


def test_a_dict_adds_to_what_types_say():
    told = {
        "age": (0, 120),
        "pay": {"low": 0.0},
        "name": "ignore",
        "size": ["S", "L"],
        "born": (None, "2020-01-01"),
        "good": "person",
        "seen": Date("seen"),
    }
    schema, assumed = resolved_schema(told, pandas_frame())
    assert schema.columns == (
        Numeric("age", 0, 120),
        Numeric("pay", low=0),
        Ignore("name"),
        Categorical("size", ("S", "L")),
        Person("good"),
        Date("born", high="2020-01-01"),
        Date("seen"),
    )
    assert assumed == ()  # every column was declared
    assert resolved_schema({"age": (0, 120)}, pandas_frame())[1] == (PUBLIC_DTYPES,)
    named, _ = resolved_schema(None, pandas_frame(), person="name")
    assert named.person == "name"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"agee": (0, 1)}, "did you mean 'age'"),
        ({"age": (1, 0)}, "column 'age': Expected low < high"),
        ({"age": "number"}, "got 'number'; declare it so"),
        ({"age": 3}, "a tuple of bounds, a list of categories"),
        ({"age": {"lo": 3}}, "column 'age': Expected the keys name, low, high"),
        ({"age": "label"}, "give labels as y"),
        ({"size": []}, "at least 1 categories"),
        (dict.fromkeys(CELLS, "ignore"), "at least one column to learn from"),
    ],
)
def test_a_bad_dict_is_refused_with_what_to_declare(told, message):
    with pytest.raises(TableError, match=message):
        resolved_schema(told, pandas_frame())


@pytest.mark.parametrize(
    "cells", [[1, "a"], [{}, 1], [1j, 2j], pd.to_timedelta([1, 2], unit="s")]
)
def test_a_type_that_does_not_say_what_it_is_must_be_declared(cells):
    series = pd.Series(cells)
    frame = pd.DataFrame({"x": [0.5, 1.5], "odd": series})
    with pytest.raises(TableError, match=r"schema={'odd': .categorical.}"):
        resolved_schema(None, frame)
    schema, _ = resolved_schema({"odd": "categorical"}, frame)
    assert schema.columns[1] == Categorical("odd")


def test_a_file_and_a_schema_are_complete(tmp_path, schema, frame):
    (tmp_path / "s.toml").write_text(schema.to_toml())
    for given in (schema, tmp_path / "s.toml", str(tmp_path / "s.toml")):
        assert resolved_schema(given, frame) == (schema, ())
    named, _ = resolved_schema(schema, frame, person="note")
    assert named.person == "note" and named.target == schema.target
    with pytest.raises(TableError, match="Expected the person column"):
        resolved_schema(schema, frame, person="income")


def test_decimals_are_numbers_and_nested_cells_are_not():
    table = pa.table({"d": pa.array([Decimal("1.25"), None]), "x": [1, 2]})
    schema, _ = resolved_schema(None, to_frame(table))
    assert schema.columns[0] == Numeric("d")
    nested = to_frame(pa.table({"n": pa.array([[1], []]), "x": [1, 2]}))
    with pytest.raises(TableError, match="'n' of type object"):
        resolved_schema(None, nested)


def test_an_array_is_numbers():
    assert numeric_schema(2) == Schema(
        columns=(Numeric("x0"), Numeric("x1")), reviewed=True
    )
