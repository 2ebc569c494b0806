# SPDX-License-Identifier: Apache-2.0
"""The public description of a table: what may be known before a row is read.

Bounds, categories and classes read from private rows would leak them, so the owner
states them in a TOML file, and a draft is refused until it is reviewed.  A table is
encoded by what its schema says alone: a row with a cell that the schema does not allow
is blank, has no known class, adds nothing to any sum, and nobody is told of it.
"""

import hashlib
import json
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tomlkit
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from armijo.errors import TableError
from armijo.tables.columns import (
    NO_OTHER_KEYS,
    Column,
    Ignore,
    Label,
    column_to_dict,
    explained,
    listed,
    shown,
    suggestion,
)

SCHEMA_VERSION = 1
MAX_SCHEMA_BYTES = 16 * 2**20
UNKNOWN_LABEL = -1
"""The label of a blank row: no position among the classes."""
_WIDTH = 72
_HEADING = (
    "Schema of a table for armijo. Everything here counts as public knowledge:",
    "take it from code books, forms or law, never from the rows themselves.",
    "",
)


def _this_version(version: object) -> object:
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"Expected a schema of version {SCHEMA_VERSION}, got {shown(version)}; "
            "draft it again with this version of armijo."
        )
    return version


Version = Annotated[int, BeforeValidator(_this_version)]


