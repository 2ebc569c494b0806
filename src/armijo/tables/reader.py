# SPDX-License-Identifier: Apache-2.0
"""Read a table from a file without guessing what its cells mean.

CSV cells stay text, because guessing would lose the zeros of code 007 and turn the
country NA into nothing; Parquet cells keep their types. The schema decides later.
"""

import codecs
import gzip
import os
import re
import zlib
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from armijo.errors import TableError
from armijo.tables.cells import listed, shown
from armijo.tables.csv_lines import parse_csv

_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
ROW_BORDERS = "quoted line breaks mark the borders of the rows correctly"
"""What a guarantee assumes of a CSV file that was read with ``multiline``."""
_NO_ROWS = "Expected rows, got an empty table; is this the right file?"
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


def read_table(
    path: str | os.PathLike[str], *, multiline: bool = False
) -> pd.DataFrame:
    """Read a .csv, .csv.gz or .parquet file.

    A CSV file is UTF-8 with a header line, whose delimiter is comma, semicolon, tab or
    bar. All its columns are text, empty cells are missing. Every line is a row, and
    one that is no row by itself is blank: all its cells are missing.

    Parameters
    ----------
    path : path
        The file.
    multiline : bool, default=False
        Whether quoted cells of a CSV file may hold line breaks. A stray quote in one
        person's row can then decide whether other lines are rows, so a guarantee rests
        on :data:`ROW_BORDERS`.

    Returns
    -------
    pandas.DataFrame
        At least one row; column names are text, without surrounding spaces, and differ.

    Raises
    ------
    TableError
        If the file is not there, is no table, or has no rows; never for a single row.
    """
    path = Path(path)
    name = path.name.lower()
    try:
        if path.is_dir():
            raise TableError("Expected a file, got a folder; name the table in it.")
        if name.endswith(".parquet"):
            table = _read_parquet(path)
        elif name.endswith((".csv", ".csv.gz")):
            names, table = parse_csv(_content(path), multiline=multiline)
            table = table.rename_columns(names)
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
    return content
