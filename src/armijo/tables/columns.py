# SPDX-License-Identifier: Apache-2.0
"""What a schema can say of one column, and how its cells are coded.

A kind of column is one class of this file: what is public of it (bounds, categories and
classes, never computed from rows), the coded columns that it becomes, and how its cells
are coded.  Each cell is coded on its own.  A cell that does not fit its type is
missing, and nothing tells of it; only the owner's check notes it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from dataclasses import dataclass as plain_dataclass
from datetime import date
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
)
from pydantic import ValidationInfo as Info
from pydantic.dataclasses import dataclass

from armijo.data.coded import (
    MISSING_LEVEL,
    CategoryColumn,
    ColumnInfo,
    NumericColumn,
)
from armijo.errors import TableError
from armijo.tables.cells import (
    bucket,
    category_text,
    distinct_texts,
    listed,
    shown,
    suggestion,
    to_dates,
    to_numbers,
)

NO_OTHER_KEYS = ConfigDict(extra="forbid")
OTHER = "other"
"""What the level of all undeclared values of a list is called."""
MAX_LEVELS = 1000
"""A longer list of categories is hashed like a column without one."""
BUCKETS = 64
"""The public number of hash buckets, if a schema names none."""
_ORIGIN = np.datetime64("2000-01-01", "s")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@plain_dataclass(frozen=True)
class Part:
    """A coded column that a column of a table becomes.

    Attributes
    ----------
    info : NumericColumn or CategoryColumn
        What the core knows of it.
    levels : tuple of str
        The names of the declared levels, in order; one level more is for all others.
    """

    info: ColumnInfo
    levels: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for a number; one per declared level, such as ``"sex=f"``."""
        if isinstance(self.info, NumericColumn):
            return (self.info.name,)
        return tuple(f"{self.info.name}={level}" for level in self.levels)

    @property
    def level_names(self) -> tuple[str, ...]:
        """The names of all levels, that of the others included."""
        others = getattr(self.info, "n_levels", 0) - len(self.levels)
        return self.levels + (OTHER,) * others


@plain_dataclass(frozen=True)
class Fault:
    """Cells of a column that count as something else: for the owner's eyes only."""

    column: str
    count: int
    what: str
    rows: tuple[int, ...]
    cell: str

    def __str__(self) -> str:
        """Name column, cells and rows."""
        rows = ", ".join(map(str, self.rows))
        more = " ..." if self.count > len(self.rows) else ""
        return (
            f"column {shown(self.column)}: {self.count} cells {self.what}; data rows "
            f"{rows}{more}, the first is {self.cell}"
        )


