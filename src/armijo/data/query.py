# SPDX-License-Identifier: Apache-2.0
"""Questions to private rows: a sum over examples with a public bound on each.

A query names a function of a batch and the most that one example may contribute.  The
function returns raw contributions; clipping, mapping of non-finite values and rounding
happen in the gate, in one place, so that no query can break its own bound.
"""

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from armijo import _validate
from armijo.privacy.budget import FloatArray

SMALLEST_BOUND, LARGEST_BOUND = 1e-140, 1e140
_TINY = 1e-140
_BLOCK = 1 << 20  # numbers in a block of rows: 8 MiB

Value = TypeVar("Value")
Matrix = Any
"""A dense array, a memmap or a SciPy CSR matrix, taken as it is."""


@dataclass(frozen=True, repr=False)
class Rows:
    """The rows of one open batch; queries receive it and must not keep it.

    ``cache`` lets the queries of one batch share what they compute, such as the product
    of the features with the parameters.  ``seed`` fixes what a module draws itself,
    such as dropout masks, for all queries of the batch.  ``norms`` returns the norms of
    the rows as they were when the run read them first; None computes them.  ``kept`` is
    for what holds in all batches of a run, and None unless each has all rows.
    """

    X: Matrix
    y: Any
    cache: dict[object, Any] = field(default_factory=dict)
    seed: int = 0
    norms: Callable[[], FloatArray] | None = None
    kept: dict[object, Any] | None = None

    @property
    def size(self) -> int:
        """The realized number of rows: private, for loops only."""
        first = self.X[0] if isinstance(self.X, tuple) else self.X
        return int(first.shape[0])

    def remember(self, name: str, compute: Callable[[], Value], *keys: object) -> Value:
        """Return what this batch computed for the same objects, or compute it."""
        return _held(self.cache, name, compute, keys)

    def keep(self, name: object, compute: Callable[[], Value]) -> Value:
        """Return what any batch of all rows computed under the same name."""
        place = self.cache if self.kept is None else self.kept
        return _held(place, name, compute, ())

    def parts(self, most: int) -> tuple["Rows", ...]:
        """Return parts of at most ``most`` rows, each with a cache and a seed.

        What can be computed row by row then needs no more memory than a part does.
        """
        if self.size <= most:
            return (self,)

        def part(number: int) -> Rows:
            first = number * most
            X, y = _cut(self.X, first, most), _cut(self.y, first, most)
            seed = self.seed + number
            return replace(self, X=X, y=y, cache={}, seed=seed, norms=None, kept=None)

        numbers = range(math.ceil(self.size / most))
        return self.remember("parts", lambda: tuple(map(part, numbers)))

    def __repr__(self) -> str:
        """Show nothing of the rows."""
        return "Rows(private)"


def _held(
    place: dict[object, Any],
    name: object,
    compute: Callable[[], Value],
    keys: tuple[object, ...],
) -> Value:
    """Return what was computed under a name for these very objects, or compute it."""
    held: tuple[tuple[object, ...], Value] | None = place.get(name)
    if held is None or any(map(operator.is_not, held[0], keys)):
        held = (keys, compute())
        place[name] = held
    return held[1]


def _cut(held: Any, first: int, most: int) -> Any:
    """Return some rows of a table, or of each table of a tuple."""
    if isinstance(held, tuple):
        return tuple(_cut(each, first, most) for each in held)
    return None if held is None else held[first : first + most]


@dataclass(frozen=True)
class OuterProduct:
    """Contributions ``outer(coefficients_i, X_i)`` without forming them.

    The gradient of a linear model: ``coefficients`` is (rows, k) with k = 1 or the
    number of classes, and example i contributes k times d numbers whose norm is the
    product of two norms.  ``constant``, when not zero, is one more feature with that
    public value in every row (the intercept).  ``norms`` are those of the rows of X;
    the gate alone sets them.
    """

    coefficients: FloatArray
    X: Matrix
    constant: float = 0.0
    norms: FloatArray | None = None


