# SPDX-License-Identifier: Apache-2.0
"""DataFrames of pandas, Polars and pyarrow, and what their types say of the columns.

The types of a typed frame are public; what they do not say (bounds, lists of
categories) is learned privately or hashed, unless it is declared.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from armijo.errors import TableError
from armijo.tables.cells import listed, shown, suggestion
from armijo.tables.columns import (
    KINDS,
    Boolean,
    Categorical,
    Column,
    Date,
    Numeric,
    Person,
    explained,
)
from armijo.tables.schema import Schema, load_schema

FROM_DTYPES = "from-dtypes"
PUBLIC_DTYPES = "the names and types of the table's columns are public"
"""What a guarantee assumes where a frame's types say what its columns are."""
PUBLIC_CATEGORIES = "so are the categories that its types list"

SchemaLike = Schema | Mapping[str, Any] | str | os.PathLike[str] | None
"""A schema, its file, "from-dtypes", or a dict of bounds or kinds by column."""

# Nullable types keep whole numbers and booleans exact where cells are missing, and
# dates apart from moments.
_EXACT_TYPES: dict[pa.DataType, Any] = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype("pyarrow"),
    pa.large_string(): pd.StringDtype("pyarrow"),
    pa.date32(): pd.ArrowDtype(pa.date32()),
    pa.date64(): pd.ArrowDtype(pa.date32()),
}


def is_frame(X: object) -> bool:
    """Say whether rows come with named columns."""
    return isinstance(X, pd.DataFrame) or hasattr(X, "__arrow_c_stream__")


def to_frame(X: Any) -> pd.DataFrame:
    """Return a DataFrame of pandas, Polars or pyarrow as one of pandas.

    Polars, and whatever else exports Arrow tables, is read through that export.
    Columns that are numbered are called x0, x1, ..., as those of an array.

    Raises
    ------
    TableError
        For columns of nested or other types that no cell can be read from.
    """
    if isinstance(X, pd.DataFrame):
        numbered = pd.api.types.is_integer_dtype(X.columns.dtype)
        return X.rename(columns="x{}".format) if numbered else X
    return arrow_to_pandas(X if isinstance(X, pa.Table) else pa.table(X))


def arrow_to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table with types that keep its cells exact, each by itself."""
    try:
        nested = {}
        for place, field in enumerate(table.schema):
            column = table.column(place)
            if pa.types.is_nested(_value_type(field.type)):
                # As pandas has them, one cell's null makes numbers in others floats.
                nested[place] = column.to_pylist()
                column = pa.nulls(len(column))
            table = table.set_column(place, field.name, _plain_column(column))
        # Notes in a file are not needed to read it, and could be anything.
        table = table.replace_schema_metadata(None)
        frame = table.to_pandas(types_mapper=_EXACT_TYPES.get)
        for place, cells in nested.items():
            frame.isetitem(place, pd.Series(cells, dtype=object))
        return frame
    except (pa.ArrowException, ValueError, LookupError, OverflowError) as error:
        # Not what it says, which may be a cell.
        kinds = listed(dict.fromkeys(table.schema.types))
        raise TableError(
            f"Expected columns of numbers, text and dates, got the types {kinds} and "
            f"an error of type {type(error).__name__}; write the table as CSV."
        ) from None


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the same cells in a type that pandas has too; an unfit one is missing."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if pa.types.is_date64(kind):
        return column.cast(pa.date32(), safe=False)
    if pa.types.is_time(kind):
        return _times(column)
    if _is_view(_value_type(kind)):
        column = column.cast(
            pa.dictionary(pa.int32(), pa.large_string())
            if pa.types.is_dictionary(kind)
            else pa.large_string()
        )
    column = decoded(column)
    return _unique_levels(column) if pa.types.is_dictionary(kind) else column


def _times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times of a day to the microsecond."""
    exact = column.cast(pa.time64("ns"), safe=False).cast(pa.int64())
    micros = pc.divide(exact, 1000)
    within = pc.and_(pc.greater_equal(exact, 0), pc.less(micros, 86_400_000_000))
    return pc.if_else(within, micros, None).cast(pa.time64("us"))


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without texts that are none: a file may hold any bytes."""
    kind = _value_type(column.type)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        cells = column.cast(kind).cast(pa.large_binary())
        texts = pa.chunked_array([[_text(cell) for cell in cells.to_pylist()]], kind)
        return texts.dictionary_encode() if kind != column.type else texts


def _text(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def _unique_levels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary in which no level is missing or comes twice."""
    for chunk in column.chunks:
        levels = chunk.dictionary
        absent = pc.any(pc.is_null(levels, nan_is_null=True)).as_py()
        if absent or len(pc.unique(levels)) < len(levels):
            cells = column.cast(column.type.value_type)
            absent = pc.is_null(cells, nan_is_null=True)
            return pc.if_else(absent, None, cells).dictionary_encode()
    return column


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind))


def resolved_schema(
    schema: SchemaLike, frame: pd.DataFrame, *, person: str | None = None
) -> tuple[Schema, tuple[str, ...]]:
    """Return the schema of a frame, and what it takes for public without saying so.

    Parameters
    ----------
    schema : Schema, path, dict, "from-dtypes" or None
        A schema or its file is complete.  A dict has for some columns a kind
        (``"ignore"``), bounds (a tuple of two numbers or None), categories (a list), or
        all keys that a schema file has; other columns are what their type says.
        "from-dtypes" also takes the categories that a type lists for declared.
    frame : pandas.DataFrame
        The features, of which names and types are read.
    person : str or None
        The column that says whose row it is.

    Raises
    ------
    TableError
        For columns whose type does not say what they are.
    """
    if isinstance(schema, Schema):
        return with_person(schema, person), ()
    if isinstance(schema, str | os.PathLike) and schema != FROM_DTYPES:
        return with_person(load_schema(schema), person), ()
    told = dict(schema) if isinstance(schema, Mapping) else {}
    if person is not None:
        told[person] = "person"
    return _typed_schema(frame, told, listed_levels=schema == FROM_DTYPES)


