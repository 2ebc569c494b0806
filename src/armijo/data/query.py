# SPDX-License-Identifier: Apache-2.0
"""Questions to private rows: a sum over examples with a public bound on each.

A query names a function of a batch and the most that one example may contribute.  The
function returns raw contributions; clipping, mapping of non-finite values and rounding
happen in the gate, in one place, so that no query can break its own bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from armijo import _validate
from armijo.privacy.budget import FloatArray

Matrix = Any
"""A dense array, a memmap or a SciPy CSR matrix, taken as it is."""


@dataclass(frozen=True)
class Rows:
    """The rows of one open batch; queries receive it and must not keep it.

    ``cache`` lets the queries of one batch share what they compute, such as the product
    of the features with the parameters.
    """

    X: Matrix
    y: NDArray[Any] | None
    cache: dict[object, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The realized number of rows: private, for loops only."""
        return int(self.X.shape[0])


@dataclass(frozen=True)
class OuterProduct:
    """Contributions ``outer(coefficients_i, X_i)`` without forming them.

    The gradient of a linear model: ``coefficients`` is (rows, k) with k = 1 or the
    number of classes, and example i contributes k times d numbers whose norm is the
    product of two norms.  ``constant``, when not zero, is one more feature with that
    public value in every row (the intercept).
    """

    coefficients: FloatArray
    X: Matrix
    constant: float = 0.0


Contributions = FloatArray | OuterProduct


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
        """Check the public numbers."""
        _validate.positive(bound=self.bound)
        _validate.finite(offset=self.offset)


def row_norms(X: Matrix) -> FloatArray:
    """Return the L2 norm of each row; infinite or NaN rows stay so."""
    if sparse.issparse(X):
        squares = X.multiply(X).sum(axis=1)
        return np.sqrt(np.asarray(squares, dtype=float).ravel())
    dense: NDArray[Any] = np.asarray(X)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(np.einsum("ij,ij->i", dense, dense, dtype=float))
