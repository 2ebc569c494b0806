# SPDX-License-Identifier: Apache-2.0
"""Tables as they come, coded: a number or a level for each cell, and nothing learned.

What is public of a column is its description here; what its cells look like is learned
later, by a release that is paid for (:mod:`armijo.methods.additive`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo.accounting.budget import FloatArray
from armijo.data.query import Index, Taken

MISSING_LEVEL = -1
"""The code of a missing cell of a category."""


@dataclass(frozen=True, kw_only=True)
class NumericColumn:
    """A column of numbers; missing cells are NaN.

    Attributes
    ----------
    name : str
        Name of the column.
    low, high : float or None
        Public bounds, if there are any; cells outside of them are allowed.
    monotone : int
        The declared direction of its shape: -1, 0 (free) or 1.
    """

    name: str
    low: float | None = None
    high: float | None = None
    monotone: int = 0


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A column of codes 0 to ``n_levels - 1``; missing cells are ``MISSING_LEVEL``.

    Attributes
    ----------
    name : str
        Name of the column.
    n_levels : int
        The public number of levels: of a declared list (with one more for all other
        values, if the list has one), or of hash buckets.
    """

    name: str
    n_levels: int


ColumnInfo = NumericColumn | CategoryColumn


@dataclass(frozen=True, eq=False, repr=False)
class CodedTable:
    """Cells by column: float64 for numbers, integers for levels.

    Attributes
    ----------
    columns : tuple of NumericColumn or CategoryColumn
        What is public of each column.
    cells : tuple of arrays
        The cells of each column; infinite numbers count as out of range, codes that
        are no level as missing.
    weight : array or None
        What multiplies each row's contribution to every sum; None is one.
    """

    columns: tuple[ColumnInfo, ...]
    cells: tuple[NDArray[Any], ...]
    weight: FloatArray | None = None

    def __post_init__(self) -> None:
        lengths = {len(cells) for cells in self.cells}
        if len(lengths) != 1 or len(self.cells) != len(self.columns):
            raise ValueError(
                f"Expected {len(self.columns)} columns of one length, got "
                f"{len(self.cells)} of lengths {sorted(lengths)}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.cells[0]), len(self.columns)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.cells[0])

    def __getitem__(self, rows: Any) -> "CodedTable":
        """Return some rows."""
        weight = None if self.weight is None else self.weight[rows]
        cells = tuple(column[rows] for column in self.cells)
        return CodedTable(self.columns, cells, weight)

    def __repr__(self) -> str:
        """Show nothing of the rows."""
        return f"CodedTable({[column.name for column in self.columns]})"


class CodedRows:
    """The rows of a coded table, for the gate.

    Parameters
    ----------
    table : CodedTable
        The cells.
    y : array of shape (rows,)
        Labels as the loss takes them, or targets, as floats; a row with NaN is blank.
    weight : array of shape (rows,) or None
        What multiplies each row's contribution to every sum, after clipping, within
        [0, 1]; None is one.
    """

    def __init__(
        self, table: CodedTable, y: Sequence[float], weight: FloatArray | None = None
    ) -> None:
        self._y = np.asarray(y, dtype=np.float64)
        if weight is not None:
            weight = np.clip(np.nan_to_num(weight, nan=0.0), 0.0, 1.0)
        self._table = replace(table, weight=weight)
        if self._y.shape != (len(table),):
            raise ValueError(
                f"Expected a label for each of {len(table)} rows, got an array of "
                f"shape {self._y.shape}."
            )
        self.run_cache: dict[object, Any] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._table)

    def take(self, index: Index) -> Taken:
        """Return cells and labels."""
        if index is None:
            return Taken(self._table, self._y)
        return Taken(self._table[index], self._y[index])

    def parts(self) -> tuple[Any, ...]:
        """Return what the rows consist of."""
        return *self._table.cells, self._table.weight, self._y
