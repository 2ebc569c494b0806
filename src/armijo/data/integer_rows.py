# SPDX-License-Identifier: Apache-2.0
"""Rows of small integers on one public lattice, whose sums are exact products.

Features that the package computes itself have a public range, so they share one
lattice: a feature is a whole number of ``2**-FEATURE_BITS``, at most
``LARGEST_FEATURE`` of them.  Then neither scores nor gradient sums round anything.

**Scores.**  With weights of ``b`` bits, ``17 + b + ceil(log2(features)) <= 53``: every
way to multiply and add is exact (Lemma 1 of :mod:`armijo.data.lattice`).

**Sums.**  Row i adds ``S_i X_i``, the outer product of integer coefficients and its
integer features.  Coefficients are clipped, so that ``|s| |x| <= bound``, multiplied by
the row's weight in [0, 1], and then rounded *toward zero*: the integers that are added
have at most the norm ``weight * bound``, without a certificate, and rows that share a
weight of one add up to at most one bound.  ``COEFFICIENT_BITS + 2 + 17`` bits leave
``EXACT_ROWS`` rows whose products add up exactly in float64; such parts are added as
int64.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from armijo.accounting.budget import FloatArray
from armijo.data.lattice import weight_slices
from armijo.data.query import CertifiedSum

FEATURE_BITS = 14
"""A feature is a whole number of ``2**-FEATURE_BITS``."""

LARGEST_FEATURE = 1 << 17
"""The largest such number: features lie within 8."""

COEFFICIENT_BITS = 18
"""Coefficients have at most so many bits behind the bound, and two before it."""

EXACT_ROWS = 1 << (53 - 17 - COEFFICIENT_BITS - 2)
"""Rows whose integer products are added in float64."""

_ROOM = 1 - 2.0**-40  # for the float error of a norm and of a quotient
_BLOCK = 1 << 19  # numbers in a block of rows that are held
_COMPUTED_BLOCK = 1 << 20  # and of rows that are computed at each pass

_HELD = 1 << 25  # numbers that are held in float64: 256 MiB
_MEMORY_SHARE = 0.5  # of the free memory, for features that are held

Fill = Callable[[slice, FloatArray], None]
"""Writes the features of a part of the rows, each row's from that row alone."""


def free_memory() -> int:
    """Return how many bytes features may take: half of what is free now."""
    try:
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not told on this system
        return 1 << 30
    return int(pages * size * _MEMORY_SHARE)


