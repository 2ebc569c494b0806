# SPDX-License-Identifier: Apache-2.0
"""Exact sums: clip, round to a public lattice, add integers.

A float sum depends on the order of its terms and moves by more than the clip when one
row is added (Casacuberta et al. 2022).  Here each example is clipped and rounded to
multiples of ``bound * 2**-24`` first; the integers are added in float64, which is exact
below 2**53, hence for any order and for up to 2**28 rows.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from armijo.data.query import Contributions, Matrix, OuterProduct, row_norms
from armijo.privacy.budget import FloatArray

BITS = 24
"""The lattice is the bound times 2**-BITS."""

STEPS = 1 << BITS

IntArray = NDArray[np.int64]
_MOST_ROWS = 1 << 28
_BLOCK = 1 << 15  # numbers in a block: 256 KiB
_FLOAT_SLACK = 1 - 1e-12  # above the rounding errors of a norm and a quotient


def lattice_scale(relative_scale: float) -> int:
    """Return a noise scale in lattice steps, rounded up: never too little."""
    return math.ceil(relative_scale * STEPS)


def vector_sum(contributions: Contributions, bound: float) -> IntArray:
    """Return the sum of clipped, rounded vectors in lattice steps.

    Clipping to ``bound - step sqrt(d)/2`` leaves room for the rounding of d
    coordinates, so that the rounded vectors keep the bound.  A row with a non-finite
    coordinate is left out.
    """
    if isinstance(contributions, OuterProduct):
        return _outer_sum(contributions, bound)
    block = np.asarray(contributions, dtype=float)
    if block.ndim != 2:
        raise ValueError(
            f"Expected one vector for each row, got an array of shape {block.shape}; "
            "a number for each row goes through a search query."
        )
    factor = _clip_factors(row_norms(block), bound, block.shape[1])
    return _rounded_row_sum(block, factor * (STEPS / bound))


def _outer_sum(outer: OuterProduct, bound: float) -> IntArray:
    """Sum outer products one coefficient column after the other."""
    coefficients = np.asarray(outer.coefficients, dtype=float)
    k, d = coefficients.shape[1], outer.X.shape[1] + (outer.constant != 0)
    with np.errstate(invalid="ignore", over="ignore"):
        features = np.hypot(row_norms(outer.X), outer.constant)
        norms = np.sqrt((coefficients**2).sum(axis=1)) * features
    factor = _clip_factors(norms, bound, k * d) * (STEPS / bound)
    scaled = np.where(factor[:, None] > 0, coefficients, 0.0) * factor[:, None]
    sums = []
    for column in scaled.T:
        sums.append(_rounded_row_sum(outer.X, column))
        if outer.constant != 0:
            constant = np.rint(column * outer.constant).sum()
            sums.append(np.array([constant]).astype(np.int64))
    return np.concatenate(sums)


def _clip_factors(norms: FloatArray, bound: float, size: int) -> FloatArray:
    """Return what each row is multiplied with; zero leaves a bad row out."""
    room = bound * (1 - 0.5 * math.sqrt(size) / STEPS) * _FLOAT_SLACK
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.minimum(1.0, room / norms)
    return np.where(np.isfinite(norms), np.nan_to_num(factor, nan=1.0), 0.0)


def _rounded_row_sum(X: Matrix, scale: FloatArray) -> IntArray:
    """Return the column sums of ``rint(scale_i X_ij)``, exactly."""
    if X.shape[0] > _MOST_ROWS:
        raise ValueError(f"Expected at most {_MOST_ROWS} rows, got {X.shape[0]}.")
    if sparse.issparse(X):
        data = np.repeat(scale, np.diff(X.indptr)) * X.data
        np.rint(np.where(np.isfinite(data), data, 0.0), out=data)
        summed = np.bincount(X.indices, weights=data, minlength=X.shape[1])
        return summed.astype(np.int64)
    total = np.zeros(X.shape[1])
    # In blocks that stay in the processor's cache: they are passed over three times.
    height = max(1, _BLOCK // max(X.shape[1], 1))
    buffer, ones = np.empty((height, X.shape[1])), np.ones(height)
    for start in range(0, X.shape[0], height):
        part = scale[start : start + height]
        block = buffer[: len(part)]
        np.multiply(X[start : start + height], part[:, None], out=block)
        np.rint(block, out=block)
        if not np.all(part):
            # 0 x infinity is NaN: rows left out must not be multiplied into the sum.
            block[part == 0] = 0.0
        total += ones[: len(part)] @ block
    return total.astype(np.int64)


def number_sum(contributions: Contributions, bound: float) -> int:
    """Return the sum of clipped numbers in lattice steps.

    Numbers are clipped to the bound and rounded toward zero; NaN counts as zero and
    infinity as the bound.
    """
    if isinstance(contributions, OuterProduct) or np.ndim(contributions) != 1:
        raise ValueError("Expected one number for each row; vectors go to noisy_sum.")
    steps = np.multiply(contributions, STEPS / bound, dtype=float)
    np.trunc(np.clip(steps, -STEPS, STEPS, out=steps), out=steps)
    total = float(steps.sum())
    return int(np.nansum(steps)) if math.isnan(total) else int(total)


def number_sums(contributions: Contributions, bound: float) -> list[int]:
    """Return the same for several numbers for each row, one sum a column."""
    if isinstance(contributions, OuterProduct) or np.ndim(contributions) != 2:
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
    if isinstance(contributions, OuterProduct):
        block = _formed(contributions)
    else:
        block = np.asarray(contributions, dtype=float)
    factor = _clip_factors(row_norms(block), bound, 0)
    return np.asarray(factor[factor > 0] @ block[factor > 0])


def _formed(outer: OuterProduct) -> FloatArray:
    """Form the outer products, one row each."""
    X = outer.X.toarray() if sparse.issparse(outer.X) else np.asarray(outer.X)
    if outer.constant != 0:
        X = np.column_stack([X, np.full(X.shape[0], outer.constant)])
    formed = np.einsum("ik,ij->ikj", outer.coefficients, X)
    return np.asarray(formed.reshape(X.shape[0], -1), dtype=float)
