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
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data import lattice
from armijo.data.lattice import row_norms as row_norms

SMALLEST_BOUND, LARGEST_BOUND = 1e-140, 1e140

Value = TypeVar("Value")
Matrix = Any
"""A dense array, a memmap or a SciPy CSR matrix."""


Index = NDArray[np.int64] | None
"""Row numbers; None is all of them."""


class Taken(NamedTuple):
    """Rows and labels, and which of them, a bool each, only keep their place."""

    X: Any
    y: Any
    blank: torch.Tensor | None = None


@dataclass(frozen=True, repr=False)
class Rows:
    """The rows of one open batch; queries receive it and must not keep it.

    ``cache`` lets the queries of one batch share what they compute, such as the product
    of the features with the parameters.  ``seed`` fixes what a module draws itself,
    such as dropout masks, for all queries of the batch.  ``norms`` returns the norms of
    the rows as they were when the run read them first; None computes them.
    ``run_cache`` is for what holds in all batches of a run, and None unless each has
    all rows.
    ``blank`` says which rows only keep their place, as a tensor of a module's rows;
    None is nobody.  ``memory`` is how many bytes of features may be held; None is half
    of what is free.

    Rows of a table are rounded to their lattices (:mod:`armijo.data.lattice`) unless
    ``rounded`` says that they are; a row without a finite label becomes a blank.  So
    what all queries see of a row, and whether it is left out, is decided here, once.
    """

    X: Matrix
    y: Any
    cache: dict[object, Any] = field(default_factory=dict)
    seed: int = 0
    norms: Callable[[], FloatArray] | None = None
    run_cache: dict[object, Any] | None = None
    blank: torch.Tensor | None = None
    rounded: bool = False
    memory: int | None = None

    def __post_init__(self) -> None:
        if not self.rounded and (
            isinstance(self.X, np.ndarray) or sparse.issparse(self.X)
        ):
            X = lattice.rounded(self.X, unlabelled(self.y))
            object.__setattr__(self, "X", X)
            object.__setattr__(self, "rounded", True)

    def product(self, weights: FloatArray) -> FloatArray:
        """Return the rows of a table times public weights, exactly."""
        own = getattr(self.X, "product", None)
        return lattice.product(self.X, weights) if own is None else own(weights)

    def lengths(self) -> FloatArray:
        """Return the norms of the rows of a table, NaN for blanks."""
        if self.norms is not None:
            return self.norms()
        return self.cached("lengths", lambda: lattice.lattice_norms(self.X))

    def without(self, left_out: lattice.Mask) -> "Rows":
        """Return the rows of a table with some more of them blank."""
        X = lattice.rounded(self.X, left_out)
        return replace(self, X=X, cache={}, norms=None, run_cache=None)

    def seen_as(self, X: Any, y: Any) -> "Rows":
        """Return the rows in other features and labels, with a cache of its own."""
        return replace(self, X=X, y=y, cache={}, norms=None)

    def drawn(self, index: NDArray[np.int64]) -> "Rows":
        """Return the rows of a table with these numbers."""
        X, y = self.X[index], self.y[index]
        return replace(self, X=X, y=y, cache={}, norms=None, run_cache=None)

    def blanks(self) -> lattice.Mask:
        """Return which rows of a table every query leaves out."""
        return self.cached_for_run("blanks", lambda: lattice.blanks(self.X))

    @property
    def size(self) -> int:
        """The realized number of rows: private, for loops only."""
        first = self.X[0] if isinstance(self.X, tuple) else self.X
        return int(first.shape[0])

    def total(self, task: "Callable[[Rows], Value]") -> Value:
        """Return a sum over the rows: of a single block, in memory."""
        return task(self)

    def cached(self, name: str, compute: Callable[[], Value], *keys: object) -> Value:
        """Return what this batch computed for the same objects, or compute it."""
        return _cached(self.cache, name, compute, keys)

    def cached_for_run(self, name: object, compute: Callable[[], Value]) -> Value:
        """Return what any batch of all rows computed under the same name."""
        place = self.cache if self.run_cache is None else self.run_cache
        return _cached(place, name, compute, ())

    def parts(self, most: int) -> tuple["Rows", ...]:
        """Return parts of at most ``most`` rows, each with a cache and a seed.

        What can be computed row by row then needs no more memory than a part does.
        """
        if self.size <= most:
            return (self,)

        def part(number: int) -> Rows:
            first = number * most
            X, y, blank = (
                _cut(one, first, most) for one in (self.X, self.y, self.blank)
            )
            part = replace(
                self, X=X, y=y, blank=blank, cache={}, norms=None, run_cache=None
            )
            return replace(part, seed=self.seed + number)

        numbers = range(math.ceil(self.size / most))
        return self.cached("parts", lambda: tuple(map(part, numbers)))

    def __repr__(self) -> str:
        return "Rows(private)"


def _cached(
    place: dict[object, Any],
    name: object,
    compute: Callable[[], Value],
    keys: tuple[object, ...],
) -> Value:
    held: tuple[tuple[object, ...], Value] | None = place.get(name)
    if held is None or any(map(operator.is_not, held[0], keys)):
        held = (keys, compute())
        place[name] = held
    return held[1]


def _cut(held: Any, first: int, most: int) -> Any:
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
class LatticeSum:
    """A sum in steps of ``bound * 2**-24``, of integer vectors within the bound."""

    steps: NDArray[np.int64]


@dataclass(frozen=True)
class CertifiedSum:
    """A sum that an objective takes on the lattice by itself.

    ``integers`` returns the flat sum in steps of ``bound * 2**-bits``, whole numbers
    in float64 or int64; every example's vector in it was certified
    (:mod:`armijo.data.certified`).  ``plain`` is the same in floating point, for runs
    without noise.  ``dtype`` is what the module computes with, ``finest`` the most
    bits that ``integers`` takes.
    """

    integers: Callable[[int], torch.Tensor]
    plain: Callable[[], torch.Tensor]
    dtype: torch.dtype
    finest: int = 40


@dataclass(frozen=True)
class Columns:
    """Scores of candidates, one candidate after the other, a number for each example.

    For many candidates, whose scores together would take far more memory than rows do.
    """

    each: Iterator[FloatArray]


Contributions = FloatArray | OuterProduct | LatticeSum | CertifiedSum | Columns


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


def unlabelled(y: Any) -> lattice.Mask | None:
    """Return which labels are no finite numbers; None if all are, or there are none."""
    if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind != "f":
        return None
    missing = ~np.isfinite(y)
    return missing if missing.any() else None


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
