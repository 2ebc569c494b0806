# SPDX-License-Identifier: Apache-2.0
"""Rows minus a public center, made block by block as they are asked for.

A centered copy of the table would double the memory, and fill it for sparse rows.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from armijo.accounting.budget import FloatArray
from armijo.data.query import Matrix


@dataclass(frozen=True, eq=False)
class CenteredRows:
    """A dense view of ``X - center`` that forms only the rows that are indexed.

    What an index returns is good until the next: blocks share their memory, which
    saves most of the time.

    >>> view = CenteredRows(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    >>> view[1:].tolist()
    [[2.0, 3.0]]
    """

    X: Matrix
    center: FloatArray
    _room: list[FloatArray] = field(default_factory=list, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.X.shape[0]), int(self.X.shape[1])

    def __getitem__(self, rows: Any) -> FloatArray:
        """Return some rows, centered, as float64."""
        block = self.X[rows]
        if sparse.issparse(block):
            block = block.toarray()
        if not self._room or len(self._room[0]) < len(block):
            self._room[:] = [np.empty(block.shape)]
        with np.errstate(invalid="ignore", over="ignore"):
            return np.subtract(block, self.center, out=self._room[0][: len(block)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """Return all rows, in memory of their own."""
        return np.array(self[:], dtype=dtype)