@dataclass(frozen=True, eq=False, repr=False)
class IntegerRows:
    """Rows of whole numbers, each at most ``LARGEST_FEATURE``.

    Attributes
    ----------
    fill : callable
        Writes the features of some rows, of which the first ``len(before)`` columns,
        if any, come from other rows.
    n_features : int
        Their number.
    weight : array
        What multiplies what a row adds to any sum; a blank row has weight zero.
    squares : array
        The exact squared norms of the rows, in squared lattice steps.
    whole : bool
        Whether weights are zero and one only, which is a public setting.
    before : IntegerRows or None
        The same rows with the first features only.
    held : array or None
        The first rows, in float64, in which they are multiplied, or in float32 where
        they are many: both have them exactly.  Other rows are computed again whenever
        they are needed, since they would take more memory than there is.  Whichever it
        is, the integers are the same.
    """

    fill: Fill
    n_features: int
    weight: FloatArray
    squares: FloatArray
    whole: bool = False
    before: "IntegerRows | None" = None
    held: NDArray[Any] | None = None

    @classmethod
    def filled(
        cls,
        n_features: int,
        fill: Fill,
        weight: FloatArray,
        *,
        whole: bool = False,
        before: "IntegerRows | None" = None,
        memory: int | None = None,
    ) -> "IntegerRows":
        """Compute the features of all rows once, and hold them if ``memory`` allows.

        ``memory`` is in bytes; None is :func:`free_memory`.
        """
        n_rows, most = len(weight), free_memory() if memory is None else memory
        size = n_rows * n_features
        small = size <= _HELD and size * 8 <= most
        count = min(n_rows, most // (4 * max(n_features, 1)))  # rows that are held
        held = None
        if count:
            held = np.empty((count, n_features), np.float64 if small else np.float32)
        squares = np.empty(n_rows)
        found = cls(fill, n_features, weight, squares, whole, before)
        for part in blocks(n_rows, n_features):
            block = found._computed(part)
            # 34 bits and the columns: exact in any order for 2**19 of them.
            squares[part] = np.einsum("ij,ij->i", block, block)
            if held is not None:
                held[part] = block[: len(held[part])]
        return replace(found, held=held)

    def _computed(self, part: slice) -> FloatArray:
        """Return some rows on the lattice.

        Features beyond the range are cut; one that is no number is zero.
        """
        # Features one after the other in memory: they are written so.
        block = np.empty((self.n_features, len(self.weight[part]))).T
        new = block
        if self.before is not None:
            known = self.before.block(part)
            block[:, : known.shape[1]], new = known, block[:, known.shape[1] :]
        self.fill(part, new)
        with np.errstate(over="ignore"):  # no warning tells of a row
            new *= 2.0**FEATURE_BITS
        np.rint(new, out=new)
        np.clip(new, -LARGEST_FEATURE, LARGEST_FEATURE, out=new)
        if math.isnan(new.sum()):
            np.nan_to_num(new, copy=False, nan=0.0)
        return block

    def block(self, part: slice) -> FloatArray:
        """Return some rows as float64, not to be changed."""
        end = part.indices(len(self))[1]
        if self.held is None or end > len(self.held):
            return self._computed(part)
        return np.asarray(self.held[part], dtype=np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.weight), self.n_features

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.weight)

    def blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield some rows at a time."""
        held = self.held is not None and len(self.held) == len(self)
        parts = blocks(*self.shape, held=held)
        return ((part, self.block(part)) for part in parts)

    def product(self, weights: FloatArray) -> FloatArray:
        """Return rows times public weights of shape (features, columns), exactly."""
        total, times = np.empty((len(self), weights.shape[1])), multiplier(weights)
        for part, block in self.blocks():
            total[part] = times(block)
        return total

    def lengths(self, constant: float = 0.0) -> FloatArray:
        """Return the norms of the rows with one more feature ``constant``."""
        fixed = float(round(constant * 2**FEATURE_BITS)) ** 2
        return np.asarray(np.sqrt(self.squares + fixed) * 2.0**-FEATURE_BITS)

    def __repr__(self) -> str:
        """Show nothing of the rows."""
        return f"IntegerRows(features={self.shape[1]})"


def blocks(
    n_rows: int, n_columns: int, least: int = 1, *, held: bool = True
) -> Iterator[slice]:
    """Yield parts of rows that fit into the processor's cache together.

    ``least`` is the least height, where something as large as the rows is read again
    for each part, ``held`` whether rows are read and not computed.
    """
    numbers = _BLOCK if held else _COMPUTED_BLOCK
    height = max(least, min(numbers // max(n_columns, 1), EXACT_ROWS))
    return (slice(k, k + height) for k in range(0, n_rows, height))


def multiplier(weights: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return what multiplies rows by public weights (features, columns), exactly."""
    slices, bits, scales = weight_slices(weights, LARGEST_FEATURE.bit_length() - 1)
    columns = weights.shape[1]

    def times(block: FloatArray) -> FloatArray:
        raw = block @ slices
        found = raw[:, :columns]
        for start in range(columns, slices.shape[1], columns):
            found = found * 2.0**bits + raw[:, start : start + columns]
        return np.asarray(found * (scales * 2.0**-FEATURE_BITS))

    return times


Coefficients = Callable[[slice, FloatArray], FloatArray]
"""Returns the coefficients (rows, k) of a part of the rows, given their features."""


def product_sum(
    coefficients: Coefficients,
    k: int,
    rows: IntegerRows,
    constant: float,
    bound: float,
) -> CertifiedSum:
    """Return the sum of ``outer(coefficients_i, (x_i, constant))``, each clipped.

    One pass over the rows, at which coefficients may be computed from the features.  A
    row with a coefficient that is not finite is left out.  The norm of a row's product
    is at most ``weight * bound``: see the module.
    """
    fixed = float(round(constant * 2**FEATURE_BITS))
    lengths = rows.lengths(constant)

    def summed(scale: float, whole: bool) -> NDArray[Any]:
        width = rows.shape[1] + (fixed != 0)
        total = np.zeros((k, width), dtype=np.int64)
        plain = np.zeros(total.shape)
        for part, block in rows.blocks():
            clipped = _clipped(coefficients(part, block), lengths[part], bound)
            clipped *= rows.weight[part, None]
            factors = clipped.T * scale
            if whole:
                factors = np.clip(np.trunc(factors), -_MOST, _MOST)
            found = factors @ block
            if fixed:
                ends = factors.sum(axis=1, keepdims=True) * fixed
                found = np.concatenate([found, ends], axis=1)
            if whole:
                total += found.astype(np.int64)
            else:
                plain += found
        return (total if whole else plain).reshape(-1)

    def integers(bits: int) -> torch.Tensor:
        return torch.from_numpy(summed(2.0 ** (bits - FEATURE_BITS) / bound, True))

    def plain() -> torch.Tensor:
        return torch.from_numpy(summed(2.0**-FEATURE_BITS, False))

    finest = FEATURE_BITS + COEFFICIENT_BITS
    return CertifiedSum(integers, plain, torch.float64, finest)


