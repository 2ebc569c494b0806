# SPDX-License-Identifier: Apache-2.0
"""Draft a schema from a table, for its owner to replace by public knowledge.

What is drafted is read from private rows. It saves typing and is not private.
"""

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.errors import TableError
from armijo.tables.columns import (
    distinct_texts,
    holds_text,
    shown,
    suggestion,
    to_numbers,
)
from armijo.tables.reader import read_table
from armijo.tables.schema import SCHEMA_VERSION, render

MAX_LEVELS = 100
_MAX_CODES = 10
_MAX_GUESSED_CLASSES = 20
_FEW_ROWS = 20
_BOUND = 4e307
_LEAST_SPREAD = Fraction(1, 10**300)
_FROM_DATA = "from the data: replace"
_PADDED = r"\s*[+-]?0[0-9]"
_ID_NAME = re.compile(r"(?:.*[ _.-])?(?:id|uid|uuid|key|index)", re.IGNORECASE)
_HEADING = (
    "WARNING: THIS DRAFT IS NOT PRIVATE AND MUST NOT BE USED AS IT IS.",
    "",
    "Every bound, category and class below was READ FROM THE DATA. A model trained",
    "with such values tells something of the rows they came from, outside of any",
    "privacy guarantee. Before training, replace every one of them by public",
    "knowledge: code books, forms, law. Then set reviewed = true.",
    "",
    "numeric: what lies outside low and high is clamped; missing = 0 (say) fills gaps.",
    'categorical: unknown = "zero" takes other values and gaps as a row of zeros.',
    "label: the classes in order; of two, the second is the positive one.",
    "ignore: not used. A public number of rows can be given as n_rows = ...",
    "",
)

Entry = dict[str, Any]
Draft = tuple[Entry, dict[str | None, str]]
"""The entry of a column in a schema, and comments by its keys; None: above it."""


def draft_schema(
    table_path: str | os.PathLike[str],
    target: str | None = None,
    *,
    multiline: bool = False,
) -> str:
    """Return the text of a schema file, with guesses read from a table.

    Numbers become numeric columns with round bounds; text, truth values and a few whole
    numbers become categories; text with more than 100 levels and what looks like an
    identifier is ignored.

    Parameters
    ----------
    table_path : path
        A table that `read_table` reads.
    target : str, optional
        The column to learn; by default the last one with 2 to 20 categories.
    multiline : bool, default=False
        As `read_table` has it.

    Returns
    -------
    str
        TOML text that `load_schema` refuses until it says ``reviewed = true``.
    """
    frame = read_table(table_path, multiline=multiline)
    names = list(frame.columns)
    if len(names) == 1 and to_numbers(frame[names[0]])[1].any():
        raise TableError(
            f"{table_path}: Expected a table with cells separated by comma, semicolon, "
            "tab or bar, got text without any of them; is this a CSV file?"
        )
    if target is not None and target not in names:
        raise TableError(
            f"{table_path}: Expected the target to be a column of the table, got "
            f"{shown(target)}{suggestion(target, names)}; name one of its columns."
        )
    drafts = {
        name: _draft_label(frame[name]) if name == target else _draft(frame[name])
        for name in names
    }
    guessed = _guess_target(drafts) if target is None else target
    if guessed is not None and target is None:
        drafts[guessed] = _draft_label(frame[guessed])
    notes: dict[str | None, dict[str | None, str]] = {
        name: comments for name, (_, comments) in drafts.items()
    }
    notes[None] = {"reviewed": "set to true after replacing every value below"}
    if target is None:
        notes[None]["target"] = "a guess: set it to the column to learn"
    document = {
        "version": SCHEMA_VERSION,
        "reviewed": False,
        "target": guessed or "",
        "columns": [entry for entry, _ in drafts.values()],
    }
    heading = [f"Schema drafted by armijo from {shown(Path(table_path).name)}.", ""]
    heading += _HEADING
    if np.isfinite(to_numbers(pd.Series(names))[0]).any():
        heading += ["Some column names are numbers: has the table a header line?", ""]
    return render(document, heading=heading, notes=notes)


def _guess_target(drafts: dict[str, Draft]) -> str | None:
    for name, (entry, _) in reversed(drafts.items()):
        levels = entry.get("categories")
        if isinstance(levels, list) and 2 <= len(levels) <= _MAX_GUESSED_CLASSES:
            return name
    return None


