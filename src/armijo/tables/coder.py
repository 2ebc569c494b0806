# SPDX-License-Identifier: Apache-2.0
"""Code a table by its schema: a number or a level for each cell, and nothing learned.

The code of a cell follows from the cell and the schema alone, so rows can be coded
block by block, and no row changes another's.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.data.coded import CodedTable, ColumnInfo, NumericColumn
from armijo.errors import TableError
from armijo.tables.cells import listed, shown, suggestion
from armijo.tables.columns import Fault, Label, Person, Target
from armijo.tables.schema import Schema


def coded_columns(
    schema: Schema, monotone: Mapping[str, int] | None = None
) -> tuple[ColumnInfo, ...]:
    """Return what is public of the coded columns.

    Parameters
    ----------
    schema : Schema
        The columns.
    monotone : mapping or None
        Numeric columns whose shape must not fall (1) or not rise (-1).

    Raises
    ------
    ValueError
        A name is no numeric column, or a direction is none.
    """
    monotone = dict(monotone or {})
    infos = [part.info for part in schema.parts]
    numeric = [info.name for info in infos if isinstance(info, NumericColumn)]
    for name, direction in monotone.items():
        if name not in numeric:
            raise ValueError(
                f"Expected monotone to name numeric columns, got {shown(name)}"
                f"{suggestion(str(name), numeric)}; numeric are {listed(numeric)}. "
                "Nothing was spent."
            )
        if direction not in (-1, 0, 1):
            raise ValueError(
                f"Expected monotone={{{name!r}: 1}} (never falls) or -1 (never rises), "
                f"got {direction!r}. Nothing was spent."
            )
    return tuple(
        replace(info, monotone=int(monotone[info.name]))
        if isinstance(info, NumericColumn) and info.name in monotone
        else info
        for info in infos
    )


def code_table(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    columns: tuple[ColumnInfo, ...] | None = None,
    faults: list[Fault] | None = None,
) -> CodedTable:
    """Code the features of a table.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table; its columns may stand in any order.
    schema : Schema
        The public description. Columns that are no features may be absent, columns it
        does not know are refused.
    columns : tuple or None
        What :func:`coded_columns` said, if anything is monotone.
    faults : list or None
        Where to tell the owner of cells that do not fit their column.

    Raises
    ------
    TableError
        For missing, unexpected or repeated columns, columns of a type that cannot be
        what was declared, and no rows; never for a single cell.
    """
    refuse_columns(frame, schema)
    cells = (
        array
        for column in schema.columns
        if column.is_feature
        for array in column.code(frame[column.name], faults)
    )
    return CodedTable(columns or coded_columns(schema), tuple(cells))


def code_column(
    frame: pd.DataFrame,
    column: Label | Target | Person,
    faults: list[Fault] | None = None,
) -> NDArray[np.generic]:
    """Code a column that the table has to have, but no feature comes from."""
    if column.name not in frame.columns:
        names = [str(name) for name in frame.columns]
        raise TableError(
            f"Expected the column {shown(column.name)} ({column.kind}) in the table"
            f"{suggestion(column.name, names)}, got {listed(names)}; add or rename it."
        )
    (cells,) = column.code(frame[column.name], faults)
    return cells


def refuse_columns(frame: pd.DataFrame, schema: Schema, *, empty: bool = False) -> None:
    """Refuse a table without the columns of a schema, or with others.

    ``empty`` says that the table may have no rows.
    """
    names = list(frame.columns)
    if len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise TableError(
            f"Expected column names to be text and to differ, got {listed(names)}; "
            "rename the columns of the table."
        )
    needed = [column.name for column in schema.columns if column.is_feature]
    declared = {column.name for column in schema.columns}
    missing = [name for name in needed if name not in names]
    unexpected = [name for name in names if name not in declared]
    if missing or unexpected:
        raise TableError(_column_message(missing, unexpected, len(names)))
    if len(frame) == 0 and not empty:
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
