# SPDX-License-Identifier: Apache-2.0
"""How one cell is read: as a category, a number or a date, whatever file it is from.

A CSV cell is text and a Parquet cell has a type; both must lead to the same category,
the same number and the same date.  Each cell is read on its own, so that one person's
row never changes what another's means.
"""

import difflib
import math
import re
from collections.abc import Iterable
from datetime import datetime
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MISSING_NUMBERS = frozenset({"", "?", "n/a", "na", "nan", "none", "null"})
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


def category_text(value: object) -> str:
    """Return the one text under which a category is known.

    Surrounding spaces go; ``1``, ``1.0``, ``"1"`` and ``"1.0"`` are all ``"1"``;
    ``True``, ``"true"`` and ``"TRUE"`` are all ``"True"``. Leading zeros stay, because
    they tell codes apart. Empty text means that the cell is missing.

    Examples
    --------
    >>> [category_text(value) for value in (1, 1.0, " 1.0 ", True, "true", "007")]
    ['1', '1', '1', 'True', 'True', '007']
    """
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.capitalize()
    whole = _WHOLE.fullmatch(text)
    if whole:
        text = whole.group(1)
    return "0" if text in ("-0", "+0") else text


def distinct_texts(series: pd.Series) -> tuple[NDArray[np.intp], list[str]]:
    """Return a code per row (-1 for null) and the category text of every code.

    Two codes can share a text, as 1 and "1.0" do, and a text can be empty.
    """
    codes, distinct = _factorized(series)
    # NumPy scalars print single-precision numbers as short as a CSV file has them.
    return codes, [category_text(text_of(value) or "") for value in distinct]


def _factorized(series: pd.Series) -> tuple[NDArray[np.intp], NDArray[Any]]:
    cells: pd.Series | NDArray[np.object_] = readable_dates(series)
    if series.dtype == object:
        # As Python objects, True and 1 are equal and lists have no hash: compare texts.
        pairs = zip(series, _absent(series), strict=True)
        texts = [None if absent else text_of(cell) for cell, absent in pairs]
        cells = np.array(texts, dtype=object)
    codes, distinct = pd.factorize(cells)
    return codes, np.asarray(distinct)


def text_of(cell: object) -> str | None:
    """Return the text of a cell; None if it has none, which then is missing.

    As an integer of more digits than Python writes, or an object that raises.
    """
    try:
        return str(cell)
    except Exception:  # of any kind, and nobody is told of it
        return None


def _absent(series: pd.Series) -> NDArray[np.bool_]:
    """Return which cells are missing, also one that cannot be compared with itself."""
    try:
        return series.isna().to_numpy(dtype=bool)
    except Exception:
        return np.array([_is_absent(cell) for cell in series], dtype=bool)


def _is_absent(cell: object) -> bool:
    try:
        return pd.isna(cell) is True  # of a list it is an array
    except Exception:
        return True


def readable_dates(series: pd.Series) -> pd.Series:
    """Return dates without those that have no text, which would raise for all rows."""
    kind = series.dtype
    if isinstance(kind, pd.ArrowDtype) and pa.types.is_date(kind.pyarrow_dtype):
        return series.mask(_far(to_dates(series)[0], "0001", "9999-12-31"))
    if isinstance(kind, pd.DatetimeTZDtype):
        utc = series.dt.tz_convert(None).dt.as_unit("s").to_numpy()
        ends = ("1678", "2262") if kind.unit == "ns" else ("0001-01-02", "9999-12-31")
        return series.mask(_far(utc, *ends))
    return series


def _far(moments: NDArray[np.datetime64], low: str, high: str) -> NDArray[np.bool_]:
    return (moments < np.datetime64(low)) | (moments > np.datetime64(high))


