# SPDX-License-Identifier: Apache-2.0
"""Rows of features that were made integers before the run, for the gate.

Features that are a public function of each row alone need no release: they are made
once, by who reads the rows, and are on the lattice of
:mod:`armijo.data.integer_rows` from the start.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data.integer_rows import FEATURE_BITS, IntegerRows, blocks
from armijo.data.query import Index, Taken


def held_rows(steps: NDArray[np.int16], weight: FloatArray) -> IntegerRows:
    """Return rows of whole numbers of ``2**-FEATURE_BITS``, with weights 0 and 1."""

    def fill(part: slice, out: FloatArray) -> None:
        out[:] = steps[part] * 2.0**-FEATURE_BITS

    squares = np.empty(len(steps))
    for part in blocks(*steps.shape):
        block = steps[part].astype(np.float64)
        squares[part] = np.einsum("ij,ij->i", block, block)  # exact in any order
    return IntegerRows(fill, steps.shape[1], weight, squares, whole=True, held=steps)


class FeatureRows:
    """Features and labels of all rows.

    Parameters
    ----------
    steps : int16 array of shape (rows, features)
        Whole numbers of ``2**-FEATURE_BITS``.
    y : array of shape (rows,)
        Class numbers; one that is no class is a blank.
    known : bool array of shape (rows,)
        Which rows count at all; what a blank row holds is in no sum.
    """

    def __init__(
        self, steps: NDArray[np.int16], y: NDArray[Any], known: NDArray[np.bool_]
    ) -> None:
        if steps.ndim != 2:
            raise ValueError(
                f"Expected a table of rows, got an array of {steps.ndim} dimensions."
            )
        _validate.same_length("as many labels as rows", len(steps), len(y), len(known))
        self._steps, self._y, self._known = steps, y, known
        self._held = held_rows(steps, known.astype(np.float64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._y)

    def take(self, index: Index) -> Taken:
        """Return all rows and labels, or some."""
        if index is None:
            return Taken(self._held, self._y)
        weight = self._known[index].astype(np.float64)
        return Taken(held_rows(self._steps[index], weight), self._y[index])

    def parts(self) -> tuple[Any, ...]:
        """Return what the rows consist of."""
        return self._steps, self._known, self._y
