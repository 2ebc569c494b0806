# SPDX-License-Identifier: Apache-2.0
"""Rows on a lattice of their own: products and norms that no kernel can change.

**Lemma 1.** If all operands are integers (times one power of two) and the sum of the
absolute products is at most ``2**53``, every algorithm that only multiplies and adds
the numbers of a row returns the exact sum: in any order, blocks, threads, with fused
operations or without.  *Proof.* Every intermediate is such an integer, hence a float64.

So each row is rounded to ``ROW_BITS`` bits of its own largest entry before any query
sees it, and public weights to ``WEIGHT_BITS`` of theirs, cut into as many slices as the
number of features asks for::

    ROW_BITS + bits of a slice + ceil(log2(features)) <= 53

One slice of 24 bits serves 128 features, of 20 bits 2,048, two slices of 12 bits half a
million.  Rounding a row is a map of that row alone: neighbors stay neighbors, and all
queries (gradients, searches, scores, moments, selections) see the same rounded row.  A
row with an entry that is not finite, or beyond ``LARGEST``, becomes a blank, all NaN,
which every query leaves out alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from armijo.accounting.budget import FloatArray

SIGNIFICAND = 53
ROW_BITS, WEIGHT_BITS, LEAST_WEIGHT_BITS = 22, 24, 20

LARGEST = 2.0**500
"""Rows with a larger entry are blanks: their squares would be no floats."""

Mask = NDArray[np.bool_]
_EXACT_SQUARES = 1 << (SIGNIFICAND - 2 * ROW_BITS)  # that add up exactly
_SMALLEST = -1074  # exponent of the smallest float
_TINY = 2.0**-900  # squares above it are exact
_NARROW = 16  # columns that are faster one by one
_NEAR = 480  # exponents of numbers whose squares are far from the ends of the floats
_LEAST_EXPONENT = -900  # of weights: what lies below keeps fewer bits
_BLOCK = 1 << 18  # numbers in a block of rows: 2 MiB


def rounded(X: Any, blank: Mask | None = None) -> Any:
    """Return dense or CSR rows rounded to their lattices, in float64.

    Rounding twice is rounding once.  ``blank`` marks rows that become blanks whatever
    they hold.  CSR rows become canonical first, in float64, so that an entry stored in
    several parts is one number for all that follows.

    >>> rounded(np.array([[1.0, 1e-9], [np.inf, 0.0]])).tolist()
    [[1.0, 0.0], [nan, nan]]
    """
    if isinstance(X, RoundedRows):
        some = [mask for mask in (X.blank, blank) if mask is not None]
        return RoundedRows(X.X, np.logical_or.reduce(some) if some else None)
    if sparse.issparse(X):
        return _rounded_entries(canonical(X), blank)
    table = np.empty(X.shape)
    for part in _parts(X):
        block = table[part]
        block[:] = X[part]
        _round_block(block, None if blank is None else blank[part])
    return table


def _parts(X: Any) -> Iterator[slice]:
    height = max(1, _BLOCK // max(X.shape[1], 1))
    return (slice(k, k + height) for k in range(0, X.shape[0], height))


def _round_block(block: FloatArray, blank: Mask | None) -> None:
    top = _largest(block)
    bad = ~(top <= LARGEST)  # also where it is no number
    if blank is not None:
        bad |= blank
    magic = _magic(np.where(bad, 0.0, top))[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        block += magic
        block -= magic
    if bad.any():
        block[bad] = np.nan


def _rounded_entries(X: Any, blank: Mask | None) -> Any:
    """Return CSR rows with rounded entries; a blank stores NaN in its first column."""
    length, top = np.diff(X.indptr), _largest_stored(X)
    bad = ~(top <= LARGEST)
    if blank is not None:
        bad |= blank
    magic = np.repeat(_magic(np.where(bad, 0.0, top)), length)
    data = np.where(np.repeat(bad, length), 0.0, X.data)
    data += magic
    data -= magic
    found = sparse.csr_matrix((data, X.indices, X.indptr), shape=X.shape)
    if bad.any():
        where = np.flatnonzero(bad)
        spoiled = (np.full(where.size, np.nan), (where, np.zeros_like(where)))
        found = sparse.csr_matrix(found + sparse.csr_matrix(spoiled, shape=X.shape))
        found.sum_duplicates()
    return found


def blanks(X: Any) -> Mask:
    """Return which rows on the lattice are blanks."""
    if isinstance(X, RoundedRows):
        return np.concatenate([blanks(X[part]) for part in _parts(X)] or [_none(0)])
    if X.shape[1] == 0:
        return _none(X.shape[0])
    if not sparse.issparse(X):
        return np.asarray(np.isnan(X[:, 0]))
    return np.isnan(_largest_stored(X))


def _none(size: int) -> Mask:
    return np.zeros(size, dtype=bool)


@dataclass(frozen=True, eq=False)
class RoundedRows:
    """A dense view of rows on their lattices, rounded as they are indexed.

    For tables that are too large to hold a rounded copy, such as memory maps.

    >>> RoundedRows(np.array([[1.0, 1e-9], [3.0, 4.0]]))[:1].tolist()
    [[1.0, 0.0]]
    """

    X: Any
    blank: Mask | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.X.shape[0]), int(self.X.shape[1])

    def __getitem__(self, rows: Any) -> FloatArray:
        blank = None if self.blank is None else self.blank[rows]
        return np.asarray(rounded(self.X[rows], blank))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.asarray(self[:], dtype=dtype)


@dataclass(frozen=True, eq=False)
class CenteredRows:
    """A dense view of ``X - center`` that forms only the rows that are indexed.

    A centered copy of the table would double the memory, and fill it for sparse rows.
    What an index returns is good until the next: blocks share their memory, which
    saves most of the time.

    >>> view = CenteredRows(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    >>> view[1:].tolist()
    [[2.0, 3.0]]
    """

    X: Any
    center: FloatArray
    _room: list[FloatArray] = field(default_factory=list, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.X.shape[0]), int(self.X.shape[1])

    def __getitem__(self, rows: Any) -> FloatArray:
        block = self.X[rows]
        if sparse.issparse(block):
            block = block.toarray()
        if not self._room or len(self._room[0]) < len(block):
            self._room[:] = [np.empty(block.shape)]
        with np.errstate(invalid="ignore", over="ignore"):
            return np.subtract(block, self.center, out=self._room[0][: len(block)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.array(self[:], dtype=dtype)


def product(X: Any, weights: FloatArray) -> FloatArray:
    """Return rows on the lattice times public weights of shape (features, columns).

    The result of a row is a function of that row and of the weights (Lemma 1, then
    element-wise operations that IEEE 754 defines).
    """
    columns = weights.shape[1]
    slices, bits, scales = weight_slices(np.asarray(weights, dtype=np.float64))
    factors = slices[:, 0] if slices.shape[1] == 1 else slices
    with np.errstate(over="ignore", invalid="ignore"):
        raw = _times(X, factors).reshape(X.shape[0], slices.shape[1])
        total = raw[:, :columns]
        for start in range(columns, slices.shape[1], columns):
            total = total * 2.0**bits
            total += raw[:, start : start + columns]
        return np.asarray(total * scales)


def _times(X: Any, factors: FloatArray) -> FloatArray:
    if not isinstance(X, RoundedRows):
        return np.asarray(X @ factors)
    parts = [X[part] @ factors for part in _parts(X)]
    return np.concatenate(parts or [np.empty((0, *factors.shape[1:]))])


def slice_bits(features: int, row_bits: int = ROW_BITS) -> tuple[int, int]:
    """Return the bits of a slice of weights, and the number of slices.

    Examples
    --------
    >>> [slice_bits(d) for d in (124, 784, 2048, 200_000)]
    [(24, 1), (21, 1), (20, 1), (12, 2)]
    """
    most = SIGNIFICAND - row_bits - max(features - 1, 0).bit_length()
    if most < 1:
        raise ValueError(f"Expected at most 2**30 features, got {features}.")
    count = math.ceil(LEAST_WEIGHT_BITS / most)
    return min(most, math.ceil(WEIGHT_BITS / count)), count


def weight_slices(
    weights: FloatArray, row_bits: int = ROW_BITS
) -> tuple[FloatArray, int, FloatArray]:
    """Return slices as whole numbers, their bits, and the scale of each column.

    For rows of ``row_bits`` bits.
    """
    bits, count = slice_bits(weights.shape[0], row_bits)
    top = np.abs(weights).max(axis=0, initial=0.0)
    finite = np.isfinite(top)
    exponent = np.maximum(_exponent(np.where(finite, top, 0.0)), _LEAST_EXPONENT)
    shift = bits * count - exponent
    rest = np.rint(np.ldexp(np.where(finite, weights, 0.0), shift))
    slices = []
    for number in range(count - 1, -1, -1):
        part = np.rint(rest * 2.0 ** (-bits * number))
        rest -= part * 2.0 ** (bits * number)
        slices.append(part)
    scales = np.where(finite, np.ldexp(1.0, -shift), np.nan)
    return np.concatenate(slices, axis=1), bits, scales


def row_norms(X: Any) -> FloatArray:
    """Return the norm of each row, an upper bound off the lattice; NaN stays NaN.

    An entry is cut into two slices of ``ROW_BITS``, whose squares and products add up
    exactly (Lemma 1) over ``2**9`` columns, and such parts are added in their order.
    What is left below the slices is bounded by half a unit of the lower one for each
    column, and counted.
    """
    if sparse.issparse(X):
        return _stored_norms(canonical(X))
    if X.shape[1] <= _NARROW:
        return _narrow_norms(np.asarray(X[:], dtype=np.float64))
    norms, room = np.empty(X.shape[0]), np.empty((3, 0, 0))
    for part in _parts(X):
        block = np.asarray(X[part], dtype=np.float64)
        if room.shape[1] < len(block):  # new memory for each block costs more than all
            room = np.empty((3, *block.shape))
        norms[part] = _block_norms(block, room[:, : len(block)])
    return norms


def lattice_norms(X: Any) -> FloatArray:
    """Return the same for rows that are on their lattices, in one pass."""
    if sparse.issparse(X) or X.shape[1] <= _NARROW:
        return row_norms(X)
    norms = np.empty(X.shape[0])
    for part in _parts(X):
        block = X[part]
        squares = _dots(block, block)
        norms[part] = np.sqrt(squares)
        tiny = squares < _TINY
        if tiny.any():  # or zero: squares may have vanished
            norms[part][tiny] = row_norms(block[tiny])
    return norms


def _narrow_norms(X: FloatArray) -> FloatArray:
    total = _square_sums(X)
    norms = np.sqrt(total)
    odd = ~((total > _TINY) & (total < 1 / _TINY))
    if odd.any():  # or zero: squares may have vanished, or overflowed
        scale = _Scale.of(_largest(X[odd]))
        near = np.ldexp(X[odd], scale.shift[:, None])
        norms[odd] = scale.norms(_square_sums(near))
    return norms


def _square_sums(X: FloatArray) -> FloatArray:
    total = np.zeros(len(X))
    with np.errstate(invalid="ignore", over="ignore"):
        for column in X.T:
            total += column * column
    return total


def _block_norms(block: FloatArray, room: FloatArray) -> FloatArray:
    scale, (high, low, rest) = _Scale.of(_largest(block)), room
    if scale.far:
        block = np.ldexp(block, scale.shift[:, None])
    _cut(block, scale.unit[:, None], high, rest)
    _cut(rest, scale.unit[:, None] * 2.0**-ROW_BITS, low, rest)
    cross = 2.0 * _dots(high, low) + _dots(low, low)
    left = block.shape[1] * (_dots(rest, rest) > 0)  # much faster than rest.any()
    return scale.norms(_dots(high, high) + cross, left)


def _dots(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the product of each row with the other's, so many columns at a time."""
    total = np.zeros(len(first))
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, first.shape[1], _EXACT_SQUARES):
            part = slice(start, start + _EXACT_SQUARES)
            total += np.einsum("ij,ij->i", first[:, part], second[:, part])
    return total