def to_numbers(series: pd.Series) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return every cell as a float, NaN where missing, and a mask of the bad cells.

    Bad is what is neither missing nor a number; true and false are bad, since the
    words of a CSV file would be.
    """
    kind = series.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_complex_dtype(kind):
        return np.full(len(series), np.nan), series.notna().to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(kind):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, np.zeros(len(series), dtype=bool)
    return _text_to_numbers(series)


def _text_to_numbers(
    series: pd.Series,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if holds_text(series):
        try:
            texts = pc.utf8_trim_whitespace(pa.array(series, from_pandas=True))
            values = pc.cast(texts, pa.float64()).fill_null(math.nan)
            return np.array(values, dtype=np.float64), np.zeros(len(series), dtype=bool)
        except (pa.ArrowException, UnicodeEncodeError):
            pass
    codes, distinct = _factorized(series)
    parsed = [_number(text_of(cell) or "") for cell in distinct]
    # The code of a null is -1 and so finds the last entry.
    values = np.array([*parsed, math.nan], dtype=np.float64)
    bad = np.array([*(number is None for number in parsed), False])
    return values[codes], bad[codes]


def holds_text(series: pd.Series) -> bool:
    """Tell whether all cells that are not missing are text."""
    try:
        return bool(pd.api.types.infer_dtype(series, skipna=True) == "string")
    except Exception:  # of a cell that cannot be compared, which is no text
        return False


def _number(text: str) -> float | None:
    text = text.strip()
    if text.lower() in MISSING_NUMBERS:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def to_dates(series: pd.Series) -> tuple[NDArray[np.datetime64], NDArray[np.bool_]]:
    """Return every cell as a second, NaT where missing, and a mask of the bad cells.

    Text is ISO 8601; of a time zone the local time stays, which its people live by.
    Seconds, since no date is too far away for them.
    """
    kind, fits = series.dtype, np.zeros(len(series), dtype=bool)
    if isinstance(kind, pd.ArrowDtype) and pa.types.is_date(kind.pyarrow_dtype):
        days = pa.array(series, from_pandas=True).cast(pa.date32())
        return days.to_numpy(zero_copy_only=False).astype("datetime64[s]"), fits
    if pd.api.types.is_datetime64_any_dtype(kind):
        series = series.dt.as_unit("s")
        if series.dt.tz is not None:
            utc = series.dt.tz_convert(None).to_numpy(dtype="datetime64[s]")
            # A time zone has no clock there, and would raise for all rows.
            series = series.mask(_far(utc, "0002", "9998")).dt.tz_localize(None)
        return series.to_numpy(dtype="datetime64[s]"), fits
    codes, distinct = _factorized(series)
    parsed = [_moment((text_of(cell) or "").strip()) for cell in distinct]
    # The code of a null is -1 and so finds the last entry.
    bad = np.array([*(moment is None for moment in parsed), False])
    found = [moment or np.datetime64("NaT") for moment in parsed]
    return np.array([*found, np.datetime64("NaT")], "datetime64[s]")[codes], bad[codes]


def _moment(text: str) -> datetime | np.datetime64 | None:
    if text.lower() in MISSING_NUMBERS:
        return np.datetime64("NaT")
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def bucket(column: str, text: str, buckets: int) -> int:
    """Return the hash bucket of a category, salted by the name of its column.

    >>> bucket("city", "Paris", 64), bucket("town", "Paris", 64)
    (61, 1)
    """
    salted = f"{column}\0{text}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(salted, digest_size=8).digest()) % buckets


def shown(value: object, *, most: int = 60) -> str:
    """Return a value as a message prints it: quoted, on one line, not too long."""
    text = str(value)
    return repr(text if len(text) <= most else text[:most] + "...")


def listed(values: Iterable[object], *, most: int = 5) -> str:
    """Return the first values quoted, with the number of those left out."""
    items = list(values)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(shown(item) for item in items[:most]) + more


def suggestion(value: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` if a known text comes close, else nothing.

    >>> suggestion("privat", ["Private", "State-gov"])
    " (did you mean 'Private'?)"
    """
    # Case is ignored, and the length cut, because the comparison is quadratic in it.
    folded = {text[:100].lower(): text for text in known}
    close = difflib.get_close_matches(value[:100].lower(), folded, n=1)
    return f" (did you mean {shown(folded[close[0]])}?)" if close else ""
