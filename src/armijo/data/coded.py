# SPDX-License-Identifier: Apache-2.0
"""Tables as they come, coded: a number or a level for each cell, and nothing learned.

What is public of a column is its description here; what its cells look like is learned
later, by a release that is paid for (:mod:`armijo.methods.additive`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
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

    def __post_init__(self) -> None:
        refuse_bounds(self.low, self.high, f"bounds of {self.name!r}")
        if self.monotone not in (-1, 0, 1):
            raise ValueError(
                f"Expected -1, 0 or 1 as direction of {self.name!r}, got "
                f"{self.monotone!r}. Nothing was spent."
            )


def refuse_bounds(low: float | None, high: float | None, name: str) -> None:
    """Refuse bounds of which no range can be made; either may be unknown."""
    given = [bound for bound in (low, high) if bound is not None]
    for bound in given:
        _validate.finite(**{name: bound})
    width = given[-1] - given[0] if len(given) == 2 else 1.0
    if not 0 < width < math.inf:
        raise ValueError(
            f"Expected {name} with low < high, got {low!r} and {high!r}; give public "
            "bounds, or None to learn them. Nothing was spent."
        )


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

    def __post_init__(self) -> None:
        _validate.at_least(1, n_levels=self.n_levels)


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
        if len(self.cells) != len(self.columns) or not self.cells:
            raise ValueError(
                f"Expected cells of {len(self.columns)} columns, got {len(self.cells)}."
            )
        _validate.same_length("as many cells in each column", *map(len, self.cells))

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
        What multiplies each row's contribution to every sum, after clipping; cut to
        [0, 1], and NaN is zero.  None takes the table's, or one.
    """

    def __init__(
        self,
        table: CodedTable,
        y: Sequence[float] | FloatArray,
        weight: FloatArray | None = None,
    ) -> None:
        _refuse_other_types(table)
        self._y = np.asarray(y, dtype=np.float64)
        weight = table.weight if weight is None else weight
        if weight is not None:
            numbers = np.asarray(weight, dtype=np.float64)
            weight = np.clip(np.where(np.isnan(numbers), 0.0, numbers), 0.0, 1.0)
        self._table = replace(table, weight=weight)
        for name, values in (("label", self._y), ("weight", weight)):
            if values is None:
                continue
            if values.ndim != 1:
                raise ValueError(
                    f"Expected a {name} for each row, got an array of {values.ndim} "
                    "dimensions. Nothing was spent."
                )
            _validate.same_length(f"a {name} for each row", len(values), len(table))

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


def _refuse_other_types(table: CodedTable) -> None:
    """Refuse cells that are no vector of numbers, before any of them is read."""
    for column, cells in zip(table.columns, table.cells, strict=True):
        kind = np.asarray(cells).dtype
        if np.ndim(cells) != 1 or kind.kind not in "fiub":
            raise ValueError(
                f"Expected numbers or codes as the cells of {column.name!r}, got an "
                f"array of type {kind} and {np.ndim(cells)} dimensions; code the "
                "table first. Nothing was spent."
            )
