# SPDX-License-Identifier: Apache-2.0
"""What a schema can say of one column, and how its cells become features.

A CSV cell is text and a Parquet cell has a type; both must lead to the same category
and the same number.  A kind of column is one class of this file.  Its bounds,
categories and classes are public knowledge and never computed from rows.  Each cell is
encoded on its own, so one person's row never changes another's features.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    Strict,
    ValidationError,
)
from pydantic import ValidationInfo as Info
from pydantic.dataclasses import dataclass

from armijo.errors import TableError

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
    return codes, [category_text(value) for value in distinct]


def _factorized(series: pd.Series) -> tuple[NDArray[np.intp], NDArray[Any]]:
    cells: pd.Series | NDArray[np.object_] = series
    if series.dtype == object:
        # As Python objects, True and 1 are equal and lists have no hash: compare texts.
        pairs = zip(series, series.isna(), strict=True)
        texts = [None if absent else str(cell) for cell, absent in pairs]
        cells = np.array(texts, dtype=object)
    codes, distinct = pd.factorize(cells)
    return codes, np.asarray(distinct)


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
    parsed = [_number(str(cell)) for cell in distinct]
    # The code of a null is -1 and so finds the last entry.
    values = np.array([*parsed, math.nan], dtype=np.float64)
    bad = np.array([*(number is None for number in parsed), False])
    return values[codes], bad[codes]


def holds_text(series: pd.Series) -> bool:
    """Tell whether all cells that are not missing are text."""
    return bool(pd.api.types.infer_dtype(series, skipna=True) == "string")


def _number(text: str) -> float | None:
    text = text.strip()
    if text.lower() in MISSING_NUMBERS:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


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


NO_OTHER_KEYS = ConfigDict(extra="forbid")
_UNKNOWN, _MISSING = -1, -2
Blanks = NDArray[np.bool_] | None
"""Which rows are blank; None where a cell that does not fit is an error instead."""


def _encodable(text: str, info: Info) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ValueError(
            f"Expected {info.field_name} to be text that UTF-8 can hold, got {text!r}; "
            "correct that character."
        ) from None
    return text


def _stripped(name: str, info: Info) -> str:
    if not name or name != name.strip():
        raise ValueError(
            f"Expected {info.field_name} to be a column name without surrounding "
            f"spaces, got {name!r}; write it as it stands in the header of the table."
        )
    return _encodable(name, info)


def _texts(values: object, info: Info, *, least: int) -> tuple[str, ...]:
    """Return the category texts of a list, refusing empty and repeated ones."""
    key = info.field_name
    if not isinstance(values, list | tuple):
        raise ValueError(
            f'Expected {key} to be a list, got {shown(values)}; write it as ["a", "b"].'
        )
    if not all(isinstance(value, str | int | float) for value in values):
        raise ValueError(
            f"Expected {key} to hold text, numbers or truth values, got "
            f"{listed(values)}; write every entry in quotes."
        )
    texts = tuple(_encodable(category_text(value), info) for value in values)
    if "" in texts:
        raise ValueError(
            f"Expected {key} without empty text, which means a missing cell; take it "
            'out and say unknown = "zero" if cells are missing.'
        )
    repeated = [text for text, count in Counter(texts).items() if count > 1]
    if repeated:
        raise ValueError(
            f"Expected {key} to differ, got {listed(repeated)} more than once (1, 1.0 "
            'and "1" are one category); keep one of each.'
        )
    if len(texts) < least:
        raise ValueError(
            f"Expected at least {least} {key}, got {len(texts)}; list the public ones."
        )
    return texts


Name = Annotated[str, Strict(), AfterValidator(_stripped)]
Finite = Annotated[float, Strict(), AllowInfNan(False)]
Categories = Annotated[tuple[str, ...], BeforeValidator(partial(_texts, least=1))]
Classes = Annotated[tuple[str, ...], BeforeValidator(partial(_texts, least=2))]


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Numeric:
    """A number, scaled to [0, 1] between its public bounds.

    The feature is (min(max(x, low), high) - low) / (high - low). What lies outside the
    bounds is clamped silently and counted nowhere: a count would be a statistic of the
    private rows.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    low, high : float
        Public bounds, low < high.
    missing : float, optional
        Public value to put in place of a missing cell; without it, a missing cell
        makes its row blank.
    """

    name: Name
    low: Finite
    high: Finite
    missing: Finite | None = field(default=None, kw_only=True)
    kind: Literal["numeric"] = field(default="numeric", kw_only=True)

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(
                f"Expected low < high at a finite distance, got low {self.low!r} and "
                f"high {self.high!r}; correct the bounds."
            )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The one feature of the column."""
        return (self.name,)

    def encode(
        self, series: pd.Series, out: NDArray[np.float64], blanks: Blanks
    ) -> None:
        """Write the scaled cells into the one column of ``out``."""
        _check_type(series)
        values, bad = to_numbers(series)
        correct = "correct the cells"
        _mark(series, bad, blanks, "numbers", "no number", correct)
        _mark(series, np.isinf(values), blanks, "finite numbers", "infinite", correct)
        absent = np.isnan(values) & ~bad
        if self.missing is None:
            advice = "fill them, or give the column a public value: missing = 0, say"
            _mark(series, absent, blanks, "no gaps", "missing (NaN)", advice)
        else:
            values = np.where(absent, self.missing, values)
        # A new array: the frame may share its memory with the values.
        scaled = np.clip(values, self.low, self.high)
        scaled -= self.low
        scaled /= self.high - self.low
        out[:, 0] = scaled


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Categorical:
    """A category, encoded as one 0/1 feature per public category, in declared order.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    categories : sequence of str
        The public categories. Numbers and truth values are taken too and stored as
        `armijo.tables.category_text` writes them.
    unknown : {"error", "zero"}, default="error"
        Whether another value, or a missing cell, makes its row blank (which `armijo
        check` calls an error) or is a cell of zeros.
    """

    name: Name
    categories: Categories
    unknown: Literal["error", "zero"] = field(default="error", kw_only=True)
    kind: Literal["categorical"] = field(default="categorical", kw_only=True)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per category, such as ``"workclass=Private"``."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(
        self, series: pd.Series, out: NDArray[np.float64], blanks: Blanks
    ) -> None:
        """Set the 1 of every row whose category is declared."""
        advice = 'or let such cells be zeros: unknown = "zero"'
        if self.unknown == "zero":  # no row is blank for this column
            blanks = np.zeros(len(series), dtype=bool)
        positions = _positions(series, self.categories, advice, blanks)
        rows = np.flatnonzero(positions >= 0)
        out[rows, positions[rows]] = 1.0


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Label:
    """The column to learn, with its public classes in order.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    classes : sequence of str
        At least two classes; of two, the second is the positive one.
    """

    name: Name
    classes: Classes
    kind: Literal["label"] = field(default="label", kw_only=True)
    feature_names = ()

    def positions(self, series: pd.Series, blanks: Blanks) -> NDArray[np.int64]:
        """Return the position of every label among the classes."""
        advice = "or add the class to the schema if it is public"
        return _positions(series, self.classes, advice, blanks)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Ignore:
    """A column that is not used; the table may have it or not.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    """

    name: Name
    kind: Literal["ignore"] = field(default="ignore", kw_only=True)
    feature_names = ()


