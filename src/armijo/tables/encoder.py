# SPDX-License-Identifier: Apache-2.0
"""Turn the rows of a table into numbers, by what the public schema says alone.

Each row is encoded on its own, so one person's row never changes another's features.
A row with a cell that the schema does not allow is blank: it has no known class, adds
nothing to any sum, and nobody is told of it. The strict encoding, for the owner of the
data and outside of any guarantee, names such rows instead.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.errors import TableError
from armijo.tables.cells import distinct_texts, listed, shown, suggestion, to_numbers
from armijo.tables.columns import Categorical, Numeric
from armijo.tables.schema import Schema

UNKNOWN_LABEL = -1
"""The label of a blank row: no position among the classes."""
_UNKNOWN, _MISSING = -1, -2
Blanks = NDArray[np.bool_] | None


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
        that names its row, instead of making the row blank.

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
        stop = start + len(column.feature_names)
        if isinstance(column, Numeric):
            X[:, start] = _scaled(frame[column.name], column, blanks)
        elif isinstance(column, Categorical):
            _one_hot(frame[column.name], column, X[:, start:stop], blanks)
        start = stop
    y = _labels(frame[schema.target], schema, blanks) if with_target else None
    if blanks is not None:
        X[blanks] = 0.0
        if y is not None:
            y[blanks] = UNKNOWN_LABEL
    return X, y


def _check_columns(frame: pd.DataFrame, schema: Schema, with_target: bool) -> None:
    """Refuse a table whose columns or size do not fit."""
    names = list(frame.columns)
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated) or not all(isinstance(name, str) for name in names):
        raise TableError(
            f"Expected column names to be text and to differ, got {listed(names)}; "
            "rename the columns of the table."
        )
    optional = schema.ignored if with_target else schema.ignored | {schema.target}
    declared = [column.name for column in schema.columns]
    missing = [name for name in declared if name not in names and name not in optional]
    unexpected = [name for name in names if name not in declared]
    if missing or unexpected:
        raise TableError(_column_message(missing, unexpected, len(names)))
    if len(frame) == 0:
        raise TableError("Expected rows, got an empty table; is this the right file?")


def _column_message(missing: list[str], unexpected: list[str], width: int) -> str:
    """Say which columns do not fit, and which were perhaps meant."""
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


def _scaled(series: pd.Series, column: Numeric, blanks: Blanks) -> NDArray[np.float64]:
    """Return (min(max(x, low), high) - low) / (high - low)."""
    _check_type(series)
    values, bad = to_numbers(series)
    _mark(series, bad, blanks, "numbers", "no number", "correct the cells")
    infinite = np.isinf(values)
    _mark(series, infinite, blanks, "finite numbers", "infinite", "correct the cells")
    absent = np.isnan(values) & ~bad
    if column.missing is None:
        advice = "fill them, or give the column a public value: missing = 0, say"
        _mark(series, absent, blanks, "no gaps", "missing (NaN)", advice)
    else:
        values = np.where(absent, column.missing, values)
    # A new array: the frame may share its memory with the values.
    scaled = np.clip(values, column.low, column.high)
    scaled -= column.low
    scaled /= column.high - column.low
    return scaled


def _check_type(series: pd.Series) -> None:
    """Refuse a column whose type, which is public, has no numbers."""
    kinds = pd.api.types
    if any(
        is_kind(series.dtype)
        for is_kind in (
            kinds.is_bool_dtype,
            kinds.is_complex_dtype,
            kinds.is_datetime64_any_dtype,
        )
    ):
        raise TableError(
            f"Expected numbers in column {shown(series.name)}, got the type "
            f"{series.dtype}, of which no number is made: {len(series)} of "
            f"{len(series)} cells no number; declare categories, or convert it."
        )


def _one_hot(
    series: pd.Series, column: Categorical, out: NDArray[np.float64], blanks: Blanks
) -> None:
    """Set the 1 of every row whose category is declared."""
    positions, texts = _positions(series, column.categories)
    if column.unknown == "error":
        advice = 'or let such cells be zeros: unknown = "zero"'
        _check_positions(series, positions, texts, column.categories, advice, blanks)
    rows = np.flatnonzero(positions >= 0)
    out[rows, positions[rows]] = 1.0


def _labels(series: pd.Series, schema: Schema, blanks: Blanks) -> NDArray[np.int64]:
    """Return the position of every label among the classes."""
    positions, texts = _positions(series, schema.classes)
    advice = "or add the class to the schema if it is public"
    _check_positions(series, positions, texts, schema.classes, advice, blanks)
    return positions


def _positions(
    series: pd.Series, levels: tuple[str, ...]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the position of every cell among the levels, and the distinct texts."""
    codes, texts = distinct_texts(series)
    index = {"": _MISSING} | {level: place for place, level in enumerate(levels)}
    places = [index.get(text, _UNKNOWN) for text in texts]
    # The code of a null is -1 and so finds the last entry.
    return np.array([*places, _MISSING], dtype=np.int64)[codes], texts


def _check_positions(
    series: pd.Series,
    positions: NDArray[np.int64],
    texts: list[str],
    levels: tuple[str, ...],
    advice: str,
    blanks: Blanks,
) -> None:
    """Mark or refuse missing cells and texts that are not among the levels."""
    missing, unknown = positions == _MISSING, positions == _UNKNOWN
    _mark(series, missing, blanks, "no gaps", "missing", f"fill them, {advice}")
    what = "not declared"
    if blanks is None and unknown.any():
        others = sorted({text for text in texts if text and text not in set(levels)})
        what += f": {listed(others, most=3)}{suggestion(others[0], levels)}"
    _mark(series, unknown, blanks, listed(levels), what, f"correct them, {advice}")


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
