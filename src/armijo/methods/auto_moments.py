# SPDX-License-Identifier: Apache-2.0
"""What the automatic method asks about the features before its first step.

Three releases: how long rows are, their mean and mean square norm, and the second
moments of the centered rows.  Each contributes at most one to the norm of its sum.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from armijo.data.centered_rows import CenteredRows
from armijo.data.fixed_point import STEPS
from armijo.data.query import BoundedQuery, LatticeSum, OuterProduct, Rows, row_norms
from armijo.privacy.budget import FloatArray

OCTAVES = 20
"""Norms are sought within so many doublings of the root of d, either way."""

_PER_OCTAVE = 2
_MIDDLE = OCTAVES * _PER_OCTAVE
_BINS = 2 * _MIDDLE + 1
FAR_PENALTY = 0.5
"""Standard deviations a norm must win by for each doubling away from root d."""

SURE = 3.5
"""Standard deviations by which some count must stand out; else no scale is known."""

RADIUS_ROOM = 2.0
"""Standard deviations of noise that are added to the squared radius."""

GRID = 1 << 12
"""Rows are rounded to multiples of 1/GRID for the second moments."""

_BLOCK = 1 << 18  # numbers in a block of rows

Sight = Callable[[Rows], Rows]
"""How the objective sees the rows of a batch: which of them it leaves out."""


def _as_they_are(rows: Rows) -> Rows:
    """Leave no more rows out."""
    return rows


def norm_histogram(n_features: int, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask how many rows have which norm, in half octaves around the root of d.

    A row adds one to one bin, or nothing: neighbors differ by at most one.  The sum
    counts, so it is exact in floating point.
    """
    octaves = (np.arange(_BINS) - _MIDDLE) / _PER_OCTAVE
    ends = math.sqrt(n_features) * np.exp2(octaves)

    def contributions(rows: Rows) -> LatticeSum:
        norms = sight(rows).lengths()
        norms = norms[np.isfinite(norms) & (norms > 0)]
        places = np.minimum(np.searchsorted(ends, norms), _BINS - 1)
        return LatticeSum(np.bincount(places, minlength=_BINS) * STEPS)

    return BoundedQuery(contributions=contributions, bound=1.0)


def chosen_norm(counts: FloatArray, noise: float, n_features: int) -> float:
    """Return the upper end of the octave that holds most rows, by noisy counts.

    Bins far from root d, where rows of features within one lie at most, must win by
    more than noise would.  Where no count stands out the scale is not known, and the
    answer is the largest of all: in its units rows are nothing, and what is learned is
    the intercept.  A norm too small would drown the intercept instead.
    """
    windows = counts[1:] + counts[:-1]
    ends = np.arange(1, _BINS) - _MIDDLE
    far = np.abs(ends) / _PER_OCTAVE
    gains = windows - FAR_PENALTY * noise * far
    best = int(np.argmax(gains))
    if gains[best] < SURE * noise:
        return math.sqrt(n_features) * 2.0**OCTAVES
    return math.sqrt(n_features) * 2.0 ** (float(ends[best]) / _PER_OCTAVE)


def row_sum(norm: float, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask for the sum of the rows, in units of ``norm``; the gate clips longer ones."""

    def contributions(rows: Rows) -> OuterProduct:
        return OuterProduct(np.full((rows.size, 1), 1 / norm), sight(rows).X)

    return BoundedQuery(contributions=contributions, bound=1.0)


def square_sum(norm: float, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask for the sum of squared norms, in units of ``norm`` squared."""

    def contributions(rows: Rows) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = sight(rows).lengths() / norm
            squares = np.where(lengths > 1, 1.0, np.square(lengths))
        squares[~np.isfinite(lengths)] = np.nan  # such a row counts nowhere
        return squares[:, None]

    return BoundedQuery(contributions=contributions, bound=1.0)


def shrunk_mean(noisy_mean: FloatArray, noise: float) -> FloatArray:
    """Return the mean with the noise's part of its length taken away.

    ``noise`` is the standard deviation of each coordinate (James and Stein 1961).
    """
    square = float(noisy_mean @ noisy_mean)
    excess = noisy_mean.size * noise**2
    return noisy_mean * max(0.0, 1 - excess / max(square, 1e-300))


def radius(mean_square: float, center: FloatArray, norm: float, noise: float) -> float:
    """Return the root mean square distance from the center, within [norm/10, norm].

    ``E |x - m|^2 = E |x|^2 - |m|^2`` for the mean m.  ``noise`` is the standard
    deviation of ``mean_square`` in units of ``norm`` squared and of each coordinate of
    the mean in units of ``norm``.  A frame that is too small is worse than one that is
    too large, since rows are long in it: ``RADIUS_ROOM`` standard deviations are added.
    """
    length = float(center @ center)
    spread = noise * norm * math.sqrt(norm**2 + 4 * length)
    square = mean_square - length + RADIUS_ROOM * spread
    return math.sqrt(min(max(square, 0.01 * norm**2), norm**2))


def second_moments(
    center: FloatArray, radius: float, sight: Sight = _as_they_are
) -> BoundedQuery:
    """Ask for the sum of ``u u^T`` over centered rows u, clipped to norm one.

    ``||u u^T||_F = ||u||^2 <= 1`` is the sensitivity of the flat matrix.  Coordinates
    are integers over ``GRID``: products and their sums are exact in float64 for up to
    2**28 rows, whatever the order, and a row whose rounded norm exceeds one by float
    error is left out, so the bound holds exactly.
    """
    # Rounding moves a row by at most sqrt(d)/2 steps of the grid.
    room = max(1 - 0.5 * math.sqrt(center.size) / GRID, 0.0) * (1 - 1e-12)

    def contributions(rows: Rows) -> LatticeSum:
        rows = sight(rows)
        view = CenteredRows(rows.X, center)
        norms = rows.keep(("norms", center.tobytes()), partial(row_norms, view))
        d = center.size
        total = np.zeros((d, d))
        height = max(1, _BLOCK // d)
        for start in range(0, rows.size, height):
            part = slice(start, start + height)
            block = _on_grid(view[part], norms[part], room / radius, room)
            total += block.T @ block
        return LatticeSum(total.ravel().astype(np.int64))

    return BoundedQuery(contributions=contributions, bound=1.0)


def _on_grid(
    centered: FloatArray, norms: FloatArray, most: float, room: float
) -> FloatArray:
    """Return clipped rows as integers whose squares add up to GRID^2 at most."""
    with np.errstate(all="ignore"):  # no warning tells of a row
        factor = np.minimum(room / norms, most) * GRID
        steps = np.rint(centered * factor[:, None])
        squares = np.einsum("ij,ij->i", steps, steps)
    bad = ~(squares <= float(GRID) ** 2)  # also where it is no number
    steps[bad] = 0.0
    return np.asarray(steps)
