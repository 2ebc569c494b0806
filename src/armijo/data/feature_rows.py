# SPDX-License-Identifier: Apache-2.0
"""Rows of features that are integers from the start, for the gate.

Features that are a public function of each row alone need no release: they are made
once, when the gate takes the first rows, which are paid for by then, and are on the
lattice of :mod:`armijo.data.integer_rows` from the start.
"""

from collections.abc import Callable
from functools import cached_property
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


Made = tuple[NDArray[np.int16], NDArray[Any], NDArray[np.bool_]]
"""Features, class numbers, and which rows count at all."""


class FeatureRows:
    """Features and labels of all rows, made when the gate takes the first.

    Parameters
    ----------
    make : callable
        Returns whole numbers of ``2**-FEATURE_BITS`` (rows, features), class numbers,
        of which one that is no class is a blank, and which rows count at all: what a
        blank row holds is in no sum.
    count : int
        The number of rows.
    parts : tuple
        What the rows are made of, to tell them from others.
    """

    def __init__(
        self, make: Callable[[], Made], count: int, parts: tuple[Any, ...]
    ) -> None:
        self._make, self._count, self._parts = make, count, parts

    @classmethod
    def of(
        cls, steps: NDArray[np.int16], y: NDArray[Any], known: NDArray[np.bool_]
    ) -> "FeatureRows":
        """Return rows that are there already."""
        if steps.ndim != 2:
            raise ValueError(
                f"Expected a table of rows, got an array of {steps.ndim} dimensions."
            )
        _validate.same_length("as many labels as rows", len(steps), len(y), len(known))
        return cls(lambda: (steps, y, known), len(y), (steps, known, y))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    @cached_property
    def _made(self) -> Made:
        return self._make()

    @cached_property
    def _held(self) -> IntegerRows:
        steps, _, known = self._made
        return held_rows(steps, known.astype(np.float64))

    def take(self, index: Index) -> Taken:
        """Return all rows and labels, or some."""
        steps, y, known = self._made
        if index is None:
            return Taken(self._held, y)
        weight = known[index].astype(np.float64)
        return Taken(held_rows(steps[index], weight), y[index])

    def parts(self) -> tuple[Any, ...]:
        """Return what the rows consist of."""
        return self._parts