def _stored_norms(X: Any) -> FloatArray:
    """Return norms of canonical CSR rows, whose entries are added in their order."""
    length, scale = np.diff(X.indptr), _Scale.of(_largest_stored(X))
    row = np.repeat(np.arange(X.shape[0]), length)

    def sums(values: NDArray[Any]) -> FloatArray:
        return np.asarray(np.bincount(row, weights=values, minlength=X.shape[0]))

    data = np.ldexp(X.data, scale.shift[row]) if scale.far else X.data
    high, low, rest = np.empty((3, X.nnz))
    _cut(data, scale.unit[row], high, rest)
    _cut(rest, scale.unit[row] * 2.0**-ROW_BITS, low, rest)
    with np.errstate(invalid="ignore", over="ignore"):
        cross = 2.0 * sums(high * low) + sums(low * low)
        return scale.norms(sums(high * high) + cross, sums(rest != 0))


def _cut(
    values: FloatArray, unit: FloatArray, high: FloatArray, rest: FloatArray
) -> None:
    """Write values rounded to multiples of a unit, and what is left, both exactly."""
    magic = _HALF_RANGE * unit
    with np.errstate(invalid="ignore", over="ignore"):
        np.add(values, magic, out=high)
        np.subtract(high, magic, out=high)
        np.subtract(values, high, out=rest)