Column = Numeric | Categorical | Label | Ignore


def column_to_dict(column: Column) -> dict[str, Any]:
    """Return the column as plain values, without the options left at their default."""
    entry: dict[str, Any] = {"name": column.name, "kind": column.kind}
    for option in fields(column):
        value = getattr(column, option.name)
        if option.default is MISSING or value != option.default:
            entry[option.name] = list(value) if isinstance(value, tuple) else value
    return entry


KINDS: dict[str, type[Any]] = {
    kind: cls
    for cls in Column.__args__
    for kind in get_args(get_type_hints(cls)["kind"])
}


def explained(
    error: ValidationError, document: Mapping[str, Any], known: type[Any]
) -> str:
    """Say the first thing that is wrong with a document of some class, and where."""
    extra = "unexpected_keyword_argument"
    first = min(error.errors(), key=lambda problem: problem["type"] != extra)
    place, what, owner, value = first["loc"], first["type"], "", first["input"]
    if place[:1] == ("columns",) and len(place) > 1:
        entry = document["columns"][place[1]]
        name = entry.get("name") if isinstance(entry, Mapping) else int(place[1]) + 1
        owner = f"column {shown(name)}: "
        known = KINDS[str(place[2])] if len(place) > 2 else known
    key = str(place[-1]) if place else "the document"
    if what == "value_error":
        return owner + str(first["ctx"]["error"])
    if what == "missing":
        return f"{owner}Expected {key}, got none; add it."
    if what == extra:
        keys = [option.name for option in fields(known)]
        return (
            f"{owner}Expected the keys {', '.join(keys)}, got {shown(key)}"
            f"{suggestion(key, keys)}; correct or remove it."
        )
    if what.startswith("union_tag"):
        return (
            f"{owner}Expected kind to be one of {', '.join(KINDS)}, got "
            f"{shown(entry.get('kind'))}; pick one of them."
        )
    wanted = first["msg"].removeprefix("Input should be ")
    return f"{owner}Expected {key} to be {wanted}, got {shown(value)}; correct it."


