# SPDX-License-Identifier: Apache-2.0
"""Exact sums: clip, round to a public lattice, add integers.

A float sum depends on the order of its terms and moves by more than the clip when one
row is added (Casacuberta et al. 2022).  Here each example is clipped and rounded to
multiples of ``bound * 2**-24`` first; the integers are added in float64, which is exact
below 2**53, hence for any order and for up to 2**28 rows.

What a linear model computes *before* it gets here is a function of the row as well:
rows, products and norms are those of :mod:`armijo.data.lattice`, and all else is done
number by number (:mod:`armijo.objectives.elementwise`).
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from armijo.accounting.budget import FloatArray
from armijo.data.lattice import CenteredRows, canonical, row_norms
from armijo.data.query import (
    Columns,
    Contributions,
    LatticeSum,
    Matrix,
    OuterProduct,
    as_tensor,
)

BITS = 24
"""The lattice is the bound times 2**-BITS."""

STEPS = 1 << BITS

IntArray = NDArray[np.int64]
_MOST_ROWS = 1 << 28
_BLOCK = 1 << 18  # numbers in a block: 2 MiB


def lattice_scale(relative_scale: float) -> int:
    """Return a noise scale in lattice steps, rounded up: never too little."""
    return math.ceil(relative_scale * STEPS)


def vector_sum(contributions: Contributions, bound: float) -> IntArray:
    """Return the sum of clipped, rounded vectors in lattice steps.

    Clipping to ``bound - step sqrt(d)/2`` leaves room for the rounding of d
    coordinates, so that the rounded vectors keep the bound.  A row with a non-finite
    coordinate is left out.
    """
    if isinstance(contributions, LatticeSum):
        return contributions.steps
    outer = _as_outer(contributions)
    if outer.X.shape[0] > _MOST_ROWS:
        raise ValueError(f"Expected at most {_MOST_ROWS} rows, got {outer.X.shape[0]}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if sparse.issparse(outer.X):
            return _sparse_sum(outer, bound)
        return _dense_sum(outer, bound)


def _as_outer(contributions: Contributions) -> OuterProduct:
    if isinstance(contributions, OuterProduct):
        return contributions
    block = np.asarray(contributions, dtype=float)
    if block.ndim != 2:
        raise ValueError(
            f"Expected one vector for each row, got an array of shape {block.shape}; "
            "a number for each row goes through a search query."
        )
    return OuterProduct(np.ones((block.shape[0], 1)), block)


def _dense_sum(outer: OuterProduct, bound: float) -> IntArray:
    """Sum block by block; a block stays in the processor's cache for all its passes."""
    X, constant = outer.X, outer.constant
    coefficients = np.asarray(outer.coefficients, dtype=float)
    (n, d), k = X.shape, coefficients.shape[1]
    total = np.zeros((k, d + (constant != 0)))
    height = max(1, min(_BLOCK // max(d, 1), n))
    buffer, ones = torch.empty((height, d), dtype=torch.float64), np.ones(height)
    for start in range(0, n, height):
        part = slice(start, start + height)
        rows = np.asarray(X[part])
        norms = _norms(outer, coefficients[part], rows, part)
        scaled = _scaled(coefficients[part], norms, bound, total.size)
        if not math.isfinite(norms.sum()):
            # 0 x infinity is NaN: rows left out must not be multiplied into the sum.
            rows = np.where(np.isfinite(norms)[:, None], rows, 0.0)
        tensor, factors = as_tensor(rows), torch.from_numpy(scaled)
        # A view of centered rows is memory of its own: one array less in the cache.
        own = k == 1 and type(X) is CenteredRows
        block = tensor if own else buffer[: len(factors)]
        for j in range(k):
            torch.mul(tensor, factors[:, j : j + 1], out=block).round_()
            # Whole numbers: the sum is the same in any order.
            total[j, :d] += ones[: len(factors)] @ block.numpy()
        if constant != 0:
            total[:, d] += np.rint(scaled * constant).sum(axis=0)
    return total.ravel().astype(np.int64)


def _sparse_sum(outer: OuterProduct, bound: float) -> IntArray:
    # Entries that stand twice would be rounded twice.
    coefficients, X = np.asarray(outer.coefficients, dtype=float), canonical(outer.X)
    size = coefficients.shape[1] * (X.shape[1] + (outer.constant != 0))
    norms = _norms(outer, coefficients, X)
    scaled = _scaled(coefficients, norms, bound, size)
    sound = None if math.isfinite(norms.sum()) else np.isfinite(norms)
    sums = []
    for column in scaled.T:
        sums.append(_sparse_column_sums(X, column, sound))
        if outer.constant != 0:
            sums.append(np.rint(column * outer.constant).sum(keepdims=True))
    return np.concatenate(sums).astype(np.int64)


def _sparse_column_sums(
    X: Any, factors: FloatArray, sound: NDArray[np.bool_] | None
) -> FloatArray:
    """Round each row times its factor and add up, some rows at a time."""
    total = np.zeros(X.shape[1])
    height = max(1, max(_BLOCK // 4, 8 * X.shape[1]) * X.shape[0] // max(X.nnz, 1))
    for start in range(0, X.shape[0], height):
        ends = X.indptr[start : start + height + 1]
        part, length = slice(ends[0], ends[-1]), np.diff(ends)
        entries = np.repeat(factors[start : start + height], length)
        values = X.data[part]
        if sound is not None:
            values = np.where(
                np.repeat(sound[start : start + height], length), values, 0.0
            )
        entries *= values
        np.rint(entries, out=entries)
        total += np.bincount(X.indices[part], weights=entries, minlength=total.size)
    return total


def _norms(
    outer: OuterProduct,
    coefficients: FloatArray,
    rows: Matrix,
    part: slice = slice(None),
) -> FloatArray:
    """Return norms of some outer products, ``rows`` being those of the ``part``.

    The constant feature is included.
    """
    features = row_norms(rows) if outer.norms is None else outer.norms[part]
    if outer.constant != 0:
        features = np.sqrt(features * features + outer.constant**2)
    if coefficients.shape[1] == 1:
        return np.abs(coefficients[:, 0]) * features
    return row_norms(coefficients) * features


def _scaled(
    coefficients: FloatArray, norms: FloatArray, bound: float, size: int
) -> FloatArray:
    """Return clipped coefficients in lattice steps; zero leaves a bad row out."""
    # Beside the rounding of coordinates, room for the float error of such a norm.
    room = bound * (1 - 0.5 * math.sqrt(size) / STEPS) * (1 - 1e-12 - size * 2.0**-52)
    # In lattice steps from the start: room over a huge norm would have few digits left.
    unit = STEPS / bound
    factor = np.minimum(room * unit / norms, unit)
    scaled = coefficients * factor[:, None]
    if not math.isfinite(scaled.sum()):
        # A row whose norm is no number, or whose coefficient is none in lattice steps,
        # is left out.
        usable = np.isfinite(norms) & np.isfinite(scaled).all(axis=1)
        scaled = np.where(usable[:, None], scaled, 0.0)
    return scaled


def number_sum(contributions: Contributions, bound: float) -> int:
    """Return the sum of clipped numbers in lattice steps.

    Numbers are clipped to the bound and rounded toward zero; NaN counts as zero and
    infinity as the bound.
    """
    if not isinstance(contributions, np.ndarray) or contributions.ndim != 1:
        raise ValueError("Expected one number for each row; vectors go to noisy_sum.")
    steps = np.asarray(contributions, dtype=float).clip(-bound, bound)
    steps *= STEPS / bound  # the bound itself becomes STEPS or a hair less or more
    total = float(np.add.reduce(np.trunc(steps, out=steps)))
    return int(np.nansum(steps)) if math.isnan(total) else int(total)


def number_sums(contributions: Contributions, bound: float) -> list[int]:
    """Return the same for several numbers for each row, one sum a column."""
    if isinstance(contributions, Columns):
        return [number_sum(column, bound) for column in contributions.each]
    if not isinstance(contributions, np.ndarray) or contributions.ndim != 2:
        raise ValueError("Expected one row of numbers for each row of the batch.")
    columns = np.asarray(contributions, dtype=float).T
    return [number_sum(column, bound) for column in columns]


def clipped(values: Contributions, bound: float) -> FloatArray:
    """Clip numbers to the bound; what is not a number counts as zero."""
    numbers = np.clip(np.asarray(values, dtype=float), -bound, bound)
    if math.isnan(numbers.sum()):
        numbers[np.isnan(numbers)] = 0.0
    return numbers


def plain_vector_sum(contributions: Contributions, bound: float) -> FloatArray:
    """Return the clipped sum in floating point: for runs without noise only."""
    if isinstance(contributions, LatticeSum):
        return np.asarray(contributions.steps * (bound / STEPS), dtype=np.float64)
    if isinstance(contributions, OuterProduct):
        block = _formed(contributions)
    else:
        block = np.asarray(contributions, dtype=float)
    norms = row_norms(block)
    kept = np.isfinite(norms)
    factor = bound / np.maximum(norms[kept], bound)
    return np.asarray(factor @ block[kept])


def _formed(outer: OuterProduct) -> FloatArray:
    X = outer.X.toarray() if sparse.issparse(outer.X) else np.asarray(outer.X)
    if outer.constant != 0:
        X = np.column_stack([X, np.full(X.shape[0], outer.constant)])
    formed = np.einsum("ik,ij->ikj", outer.coefficients, X)
    width = formed.shape[1] * formed.shape[2]
    return np.asarray(formed.reshape(X.shape[0], width), dtype=float)