_HALF_RANGE = 1.5 * 2.0 ** (SIGNIFICAND - 1)
"""So many units, added and taken away, round a number to a multiple of the unit."""


@dataclass(frozen=True)
class _Scale:
    """The largest entries of rows and their lattices, far rows brought near one."""

    top: FloatArray
    shift: NDArray[np.int64]
    unit: FloatArray

    @classmethod
    def of(cls, top: FloatArray) -> "_Scale":
        exponent = _exponent(np.where(np.isfinite(top), top, 0.0))
        shift = np.where(np.abs(exponent) > _NEAR, -exponent, 0)
        return cls(top, shift, np.ldexp(1.0, exponent + shift - ROW_BITS))

    @property
    def far(self) -> bool:
        return bool(self.shift.any())

    def norms(self, squares: FloatArray, left: Any = 0) -> FloatArray:
        """Return roots, with half a lower unit for each number that was left."""
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.sqrt(squares)
            norms += 2.0 ** (-ROW_BITS - 1) * np.sqrt(left) * self.unit
            if self.far:
                back = np.ldexp(norms, -self.shift)
                # A denormal has few bits: it may have been rounded down by many.
                denormal = (back < 2.0**-1000) & (norms > 0)
                norms = np.where(denormal, np.nextafter(back, np.inf), back)
        return np.where(np.isfinite(self.top), norms, self.top)


