# SPDX-License-Identifier: Apache-2.0
"""Read a table from a file without guessing what its cells mean.

CSV cells stay text, because guessing would lose the zeros of code 007 and turn the
country NA into nothing; Parquet cells keep their types. The schema decides later.
"""

import codecs
import csv
import gzip
import io
import itertools
import os
import re
import zlib
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from armijo.errors import TableError
from armijo.tables.cells import listed, shown, to_numbers

_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 64 * 1024
_SAMPLE_RECORDS = 50
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_RAGGED = re.compile(r"Row #([0-9]+): Expected ([0-9]+) columns, got ([0-9]+)")
_NO_ROWS = "Expected rows, got an empty table; is this the right file?"
_NOT_UTF8 = (
    "Expected text in UTF-8, got other bytes; save the table as CSV in UTF-8, or name "
    "a Parquet file .parquet."
)
# Nullable types keep whole numbers and truth values exact where cells are missing.
_EXACT_TYPES = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a .csv, .csv.gz or .parquet file.

    A CSV file is UTF-8 with a header line; its delimiter is found among comma,
    semicolon, tab and bar. All its columns are text, empty cells are missing.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    pandas.DataFrame
        At least one row; column names are text, without surrounding spaces, and differ.

    Raises
    ------
    TableError
        If the file is not there, is no table, or has no rows.
    """
    path = Path(path)
    name = path.name.lower()
    try:
        if path.is_dir():
            raise TableError("Expected a file, got a folder; name the table in it.")
        if name.endswith(".parquet"):
            table = _read_parquet(path)
        elif name.endswith((".csv", ".csv.gz")):
            table = _read_csv(_content(path))
        else:
            raise TableError(
                "Expected a file ending in .csv, .csv.gz or .parquet, got "
                f"{shown(path.suffix)}; convert or rename it."
            )
        return _to_frame(table)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    except OSError as error:
        reason = error.strerror or error
        raise TableError(
            f"{path}: Expected a file to read, got: {reason}; check the path."
        ) from None
    except MemoryError:
        raise TableError(
            f"{path}: Expected a table that fits into memory, got a larger one; is "
            "this the right file?"
        ) from None


def _to_frame(table: pa.Table) -> pd.DataFrame:
    """Turn an Arrow table into a frame, after a look at its names and its size."""
    names = [
        str(name).strip() or f"unnamed_{position}"
        for position, name in enumerate(table.column_names, start=1)
    ]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(
            f"Expected column names that differ, got {listed(repeated)} more than once;"
            " rename one of each."
        )
    if table.num_rows == 0 or not names:
        raise TableError(_NO_ROWS)
    # Pandas notes in a file are not needed to read it, and could be anything.
    table = table.rename_columns(names).replace_schema_metadata(None)
    try:
        return table.to_pandas(types_mapper=_EXACT_TYPES.get)
    except (pa.ArrowException, ValueError, LookupError, OverflowError) as error:
        raise TableError(
            f"Expected columns of numbers, text and dates, got {shown(error, most=200)}"
            "; write the table as CSV."
        ) from None


def _read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file, without the row numbers that pandas puts into it."""
    if path.stat().st_size == 0:
        raise TableError("Expected a table, got an empty file.")
    try:
        with pa.parquet.ParquetFile(path) as file:
            table = file.read()
        # What a damaged file yields may be unfit to touch.
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        raise TableError(
            f"Expected a Parquet file, got {shown(error, most=200)}; write it again."
        ) from None
    # By position, since a spoiled table may have equal names.
    kept = [
        position
        for position, name in enumerate(table.column_names)
        if not _PANDAS_INDEX.fullmatch(name)
    ]
    return table.select(kept)


