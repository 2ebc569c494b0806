# SPDX-License-Identifier: Apache-2.0
"""Read a table from a file without guessing what its cells mean.

CSV cells stay text, because guessing would lose the zeros of code 007 and turn the
country NA into nothing; Parquet cells keep their types. The schema decides later.

No line of a CSV file can change what another one means.  Every physical line behind
the header is one row.  A line that is no row by itself (another number of cells, a
quote that is not closed, bytes that are not UTF-8) is a blank row, all of whose cells
are missing.  The header alone, which is public, decides on the delimiter and the number
of cells.  With ``multiline`` a row goes on while a quote is open, and then one quote
decides how many lines are one row.
"""

import codecs
import csv
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from armijo.errors import TableError
from armijo.tables.cells import listed, shown
from armijo.tables.frames import arrow_to_pandas, decoded

PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
ROW_BORDERS = "quoted line breaks mark the borders of the rows correctly"
"""What a guarantee assumes of a CSV file that was read with ``multiline``."""
_DELIMITERS = (",", ";", "\t", "|")
_BLOCK = 2**24
MAX_ROW_BYTES = 2**20
"""A longer row is blank: the parser, which reads blocks, would refuse the file."""

Flags = NDArray[np.bool_]


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
        raise TableError("Expected rows, got an empty table; is this the right file?")
    return arrow_to_pandas(table.rename_columns(names))


def _read_parquet(path: Path) -> pa.Table:
    if path.stat().st_size == 0:
        raise TableError("Expected a table, got an empty file.")
    try:
        with pa.parquet.ParquetFile(path) as file:
            table = file.read()
        for place, field in enumerate(table.schema):
            table = table.set_column(place, field.name, decoded(table.column(place)))
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
        if not PANDAS_INDEX.fullmatch(name)
    ]
    return table.select(kept)


def _content(path: Path) -> bytes:
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


def parse_csv(content: bytes, *, multiline: bool) -> tuple[list[str], pa.Table]:
    """Return the names of the header and the rows behind it, as texts.

    Raises
    ------
    TableError
        If the first line is no header.  Rows are never a reason.
    """
    header, body = _split_header(content.lstrip(b"\r\n"), multiline)
    delimiter, names = _header(header, multiline)
    row = _row_pattern(delimiter, len(names), multiline)
    good: list[bytes] = []
    flags = [np.zeros(0, dtype=bool)]
    for block in [body] if multiline and body else _blocks(body):
        if multiline:
            records = _joined(block.removesuffix(b"\n"))
            clean = np.array([_is_row(one, row) for one in records], dtype=bool)
        else:
            records, clean = _checked_lines(block, delimiter, len(names), row)
        flags.append(clean)
        good += [record for record, fits in zip(records, clean, strict=True) if fits]
    fits = np.concatenate(flags)
    table = _parsed(good, delimiter, len(names), multiline)
    if not fits.all():  # blank rows keep their places
        table = table.take(pa.array(np.cumsum(fits) - 1, mask=~fits))
    return names, table


def _split_header(content: bytes, multiline: bool) -> tuple[bytes, bytes]:
    end = content.find(b"\n")
    while multiline and end >= 0 and content[:end].count(b'"') % 2:
        end = content.find(b"\n", end + 1)
    if end < 0:
        return content.removesuffix(b"\r"), b""
    return content[:end].removesuffix(b"\r"), content[end + 1 :]


def _header(line: bytes, multiline: bool) -> tuple[str, list[str]]:
    """Return the delimiter with most cells in the header, and the cells."""
    if b"\x00" in line:
        raise TableError(
            "Expected CSV text, got binary data; save the table as CSV in UTF-8, or "
            "name a Parquet file .parquet."
        )
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise TableError(
            "Expected a header in UTF-8, got other bytes; save the table as CSV in "
            "UTF-8, or name a Parquet file .parquet."
        ) from None
    delimiter = max(_DELIMITERS, key=lambda mark: len(_cells(text, mark)))
    names = _cells(text, delimiter)
    if not _row_pattern(delimiter, len(names), multiline).fullmatch(line):
        raise TableError(
            "Expected a header line, got quotes that do not pair in it, or a line break"
            " that is not LF or CRLF; correct it, or read quoted line breaks with "
            "--multiline."
        )
    return delimiter, names


