# SPDX-License-Identifier: Apache-2.0
"""Cells of a table's columns, and distributions from noisy counts of them.

Each column has public cells, and a row falls into exactly one cell of each: missing,
out of range and undeclared are cells as well.  So the counts of all columns together
are one release, of sensitivity root of the number of columns.  What is learned from
noisy counts is post-processing.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo.accounting.budget import FloatArray
from armijo.data.coded import CategoryColumn, CodedTable, ColumnInfo, NumericColumn

EQUAL_CELLS = 256  # between the ends of a numeric column
HALVINGS = 15  # of the cells beside an end or zero, where values crowd
ATOM = 2.0**-34  # width of the cell of an end, or of zero, in units of the range
OUTSIDE = tuple(2.0**k for k in (*range(-3, 12), 16, 20))  # cells beyond the range
FIRST_OCTAVE, LAST_OCTAVE = -30, 50  # of the numbers whose scale is sought
FOUND_SNR = 4.5  # standard deviations by which some octaves of a column stand out
WIDER_SNR = 3.5  # and by which those do that are next to them
OWN_SNR = 2.5  # below which the largest octave is none of them
WINDOWS = (1, 2, 3, 4, 6, 8)  # octaves that are tested together
WIDE = 64.0  # a range of positive numbers this wide begins at zero
FINE_PARTS = 16  # of an octave, in which narrow columns are found
FINE_WEIGHT = 0.5  # of their counts beside those of octaves: a row adds so much
NARROW = 0.25  # of the octaves' range: a narrower part that holds the rows replaces it
HELD_ROWS = 0.8  # of the rows with a number, which that part has to hold
HELD_NOISE = 0.15  # of these rows: the most noise in its count, lest noise alone does
ATOM_RATIO = 2.0  # times its neighbors' mean: a cell that holds more is one value
SHRINKAGE = 2.0  # of splits towards the prior, in standard deviations
POOLED = 0.9  # of the prior is the pooled distribution of all numeric columns
POOL_FROM = 20  # levels from which rare ones become one
RARE_SNR = 3.0  # standard deviations below which a level is rare
OUTER_PRIOR = 0.01  # prior share of the cells out of range


def unit_edges(zero: float | None) -> FloatArray:
    """Return the ends of cells on [0, 1], finer near the ends and near zero."""
    ends = set((np.arange(EQUAL_CELLS + 1) / EQUAL_CELLS).tolist())
    anchors = [0.0, 1.0, *([] if zero is None else [zero])]
    widths = [2.0**-k / EQUAL_CELLS for k in range(HALVINGS)] + [ATOM]
    for anchor in anchors:
        ends |= {anchor + side * width for width in widths for side in (-1, 1)}
    outside = [-width for width in OUTSIDE] + [1 + width for width in OUTSIDE]
    within = [end for end in ends if -ATOM <= end <= 1 + ATOM]
    return np.array(sorted({*within, *outside}))


@dataclass(frozen=True, eq=False)
class NumericCells:
    """Cells of a column of numbers between two ends, which need not be bounds.

    Cell k of the ``size - 1`` ordered ones lies between ``edges[k - 1]`` and
    ``edges[k]``, in units of the range; the last cell is that of missing numbers.
    """

    low: float
    high: float

    @cached_property
    def edges(self) -> FloatArray:
        """The ends of the cells, in units of the range."""
        zero = -self.low / (self.high - self.low)
        return unit_edges(zero if 0 < zero < 1 else None)

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.edges) + 2

    def units(self, numbers: FloatArray) -> FloatArray:
        """Return numbers in units of the range; NaN stays NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((numbers - self.low) / (self.high - self.low))

    def places(self, numbers: FloatArray) -> NDArray[np.int64]:
        """Return the cell of each number."""
        return _placed(self.units(numbers), self.edges)


@dataclass(frozen=True, eq=False)
class OctaveCells:
    """Cells of numbers of which nothing is known: octaves of both signs, and zero.

    Attributes
    ----------
    parts : int
        Equal parts of an octave, each a cell.
    """

    parts: int = 1

    @cached_property
    def edges(self) -> FloatArray:
        """The ends of the cells; what lies between the two smallest is zero."""
        octaves = np.exp2(np.arange(FIRST_OCTAVE, LAST_OCTAVE))
        inner = np.outer(octaves, 1 + np.arange(self.parts) / self.parts)
        positive = np.append(inner, 2.0**LAST_OCTAVE)
        return np.concatenate([-positive[::-1], positive])

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.edges) + 2

    def places(self, numbers: FloatArray) -> NDArray[np.int64]:
        """Return the cell of each number."""
        return _placed(numbers, self.edges)


