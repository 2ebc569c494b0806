# SPDX-License-Identifier: Apache-2.0
"""Draft a schema from a table, for its owner to correct by public knowledge.

Names and, where the file has them, types are all that it needs; neither bounds nor
categories are drafted.  Where it had to read values (the types of text cells, the
classes of the target) the draft says so: that is not private.
"""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.errors import TableError
from armijo.tables.cells import (
    distinct_texts,
    shown,
    suggestion,
    to_dates,
    to_numbers,
)
from armijo.tables.columns import (
    Boolean,
    Categorical,
    Column,
    Date,
    Ignore,
    Label,
    Numeric,
    Target,
    column_to_dict,
)
from armijo.tables.frames import column_of_type
from armijo.tables.reader import read_table
from armijo.tables.schema import SCHEMA_VERSION, render

MAX_CLASSES = 100
_FEW_CLASSES = 20
_FEW_ROWS = 20
_FROM_DATA = "READ FROM THE DATA: replace"
_BY_VALUES = "a guess from the values"
_PADDED = r"\s*[+-]?0[0-9]"
_ID_NAME = re.compile(r"(?:.*[ _.-])?(?:id|uid|uuid|key|index)", re.IGNORECASE)
_HEADING = (
    "Everything in a schema counts as public knowledge. Before training, correct what",
    "was read from the data by code books, forms or law; then set reviewed = true.",
    "",
    "numeric: low and high are optional public bounds, in the unit of the table.",
    "categorical: with categories = [...], if there is a public list of them; without,",
    "  texts are hashed to buckets = 64 levels.",
    "boolean. date: time = true if the cells have a time of day; low, high optional.",
    "label: the classes in order; of two, the second is the positive one.",
    "target: a number to predict; low and high optional, both or none.",
    "person: whose row it is, if people have several. ignore: not used.",
    "A public number of rows (of persons) can be given as n_rows = ...",
    "",
)

Draft = tuple[Column, dict[str | None, str]]
"""A column, and comments by its keys; None: above it."""


def draft_schema(
    table_path: str | os.PathLike[str],
    target: str | None = None,
    *,
    multiline: bool = False,
) -> str:
    """Return the text of a schema file.

    Columns of a Parquet file are what their type says, and no value is looked at; what
    the text columns of a CSV file are is guessed from their values.  Of the target the
    classes are read, or that it is a number.

    Parameters
    ----------
    table_path : path
        A table that `read_table` reads.
    target : str, optional
        The column to learn.
    multiline : bool, default=False
        As `read_table` has it.

    Returns
    -------
    str
        TOML text that `load_schema` refuses until it says ``reviewed = true``.
    """
    frame = read_table(table_path, multiline=multiline)
    names = list(frame.columns)
    typed = str(table_path).lower().endswith(".parquet")
    if len(names) == 1 and not typed and to_numbers(frame[names[0]])[1].any():
        raise TableError(
            f"{table_path}: Expected a table with cells separated by comma, semicolon, "
            "tab or bar, got text without any of them; is this a CSV file?"
        )
    if target is not None and target not in names:
        raise TableError(
            f"{table_path}: Expected the target to be a column of the table, got "
            f"{shown(target)}{suggestion(target, names)}; name one of its columns."
        )
    draft = _draft_by_type if typed else _draft_by_values
    drafts = [
        _draft_response(frame[name]) if name == target else draft(frame[name])
        for name in names
    ]
    notes: dict[str | None, dict[str | None, str]] = {
        column.name: comments for column, comments in drafts
    }
    notes[None] = {"reviewed": "set to true when everything below is public"}
    if target is None:
        notes[None]["target"] = "name the column to learn; its kind is label or target"
    document = {
        "version": SCHEMA_VERSION,
        "reviewed": False,
        "target": target or "",
        "columns": [column_to_dict(column) for column, _ in drafts],
    }
    read = [] if typed else ["the types of the columns"]
    read += [] if target is None else [f"what column {shown(target)} holds"]
    heading = [
        f"Schema drafted by armijo from {shown(Path(table_path).name)}.",
        f"READ FROM ITS VALUES (not private): {' and '.join(read) or 'nothing'}.",
        "",
        *_HEADING,
    ]
    if np.isfinite(to_numbers(pd.Series(names))[0]).any():
        heading += ["Some column names are numbers: has the table a header line?", ""]
    return render(document, heading=heading, notes=notes)


def _draft_by_type(series: pd.Series) -> Draft:
    name = str(series.name)
    if _ID_NAME.fullmatch(name):
        return Ignore(name), {"kind": "by its name an identifier"}
    column = column_of_type(name, series.dtype)
    if column is None:
        return Ignore(name), {
            "kind": f"a type that no cell is read from: {series.dtype}"
        }
    return column, {}


def _draft_by_values(series: pd.Series) -> Draft:
    name = str(series.name)
    read: dict[str | None, str] = {"kind": _BY_VALUES}
    values, bad = to_numbers(series)
    known = values[np.isfinite(values)]
    texts = {text for text in distinct_texts(series)[1] if text}
    if not texts:
        return Ignore(name), {"kind": "no value in it"}
    if texts <= {"True", "False"}:
        return Boolean(name), read
    padded = bool(series.str.match(_PADDED, na=False).any())
    if not bad.any() and not padded and known.size:
        if _is_row_number(name, known):
            return Ignore(name), {"kind": "looks like an identifier or a row number"}
        return Numeric(name), read
    moments, no_date = to_dates(series)
    if not no_date.any() and not padded:
        present = moments[~np.isnat(moments)]
        timed = bool((present != present.astype("datetime64[D]")).any())
        return Date(name, time=timed), read
    if len(texts) == len(series) > _FEW_ROWS:
        return Ignore(name), {"kind": "a different text in every row"}
    return Categorical(name), read


def _draft_response(series: pd.Series) -> Draft:
    name = str(series.name)
    if pd.api.types.is_bool_dtype(series.dtype):
        return Label(name, ("False", "True")), {}
    codes, texts = distinct_texts(series)
    levels = sorted({text for text in texts if text})
    numbers, bad = to_numbers(pd.Series(levels, dtype=object))
    if not bad.any() and len(levels) > _FEW_CLASSES:
        return Target(name), {"kind": _BY_VALUES}
    if not 2 <= len(levels) <= MAX_CLASSES:
        raise TableError(
            f"Expected a target of 2 to {MAX_CLASSES} classes, or of numbers, got "
            f"{len(levels)} different texts in column {shown(name)}; name another "
            "column or group its values first."
        )
    if not bad.any():
        levels = [levels[place] for place in np.argsort(numbers, kind="stable")]
    comments: dict[str | None, str] = {"classes": _FROM_DATA}
    if "" in texts or bool((codes < 0).any()):
        comments[None] = "Some labels are missing: those rows will be blank."
    return Label(name, tuple(levels)), comments


def _is_row_number(name: str, known: NDArray[np.float64]) -> bool:
    """Tell whether whole numbers, all different, only number the rows."""
    distinct = np.unique(known).size
    whole = bool((known == np.floor(known)).all())
    if not whole or distinct < known.size or known.size <= _FEW_ROWS:
        return False
    return bool(np.ptp(known) == distinct - 1) or bool(_ID_NAME.fullmatch(name))