def _content(path: Path) -> bytes:
    """Return the bytes of a CSV file, unpacked and without a byte-order mark."""
    content = path.read_bytes()
    if path.name.lower().endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(
                f"Expected a gzip file, got {shown(error)}; pack it again."
            ) from None
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise TableError("Expected a table, got an empty file.")
    if b"\x00" in content[:_SAMPLE_BYTES]:
        raise TableError(
            "Expected CSV text, got binary data; save the table as CSV in UTF-8, or "
            "name a Parquet file .parquet."
        )
    return content


def _read_csv(content: bytes) -> pa.Table:
    """Parse CSV bytes into a table of texts."""
    delimiter, width = _delimiter(_sample(content))
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            # One thread, so that an error knows its row.
            read_options=pa.csv.ReadOptions(
                use_threads=False, autogenerate_column_names=True, block_size=2**24
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={f"f{i}": pa.string() for i in range(width)},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowException as error:
        raise _csv_error(str(error)) from None
    if table.num_columns != width:
        raise TableError("Expected a header line, got quotes that do not pair in it.")
    _refuse_open_quote(content, table)
    return _with_header(table)


def _csv_error(message: str) -> TableError:
    """Say in the words of a table what the parser found."""
    ragged = _RAGGED.search(message)
    if ragged:
        row, expected, found = (int(number) for number in ragged.groups())
        return TableError(
            f"Expected {expected} cells in every row, as in the header, got {found} in "
            f"data row {row - 1}; correct that row, or check that this is a table."
        )
    if "invalid UTF8" in message:
        return TableError(_NOT_UTF8)
    if "Empty CSV" in message:
        return TableError(_NO_ROWS)
    return TableError(
        f"Expected a table, got {shown(message, most=200)}; is this a CSV file?"
    )


def _sample(content: bytes) -> str:
    """Return the first lines of the file as text."""
    end = content.find(b"\n", _SAMPLE_BYTES)
    try:
        text = content[: end if end >= 0 else len(content)].decode()
    except UnicodeDecodeError:
        raise TableError(_NOT_UTF8) from None
    return text.lstrip("\r\n")


def _delimiter(sample: str) -> tuple[str, int]:
    """Return the delimiter that splits the sample evenly, and the cells of a row.

    Without an even one, the delimiter with most cells in the header is taken, and the
    parser will name the first row that does not fit.
    """
    best = (False, 0, ",")
    for delimiter in _DELIMITERS:
        counts = _cell_counts(sample, delimiter)
        even = counts[0] > 1 and len(set(counts)) == 1
        if (even, counts[0]) > best[:2]:
            best = (even, counts[0], delimiter)
    return best[2], best[1]


def _cell_counts(sample: str, delimiter: str) -> list[int]:
    """Return the number of cells in each of the first records."""
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    counts = []
    try:
        for record in itertools.islice(reader, _SAMPLE_RECORDS):
            if record:
                counts.append(len(record))
    except csv.Error as error:
        raise TableError(
            f"Expected a table, got {shown(error)}; is this a CSV file?"
        ) from None
    return counts or [0]


def _refuse_open_quote(content: bytes, table: pa.Table) -> None:
    """Refuse a quote that swallows the rest of the file into one cell."""
    last = table.slice(table.num_rows - 1).to_pylist()[0]
    swallowed = any("\n" in cell or "\r" in cell for cell in last.values() if cell)
    if swallowed and content.count(b'"') % 2 == 1:
        raise TableError(
            "Expected every quote to be closed, got one that is open at the end of the "
            f"file; the last row read is data row {table.num_rows - 1}, close it there."
        )


def _with_header(table: pa.Table) -> pa.Table:
    """Take the names of the columns from the first row."""
    names = [str(name or "") for name in table.slice(0, 1).to_pylist()[0].values()]
    table = table.slice(1).rename_columns(names)
    if table.num_columns == 1 and to_numbers(table.column(0).to_pandas())[1].any():
        raise TableError(
            "Expected a table with cells separated by comma, semicolon, tab or bar, got"
            " text without any of them; is this a CSV file?"
        )
    return table