def _placed(numbers: FloatArray, edges: FloatArray) -> NDArray[np.int64]:
    places = np.searchsorted(edges, numbers, side="right")
    return np.where(np.isnan(numbers), len(edges) + 1, places)


@dataclass(frozen=True, eq=False)
class LevelCells:
    """Cells of a category: its levels, then that of missing cells."""

    levels: int

    @property
    def size(self) -> int:
        """The number of cells."""
        return self.levels + 1

    def places(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the cell of each code."""
        known = (codes >= 0) & (codes < self.levels)  # neither NaN nor infinity is
        return np.where(known, codes, self.levels).astype(np.int64)


Cells = NumericCells | OctaveCells | LevelCells


@dataclass(frozen=True, eq=False)
class Layout:
    """The cells of several columns, numbered one after the other.

    Attributes
    ----------
    parts : tuple
        The cells of each column.
    factors : tuple of float or None
        What a row adds to its cell of each column, at most one; None is one.
    """

    parts: tuple[Cells, ...]
    factors: tuple[float, ...] | None = None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The number of the first cell of each column, and the number of all cells."""
        return np.concatenate([[0], np.cumsum([part.size for part in self.parts])])

    @property
    def size(self) -> int:
        """The number of all cells."""
        return int(self.starts[-1])

    @property
    def bound(self) -> float:
        """The sensitivity of all counts: a row adds its factor in each column."""
        factors = self.factors or (1.0,) * len(self.parts)
        return math.sqrt(sum(factor**2 for factor in factors))

    def places(self, columns: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
        """Yield the cells of all rows, one column after the other."""
        for start, part, cells in zip(self.starts, self.parts, columns, strict=False):
            yield start + part.places(cells)

    def split(self, counts: FloatArray) -> list[FloatArray]:
        """Return the counts of each column."""
        return np.split(counts, self.starts[1:-1])


def learned_range(
    counts: FloatArray, noise: float, low: float | None, high: float | None
) -> tuple[float, float]:
    """Return the ends of a column from noisy counts of octaves; one may be known.

    The range begins with the octaves that stand out most from the noise, and grows by
    neighbors that stand out together, of which the largest has to by itself: each
    octave that noise adds makes the range twice as wide.  Codes like 999999, far from
    all other numbers, do not widen it; beyond it there are wide cells.  Where nothing
    stands out, numbers near one are as good as any.
    """
    ordered = counts[:-1] / max(noise, 1e-300)
    middle = len(ordered) // 2  # the cell of zero
    sides = [ordered[middle + 1 :], ordered[:middle][::-1]]  # by size
    found = [_window(side, FOUND_SNR) for side in sides]
    main = int(found[1][0] > found[0][0])
    sizes, start = [1.0, 1.0], 0.0
    if clear := found[main][1]:
        first, last = _trimmed(sides[main], *clear)
        sizes[main] = _octave_end(last)
        start = _octave_end(first - 1)
        near = sides[1 - main][: last + WINDOWS[-1]]
        other = _window(near, WIDER_SNR)[1]
        sizes[1 - main] = _octave_end(_trimmed(near, *other)[1]) if other else 0.0
    if min(sizes) > 0 or ordered[middle] > WIDER_SNR or max(sizes) > WIDE * start:
        start = 0.0
    if low is None:
        low = -sizes[1] or start
    if high is None:
        high = sizes[0] or -start
    if high <= low:
        high = low + max(abs(low), 1.0)
    return low, high


def narrowed_range(
    ends: tuple[float, float], fine: FloatArray, noise: float, present: float
) -> tuple[float, float]:
    """Return a part of a range that holds nearly all of ``present`` rows, or the range.

    ``fine`` are noisy counts of parts of octaves, which tell numbers that vary little
    beside their size (years, coordinates, moments): between octaves they would be in
    one cell or two.
    """
    edges = OctaveCells(FINE_PARTS).edges
    # The first cell and the one beyond the last edge have no ends of their own.
    start = max(int(np.searchsorted(edges, ends[0], "right")), 1)
    stop = min(int(np.searchsorted(edges, ends[1])), len(edges) - 1)
    inside = fine[start : stop + 1]
    if not inside.size:
        return ends
    clear = _window(inside / max(noise, 1e-300), FOUND_SNR)[1]
    if clear is None:
        return ends
    first, last = _grown(inside / max(noise, 1e-300), *clear)
    low, high = float(edges[start + first - 1]), float(edges[start + last])
    spread = noise * math.sqrt(last + 1 - first)
    least = float(inside[first : last + 1].sum()) - 2 * spread
    holds = spread <= HELD_NOISE * present and least > HELD_ROWS * present
    narrow = high - low <= NARROW * (ends[1] - ends[0])
    return (low, high) if holds and narrow else ends


def _octave_end(octave: int) -> float:
    return float(np.exp2(FIRST_OCTAVE + octave + 1))


def _window(side: FloatArray, least: float) -> tuple[float, tuple[int, int] | None]:
    """Return the score of the octaves that stand out most, and their ends."""
    best, ends = least, None
    for width in WINDOWS:
        scores = np.convolve(side, np.ones(width), "valid") / math.sqrt(width)
        place = int(scores.argmax())
        if scores[place] > best:
            best, ends = float(scores[place]), (place, place + width - 1)
    return best, ends


def _grown(side: FloatArray, first: int, last: int) -> tuple[int, int]:
    """Return the ends of octaves with all neighbors that stand out together."""
    scales = np.sqrt(np.arange(1, WINDOWS[-1] + 1))
    while (above := np.cumsum(side[last + 1 :][: len(scales)])).size:
        scores = above / scales[: len(above)]
        if scores.max() <= WIDER_SNR:
            break
        last += int(scores.argmax()) + 1
    while (below := np.cumsum(side[:first][::-1][: len(scales)])).size:
        scores = below / scales[: len(below)]
        if scores.max() <= WIDER_SNR:
            break
        first -= int(scores.argmax()) + 1
    return first, last


def _trimmed(side: FloatArray, first: int, last: int) -> tuple[int, int]:
    """Return the ends of octaves that grew, without largest ones in the noise."""
    start, stop = _grown(side, first, last)
    while stop > last and side[stop] < OWN_SNR:
        stop -= 1
    return start, stop


def shrunk_cdf(
    counts: FloatArray, prior: FloatArray, n_rows: float, noise: float
) -> FloatArray:
    """Return a distribution function at the cells' ends from noisy counts.

    Cells are halved again and again; the mass of a left half is estimated from both
    noisy halves, whose best combination has the variance ``noise^2 l r / (l + r)`` for
    l and r cells, and shrunk to its prior where the mass is small beside the noise.
    """
    total = np.concatenate([[0.0], np.cumsum(counts)])
    expected = np.concatenate([[0.0], np.cumsum(prior)])
    cdf = np.zeros(len(counts) + 1)
    cdf[-1] = 1.0
    nodes = [(0, len(counts))]
    while nodes:
        first, last = nodes.pop()
        mass = cdf[last] - cdf[first]
        if last - first <= 1:
            continue
        if mass <= 0:
            cdf[first + 1 : last] = cdf[first]
            continue
        middle = (first + last) // 2
        left, right = middle - first, last - middle
        rows = mass * n_rows
        share = left / (left + right)
        below, above = total[middle] - total[first], total[last] - total[middle]
        estimate = (1 - share) * below + share * (rows - above)
        variance = noise**2 * left * right / (left + right)
        before, after = expected[first], expected[last]
        usual = (expected[middle] - before) / (after - before)
        weight = rows**2 / (rows**2 + 4 * SHRINKAGE**2 * variance)
        part = min(max(usual + weight * (estimate / rows - usual), 0.0), 1.0)
        cdf[middle] = cdf[first] + mass * part
        nodes += [(first, middle), (middle, last)]
    return cdf


def nearest_shares(shares: FloatArray) -> FloatArray:
    """Return the nearest shares that are not negative and add up to one at most."""
    cut = np.maximum(shares, 0.0)
    if cut.sum() <= 1:
        return np.asarray(cut)
    ordered = np.sort(shares)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(shares) + 1)
    return np.maximum(shares - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)


@dataclass(frozen=True, eq=False)
class Marginal:
    """The released distribution of a column of numbers.

    Attributes
    ----------
    cells : NumericCells
        Its cells.
    cdf : array
        The distribution function at the ends of the ordered cells.
    missing : float
        The share of missing cells; zero where it does not stand out from the noise.
    """

    cells: NumericCells
    cdf: FloatArray
    missing: float

    @cached_property
    def shares(self) -> FloatArray:
        """The shares of the ordered cells."""
        return np.diff(self.cdf)

    @cached_property
    def middles(self) -> FloatArray:
        """The middle rank of each ordered cell."""
        return np.asarray((self.cdf[1:] + self.cdf[:-1]) / 2)

    @cached_property
    def centers(self) -> FloatArray:
        """The middle of each ordered cell, in units of the range."""
        edges = self.cells.edges
        inner = (edges[1:] + edges[:-1]) / 2
        return np.concatenate([edges[:1], inner, edges[-1:]])

    @cached_property
    def _lines(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Rank at the start of each cell, where it starts, and slope within."""
        edges = self.cells.edges
        start = np.concatenate([[0.0], edges])
        width = np.concatenate([[np.inf], np.diff(edges), [np.inf]])
        beside = np.pad(self.shares, 1)
        heavy = self.shares > ATOM_RATIO * (beside[:-2] + beside[2:]) / 2
        flat = heavy | (width < 4 * ATOM) | np.isinf(width)
        rank = np.where(flat, self.middles, self.cdf[:-1])
        return rank, start, np.where(flat, 0.0, self.shares / width)

    def ranks(self, numbers: FloatArray) -> FloatArray:
        """Return the rank of each number."""
        return self.unit_ranks(self.cells.units(numbers))

    def unit_ranks(
        self, units: FloatArray, places: NDArray[np.intp] | None = None
    ) -> FloatArray:
        """Return the rank of each number, in units; the middle one on an atom.

        A missing number, NaN, has none.  By comparisons, sums and products only: a
        function of the number.  ``places`` is what :meth:`places` returned for them.
        """
        places = self.places(units) if places is None else places
        rank, start, slope = self._lines
        steep = slope[places]
        inside = np.where(steep == 0, 0.0, units - start[places])
        inside *= steep
        inside += rank[places]
        np.clip(inside, 0.0, 1.0, out=inside)
        inside[np.isnan(units)] = np.nan
        return inside

    def places(self, units: FloatArray) -> NDArray[np.intp]:
        """Return the cell of each number, in units; a missing one is in the last."""
        return np.searchsorted(self.cells.edges, units, side="right")

    def mean(self, values: FloatArray) -> FloatArray:
        """Return the mean of values on the ordered cells."""
        return np.asarray(self.shares @ values)

    def quantile(self, rank: float) -> float:
        """Return a quantile in units of the range."""
        inner = slice(1, -1)
        return float(np.interp(rank, self.cdf[inner], self.cells.edges))


def marginals(
    cells: list[NumericCells],
    counts: list[FloatArray],
    n_rows: float,
    noise: float,
) -> list[Marginal]:
    """Return the distributions of numeric columns, which share a prior.

    The prior of all is uniform between the ends; pooled over the columns it becomes
    what numeric columns of this table look like between their ends.
    """
    if not cells:
        return []
    ordered = [column[:-1] for column in counts]
    grid = unit_edges(None)
    uniform = _uniform(grid)
    pool = np.zeros(len(grid) + 1)
    for part, column in zip(cells, ordered, strict=True):
        middles = np.concatenate([[-np.inf], _middles(part.edges), [np.inf]])
        np.add.at(pool, np.searchsorted(grid, middles, side="right"), column)
    many = len(cells)
    pooled = shrunk_cdf(pool, uniform, n_rows * many, noise * math.sqrt(many))
    found = []
    for part, column, all_cells in zip(cells, ordered, counts, strict=True):
        prior = POOLED * _spread(grid, pooled, part.edges)
        prior += (1 - POOLED) * _uniform(part.edges) + 1e-12
        absent = float(all_cells[-1])
        missing = min(absent / n_rows, 1.0) if absent > RARE_SNR * noise else 0.0
        present = max(n_rows * (1 - missing), 1.0)
        kept = _reached(column, part.edges, noise)
        inner = shrunk_cdf(column[kept], prior[kept], present, noise)
        cdf = np.zeros(len(column) + 1)
        cdf[kept.start : kept.stop + 1], cdf[kept.stop :] = inner, 1.0
        found.append(Marginal(part, cdf, missing))
    return found


def _reached(counts: FloatArray, edges: FloatArray, noise: float) -> slice:
    """Return the cells within one range of the ends, and further ones if reached.

    Cells far beyond the range are so wide that a little noise there would be most of
    a mean or of a variance.
    """
    below, above = int((edges <= -1).sum()), int((edges >= 2).sum())
    return slice(
        _first_clear(counts[:below], noise),
        len(counts) - _first_clear(counts[::-1][:above], noise),
    )


def _first_clear(counts: FloatArray, noise: float) -> int:
    """Return where sums from the start stand out from the noise, else the end."""
    spread = max(noise, 1e-300) * np.sqrt(np.arange(1, len(counts) + 1))
    clear = np.flatnonzero(np.cumsum(counts) > RARE_SNR * spread)
    return int(clear[0]) if clear.size else len(counts)


def _middles(edges: FloatArray) -> FloatArray:
    return np.asarray((edges[1:] + edges[:-1]) / 2)


def _uniform(edges: FloatArray) -> FloatArray:
    """Return the shares of cells under a uniform distribution on [0, 1]."""
    within = np.diff(np.clip(edges, 0.0, 1.0))
    outer = np.ones(len(edges) + 1)
    outer[1:-1] = within == 0
    shares = np.concatenate([[0.0], within, [0.0]]) * (1 - OUTER_PRIOR)
    return np.asarray(shares + OUTER_PRIOR * outer / outer.sum())


def _spread(grid: FloatArray, cdf: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the shares of other cells under a distribution on a grid of cells."""
    at = np.interp(edges, grid, cdf[1:-1])
    return np.maximum(np.diff(np.concatenate([[0.0], at, [1.0]])), 0.0)


@dataclass(frozen=True, eq=False)
class Levels:
    """The released distribution of a category.

    Attributes
    ----------
    merged : array
        The kept level of each cell, the missing one included; rare ones share one.
    shares : array
        The share of each kept level.
    """

    merged: NDArray[np.int64]
    shares: FloatArray


def kept_levels(counts: FloatArray, n_rows: float, noise: float) -> Levels:
    """Return which levels of a category are told apart, and their shares.

    The cell of missing values is a level where it stands out; of many levels, those
    that do not stand out become one.
    """
    levels = len(counts) - 1
    clear = counts > RARE_SNR * noise
    keep = clear if levels > POOL_FROM else np.ones(len(counts), dtype=bool)
    keep[-1] = clear[-1]
    merged = np.full(len(counts), int(keep.sum()))
    merged[keep] = np.arange(int(keep.sum()))
    kept = counts[keep]
    if not keep.all():
        kept = np.append(kept, max(n_rows - kept.sum(), 0.0))
    shares = nearest_shares(kept / n_rows)
    size = len(shares)
    trust = n_rows**2 / (n_rows**2 + 4 * noise**2 * size)
    return Levels(merged, trust * shares + (1 - trust) / size)


def column_cells(
    columns: tuple[ColumnInfo, ...], ranges: dict[int, tuple[float, float]]
) -> list[Cells]:
    """Return the cells of each column; ``ranges`` are the learned ones."""
    found: list[Cells] = []
    for place, column in enumerate(columns):
        if isinstance(column, CategoryColumn):
            found.append(LevelCells(column.n_levels))
        else:
            found.append(NumericCells(*ranges[place]))
    return found


def unbounded(columns: tuple[ColumnInfo, ...]) -> tuple[int, ...]:
    """Return which columns are numbers of which not both bounds are known."""
    return tuple(
        place
        for place, column in enumerate(columns)
        if isinstance(column, NumericColumn) and None in (column.low, column.high)
    )


def declared_ranges(columns: tuple[ColumnInfo, ...]) -> dict[int, tuple[float, float]]:
    """Return the ranges of columns both of whose bounds are known."""
    return {
        place: (column.low, column.high)
        for place, column in enumerate(columns)
        if isinstance(column, NumericColumn)
        and column.low is not None
        and column.high is not None
    }


def cells_of(table: CodedTable, places: Iterable[int]) -> Iterator[NDArray[Any]]:
    """Yield the cells of some columns."""
    return (table.cells[place] for place in places)