def _check_type(series: pd.Series) -> None:
    """Refuse a column whose type, which is public, has no numbers."""
    kinds, dtype = pd.api.types, series.dtype
    if (
        kinds.is_bool_dtype(dtype)
        or kinds.is_complex_dtype(dtype)
        or kinds.is_datetime64_any_dtype(dtype)
    ):
        raise TableError(
            f"Expected numbers in column {shown(series.name)}, got the type {dtype}, "
            f"of which no number is made: {len(series)} of {len(series)} cells no "
            "number; declare categories, or convert it."
        )


def _positions(
    series: pd.Series, levels: tuple[str, ...], advice: str, blanks: Blanks
) -> NDArray[np.int64]:
    """Return the position of every cell among the levels; mark or refuse the others."""
    codes, texts = distinct_texts(series)
    index = {"": _MISSING} | {level: place for place, level in enumerate(levels)}
    places = [index.get(text, _UNKNOWN) for text in texts]
    # The code of a null is -1 and so finds the last entry.
    positions = np.array([*places, _MISSING], dtype=np.int64)[codes]
    missing, unknown = positions == _MISSING, positions == _UNKNOWN
    _mark(series, missing, blanks, "no gaps", "missing", f"fill them, {advice}")
    what = "not declared"
    if blanks is None and unknown.any():
        others = sorted({text for text in texts if text not in index})
        what += f": {listed(others, most=3)}{suggestion(others[0], levels)}"
    _mark(series, unknown, blanks, listed(levels), what, f"correct them, {advice}")
    return positions


def _mark(
    series: pd.Series,
    at: NDArray[np.bool_],
    blanks: Blanks,
    expected: str,
    what: str,
    advice: str,
) -> None:
    """Make rows blank; or raise, naming the column, the number of cells and the first.

    Whether a row is marked shows nowhere: no branch, count or message depends on it.
    """
    if blanks is not None:
        blanks |= at
        return
    if not at.any():
        return
    first = int(np.flatnonzero(at)[0])
    raise TableError(
        f"Expected {expected} in column {shown(series.name)}, got {int(at.sum())} of "
        f"{len(series)} cells {what}; the first is {shown(series.iloc[first])} in data "
        f"row {first + 1}; {advice}."
    )
