# SPDX-License-Identifier: Apache-2.0
"""What one use of a parameter adds to the gradient of every example.

A use answers two questions without forming per-example gradients where it can: the
squared norm for each example, and the sum of all examples with given weights.  The
weight of a layer that multiplies gets ``sum_t left_t right_t'`` with T terms, and

    ||sum_t left_t right_t'||^2 = sum_{s,t} (left_s . left_t) (right_s . right_t),

the ghost norm (Goodfellow 2015 for T = 1; Li et al. 2022, section 4; Bu et al. 2022).
The sum over examples comes from the same stored tensors, without a second backward
pass: the book-keeping of Bu et al. (2023).
"""

from collections.abc import Iterator
from typing import Protocol, Self

import torch
from torch import Tensor

# Costs in multiply-adds of a large matrix product, measured on two cores: what a number
# costs that is written once and read twice, what a pass over a small matrix costs, and
# how much slower many small products are than one large product.
STORED, PASSED, SMALL_PRODUCTS = 200.0, 24.0, 1.5
_ROUNDING = 8
# Numbers that a layer may store for all its examples, and in one block of examples.
STORE_AT_MOST, BLOCK = 1 << 25, 1 << 19


class Use(Protocol):
    """The gradient of one parameter, for each of B examples."""

    @property
    def examples(self) -> int:
        """The number B of examples."""
        ...

    def norms_squared(self) -> Tensor:
        """Return the squared norms, (B,)."""
        ...

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        ...

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, the parameter's shape each."""
        ...

    def without(self, bad: Tensor) -> Self:
        """Return the same with zeros in place of the bad examples."""
        ...


def blocks(examples: int, numbers: int, most: int | None = None) -> Iterator[slice]:
    """Yield slices of examples that need about ``most`` numbers, or ``BLOCK``, at once.

    >>> [part.stop - part.start for part in blocks(10, 2**17)]
    [4, 4, 2]
    """
    height = max(1, (most or BLOCK) // max(1, numbers))
    for start in range(0, examples, height):
        yield slice(start, min(start + height, examples))


def stores(terms: int, size: int, examples: int, ghost_cost: float) -> bool:
    """Say whether to store per-example gradients rather than use ghost norms.

    Stored gradients make the later sum cheap; ghost norms leave it as one large
    product, which a plain step has as well.  Costs are for one example.
    """
    extra = (SMALL_PRODUCTS - 1) * terms * size + STORED * size
    return examples * size <= STORE_AT_MOST and extra < ghost_cost


def squared(vectors: Tensor) -> Tensor:
    """Return the squared norm of each example's numbers."""
    return torch.linalg.vector_norm(vectors.flatten(1), dim=1).square_()


def paired(left: Tensor, right: Tensor) -> Tensor:
    """Return ghost norms from (b, T, T) products of both sides.

    The T x T terms may cancel, and each is rounded.  Several standard deviations of
    what the roundings add up to are put on top, so that no norm is found too small.
    """
    sums = torch.linalg.vecdot(left.flatten(1), right.flatten(1))
    diagonals = (side.diagonal(dim1=1, dim2=2) for side in (left, right))
    terms = torch.linalg.vecdot(*diagonals)
    return sums.clamp_(min=0).add_(terms, alpha=_ROUNDING * torch.finfo(sums.dtype).eps)


def zeroed(tensor: Tensor, bad: Tensor) -> Tensor:
    """Return a copy with zeros for the bad examples; 0 x NaN would stay NaN."""
    return tensor.masked_fill(bad.view(-1, *[1] * (tensor.dim() - 1)), 0)


class Stored:
    """Gradients that are there as they are: (B, *shape)."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self._squares: Tensor | None = None

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return len(self.gradients)

    def norms_squared(self) -> Tensor:
        """Return the squared norms, (B,), computed once."""
        if self._squares is None:
            self._squares = squared(self.gradients)
        return self._squares

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        torch.mv(self.gradients.flatten(1).t(), weights, out=out.view(-1))

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self.gradients[rows]

    def without(self, bad: Tensor) -> "Stored":
        """Return the same with zeros in place of the bad examples."""
        return Stored(zeroed(self.gradients, bad))


class Outer:
    """Gradients ``sum_t left_t right_t'`` of a matrix, from (B, T, p) and (B, T, d).

    ``sums`` is the sum of ``left`` over its terms, the gradient of a bias: with one
    term both have the same norms.
    """

    def __init__(self, left: Tensor, right: Tensor, sums: Stored | None = None) -> None:
        self.left, self.right = left, right
        self._sums = sums
        self._stored: Stored | None = None

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return len(self.left)

    def norms_squared(self) -> Tensor:
        """Return the squared norms, (B,)."""
        (examples, terms, p), d = self.left.shape, self.right.shape[2]
        if terms == 1:
            sums = self._sums or Stored(self.left)
            return sums.norms_squared() * squared(self.right)
        if stores(terms, p * d, examples, terms**2 * (p + d + PASSED)):
            self._stored = Stored(self.per_example(slice(None)))
            return self._stored.norms_squared()
        parts = [self._ghost(rows) for rows in blocks(examples, 2 * terms**2)]
        return torch.cat(parts)

    def _ghost(self, rows: slice) -> Tensor:
        """Return ghost norms of some examples."""
        left, right = self.left[rows], self.right[rows]
        return paired(left @ left.mT, right @ right.mT)

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        if self._stored is not None:
            return self._stored.weighted_sum(weights, out)
        left = (self.left * weights.view(-1, 1, 1)).flatten(0, 1)
        torch.mm(left.t(), self.right.flatten(0, 1), out=out)

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, (b, p, d)."""
        return self.left[rows].mT @ self.right[rows]

    def without(self, bad: Tensor) -> "Outer":
        """Return the same with zeros in place of the bad examples."""
        return Outer(zeroed(self.left, bad), zeroed(self.right, bad))


class Lookup:
    """Gradients of a table whose rows were looked up: (B, T) places, (B, T, d)."""

    def __init__(self, places: Tensor, gradients: Tensor, height: int) -> None:
        self.places, self.gradients, self.height = places, gradients, height

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return len(self.places)

    def norms_squared(self) -> Tensor:
        """Return the squared norms: add up equal places of an example, then square."""
        examples, _, width = self.gradients.shape
        row = torch.arange(examples, device=self.places.device)
        keys = (row[:, None] * self.height + self.places).flatten()
        found, inverse = torch.unique(keys, return_inverse=True)
        sums = self.gradients.new_zeros(found.numel(), width)
        sums.index_add_(0, inverse, self.gradients.flatten(0, 1))
        norms = self.gradients.new_zeros(examples)
        return norms.index_add_(0, found // self.height, squared(sums))

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        scaled = (self.gradients * weights.view(-1, 1, 1)).flatten(0, 1)
        out.zero_().index_add_(0, self.places.flatten(), scaled)

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, (b, height, d)."""
        places, gradients = self.places[rows], self.gradients[rows]
        result = gradients.new_zeros(len(places), self.height, gradients.shape[2])
        return result.scatter_add_(1, places[..., None].expand_as(gradients), gradients)

    def without(self, bad: Tensor) -> "Lookup":
        """Return the same with zeros in place of the bad examples."""
        return Lookup(self.places, zeroed(self.gradients, bad), self.height)
