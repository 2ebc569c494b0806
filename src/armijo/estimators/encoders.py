# SPDX-License-Identifier: Apache-2.0
"""How a block of a streamed table becomes rows and labels, each row by itself.

Picklable functions of a frame: what they hold is public.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.data.coded import CodedRows, ColumnInfo
from armijo.data.query import Taken
from armijo.errors import TableError
from armijo.estimators.base import as_column, for_loss, positions
from armijo.estimators.weights import clipped_weights, row_weights, shared_weights
from armijo.tables.cells import listed, readable_dates, shown, suggestion
from armijo.tables.coder import code_column, code_table
from armijo.tables.columns import Label, Person, Target, column_to_dict
from armijo.tables.linear import encode
from armijo.tables.schema import Schema

Labels = NDArray[Any]


def margin_labels(places: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """Return labels of a coded table as the loss takes them; NaN is a blank row."""
    labels = for_loss(places, n_classes).astype(np.float64)
    return np.where(places < 0, np.nan, labels)


def named_column(frame: pd.DataFrame, name: str, what: str = "y") -> pd.Series:
    """Return the column that y or another names, refusing a name that is none."""
    if name not in frame.columns:
        names = [str(column) for column in frame.columns]
        raise TableError(
            f"Expected {what} to name a column of the table, got {shown(name)}"
            f"{suggestion(name, names)}; the table has {listed(names)}. Nothing was "
            "spent."
        )
    return frame[name]


def refuse_labels(y: Any) -> None:
    """Refuse labels beside a stream, whose rows come in no order that is known."""
    if y is not None and not isinstance(y, str):
        raise ValueError(
            "Expected y to be the name of a column for rows that are streamed, got "
            f"{type(y).__name__}; add the labels to the table. Nothing was spent."
        )


def declared_classes(classes: Any, column: pd.Series) -> NDArray[Any]:
    """Return the public classes of a streamed column; they are never read from it."""
    if classes is None and pd.api.types.is_bool_dtype(column.dtype):
        classes = [False, True]
    if classes is None or len(classes) < 2:
        raise ValueError(
            f"Expected at least two classes= for rows that are streamed, got "
            f"{classes!r}: they are not read from the labels. Nothing was spent."
        )
    return np.unique(np.asarray(classes))


def class_texts(classes: NDArray[Any]) -> list[str]:
    """Return public classes as JSON values that tell 1, 1.0, "1" and True apart."""
    if classes.dtype.kind in "mM":
        return [f"{classes.dtype} {text}" for text in classes.astype(str)]
    return [repr(value) for value in classes.tolist()]


def _public(**values: Any) -> dict[str, Any]:
    return {f"encoder.{name}": value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """Reads the labels of a block: of a declared label, or of a list of classes."""

    column: Label | str
    classes: NDArray[Any]

    @property
    def name(self) -> str:
        """The column of the table."""
        return self.column if isinstance(self.column, str) else self.column.name

    @property
    def facts(self) -> dict[str, Any]:
        """What decides how labels are read."""
        column: Any = self.column
        if isinstance(column, Label):
            column = column_to_dict(column)
        return _public(response=column, classes=class_texts(self.classes))

    def __call__(self, frame: pd.DataFrame) -> Labels:
        """Return labels as the loss of a coded table takes them."""
        return margin_labels(self.places(frame), len(self.classes))

    def places(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """Return the place of each label among the classes."""
        if isinstance(self.column, Label):
            return code_column(frame, self.column).astype(np.int64)
        labels = readable_dates(frame[self.column])
        return positions(as_column(labels), self.classes)


@dataclass(frozen=True, eq=False)
class Targets:
    """Reads the targets of a block."""

    column: Target

    @property
    def name(self) -> str:
        """The column of the table."""
        return self.column.name

    @property
    def facts(self) -> dict[str, Any]:
        """What decides how targets are read."""
        return _public(response=column_to_dict(self.column))

    def __call__(self, frame: pd.DataFrame) -> Labels:
        """Return numbers, NaN where a row is blank."""
        return code_column(frame, self.column).astype(np.float64)


@dataclass(frozen=True, eq=False)
class TableBlock:
    """Codes a block of a table by its schema; ``sample_weight`` names a column."""

    schema: Schema
    columns: tuple[ColumnInfo, ...]
    response: ClassLabels | Targets
    names: tuple[str, ...]
    sample_weight: str | None = None

    @property
    def needed(self) -> list[str]:
        """The columns that are read."""
        others = self.response.name, self.sample_weight
        return list(dict.fromkeys([*self.names, *filter(None, others)]))

    @property
    def facts(self) -> dict[str, Any]:
        """What decides how rows are coded, in public JSON values."""
        own = _public(
            schema=self.schema.digest(),
            sample_weight=self.sample_weight,
            person=self.schema.person,
        )
        return {**own, **self.response.facts}

    def refuse_types(self, head: pd.DataFrame) -> None:
        """Refuse columns of a type that cannot be what was declared, without rows."""
        for column in self.schema.columns:
            if column.name in self.names:
                column.code(head[column.name])
        self.response(head)
        self.weights(head)

    def __call__(self, frame: pd.DataFrame) -> Taken:
        """Return coded cells and labels."""
        table = code_table(frame[list(self.names)], self.schema, columns=self.columns)
        return CodedRows(table, self.response(frame), self.weights(frame)).take(None)

    def weights(self, frame: pd.DataFrame) -> NDArray[np.float64] | None:
        """Return what multiplies each row."""
        if self.sample_weight is None:
            return None
        return clipped_weights(frame[self.sample_weight], len(frame))


@dataclass(frozen=True, eq=False, kw_only=True)
class PersonBlock(TableBlock):
    """The same of rows of which a person may have several, that share a weight of one.

    How many rows each has is counted in a pass over all of them, and never shown.
    """

    person: Person
    counts: Mapping[str, int] | None = field(default=None, repr=False)

    @property
    def counts_of(self) -> str:
        """The column that says whose row it is."""
        return self.person.name

    @property
    def needed(self) -> list[str]:
        """The columns that are read."""
        return list(dict.fromkeys([*super().needed, self.person.name]))

    def counted(self, frames: Iterable[pd.DataFrame]) -> "PersonBlock":
        """Return the encoder that knows how many rows each person has."""
        counts: dict[str, int] = {}
        for frame in frames:
            for name in code_column(frame, self.person).tolist():
                if name is not None:
                    counts[name] = counts.get(name, 0) + 1
        return replace(self, counts=counts)

    def weights(self, frame: pd.DataFrame) -> NDArray[np.float64] | None:
        """Return what multiplies each row; one that names no person weighs nothing."""
        known = self.counts or {}
        persons = code_column(frame, self.person).tolist()
        counts = np.array([known.get(name, np.nan) for name in persons])
        return row_weights(super().weights(frame), shared_weights(counts))


@dataclass(frozen=True, eq=False)
class ArrayBlock:
    """Takes the numbers of a block as they are, for a linear model."""

    names: tuple[str, ...]
    labels: ClassLabels

    @property
    def facts(self) -> dict[str, Any]:
        """What decides how rows are coded, in public JSON values.

        Names of the features are facts of the files.
        """
        return self.labels.facts

    def __call__(self, frame: pd.DataFrame) -> Taken:
        """Return an array of numbers, and labels."""
        X = frame[list(self.names)].to_numpy(dtype=np.float64, na_value=np.nan)
        places = self.labels.places(frame)
        return Taken(X, for_loss(places, len(self.labels.classes)))


@dataclass(frozen=True, eq=False)
class ScaledBlock:
    """Scales a block by the public bounds of a schema, for a linear model."""

    schema: Schema

    @property
    def column_names(self) -> list[str]:
        """The columns that are read."""
        wanted = (c for c in self.schema.columns if c.is_feature or c.kind == "label")
        return [column.name for column in wanted]

    @property
    def facts(self) -> dict[str, Any]:
        """What decides how rows are coded, in public JSON values."""
        return _public(schema=self.schema.digest())

    def __call__(self, frame: pd.DataFrame) -> Taken:
        """Return features in [0, 1], and labels."""
        X, places = encode(frame, self.schema)
        assert places is not None
        return Taken(X, for_loss(places, len(self.schema.classes)))
