# SPDX-License-Identifier: Apache-2.0
"""What a schema can say of one column: number, category, label, or not used.

Every bound, category and class is public knowledge. Nothing in this file is ever
computed from rows.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from armijo.errors import TableError
from armijo.tables.cells import category_text, listed, shown, suggestion


def _checked_name(name: object) -> str:
    """Return a column name, refusing what no table of text could carry."""
    if not isinstance(name, str) or not name or name != name.strip():
        raise TableError(
            f"Expected a column name without surrounding spaces, got {name!r}; "
            "write the name as it stands in the header of the table."
        )
    return _encodable(name)


def _encodable(text: str) -> str:
    """Return the text if UTF-8 can hold it; half of a surrogate pair cannot be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TableError(
            f"Expected text that UTF-8 can hold, got {text!r}; correct that character."
        ) from None
    return text


def _checked_number(owner: str, key: str, value: object) -> float:
    """Return a finite float; true and false are no numbers."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            pass
    if not math.isfinite(number):
        raise TableError(
            f"Expected {key} of column {shown(owner)} to be a finite number, got "
            f"{shown(value)}; give a number that is public knowledge."
        )
    return number


def _checked_levels(owner: str, key: str, values: object) -> tuple[str, ...]:
    """Return the category texts of a list, refusing empty and repeated ones."""
    if not isinstance(values, list | tuple):
        raise TableError(
            f"Expected {key} of column {shown(owner)} to be a list, got "
            f'{shown(values)}; write it as ["a", "b"].'
        )
    if not all(isinstance(value, str | int | float) for value in values):
        raise TableError(
            f"Expected {key} of column {shown(owner)} to hold text, numbers or truth "
            f"values, got {listed(values)}; write every entry in quotes."
        )
    texts = tuple(_encodable(category_text(value)) for value in values)
    if "" in texts:
        raise TableError(
            f"Expected {key} of column {shown(owner)} without empty text, which means "
            'a missing cell; take it out and say unknown = "zero" if cells are missing.'
        )
    repeated = [text for text, count in Counter(texts).items() if count > 1]
    if repeated:
        raise TableError(
            f"Expected {key} of column {shown(owner)} to differ, got {listed(repeated)}"
            ' more than once (1, 1.0 and "1" are one category); keep one of each.'
        )
    return texts


@dataclasses.dataclass(frozen=True)
class Numeric:
    """A number, scaled to [0, 1] between its public bounds.

    The feature is (min(max(x, low), high) - low) / (high - low). What lies outside the
    bounds is clamped silently and counted nowhere: a count would be a statistic of the
    private rows.

    Parameters
    ----------
    name : str
        Name in the header of the table.
    low, high : float
        Public bounds, low < high.
    missing : float, optional
        Public value to put in place of a missing cell; without it, a missing cell
        makes its row blank.
    """

    kind: ClassVar[str] = "numeric"
    name: str
    low: float
    high: float
    missing: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the bounds and store them as floats."""
        _checked_name(self.name)
        low = _checked_number(self.name, "low", self.low)
        high = _checked_number(self.name, "high", self.high)
        if not (low < high and math.isfinite(high - low)):
            raise TableError(
                f"Expected low < high for column {shown(self.name)}, at a finite "
                f"distance, got low {low!r} and high {high!r}; correct the bounds."
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        if self.missing is not None:
            missing = _checked_number(self.name, "missing", self.missing)
            object.__setattr__(self, "missing", missing)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The one feature of the column."""
        return (self.name,)


@dataclasses.dataclass(frozen=True)
class Categorical:
    """A category, encoded as one 0/1 feature per public category, in declared order.

    Parameters
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

    kind: ClassVar[str] = "categorical"
    name: str
    categories: tuple[str, ...]
    unknown: str = dataclasses.field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        """Check the categories and store them as texts."""
        _checked_name(self.name)
        categories = _checked_levels(self.name, "categories", self.categories)
        if not categories:
            raise TableError(
                f"Expected categories for column {shown(self.name)}, got none; list "
                'the public ones, or say kind = "ignore".'
            )
        if self.unknown not in ("error", "zero"):
            raise TableError(
                f'Expected unknown of column {shown(self.name)} to be "error" or '
                f'"zero", got {shown(self.unknown)}; pick one of them.'
            )
        object.__setattr__(self, "categories", categories)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per category, such as ``"workclass=Private"``."""
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclasses.dataclass(frozen=True)
class Label:
    """The column to learn, with its public classes in order.

    Parameters
    ----------
    name : str
        Name in the header of the table.
    classes : sequence of str
        At least two classes; of two, the second is the positive one.
    """

    kind: ClassVar[str] = "label"
    name: str
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the classes and store them as texts."""
        _checked_name(self.name)
        classes = _checked_levels(self.name, "classes", self.classes)
        if len(classes) < 2:
            raise TableError(
                f"Expected at least two classes for the target {shown(self.name)}, got "
                f"{len(classes)}; list all public classes."
            )
        object.__setattr__(self, "classes", classes)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The target is no feature."""
        return ()


@dataclasses.dataclass(frozen=True)
class Ignore:
    """A column that is not used; the table may have it or not.

    Parameters
    ----------
    name : str
        Name in the header of the table.
    """

    kind: ClassVar[str] = "ignore"
    name: str

    def __post_init__(self) -> None:
        """Check the name."""
        _checked_name(self.name)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """No feature comes of it."""
        return ()


Column = Numeric | Categorical | Label | Ignore
KINDS: dict[str, type[Column]] = {
    cls.kind: cls for cls in (Numeric, Categorical, Label, Ignore)
}


def column_to_dict(column: Column) -> dict[str, object]:
    """Return the column as plain values, without the options left at their default."""
    entry: dict[str, object] = {"name": column.name, "kind": column.kind}
    for field in dataclasses.fields(column):
        value = getattr(column, field.name)
        if value != field.default:
            entry[field.name] = list(value) if isinstance(value, tuple) else value
    return entry


def column_from_dict(entry: object) -> Column:
    """Build a column from plain values, refusing keys that its kind does not have."""
    if not isinstance(entry, Mapping):
        raise TableError(
            f"Expected every entry of columns to be a table, got {shown(entry)}; write "
            "one [[columns]] block per column."
        )
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise TableError(
            f"Expected kind of column {shown(entry.get('name'))} to be one of "
            f"{', '.join(KINDS)}, got {shown(kind)}; pick one of them."
        )
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    values = {key: value for key, value in entry.items() if key != "kind"}
    check_keys(
        f"{kind} column {shown(entry.get('name'))}",
        values,
        allowed=tuple(fields),
        required=tuple(
            name for name, f in fields.items() if f.default is dataclasses.MISSING
        ),
    )
    return KINDS[kind](**values)


def check_keys(
    owner: str,
    entry: Mapping[str, object],
    *,
    allowed: Sequence[str],
    required: Sequence[str],
) -> None:
    """Refuse unknown and missing keys of a table in a file."""
    for key in entry:
        if key not in allowed:
            hint = suggestion(str(key), allowed)
            raise TableError(
                f"Expected the keys {', '.join(allowed)} for the {owner}, got "
                f"{shown(key)}{hint}; correct or remove it."
            )
    absent = [key for key in required if key not in entry]
    if absent:
        raise TableError(
            f"Expected {', '.join(absent)} for the {owner}, got none; add it."
        )
