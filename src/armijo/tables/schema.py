# SPDX-License-Identifier: Apache-2.0
"""The public description of a table: what may be known before a row is read.

Bounds, categories and classes read from private rows would leak them, so the
owner states them in a TOML file, and a draft is refused until it is reviewed.
"""

import dataclasses
import hashlib
import json
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from armijo.errors import TableError
from armijo.tables.cells import listed, shown, suggestion
from armijo.tables.columns import (
    Column,
    Ignore,
    Label,
    check_keys,
    column_from_dict,
    column_to_dict,
)
from armijo.tables.toml_writer import render

SCHEMA_VERSION = 1
MAX_SCHEMA_BYTES = 16 * 2**20
_KEYS = ("version", "reviewed", "target", "n_rows", "columns")
_HEADING = (
    "Schema of a table for armijo. Everything here counts as public knowledge:",
    "take it from code books, forms or law, never from the rows themselves.",
    "",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """The public columns of a table, in the order of the features.

    Parameters
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

    columns: tuple[Column, ...]
    target: str
    n_rows: int | None = None
    reviewed: bool = False
    version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Check what can only be seen with all columns at hand."""
        object.__setattr__(self, "columns", tuple(self.columns))
        self._check_settings()
        names = [column.name for column in self.columns]
        _refuse_repeated("columns", names)
        if not isinstance(self.target, str) or self.target not in names:
            raise TableError(
                f"Expected target to name one of the columns, got {shown(self.target)}"
                f"{suggestion(str(self.target), names)}; set target to the column to "
                "learn."
            )
        labels = [column.name for column in self.columns if isinstance(column, Label)]
        if labels != [self.target]:
            raise TableError(
                f"Expected one column of kind label, the target {shown(self.target)}, "
                f"got {listed(labels) or 'none'}; give the target, and no other column,"
                ' kind = "label" and its classes.'
            )
        if not self.feature_names:
            raise TableError(
                "Expected at least one numeric or categorical column, got none; declare"
                " the columns to learn from."
            )
        _refuse_repeated("feature names", self.feature_names)

    def _check_settings(self) -> None:
        """Check the values that stand on their own."""
        if type(self.version) is not int or self.version != SCHEMA_VERSION:
            raise TableError(
                f"Expected a schema of version {SCHEMA_VERSION}, got "
                f"{shown(self.version)}; draft it again with this version of armijo."
            )
        if type(self.reviewed) is not bool:
            raise TableError(
                f"Expected reviewed to be true or false, got {shown(self.reviewed)}; "
                "write true once every value in the schema is public knowledge."
            )
        if self.n_rows is not None and (
            type(self.n_rows) is not int or self.n_rows < 1
        ):
            raise TableError(
                f"Expected n_rows to be a whole number of 1 or more, got "
                f"{shown(self.n_rows)}; leave it out if it is not public."
            )

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

    @property
    def ignored(self) -> frozenset[str]:
        """The names of the columns that are not used."""
        return frozenset(c.name for c in self.columns if isinstance(c, Ignore))

    def to_dict(self) -> dict[str, object]:
        """Return the schema as plain values, as `from_dict` takes them."""
        columns = [column_to_dict(column) for column in self.columns]
        return {**self._settings(), "columns": columns}

    def _settings(self) -> dict[str, object]:
        """Return all but the columns."""
        settings: dict[str, object] = {
            "version": self.version,
            "reviewed": self.reviewed,
            "target": self.target,
        }
        return settings if self.n_rows is None else {**settings, "n_rows": self.n_rows}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Schema":
        """Build a schema from plain values; `TableError` says what is wrong."""
        if not isinstance(document, Mapping):
            raise TableError(
                f"Expected a schema to be a table of keys, got {shown(document)}."
            )
        check_keys(
            "schema",
            document,
            allowed=_KEYS,
            required=("version", "target", "columns"),
        )
        entries = document["columns"]
        if not isinstance(entries, list):
            raise TableError(
                f"Expected columns to be a list, got {shown(entries)}; write one "
                "[[columns]] block per column."
            )
        columns = tuple(column_from_dict(entry) for entry in entries)
        return cls(**{**document, "columns": columns})

    def to_toml(self) -> str:
        """Return the schema as the text of a TOML file, which `load_schema` reads."""
        columns = (column_to_dict(column) for column in self.columns)
        return render(self._settings(), columns, heading=_HEADING)

    def digest(self) -> str:
        """Return the SHA-256 of the schema, as 64 hexadecimal digits.

        It is taken over JSON with sorted keys and no spaces. ``reviewed`` is left out:
        it does not change what the schema says of the table.
        """
        document = {k: v for k, v in self.to_dict().items() if k != "reviewed"}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _refuse_repeated(what: str, names: list[str] | tuple[str, ...]) -> None:
    """Refuse a name that stands for two things."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(
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
        schema = Schema.from_dict(tomllib.loads(_read_text(path)))
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a TOML file, got {shown(error, most=200)}; correct "
            "that line or draft the schema again."
        ) from None
    if require_reviewed and not schema.reviewed:
        raise TableError(
            f"{path}: Expected reviewed = true, got a draft. Values that were read "
            "from the data are not private: replace every bound, category and class by "
            "public knowledge (code books, forms, law), then set reviewed = true."
        )
    return schema


def _read_text(path: Path) -> str:
    """Return the text of a small file."""
    try:
        if path.stat().st_size > MAX_SCHEMA_BYTES:
            raise TableError(
                f"Expected a schema of at most {MAX_SCHEMA_BYTES} bytes, got "
                f"{path.stat().st_size}; is this the schema?"
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TableError("Expected UTF-8 text, got other bytes; save it so.") from None
    except OSError as error:
        raise TableError(
            f"Expected a file to read, got: {error.strerror}; check the path."
        ) from None