@dataclass(frozen=True)
class ClippedTotal:
    """A sum whose terms were clipped where they were computed, as one flat tensor.

    For modules, whose contributions are never formed one by one.  The sum is floating
    point: its exactness is that of the objective, not of the gate's lattice.
    It belongs to the gate, which writes the noisy sum over it.
    """

    total: torch.Tensor


@dataclass(frozen=True)
class Columns:
    """Scores of candidates, one candidate after the other, a number for each example.

    For many candidates, whose scores together would take far more memory than rows do.
    """

    each: Iterator[FloatArray]


Contributions = FloatArray | OuterProduct | ClippedTotal | Columns


@dataclass(frozen=True, kw_only=True)
class BoundedQuery:
    """A sum over examples.

    Attributes
    ----------
    contributions : callable
        From :class:`Rows` to an array with one row (or one number) for each example.
    bound : float
        The most that one example may contribute: an L2 norm for vectors, an absolute
        value for numbers.  The gate clips to it.
    offset : float
        A public constant added to the sum (search queries only).
    """

    contributions: Callable[[Rows], Contributions]
    bound: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Check the public numbers; two comparisons when they are right."""
        if (
            SMALLEST_BOUND <= self.bound <= LARGEST_BOUND
            and abs(self.offset) < math.inf
        ):
            return
        _validate.positive(bound=self.bound)
        if not SMALLEST_BOUND <= self.bound <= LARGEST_BOUND:
            raise ValueError(
                f"Expected {SMALLEST_BOUND:g} <= bound <= {LARGEST_BOUND:g}, got "
                f"{self.bound!r}; beyond that squares and quotients are not floats."
            )
        _validate.finite(offset=self.offset)


def row_norms(X: Matrix) -> FloatArray:
    """Return (an upper bound on) the L2 norm of each row; not finite rows stay so.

    Squares of tiny numbers vanish; rows where they might get ``sqrt(d) max |x|``.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        norms = _plain_norms(X)
    tiny = norms < _TINY
    if tiny.any():
        norms[tiny] = _largest(X[tiny]) * math.sqrt(X.shape[1])
    return np.asarray(norms)


def _plain_norms(X: Matrix) -> FloatArray:
    """Return the norm of each row, the same whatever rows are beside it."""
    if sparse.issparse(X):
        X = canonical(X)
        squares = np.square(X.data, dtype=np.float64)
        entries = sparse.csr_array((squares, X.indices, X.indptr), shape=X.shape)
        return np.sqrt(entries @ np.ones(X.shape[1]))
    # One contiguous layout, and a reduction that goes along each row on its own; in
    # blocks, since a table that is not float64 is copied.
    norms = np.empty(X.shape[0])
    height = max(1, _BLOCK // max(X.shape[1], 1))
    for start in range(0, X.shape[0], height):
        block = as_tensor(X[start : start + height])
        norms[start : start + height] = torch.linalg.vector_norm(block, dim=1)
    return norms


def canonical(X: Matrix) -> Matrix:
    """Return CSR rows in which no entry stands twice; a copy only if need be."""
    rows = X if X.format == "csr" else X.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def clipped_rows(X: Matrix, norm: float | None) -> Matrix:
    """Return rows scaled down to a public norm; None leaves them as they are."""
    if norm is None:
        return X
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.minimum(norm / row_norms(X), 1.0)
    factor = np.where(np.isfinite(factor), factor, 1.0)
    if sparse.issparse(X):
        return sparse.diags_array(factor) @ X
    return X * factor[:, None]


def as_tensor(X: NDArray[Any]) -> torch.Tensor:
    """Return contiguous float64 rows as a tensor, without a copy where allowed."""
    rows = np.ascontiguousarray(X, dtype=np.float64)
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def _largest(X: Matrix) -> FloatArray:
    """Return the largest absolute value of each row; zero if there are no columns."""
    if sparse.issparse(X) and X.shape[1]:
        stored = abs(canonical(X)).max(axis=1).toarray()
        return np.asarray(stored, dtype=float).ravel()
    dense = X.toarray() if sparse.issparse(X) else np.asarray(X)
    return np.asarray(np.abs(dense).max(axis=1, initial=0.0), dtype=float)