Faults = list[Fault] | None
"""Where the owner's check collects what it finds; None for everybody else."""
Cells = tuple[NDArray[Any], ...]


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
            f"Expected {key} to hold text, numbers or booleans, got "
            f"{listed(values)}; write every entry in quotes."
        )
    texts = tuple(_encodable(category_text(value), info) for value in values)
    if "" in texts:
        raise ValueError(
            f"Expected {key} without empty text, which means a missing cell; take it "
            "out: a missing cell needs no category."
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


def _day(value: object, info: Info) -> str:
    """Return a date as ISO text; TOML has dates of its own."""
    try:
        day = value if isinstance(value, date) else date.fromisoformat(str(value))
        return date(day.year, day.month, day.day).isoformat()
    except ValueError:
        raise ValueError(
            f"Expected {info.field_name} to be a date such as 2020-12-31, got "
            f"{shown(value)}; correct it."
        ) from None


Name = Annotated[str, Strict(), AfterValidator(_stripped)]
Finite = Annotated[float, Strict(), AllowInfNan(False)]
Day = Annotated[str, BeforeValidator(_day)]
Buckets = Annotated[int, Strict(), Field(ge=2, le=4096)]
Categories = Annotated[tuple[str, ...], BeforeValidator(partial(_texts, least=1))]
Classes = Annotated[tuple[str, ...], BeforeValidator(partial(_texts, least=2))]


def _refuse_bounds(low: float | None, high: float | None) -> None:
    if low is None or high is None:
        return
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(
            f"Expected low < high at a finite distance, got low {low!r} and high "
            f"{high!r}; correct the bounds."
        )


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Numeric:
    """A number in its natural unit.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    low, high : float, optional
        Public bounds, if there are any.  Cells outside of them are allowed.
    """

    name: Name
    low: Finite | None = None
    high: Finite | None = None
    kind: Literal["numeric"] = field(default="numeric", kw_only=True)
    is_feature: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_bounds(self.low, self.high)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The number."""
        info = NumericColumn(name=self.name, low=self.low, high=self.high)
        return (Part(info),)

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return floats, NaN where missing."""
        return (_numbers(series, self.low, self.high, faults),)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Categorical:
    """A category: of a public list, or hashed to a public number of buckets.

    Names of levels never come from the data.  A value that is not on the list is the
    level "other".  Without a list, or with one of more than :data:`MAX_LEVELS` entries,
    texts are hashed, salted by the name of the column.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    categories : sequence of str, optional
        The public categories. Numbers and booleans are taken too and stored as
        `armijo.tables.category_text` writes them.
    buckets : int, default=64
        The number of levels where texts are hashed.
    """

    name: Name
    categories: Categories | None = None
    buckets: Buckets = field(default=BUCKETS, kw_only=True)
    kind: Literal["categorical"] = field(default="categorical", kw_only=True)
    is_feature: ClassVar[bool] = True

    @property
    def hashed(self) -> bool:
        """Whether texts are hashed."""
        return self.categories is None or len(self.categories) > MAX_LEVELS

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The levels."""
        levels = self.categories or ()
        n_levels = len(levels) + 1
        if self.hashed:
            levels = tuple(f"#{number}" for number in range(self.buckets))
            n_levels = self.buckets
        return (Part(CategoryColumn(name=self.name, n_levels=n_levels), levels),)

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return a level for every cell."""
        if self.hashed:
            return (_levels(series, lambda t: bucket(self.name, t, self.buckets)),)
        categories = self.categories or ()
        places = {text: place for place, text in enumerate(categories)}
        levels = _levels(series, lambda text: places.get(text, len(places)))
        _note_undeclared(
            series, levels == len(places), categories, 'count as "other"', faults
        )
        return (levels,)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Boolean:
    """A truth value: True or False, 1 or 0, or these as text.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    """

    name: Name
    kind: Literal["boolean"] = field(default="boolean", kw_only=True)
    is_feature: ClassVar[bool] = True
    _PLACES: ClassVar[dict[str, int]] = {"False": 0, "0": 0, "True": 1, "1": 1}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The two levels."""
        info = CategoryColumn(name=self.name, n_levels=2)
        return (Part(info, ("False", "True")),)

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return 0 and 1."""
        levels = _levels(series, lambda text: self._PLACES.get(text, _UNKNOWN))
        unfit = levels == _UNKNOWN
        _note(series, unfit, "are no booleans and count as missing", faults)
        return (np.where(unfit, MISSING_LEVEL, levels),)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Date:
    """A date, as public calendar parts: days since 2000, month, weekday, hour.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    low, high : date, optional
        Public bounds, if there are any.
    time : bool, default=False
        Whether the cells have a time of day.
    """

    name: Name
    low: Day | None = None
    high: Day | None = None
    time: Annotated[bool, Strict()] = field(default=False, kw_only=True)
    kind: Literal["date"] = field(default="date", kw_only=True)
    is_feature: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_bounds(*self._bounds)

    @property
    def _bounds(self) -> tuple[float | None, float | None]:
        low, high = (
            None if day is None else float(_days(np.datetime64(day, "s")))
            for day in (self.low, self.high)
        )
        return low, high

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """A number and two or three categories, each cyclic by nature."""
        low, high = self._bounds
        number = NumericColumn(name=f"{self.name}.days", low=low, high=high)
        levels = {
            "month": tuple(str(month) for month in range(1, 13)),
            "weekday": _WEEKDAYS,
            **({"hour": tuple(map(str, range(24)))} if self.time else {}),
        }
        return Part(number), *(
            Part(CategoryColumn(name=f"{self.name}.{part}", n_levels=len(names)), names)
            for part, names in levels.items()
        )

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return the parts of each date, all missing together."""
        if _has_numbers(series.dtype):
            raise TableError(
                f"Expected dates in column {shown(series.name)}, got numbers "
                f"({series.dtype}); declare it numeric, or convert it."
            )
        moments, bad = to_dates(series)
        _note(series, bad, "are no dates and count as missing", faults)
        absent = np.isnat(moments)
        moments = np.where(absent, _ORIGIN, moments)
        midnight = moments.astype("datetime64[D]")
        months = midnight.astype("datetime64[M]").astype(np.int64) % 12
        # The epoch, 1970-01-01, was a Thursday.
        weekdays = (midnight.astype(np.int64) + 3) % 7
        hours = (moments - midnight) // np.timedelta64(1, "h")
        days = _days(moments if self.time else midnight)
        parts = (months, weekdays, hours.astype(np.int64))[: len(self.parts) - 1]
        return (
            np.where(absent, np.nan, days),
            *(np.where(absent, MISSING_LEVEL, part) for part in parts),
        )


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Label:
    """The classes to learn.

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
    is_feature: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return the position among the classes; -1 where the row is blank."""
        index = {text: place for place, text in enumerate(self.classes)}
        places = _levels(series, lambda text: index.get(text, _UNKNOWN))
        unknown, blank = places == _UNKNOWN, "have no label: their rows are blank"
        _note_undeclared(
            series, unknown, self.classes, "are no class: their rows are blank", faults
        )
        _note(series, places == MISSING_LEVEL, blank, faults)
        return (np.where(unknown, MISSING_LEVEL, places),)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Target:
    """The number to predict.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    low, high : float, optional
        Public bounds; both or none.  Targets are clipped to them; without them, bounds
        are learned privately.
    """

    name: Name
    low: Finite | None = None
    high: Finite | None = None
    kind: Literal["target"] = field(default="target", kw_only=True)
    is_feature: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()

    def __post_init__(self) -> None:
        _refuse_bounds(self.low, self.high)
        if (self.low is None) != (self.high is None):
            raise ValueError(
                f"Expected both bounds of the target or none, got low {self.low!r} and "
                f"high {self.high!r}; give the other or leave both out."
            )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The public bounds."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return floats; NaN where the row is blank."""
        values = _numbers(series, self.low, self.high, faults)
        unfit = ~np.isfinite(values)
        _note(series, unfit, "have no finite target: their rows are blank", faults)
        return (np.where(unfit, np.nan, values),)


@dataclass(frozen=True, config=NO_OTHER_KEYS)
class Person:
    """Whose row it is: the unit of privacy is then a person with all their rows.

    Attributes
    ----------
    name : str
        Name in the header of the table.
    """

    name: Name
    kind: Literal["person"] = field(default="person", kw_only=True)
    is_feature: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return the person's text; None where the row is blank."""
        codes, texts = distinct_texts(series)
        named = np.array([*(text or None for text in texts), None], dtype=object)[codes]
        nobody = pd.isna(named)
        _note(series, nobody, "name no person: their rows are blank", faults)
        return (named,)


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
    is_feature: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()

    def code(self, series: pd.Series, faults: Faults = None) -> Cells:
        """Return nothing."""
        return ()


Column = Numeric | Categorical | Boolean | Date | Label | Target | Person | Ignore


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


_UNKNOWN = -2
"""A text that is no level, before it is decided what that means."""


def _has_numbers(dtype: Any) -> bool:
    kinds = pd.api.types
    return kinds.is_numeric_dtype(dtype) and not kinds.is_bool_dtype(dtype)


def _numbers(
    series: pd.Series, low: float | None, high: float | None, faults: Faults
) -> NDArray[np.float64]:
    """Return floats, NaN where a cell is missing or no number."""
    kinds, dtype = pd.api.types, series.dtype
    if (
        kinds.is_bool_dtype(dtype)
        or kinds.is_complex_dtype(dtype)
        or kinds.is_datetime64_any_dtype(dtype)
        or kinds.is_timedelta64_dtype(dtype)
    ):
        raise TableError(
            f"Expected numbers in column {shown(series.name)}, got the type {dtype}, "
            "of which no number is made; declare it boolean, date or categorical, or "
            "convert it."
        )
    values, bad = to_numbers(series)
    _note(series, bad, "are no numbers and count as missing", faults)
    outside = np.zeros(len(values), dtype=bool)
    if low is not None:
        outside |= values < low
    if high is not None:
        outside |= values > high
    _note(series, outside & ~bad, "lie outside the declared bounds", faults)
    # A new array: the frame may share its memory with the values.
    return np.where(bad, np.nan, values)


def _levels(series: pd.Series, level_of: Any) -> NDArray[np.int64]:
    """Return the level of every cell, ``MISSING_LEVEL`` where there is no text."""
    codes, texts = distinct_texts(series)
    levels = [level_of(text) if text else MISSING_LEVEL for text in texts]
    # The code of a null is -1 and so finds the last entry.
    return np.array([*levels, MISSING_LEVEL], dtype=np.int64)[codes]


def _days(moments: Any) -> Any:
    """Return days since 2000-01-01, as floats."""
    return (moments - _ORIGIN) / np.timedelta64(1, "D")


def _note(series: pd.Series, at: NDArray[np.bool_], what: str, faults: Faults) -> None:
    """Let the owner know of cells; for everybody else nothing happens."""
    if faults is None or not at.any():
        return
    rows = np.flatnonzero(at)
    name, cell = str(series.name), shown(series.iloc[int(rows[0])])
    first = tuple(int(row) + 1 for row in rows[:3])
    faults.append(Fault(name, len(rows), what, first, cell))


def _note_undeclared(
    series: pd.Series,
    at: NDArray[np.bool_],
    known: tuple[str, ...],
    what: str,
    faults: Faults,
) -> None:
    if faults is None or not at.any():
        return
    first = category_text(series.iloc[int(np.flatnonzero(at)[0])])
    _note(series, at, f"are not declared{suggestion(first, known)} and {what}", faults)