def _draft_label(series: pd.Series) -> Draft:
    name = str(series.name)
    levels, gaps = _levels(series)
    if len(levels) > MAX_LEVELS:
        raise TableError(
            f"Expected a target of at most {MAX_LEVELS} classes, got {len(levels)} "
            f"different values in column {shown(name)}; only classes can be learned, "
            "so name another column or group its values first."
        )
    comments: dict[str | None, str] = {"classes": _FROM_DATA}
    if gaps:
        comments[None] = "Some labels are missing: leave those rows out."
    return {"name": name, "kind": "label", "classes": levels}, comments


def _draft(series: pd.Series) -> Draft:
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return _draft_ignore(series, "a date: make numbers of it, such as the year")
    values, bad = to_numbers(series)
    known = values[np.isfinite(values)]
    if bad.any() or _has_padded_codes(series):
        return _draft_text(series)
    if known.size == 0:
        return _draft_ignore(series, "no finite number in it")
    distinct = np.unique(known).size
    whole = bool((known == np.floor(known)).all())
    if whole and _is_row_number(str(series.name), known, distinct):
        return _draft_ignore(series, "looks like an identifier or a row number")
    if whole and distinct <= _MAX_CODES and 4 * distinct <= known.size:
        return _draft_text(series)
    return _draft_number(series, known)


def _draft_number(series: pd.Series, known: NDArray[np.float64]) -> Draft:
    low, high = round_bounds(float(known.min()), float(known.max()))
    entry = {"name": str(series.name), "kind": "numeric", "low": low, "high": high}
    comments: dict[str | None, str] = {"low": _FROM_DATA, "high": _FROM_DATA}
    if known.size < len(series):
        comments[None] = (
            "Some cells are missing or infinite: clean them, or add missing."
        )
    return entry, comments


def _draft_text(series: pd.Series) -> Draft:
    levels, gaps = _levels(series)
    if not levels:
        return _draft_ignore(series, "no value in it")
    if len(levels) > MAX_LEVELS:
        return _draft_ignore(series, f"more than {MAX_LEVELS} different texts")
    if len(levels) == len(series) > _FEW_ROWS:
        return _draft_ignore(series, "a different text in every row")
    entry = {"name": str(series.name), "kind": "categorical", "categories": levels}
    comments: dict[str | None, str] = {"categories": _FROM_DATA}
    if gaps:
        entry["unknown"] = "zero"
        comments["unknown"] = "some cells are missing"
    return entry, comments


def _draft_ignore(series: pd.Series, reason: str) -> Draft:
    return {"name": str(series.name), "kind": "ignore"}, {"kind": reason}


def _levels(series: pd.Series) -> tuple[list[str], bool]:
    """Return the distinct category texts in order, and whether a cell is missing."""
    codes, texts = distinct_texts(series)
    present = {text for text in texts if text}
    numbers, bad = to_numbers(pd.Series(sorted(present)))
    levels = sorted(present)
    if not bad.any():
        levels = [levels[place] for place in np.argsort(numbers, kind="stable")]
    return levels, "" in texts or bool((codes < 0).any())


def _has_padded_codes(series: pd.Series) -> bool:
    """Tell whether text cells have leading zeros, as codes do and numbers do not."""
    return holds_text(series) and bool(series.str.match(_PADDED, na=False).any())


def _is_row_number(name: str, known: NDArray[np.float64], distinct: int) -> bool:
    """Tell whether whole numbers, all different, only number the rows."""
    if distinct < known.size or known.size <= _FEW_ROWS:
        return False
    return bool(np.ptp(known) == distinct - 1) or bool(_ID_NAME.fullmatch(name))


def round_bounds(low: float, high: float) -> tuple[float, float]:
    """Round a range outward to multiples of 1, 2 or 5 times a power of ten.

    The step is about the least such number of at least a fifth of the range. Fractions
    keep the multiples exact, so that the bounds are short, as a person writes them.

    >>> round_bounds(17.0, 90.0), round_bounds(0.12, 0.57)
    ((0.0, 100.0), (0.1, 0.6))
    """
    low, high = max(low, -_BOUND), min(high, _BOUND)
    spread = Fraction(high) - Fraction(low) or Fraction(max(abs(high), 1.0))
    spread = max(spread, _LEAST_SPREAD)
    power = Fraction(10) ** math.floor(math.log10(spread / 5))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= spread / 5)
    first, last = math.floor(Fraction(low) / step), math.ceil(Fraction(high) / step)
    last = max(last, first + 1)
    return float(first * step), float(last * step)
