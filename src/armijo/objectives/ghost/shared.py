# SPDX-License-Identifier: Apache-2.0
"""A parameter that is used more than once: its uses are added before the norm.

Uses of one kind are one use with more terms.  An embedding tied to the linear layer
that decodes gets its mixed products by looking up, without a table for each example.
"""

from functools import reduce
from typing import cast

import torch
from torch import Tensor

from armijo.objectives.ghost.uses import (
    STORE_AT_MOST,
    Lookup,
    Outer,
    Stored,
    Use,
    blocks,
    squared,
)


def merged(uses: list[Use]) -> Use:
    """Return all uses of one parameter as one."""
    if len(uses) == 1:
        return uses[0]
    kinds = {type(use) for use in uses}
    if kinds == {Stored}:
        gradients = [cast(Stored, use).gradients for use in uses]
        return Stored(reduce(torch.add, gradients))
    if kinds <= {Outer, Lookup}:
        outers = [use for use in uses if isinstance(use, Outer)]
        lookups = [use for use in uses if isinstance(use, Lookup)]
        if not lookups:
            return _one_outer(outers)
        if not outers:
            return _one_lookup(lookups)
        return Tied(_one_outer(outers), _one_lookup(lookups))
    return Several(uses)


def _one_outer(uses: list[Outer]) -> Outer:
    """Put the terms of several uses one after the other."""
    left = torch.cat([use.left for use in uses], dim=1)
    return Outer(left, torch.cat([use.right for use in uses], dim=1))


def _one_lookup(uses: list[Lookup]) -> Lookup:
    """Put the places of several uses one after the other."""
    places = torch.cat([use.places for use in uses], dim=1)
    gradients = torch.cat([use.gradients for use in uses], dim=1)
    return Lookup(places, gradients, uses[0].height)


class Tied:
    """A matrix that is looked up in one layer and multiplied in another."""

    def __init__(self, outer: Outer, lookup: Lookup) -> None:
        self.outer, self.lookup = outer, lookup

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return self.outer.examples

    def norms_squared(self) -> Tensor:
        """Return ``|a|^2 + |b|^2 + 2 a.b``, with the rounding of the largest sum."""
        first, second = self.outer.norms_squared(), self.lookup.norms_squared()
        terms = self.outer.left.shape[1] * self.lookup.places.shape[1]
        parts = blocks(self.examples, 2 * terms)
        mixed = torch.cat([self._mixed(rows) for rows in parts])
        largest = (first.sqrt() + second.sqrt()).square()
        sums = (first + second + 2 * mixed).clamp(min=0)
        return sums + torch.finfo(sums.dtype).eps * largest

    def _mixed(self, rows: slice) -> Tensor:
        """Return the inner products of both uses, for some examples."""
        left, places = self.outer.left[rows], self.lookup.places[rows]
        index = places[:, None, :].expand(-1, left.shape[1], -1)
        products = self.outer.right[rows] @ self.lookup.gradients[rows].mT
        return torch.linalg.vecdot(
            left.gather(2, index).flatten(1), products.flatten(1)
        )

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        _sum_of([self.outer, self.lookup], weights, out)

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self.outer.per_example(rows) + self.lookup.per_example(rows)

    def without(self, bad: Tensor) -> "Tied":
        """Return the same with zeros in place of the bad examples."""
        return Tied(self.outer.without(bad), self.lookup.without(bad))


class Several:
    """Any uses of one parameter; gradients are formed for a block of examples."""

    def __init__(self, uses: list[Use]) -> None:
        self.uses = uses
        self._stored: Stored | None = None

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return self.uses[0].examples

    def norms_squared(self) -> Tensor:
        """Return the squared norms, (B,)."""
        first = self.per_example(slice(0, 1))
        if self.examples * first.numel() <= STORE_AT_MOST:
            self._stored = Stored(self.per_example(slice(None)))
            return self._stored.norms_squared()
        parts = blocks(self.examples, first.numel())
        return torch.cat([squared(self.per_example(rows)) for rows in parts])

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        if self._stored is not None:
            return self._stored.weighted_sum(weights, out)
        _sum_of(self.uses, weights, out)

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return reduce(torch.add, [use.per_example(rows) for use in self.uses])

    def without(self, bad: Tensor) -> "Several":
        """Return the same with zeros in place of the bad examples."""
        return Several([use.without(bad) for use in self.uses])


def _sum_of(uses: list[Use], weights: Tensor, out: Tensor) -> None:
    """Write the weighted sum of several uses."""
    uses[0].weighted_sum(weights, out)
    part = torch.empty_like(out)
    for use in uses[1:]:
        use.weighted_sum(weights, part)
        out += part
