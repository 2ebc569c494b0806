# SPDX-License-Identifier: Apache-2.0
"""Files that are tables are read; all others are refused with a reason."""

import gzip

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import read_table, reader

ROWS = [["a", "b c"], ["1", "x, y"], ["007", "NA"]]


def write(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def cells(frame):
    return [list(frame.columns), *frame.astype(object).to_numpy().tolist()]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_line_ends_and_marks(tmp_path, delimiter, end, mark):
    lines = [delimiter.join(f'"{cell}"' for cell in row) for row in ROWS]
    assert cells(read_table(write(tmp_path, mark + end.join(lines) + end))) == ROWS


def test_gzip_and_capital_endings(tmp_path):
    content = gzip.compress(b'a,b c\n1,"x, y"\n007,NA\n', mtime=0)
    assert cells(read_table(write(tmp_path, content, "T.CSV.GZ"))) == ROWS


def test_quoted_cells_may_hold_line_ends_and_quotes(tmp_path):
    path = write(tmp_path, 'a,b\n"1\n2","say ""x"""\r\n"3\r4",5\n6,"open\n7,8\n')
    frame = read_table(path, multiline=True)
    assert cells(frame)[1:3] == [["1\n2", 'say "x"'], ["3\r4", "5"]]
    assert len(frame) == 3 and frame.iloc[2].isna().all()


def test_names_are_stripped_and_empty_ones_filled(tmp_path):
    frame = read_table(write(tmp_path, "\n\n, b ,c\n0,1,2\n"))
    assert list(frame.columns) == ["unnamed_1", "b", "c"]


def test_empty_cells_are_missing_and_words_are_not(tmp_path):
    frame = read_table(write(tmp_path, 'a,b\n,NA\n"",nan\n'))
    assert frame["a"].isna().all() and list(frame["b"]) == ["NA", "nan"]


def test_one_column_of_numbers_is_a_table(tmp_path):
    assert cells(read_table(write(tmp_path, "age\n1\n2.5\n"))) == [
        ["age"],
        ["1"],
        ["2.5"],
    ]


def test_a_delimiter_in_a_cell_is_not_taken(tmp_path):
    frame = read_table(write(tmp_path, "a,b\n1;2;3,x\n4;5;6,y\n"))
    assert cells(frame) == [["a", "b"], ["1;2;3", "x"], ["4;5;6", "y"]]


def test_long_files_are_read_whole(tmp_path):
    lines = "\n".join(f"{i},{'x' * 50}" for i in range(10_000))
    frame = read_table(write(tmp_path, f"a,b\n{lines}\n"))
    assert len(frame) == 10_000 and frame["a"].iloc[-1] == "9999"


def test_wide_headers_are_read_whole(tmp_path):
    names = [f"column_{i:05}_{'x' * 50}" for i in range(1_500)]
    line = ",".join("1" for _ in names)
    assert list(read_table(write(tmp_path, f"{','.join(names)}\n{line}\n"))) == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty file"),
        (" \n \r\n", "empty file"),
        ("\ufeff", "empty file"),
        ("a,b\n", "empty table"),
        ("a", "empty table"),
        ("a,b", "empty table"),
        ("a,\x00\n1,2\n", "binary"),
        (b"a,\xe9\n1,2\n", "UTF-8"),
        ('a,"b\n1,2\n', "quotes that do not pair"),
        ("a,b\r1,2\r", "new-line character"),
        ("a,b,a\n1,2,3\n", "'a' more than once"),
        ("a,b, a\n1,2,3\n", "'a' more than once"),
        ("a,b\n1,2".encode("utf-16"), "binary"),
        (b"PAR1\x00\x01binary", "binary"),
        ("a" * 200_000, "field larger"),
    ],
)
def test_what_is_no_csv_table_is_refused(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(TableError) as caught:
        read_table(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_no_file_and_a_folder_are_refused(tmp_path, name):
    with pytest.raises(TableError, match="No such file"):
        read_table(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(TableError, match="got a folder"):
        read_table(tmp_path / name)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(
        TableError, match=r"\.csv, \.csv\.gz or \.parquet, got '\.xlsx'"
    ):
        read_table(write(tmp_path, "a,b\n1,2\n", "t.xlsx"))


@pytest.mark.parametrize(
    "content", [b"junk", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9]]
)
def test_a_broken_gzip_file_is_refused(tmp_path, content):
    with pytest.raises(TableError, match="gzip"):
        read_table(write(tmp_path, content, "t.csv.gz"))


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "empty file"), (b"a,b\n1,2\n", "Parquet file, got")]
)
def test_a_broken_parquet_file_is_refused(tmp_path, content, message):
    with pytest.raises(TableError, match=message):
        read_table(write(tmp_path, content, "t.parquet"))