_MOST = float(1 << (COEFFICIENT_BITS + 2))


def vector_sum(values: FloatArray, weight: FloatArray, bound: float) -> CertifiedSum:
    """Return the sum of vectors (rows, k), each clipped to ``weight * bound``.

    Rounded toward zero, so that clipped vectors keep their norm; a row with a number
    that is not finite is left out.
    """
    clipped = _clipped(values, np.ones(len(values)), bound) * weight[:, None]

    def integers(bits: int) -> torch.Tensor:
        steps = np.trunc(clipped * (2.0**bits / bound)).astype(np.int64)
        return torch.from_numpy(steps.sum(axis=0))

    def plain() -> torch.Tensor:
        return torch.from_numpy(clipped.sum(axis=0))

    return CertifiedSum(integers, plain, torch.float64, _VECTOR_BITS)


_VECTOR_BITS = 24  # of whole numbers, which int64 adds up over 2**38 rows
_COUNTED_ROWS = 1 << 28  # of which float64 adds up whole numbers of so many bits


def _clipped(values: FloatArray, lengths: FloatArray, bound: float) -> FloatArray:
    """Return vectors scaled so that their norm times ``lengths`` is within the bound.

    Squares are added column by column: a row's norm is a function of the row.
    """
    with np.errstate(all="ignore"):  # no warning tells of a row
        squares = np.zeros(len(values))
        for column in values.T:
            squares += column * column
        factor = np.minimum(bound * _ROOM / (np.sqrt(squares) * lengths), 1.0)
        clipped = values * factor[:, None]
    sound = np.isfinite(squares) & np.isfinite(clipped).all(axis=1)
    return np.asarray(np.where(sound[:, None], clipped, 0.0))


def count_sum(
    places: Callable[[], Iterable[NDArray[np.int64]]],
    size: int,
    weight: FloatArray,
    bound: float,
    factors: Sequence[float] | None = None,
) -> CertifiedSum:
    """Return the weighted counts of cells, every row in one cell of each column.

    ``places`` yields the cells of all rows, one column after the other; cells of all
    columns are numbered together.  A row adds its weight to a cell of each column,
    times the column's factor (None is one); the squares of the factors add up to at
    most ``bound**2``.  One is rounded down to whole steps, and so is what is added.
    """

    def counted(added: Callable[[float], FloatArray], kind: type) -> NDArray[Any]:
        total: NDArray[Any] = np.zeros(size, dtype=kind)
        known = {factor: added(factor) for factor in set(factors or (1.0,))}
        for column, factor in zip(places(), factors or repeat(1.0), strict=False):
            for start in range(0, len(column), _COUNTED_ROWS):
                part = slice(start, start + _COUNTED_ROWS)
                found = np.bincount(column[part], known[factor][part], minlength=size)
                total += found.astype(kind)
        return total

    def integers(bits: int) -> torch.Tensor:
        one = math.floor(2.0**bits / bound * _ROOM)
        whole = counted(lambda factor: np.trunc(weight * (one * factor)), np.int64)
        return torch.from_numpy(whole)

    def plain() -> torch.Tensor:
        return torch.from_numpy(counted(lambda factor: weight * factor, np.float64))

    return CertifiedSum(integers, plain, torch.float64, _VECTOR_BITS)


def moment_sum(rows: IntegerRows, radius: float) -> CertifiedSum:
    """Return the sum of ``u u^T`` over rows in units of the radius, clipped to one.

    Both factors are integers, rounded toward zero, the second one after the row's
    weight: the flat matrix has at most the norm ``weight``, and products of integers
    add up exactly.
    """
    d = rows.shape[1]
    factor = 2.0**-FEATURE_BITS * _ROOM / np.maximum(rows.lengths(), radius)

    def summed(scale: float, whole: bool) -> NDArray[Any]:
        kind = np.int64 if whole else np.float64
        total: NDArray[Any] = np.zeros((d, d), dtype=kind)
        for part in blocks(*rows.shape, least=min(d, EXACT_ROWS)):
            block = rows.block(part)
            left = block * (factor[part, None] * scale)
            right = left * rows.weight[part, None]
            if whole:
                np.trunc(left, out=left)
                np.trunc(right, out=right)
            # With weights zero and one this is a symmetric product, of half the cost.
            found = (right.T @ right) if rows.whole else (left.T @ right)
            total += found.astype(kind)
        return total.reshape(-1)

    def integers(bits: int) -> torch.Tensor:
        half = bits // 2  # an odd bit is made up by doubling
        steps = summed(2.0**half, True)
        return torch.from_numpy(steps << (bits - 2 * half))

    def plain() -> torch.Tensor:
        return torch.from_numpy(summed(1.0, False))

    return CertifiedSum(integers, plain, torch.float64, _VECTOR_BITS)
