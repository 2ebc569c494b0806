# SPDX-License-Identifier: Apache-2.0
"""Tables are coded by their schema, a row at a time, and columns must be there."""

import numpy as np
import pandas as pd
import pytest

from armijo.data.coded import CategoryColumn, NumericColumn
from armijo.errors import TableError
from armijo.tables import Date, Label, Numeric, Person, Schema
from armijo.tables.coder import code_column, code_table, coded_columns


def test_a_table_by_hand(frame, schema):
    table = code_table(frame, schema)
    assert table.columns == (
        NumericColumn(name="age", low=0.0, high=100.0),
        CategoryColumn(name="workclass", n_levels=4),
    )
    assert [cells.tolist() for cells in table.cells] == [[50, 17, 120], [1, 0, 2]]
    assert code_column(frame, schema.response).tolist() == [1, 0, 1]


def test_blocks_give_the_same_rows(frame, schema):
    whole = code_table(frame, schema)
    for place in range(len(frame)):
        block = code_table(frame.iloc[place : place + 1], schema)
        for cells, alone in zip(whole.cells, block.cells, strict=True):
            assert cells[place] == alone[0]


def test_the_frame_is_left_alone(frame, schema):
    frame["age"] = frame["age"].astype(float)
    before = frame.copy()
    table = code_table(frame, schema)
    table.cells[0][:] = -1.0
    pd.testing.assert_frame_equal(frame, before)


def test_directions_are_for_numbers_only(schema):
    columns = coded_columns(schema, {"age": -1})
    assert columns[0].monotone == -1
    for name, told in (("workclass", "numeric are 'age'"), ("Age", "mean 'age'")):
        with pytest.raises(ValueError, match=told):
            coded_columns(schema, {name: 1})
    with pytest.raises(ValueError, match="never falls"):
        coded_columns(schema, {"age": 2})
    dated = Schema(columns=(Date("d"),))
    assert coded_columns(dated, {"d.days": 1})[0].monotone == 1


def test_columns_that_are_no_features_may_be_absent(frame, schema):
    expected = code_table(frame, schema)
    alone = code_table(frame[["workclass", "age"]], schema)
    for cells, other in zip(expected.cells, alone.cells, strict=True):
        np.testing.assert_array_equal(cells, other)
    with pytest.raises(TableError, match=r"'income' \(label\).*got 'workclass', 'age'"):
        code_column(frame[["workclass", "age"]], schema.response)


def test_faults_of_all_columns_are_collected(frame, schema):
    frame = frame.astype(object)
    frame.loc[0, "age"], frame.loc[1, "workclass"] = "old", "Publi"
    faults = []
    code_table(frame, schema, faults=faults)
    code_column(frame, Person("note"), faults)
    assert [fault.column for fault in faults] == ["age", "age", "workclass", "note"]
    assert [fault.rows for fault in faults] == [(1,), (3,), (2,), (2,)]


def test_a_table_without_rows_or_with_other_columns_is_refused(frame, schema):
    with pytest.raises(TableError, match="an empty table"):
        code_table(frame.iloc[:0], schema)
    with pytest.raises(TableError, match="it has 'z', which the schema does not name"):
        code_table(frame.assign(z=1), schema)
    few = Schema(
        columns=(Numeric("ages"), Label("income", ("a", "b"))), target="income"
    )
    with pytest.raises(TableError, match=r"lacks 'ages' \(did you mean 'age'\?\)"):
        code_table(frame, few)