def test_parquet_keeps_types_and_exact_numbers(tmp_path):
    table = pa.table({"i": [2**53 + 1, None], "b": [True, None], "t": ["NA", None]})
    pq.write_table(table, tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    assert str(frame["i"].iloc[0]) == "9007199254740993" and frame["b"].iloc[0]
    assert frame["t"].iloc[0] == "NA" and frame.isna().iloc[1].all()


def test_the_index_of_a_parquet_file_is_no_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=[0, 1, 7])
    frame.to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "t.parquet").names
    assert list(read_table(tmp_path / "t.parquet").columns) == ["a"]


def test_parquet_without_rows_columns_or_different_names_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    for table in (pa.table({"a": pa.array([], pa.int64())}), pa.table({})):
        pq.write_table(table, path)
        with pytest.raises(TableError, match="empty table"):
            read_table(path)
    pq.write_table(pa.table([[1], [2]], names=["a", "a "]), path)
    with pytest.raises(TableError, match="'a' more than once"):
        read_table(path)


BAD_LINES = [
    b'3,"4',
    b'3,"4"5',
    b"3",
    b"3,4,5",
    b"",
    b"3,\xe9",
    b"3,\x00",
    b"3,4\r5",
    b"3," + b"x" * 2**20,
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_line_that_is_no_row_is_blank_and_no_other_changes(tmp_path, bad, last, end):
    lines = [b"1,2", b'"x, y",\xc3\xa4', b'5" disk,6', bad, b'7,"8"']
    content = end.join([b"a,b", *lines[: 4 if last else 5]]) + end
    found = read_table(write(tmp_path, content))
    others = [["1", "2"], ["x, y", "ä"], ['5" disk', "6"], ["7", "8"]]
    assert found.iloc[3].isna().all()
    assert cells(found.drop(index=3))[1:] == others[: 3 if last else 4]


def test_one_quote_decides_on_no_other_line(tmp_path):
    """The finding: it swallowed the lines behind it, a thousand here."""
    lines = [b"%d,%d" % (i, i) for i in range(1000)]
    before = read_table(write(tmp_path, b"\n".join([b"a,b", *lines])))
    lines[0] = b'0,"0'
    after = read_table(write(tmp_path, b"\n".join([b"a,b", *lines])))
    assert len(after) == len(before) == 1000
    pd.testing.assert_frame_equal(after.iloc[1:], before.iloc[1:])


def test_the_header_alone_decides_on_the_delimiter(tmp_path):
    frame = read_table(write(tmp_path, "a,b\n1;2\n3;4\n5;6\n"))
    assert list(frame.columns) == ["a", "b"] and frame.isna().all(axis=None)


def test_blocks_end_between_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK", 64)
    lines = [f"{i},{'x' * (i % 9)}" if i % 5 else f'{i},"' for i in range(200)]
    frame = read_table(write(tmp_path, "\n".join(["a,b", *lines])))
    assert [i for i in range(200) if pd.isna(frame["a"].iloc[i])] == [*range(0, 200, 5)]
    assert all(frame["a"].iloc[i] == str(i) for i in range(200) if i % 5)


LINE = st.lists(
    st.sampled_from([b"1", b"x", b",", b'"', b"\r", b"\x00", b"\xc3", b"\xa4", b" "]),
    max_size=8,
).map(b"".join)


@given(st.lists(LINE, min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_rows_are_read_one_by_one(lines):
    """A table is the rows that its lines would be alone, whatever stands in them."""
    names, table = reader.parse_csv(b"\n".join([b"a,b", *lines, b""]), multiline=False)
    alone = [
        reader.parse_csv(b"a,b\n" + line + b"\n", multiline=False)[1] for line in lines
    ]
    assert names == ["a", "b"] and table.num_rows == len(lines)
    assert table.to_pylist() == [row for one in alone for row in one.to_pylist()]