def _cells(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error as error:
        raise TableError(
            f"Expected a table, got {shown(error)}; is this a CSV file?"
        ) from None


def _row_pattern(delimiter: str, width: int, multiline: bool) -> re.Pattern[bytes]:
    """Return what one row looks like: as many cells, quoted whole or not at all.

    Possessive, so that a line that does not fit is left after one pass over it.
    """
    mark = re.escape(delimiter.encode())
    breaks = rb"" if multiline else rb"\r\n"
    quoted = rb'"(?:[^"\x00' + breaks + rb']|"")*+"'
    plain = rb'(?:[^"\x00\r\n' + mark + rb"][^\x00\r\n" + mark + rb"]*+)?+"
    cell = rb"(?:" + quoted + rb"|" + plain + rb")"
    return re.compile(cell + rb"(?:" + mark + cell + rb"){%d}" % (width - 1))


def _is_row(record: bytes, row: re.Pattern[bytes]) -> bool:
    """Tell whether a record is a row by itself; an empty one is not."""
    if not record or len(record) > MAX_ROW_BYTES or not row.fullmatch(record):
        return False
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True


def _blocks(body: bytes) -> Iterator[bytes]:
    """Yield whole lines, about a block at a time, without the last line's end."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _BLOCK)
        end = len(body.removesuffix(b"\n")) if end < 0 else end
        yield body[start:end]
        start = end + 1


def _checked_lines(
    block: bytes, delimiter: str, width: int, row: re.Pattern[bytes]
) -> tuple[list[bytes], Flags]:
    """Return the lines of a block, and which of them are rows.

    Most are settled by counts over the whole block; the others are looked at one by
    one.  What a line is follows from the line alone either way.
    """
    lines = [line.removesuffix(b"\r") for line in block.split(b"\n")]
    codes = np.frombuffer(block + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))

    def count(mark: Flags) -> NDArray[np.int64]:
        found = np.searchsorted(ends, np.flatnonzero(mark))
        return np.bincount(found, minlength=len(ends))

    returns = codes == ord("\r")
    odd = (codes == ord('"')) | (codes == 0) | (codes > 127) | returns
    odd[:-1] &= ~(returns[:-1] & (codes[1:] == ord("\n")))  # CRLF ends a line as LF
    lengths = np.diff(ends, prepend=-1) - 1
    plain = (count(odd) == 0) & (lengths > 1) & (lengths <= MAX_ROW_BYTES)
    clean = plain & (count(codes == ord(delimiter)) == width - 1)
    for place in np.flatnonzero(~plain):
        clean[place] = _is_row(lines[place], row)
    return lines, clean


def _joined(body: bytes) -> list[bytes]:
    """Return records: lines put together while a quote is open."""
    records: list[bytes] = []
    parts: list[bytes] = []
    quotes = 0
    for line in body.split(b"\n"):
        parts.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            records.append(b"\n".join(parts).removesuffix(b"\r"))
            parts = []
    return [*records, b"\n".join(parts)] if parts else records


def _parsed(rows: list[bytes], delimiter: str, width: int, multiline: bool) -> pa.Table:
    names = [f"f{place}" for place in range(width)]
    if not rows:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    # A first line of our own: of the first row the parser would drop a byte-order mark.
    content = b"\n".join([delimiter.join(names).encode(), *rows])
    table = pa.csv.read_csv(
        pa.BufferReader(content),
        read_options=pa.csv.ReadOptions(block_size=_BLOCK),
        parse_options=pa.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=multiline
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    if table.num_rows != len(rows):
        raise AssertionError("a row that was checked is not one to the parser")
    return table