def with_person(schema: Schema, person: str | None) -> Schema:
    """Return the schema with a column that says whose row it is."""
    if person in (None, schema.person):
        return schema
    if schema.person is not None or person == schema.target:
        raise TableError(
            f"Expected the person column of the schema, "
            f"{shown(schema.person or 'none')}, got {shown(person)}, whose target is "
            f"{shown(schema.target)}; name another column. Nothing was spent."
        )
    others = tuple(column for column in schema.columns if column.name != person)
    try:
        return replace(schema, columns=(*others, Person(person)))
    except ValidationError as error:
        raise TableError(explained(error, {"columns": []}, Schema)) from None


def _typed_schema(
    frame: pd.DataFrame, told: Mapping[str, Any], *, listed_levels: bool
) -> tuple[Schema, tuple[str, ...]]:
    names = [str(name) for name in frame.columns]
    strangers = [name for name in told if name not in names]
    if strangers:
        raise TableError(
            f"Expected schema= to name columns of the table, got {listed(strangers)}"
            f"{suggestion(str(strangers[0]), names)}; the table has {listed(names)}."
        )
    try:
        columns = {
            name: _declared(name, told[name], dtype)
            if name in told
            else column_of_type(name, dtype, listed_levels=listed_levels)
            for name, dtype in zip(names, frame.dtypes, strict=True)
        }
    except ValidationError as error:  # of a name that no schema can have
        raise TableError(explained(error, {}, Numeric)) from None
    open_ones = [name for name, column in columns.items() if column is None]
    if open_ones:
        raise TableError(
            f"Expected columns whose type says what they are, got {listed(open_ones)} "
            f"of type {frame.dtypes.iloc[names.index(open_ones[0])]}; declare them: "
            f'schema={{{open_ones[0]!r}: "categorical"}}, or numeric, date, boolean, '
            "ignore. Nothing was spent."
        )
    found = tuple(column for column in columns.values() if column is not None)
    typed = any(name not in told for name in names)
    assumed = (PUBLIC_DTYPES,) * typed + (PUBLIC_CATEGORIES,) * listed_levels
    try:
        return Schema(columns=found, reviewed=True), assumed
    except ValidationError as error:
        raise TableError(explained(error, {"columns": []}, Schema)) from None


def column_of_type(
    name: str, dtype: Any, *, listed_levels: bool = False
) -> Column | None:
    """Return what a type says of a column; None if it does not say."""
    kinds = pd.api.types
    arrow = dtype.pyarrow_dtype if isinstance(dtype, pd.ArrowDtype) else None
    if isinstance(dtype, pd.CategoricalDtype):
        if listed_levels and len(dtype.categories):
            return Categorical(name, tuple(str(level) for level in dtype.categories))
        return Categorical(name)
    if kinds.is_bool_dtype(dtype):
        return Boolean(name)
    if arrow is not None and pa.types.is_date(arrow):
        return Date(name)
    if kinds.is_datetime64_any_dtype(dtype):
        return Date(name, time=True)
    if kinds.is_numeric_dtype(dtype) and not kinds.is_complex_dtype(dtype):
        return Numeric(name)
    text = arrow is not None and _is_text(arrow)
    return Categorical(name) if text or isinstance(dtype, pd.StringDtype) else None


def _is_text(kind: pa.DataType) -> bool:
    """Say whether cells are texts, or taken from a dictionary: lists have no text."""
    value = _value_type(kind)
    if pa.types.is_dictionary(kind):
        return not pa.types.is_nested(value)
    return pa.types.is_string(value) or pa.types.is_large_string(value)


_COLUMNS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind) for name, kind in KINDS.items()
}


def _declared(name: str, told: Any, dtype: Any) -> Column:
    """Return the column that an entry of a dict describes."""
    entry: dict[str, Any] = {}
    typed = column_of_type(name, dtype)
    if isinstance(told, Column):
        return told
    if isinstance(told, str):
        entry = {"kind": told}
    elif isinstance(told, tuple) and len(told) == 2:
        dates = isinstance(typed, Date)
        entry = {
            "kind": "date" if dates else "numeric",
            "low": told[0],
            "high": told[1],
        }
        entry |= {"time": typed.time} if isinstance(typed, Date) else {}
    elif isinstance(told, list):
        entry = {"kind": "categorical", "categories": told}
    elif isinstance(told, Mapping):
        entry = {"kind": typed.kind if typed is not None else None, **told}
    if entry.get("kind") not in _COLUMNS:
        raise TableError(
            f"column {shown(name)}: Expected a kind ({', '.join(_COLUMNS)}), a tuple "
            "of bounds, a list of categories, or a dict of these, got "
            f"{shown(entry.get('kind') or told)}; declare it so. Nothing was spent."
        )
    kind = entry["kind"]
    if kind in ("label", "target"):
        raise TableError(
            f"column {shown(name)}: Expected a column to learn from, got kind {kind}; "
            "give labels as y, or a whole schema. Nothing was spent."
        )
    try:
        return _COLUMNS[kind].validate_python({"name": name, **entry})
    except ValidationError as error:
        said = explained(error, entry, KINDS[kind])
        raise TableError(f"column {shown(name)}: {said}") from None


def numeric_schema(width: int, names: Sequence[str] | None = None) -> Schema:
    """Return the schema of a plain array: numbers x0, x1, ..."""
    names = names or [f"x{place}" for place in range(width)]
    return Schema(columns=tuple(Numeric(name) for name in names), reviewed=True)
