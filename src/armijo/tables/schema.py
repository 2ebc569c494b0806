# SPDX-License-Identifier: Apache-2.0
"""The public description of a table: what may be known before a row is read.

Bounds, categories and classes read from private rows would leak them, so the owner
states them in a TOML file, and a draft is refused until it is reviewed.  Bounds and
categories may be left out: what is not public is learned privately, or hashed.
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

import tomlkit
from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from armijo.errors import TableError
from armijo.tables.cells import listed, shown, suggestion
from armijo.tables.columns import (
    NO_OTHER_KEYS,
    Column,
    Label,
    Part,
    Person,
    Target,
    column_to_dict,
    explained,
)

SCHEMA_VERSION = 2
MAX_SCHEMA_BYTES = 16 * 2**20
_WIDTH = 72
_HEADING = (
    "Schema of a table for armijo. Everything here counts as public knowledge:",
    "take it from code books, forms or law, never from the rows themselves.",
    "",
)


def _this_version(version: object) -> object:
    if type(version) is not int or version != SCHEMA_VERSION:
        advice = "draft it again with this version of armijo"
        if version == 1:
            # Not read as version 2: a cell that does not fit made its row blank then.
            advice = (
                "take out missing = and unknown = (a missing cell is missing now, an "
                'undeclared category is "other"), then set version = 2'
            )
        raise ValueError(
            f"Expected a schema of version {SCHEMA_VERSION}, got {shown(version)}; "
            f"{advice}."
        )
    return version


Version = Annotated[int, BeforeValidator(_this_version)]


@dataclass(frozen=True, kw_only=True, config=NO_OTHER_KEYS)
class Schema:
    """The public columns of a table, in the order of the features.

    Attributes
    ----------
    columns : sequence of Column
        Of the kinds of :mod:`armijo.tables.columns`.
    target : str, optional
        Name of the one `Label` or `Target` column; without it, labels are given apart.
    n_rows : int, optional
        The number of rows (of persons, if there is a `Person` column), if it is public.
        It is not compared with a table.
    reviewed : bool, default=False
        Whether the owner confirms that all of this is public knowledge.
    version : int, default=2
        Version of the format.
    """

    version: Version = SCHEMA_VERSION
    reviewed: Annotated[bool, Strict()] = False
    target: Annotated[str, Strict()] | None = None
    n_rows: Annotated[int, Strict(), Field(ge=1)] | None = None
    columns: tuple[Annotated[Column, Field(discriminator="kind")], ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        _refuse_repeated("columns", names)
        if self.target is not None and self.target not in names:
            raise ValueError(
                f"Expected target to name one of the columns, got {shown(self.target)}"
                f"{suggestion(self.target, names)}; set target to the column to learn."
            )
        learned = [c.name for c in self.columns if isinstance(c, Label | Target)]
        if learned != [name for name in (self.target,) if name is not None]:
            raise ValueError(
                "Expected one column of kind label or target, "
                f"{shown(self.target or 'named by target')}, got "
                f"{listed(learned) or 'none'}; set target to it, and give it, and no "
                'other column, kind = "label" with its classes, or kind = "target".'
            )
        persons = [c.name for c in self.columns if isinstance(c, Person)]
        if len(persons) > 1:
            raise ValueError(
                f"Expected at most one column of kind person, got {listed(persons)}; "
                "one names whose row it is."
            )
        if not self.parts:
            raise ValueError(
                "Expected at least one column to learn from, got none; declare numeric,"
                " categorical, boolean or date columns."
            )
        _refuse_repeated("parts of columns", [part.info.name for part in self.parts])
        _refuse_repeated("feature names", self.feature_names)

    @property
    def response(self) -> Label | Target | None:
        """The column to learn."""
        learned = (c for c in self.columns if isinstance(c, Label | Target))
        return next(learned, None)

    @property
    def person(self) -> str | None:
        """Name of the column that says whose row it is."""
        return next((c.name for c in self.columns if isinstance(c, Person)), None)

    @property
    def classes(self) -> tuple[str, ...]:
        """The public classes of the target, in order; none of a number."""
        return self.response.classes if isinstance(self.response, Label) else ()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the columns become when they are coded."""
        return tuple(part for column in self.columns for part in column.parts)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features of a linear model, such as ``"sex=f"``."""
        return tuple(name for part in self.parts for name in part.feature_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain values, as `from_dict` takes them."""
        return {
            "version": self.version,
            "reviewed": self.reviewed,
            **({} if self.target is None else {"target": self.target}),
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