@dataclass(frozen=True, kw_only=True, config=NO_OTHER_KEYS)
class Schema:
    """The public columns of a table, in the order of the features.

    Attributes
    ----------
    columns : sequence of Column
        `Numeric`, `Categorical`, `Ignore` and exactly one `Label`.
    target : str
        Name of the `Label` column.
    n_rows : int, optional
        The number of rows, if it is public. It is not compared with a table.
    reviewed : bool, default=False
        Whether the owner confirms that all of this is public knowledge.
    version : int, default=1
        Version of the format.
    """

    version: Version = SCHEMA_VERSION
    reviewed: Annotated[bool, Strict()] = False
    target: Annotated[str, Strict()]
    n_rows: Annotated[int, Strict(), Field(ge=1)] | None = None
    columns: tuple[Annotated[Column, Field(discriminator="kind")], ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        _refuse_repeated("columns", names)
        if self.target not in names:
            raise ValueError(
                f"Expected target to name one of the columns, got {shown(self.target)}"
                f"{suggestion(self.target, names)}; set target to the column to learn."
            )
        labels = [column.name for column in self.columns if isinstance(column, Label)]
        if labels != [self.target]:
            raise ValueError(
                f"Expected one column of kind label, the target {shown(self.target)}, "
                f"got {listed(labels) or 'none'}; give the target, and no other column,"
                ' kind = "label" and its classes.'
            )
        if not self.feature_names:
            raise ValueError(
                "Expected at least one numeric or categorical column, got none; declare"
                " the columns to learn from."
            )
        _refuse_repeated("feature names", self.feature_names)

    @property
    def label(self) -> Label:
        """The target column."""
        return next(column for column in self.columns if isinstance(column, Label))

    @property
    def classes(self) -> tuple[str, ...]:
        """The public classes of the target, in order."""
        return self.label.classes

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded features, such as ``"workclass=Private"``."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain values, as `from_dict` takes them."""
        return {
            "version": self.version,
            "reviewed": self.reviewed,
            "target": self.target,
            **({} if self.n_rows is None else {"n_rows": self.n_rows}),
            "columns": [column_to_dict(column) for column in self.columns],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Schema":
        """Build a schema from plain values; `TableError` says what is wrong."""
        if not isinstance(document, Mapping):
            raise TableError(
                f"Expected a schema to be a table of keys, got {shown(document)}."
            )
        try:
            # A file names its version, so that a later format can be told from it.
            return _SCHEMA.validate_python({"version": None, **document})
        except ValidationError as error:
            raise TableError(explained(error, document, cls)) from None

    def to_toml(self) -> str:
        """Return the schema as the text of a TOML file, which `load_schema` reads."""
        return render(self.to_dict(), heading=_HEADING)

    def digest(self) -> str:
        """Return the SHA-256 of the schema, as 64 hexadecimal digits.

        It is taken over JSON with sorted keys and no spaces. ``reviewed`` is left out:
        it does not change what the schema says of the table.
        """
        document = {k: v for k, v in self.to_dict().items() if k != "reviewed"}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_SCHEMA = TypeAdapter(Schema)


def _refuse_repeated(what: str, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"Expected {what} to differ, got {listed(repeated)} more than once; keep "
            "one of each."
        )


def load_schema(
    path: str | os.PathLike[str], *, require_reviewed: bool = True
) -> Schema:
    """Read a schema from a TOML file.

    Parameters
    ----------
    path : path
        The file.
    require_reviewed : bool, default=True
        Whether to refuse a file that does not say ``reviewed = true``.

    Raises
    ------
    TableError
        If the file cannot be read, is no schema, or is an unreviewed draft.
    """
    path = Path(path)
    try:
        text = read_small(path, MAX_SCHEMA_BYTES).decode("utf-8-sig")
        schema = Schema.from_dict(tomllib.loads(text))
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a TOML file in UTF-8, got {shown(error, most=200)}; "
            "correct that line or draft the schema again."
        ) from None
    if require_reviewed and not schema.reviewed:
        raise TableError(
            f"{path}: Expected reviewed = true, got a draft. Values that were read "
            "from the data are not private: replace every bound, category and class by "
            "public knowledge (code books, forms, law), then set reviewed = true."
        )
    return schema


def read_small(path: Path, most: int) -> bytes:
    """Return the bytes of a file that is not to be large."""
    try:
        size = path.stat().st_size
        if size > most:
            raise TableError(
                f"Expected at most {most} bytes, got {size}; is this the right file?"
            )
        return path.read_bytes()
    except OSError as error:
        raise TableError(
            f"Expected a file to read, got: {error.strerror}; check the path."
        ) from None


Notes = Mapping[str | None, Mapping[str | None, str]]
"""Comments by the name of a column (None: the document) and a key (None: above all)."""


def render(
    document: Mapping[str, Any], *, heading: Iterable[str], notes: Notes | None = None
) -> str:
    """Return the document of a schema as TOML text with comments."""
    notes = notes or {}
    text = tomlkit.document()
    for line in heading:
        text.add(tomlkit.comment(line))
    top = {key: value for key, value in document.items() if key != "columns"}
    _fill(text, top, notes.get(None, {}))
    parts = [tomlkit.dumps(text)]
    for column in document["columns"]:  # one by one: a large document takes its time
        table = tomlkit.table()
        _fill(table, column, notes.get(column["name"], {}))
        parts.append("\n[[columns]]\n" + table.as_string())
    return "".join(parts)


def _fill(
    table: tomlkit.TOMLDocument | tomlkit.items.Table,
    values: Mapping[str, Any],
    notes: Mapping[str | None, str],
) -> None:
    if None in notes:
        table.add(tomlkit.comment(notes[None]))
    for key, value in values.items():
        item = _item(value)
        if key in notes:
            item.comment(notes[key])
        table.add(key, item)


def _item(value: Any) -> tomlkit.items.Item:
    """Return a TOML value; a long list has a line for each entry."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if not isinstance(value, list) or len(json.dumps(value)) <= _WIDTH:
        return tomlkit.item(value)
    # Made at once: to append takes time for each entry that is there already.
    entries: list[tomlkit.items.Item] = [tomlkit.item(entry) for entry in value]
    return tomlkit.items.Array(entries, tomlkit.items.Trivia(), multiline=True)


def encode(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    with_target: bool = True,
    strict: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Encode a table for training or prediction.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table; its columns may stand in any order.
    schema : Schema
        The public description. Columns it ignores may be absent, columns it does not
        know are refused.
    with_target : bool, default=True
        Whether the target is wanted. Without, the table may have it or not.
    strict : bool, default=False
        Whether a cell that is missing, infinite, no number or not declared is an error
        that names its row, instead of making the row blank.  For the owner of the data,
        outside of any guarantee.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features)
        Features in [0, 1], in the order of ``schema.feature_names``, C-contiguous;
        zeros in blank rows.
    y : ndarray of shape (n_rows,) or None
        Positions in ``schema.classes``; :data:`UNKNOWN_LABEL` in blank rows.

    Raises
    ------
    TableError
        For missing, unexpected or repeated columns, columns of a type that has no
        numbers, and no rows; for single cells only where ``strict``.
    """
    _check_columns(frame, schema, with_target)
    X = np.zeros((len(frame), len(schema.feature_names)))
    blanks = None if strict else np.zeros(len(frame), dtype=bool)
    start = 0
    for column in schema.columns:
        if not isinstance(column, Label | Ignore):
            stop = start + len(column.feature_names)
            column.encode(frame[column.name], X[:, start:stop], blanks)
            start = stop
    y = None
    if with_target:
        y = schema.label.positions(frame[schema.target], blanks)
    if blanks is not None:
        X[blanks] = 0.0
        if y is not None:
            y[blanks] = UNKNOWN_LABEL
    return X, y


def _check_columns(frame: pd.DataFrame, schema: Schema, with_target: bool) -> None:
    names = list(frame.columns)
    if len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise TableError(
            f"Expected column names to be text and to differ, got {listed(names)}; "
            "rename the columns of the table."
        )
    optional = {c.name for c in schema.columns if isinstance(c, Ignore)}
    optional |= set() if with_target else {schema.target}
    declared = [column.name for column in schema.columns]
    missing = [name for name in declared if name not in names and name not in optional]
    unexpected = [name for name in names if name not in declared]
    if missing or unexpected:
        raise TableError(_column_message(missing, unexpected, len(names)))
    if len(frame) == 0:
        raise TableError("Expected rows, got an empty table; is this the right file?")


def _column_message(missing: list[str], unexpected: list[str], width: int) -> str:
    parts = []
    if missing:
        hints = (shown(name) + suggestion(name, unexpected) for name in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        parts.append(f"the table lacks {', '.join(hints)}{more}")
    if unexpected:
        parts.append(f"it has {listed(unexpected)}, which the schema does not name")
    advice = 'rename them, or give the unused ones kind = "ignore" in the schema'
    if missing and len(unexpected) == width:
        advice = "none fits: does the file begin with a line of column names?"
    return f"Expected the columns of the schema, but {' and '.join(parts)}; {advice}."
