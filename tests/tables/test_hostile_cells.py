# SPDX-License-Identifier: Apache-2.0
"""No cell changes what other rows become, raises, warns, or is told by an error."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from armijo.errors import TableError
from armijo.estimators.encoders import ClassLabels, TableBlock
from armijo.tables import read_table
from armijo.tables.coder import coded_columns
from armijo.tables.frames import arrow_to_pandas, resolved_schema
from armijo.tables.stream import find_stream

N_ROWS = 6
NO_TEXT = pa.Array.from_buffers(
    pa.string(),
    1,
    [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff7")],
)


def texts(*cells):
    return pa.array(cells or [*"123123"])


def whole(kind, *cells):
    number = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(cells or range(N_ROWS), number).view(kind)


EARLIEST, LATEST = -(2**63) + 1, 2**63 - 1
HOSTILE = {
    "no UTF-8": (texts(), NO_TEXT),
    "no UTF-8 in a dictionary": (
        texts().dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), NO_TEXT),
    ),
    "long text": (texts(), texts("9" * 10**6)),
    "whole numbers": (whole(pa.int64(), 2**53 + 1, *range(5)), pa.array([None, 2**62])),
    "floats": (
        pa.array([1e16, 2, 3, 4, 5, 6]),
        pa.array([None, np.nan, np.inf, 5e-324, -0.0, -1.7e308]),
    ),
    "decimals": (
        pa.array(map(Decimal, range(N_ROWS)), pa.decimal128(38, 0)),
        pa.array([None, Decimal("9" * 38)], pa.decimal128(38, 0)),
    ),
    "days": (whole(pa.date32()), whole(pa.date32(), -(2**31), 2**31 - 1, None)),
    "part of a day": (
        pa.array(range(N_ROWS), pa.int32()).cast(pa.date32()).cast(pa.date64()),
        whole(pa.date64(), 1, 2**62),
    ),
    "nanoseconds": (whole(pa.time64("us")), whole(pa.time64("us"), -1, 86_400 * 10**6)),
    "a struct's null": (pa.array([{"u": 1}] * 6), pa.array([{"u": None}, None])),
    "a list's null": (pa.array([[1]] * 6), pa.array([[None], None])),
    **{
        f"{unit}, {zone}": (
            whole(pa.timestamp(unit, zone)),
            whole(pa.timestamp(unit, zone), EARLIEST, LATEST, None),
        )
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC", "America/New_York", "+05:30")
    },
}


def coded(table, path, kind, height):
    """Return what all rows become, read in blocks of a height."""
    pq.write_table(table, path)
    stream = find_stream(path, everything=True)
    schema, _ = resolved_schema({"x": kind}, stream.head().drop(columns="y"))
    labels = ClassLabels("y", np.array(["1", "2"]))
    encode = TableBlock(schema, coded_columns(schema), labels, ("x",))
    encode.refuse_types(stream.head())
    blocks = [encode(frame) for frame in stream.frames(["x", "y"], height)]
    cells = zip(*(block.X.cells for block in blocks), strict=True)
    return *map(np.concatenate, cells), np.concatenate([block.y for block in blocks])


@pytest.mark.parametrize("kind", ["categorical", "numeric", "date"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_row_in_a_file_changes_no_other(name, kind, tmp_path):
    cells, hostile = HOSTILE[name]
    one = pa.table({"x": cells, "y": texts()})
    more = pa.table({"x": hostile.cast(cells.type), "y": texts(*"1" * len(hostile))})
    try:
        alone = coded(one, tmp_path / "t.parquet", kind, 100)
    except TableError as error:  # of the type, which is public
        assert "Expected numbers in" in str(error) or "Expected dates in" in str(error)
        return
    for height in (1, 100):
        both = pa.concat_tables([one, more])
        found = coded(both, tmp_path / "t.parquet", kind, height)
        for own, other in zip(found, alone, strict=True):
            np.testing.assert_array_equal(own[:N_ROWS], other)


@pytest.mark.parametrize("label", [NO_TEXT, texts(None), texts("9" * 10**6)])
def test_a_label_in_a_file_changes_no_other(label, tmp_path):
    one = pa.table({"x": texts(), "y": texts()})
    both = pa.concat_tables(
        [one, pa.table({"x": texts("1"), "y": label.cast("string")})]
    )
    found = coded(both, tmp_path / "t.parquet", "numeric", 100)[-1]
    np.testing.assert_array_equal(found, [-1, 1, np.nan, -1, 1, np.nan, np.nan])


def test_a_date_far_away_is_no_label():
    days = pa.array([0, 2**30, None], pa.int32()).cast(pa.date32())
    frame = arrow_to_pandas(pa.table({"y": days}))
    assert (ClassLabels("y", np.array([0, 1])).places(frame) == -1).all()


def test_text_that_is_none_is_missing_in_a_file_that_is_read_whole(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": pa.concat_arrays([texts(), NO_TEXT])}), path)
    assert read_table(path)["x"].isna().tolist() == [False] * 6 + [True]


@pytest.mark.parametrize("levels", [["a", None], ["a", "a"], [1.0, np.nan]])
def test_a_dictionary_may_name_a_level_twice_or_none(levels):
    codes = pa.array([0, 1, None], pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(levels))
    found = arrow_to_pandas(pa.table({"x": column}))["x"]
    assert found[0] == levels[0] and len(found) == 3


def test_no_error_tells_a_cell(monkeypatch):
    def raises(column):
        raise pa.ArrowInvalid(f"Value {column[0]} does not fit")

    monkeypatch.setattr("armijo.tables.frames._plain_column", raises)
    with pytest.raises(TableError, match="int64") as caught:
        arrow_to_pandas(pa.table({"x": pa.array([70_000_001])}))
    assert "70000001" not in str(caught.value)