def _magic(top: FloatArray) -> FloatArray:
    exponent = np.maximum(_exponent(top) - ROW_BITS, _SMALLEST)
    return np.asarray(np.ldexp(1.5, SIGNIFICAND - 1 + exponent))


def _exponent(top: FloatArray) -> NDArray[np.int64]:
    """Return the smallest k with ``top <= 2**k``; zero for zero.

    A largest entry that is rounded up to ``2**k`` keeps its k, so that rounding twice
    is rounding once.
    """
    fraction, exponent = np.frexp(top)
    return np.asarray(exponent - (fraction == 0.5), dtype=np.int64)


def _largest(block: FloatArray) -> FloatArray:
    high = block.max(axis=1, initial=0.0)
    return np.asarray(np.maximum(high, -block.min(axis=1, initial=0.0)))


def _largest_stored(X: Any) -> FloatArray:
    top, some = np.zeros(X.shape[0]), np.diff(X.indptr) > 0
    if some.any():
        starts = X.indptr[:-1][some]
        top[some] = np.maximum.reduceat(np.abs(X.data), starts)
    return top


def canonical(X: Any) -> Any:
    """Return float64 CSR rows in which no entry stands twice; a copy only if need be.

    Parts of an entry are added within their row, in float64.
    """
    rows = X if X.format == "csr" else X.tocsr()
    if rows.dtype != np.float64:
        rows = rows.astype(np.float64)
    if not rows.has_canonical_format:
        rows = rows.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            rows.sum_duplicates()
    return rows
