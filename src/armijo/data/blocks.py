# SPDX-License-Identifier: Apache-2.0
"""Sums over blocks of rows: all that is asked of where rows lie.

The gate pays first, then asks for a total::

    exact = rows.total(task)        # RowBlocks.total(SumTask) -> ExactSum

A :class:`SumTask` is a pure function of a block of rows that can be pickled: released
parameters and a public bound, no noise, no key, no ledger.  Called with a block
(:class:`armijo.data.query.Rows`) it clips and rounds what each row adds and returns
whole numbers, an :class:`ExactSum`.  What a row adds is a function of that row alone,
and whole numbers add up to the same in any order: a total does not depend on how rows
are cut into blocks, where or in which order blocks are computed, or how often one had
to be computed again.  Each row has to be in exactly one block.

A batch of some rows (:class:`armijo._noise.PoissonRows`) is drawn by the number of each
row in a fixed order, so it does not depend on blocks or retries either.  Only a source
that has such an order serves it, :class:`OrderedBlocks`.

A source implements :class:`RowBlocks`: it runs ``task(block)`` wherever the block is
and adds the results with ``+`` (:func:`block_total` does so here).  What it returns is
not private: noise, ledger and decisions stay with who asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from armijo._noise import PoissonRows
from armijo.accounting.budget import FloatArray
from armijo.data import fixed_point
from armijo.data.certified import noise_steps, release_bits
from armijo.data.lattice import CenteredRows, row_norms
from armijo.data.query import CertifiedSum, Contributions, OuterProduct, Rows


@dataclass(frozen=True)
class ExactSum:
    """A sum over rows in steps of ``bound * 2**-bits``.

    Attributes
    ----------
    steps : Tensor
        Whole numbers, int64; of a network's batch also float64, which holds them.
    bits : int
        The lattice, the same for all blocks of a task.
    certified : bool
        Whether rows are within ``1 + SLACK`` bounds (:mod:`armijo.data.certified`),
        or else within one (:mod:`armijo.data.fixed_point`).
    dtype : torch.dtype
        The type of what is released.
    """

    steps: Tensor
    bits: int = fixed_point.BITS
    certified: bool = False
    dtype: torch.dtype = torch.float64

    def __add__(self, other: "ExactSum") -> "ExactSum":
        """Return the sum over the rows of both."""
        lattices = {(s.bits, s.certified, s.steps.shape) for s in (self, other)}
        if len(lattices) != 1:
            raise ValueError(
                f"Expected sums of one task, got {sorted(map(str, lattices))}."
            )
        return replace(self, steps=self.steps + other.steps)

    def noise_scale(self, noise: float) -> int:
        """Return the scale of noise in these steps, for so many bounds."""
        if self.certified:
            return noise_steps(noise, self.bits)
        return fixed_point.lattice_scale(noise)

    def __repr__(self) -> str:
        """Show nothing of the sum, which is not private."""
        return f"ExactSum({len(self.steps)} numbers)"


@dataclass(frozen=True)
class SumTask:
    """What is computed on every block: picklable, without noise and without a key.

    Attributes
    ----------
    contributions : callable
        That of a :class:`armijo.data.query.BoundedQuery`.
    bound : float
        The most that a row adds.
    noise : float
        Standard deviation of the noise that will be added, in bounds: the lattice of
        the sum is as fine as it allows.
    """

    contributions: Callable[[Rows], Contributions]
    bound: float
    noise: float

    def __call__(self, rows: Rows) -> ExactSum:
        """Return the exact sum over a block."""
        found = with_norms(rows, self.contributions(rows))
        if not isinstance(found, CertifiedSum):
            steps = fixed_point.vector_sum(found, self.bound)
            return ExactSum(torch.from_numpy(steps))
        bits = min(release_bits(self.noise), found.finest)
        return ExactSum(found.integers(bits), bits, certified=True, dtype=found.dtype)


@dataclass(frozen=True)
class NumberTask:
    """The same for queries with numbers for each row: searches and choices.

    Attributes
    ----------
    contributions : callable
        That of a :class:`armijo.data.query.BoundedQuery`.
    bound : float
        The most that a row adds to each number.
    several : bool
        Whether there are several numbers for each row, or one.
    """

    contributions: Callable[[Rows], Contributions]
    bound: float
    several: bool = False

    def __call__(self, rows: Rows) -> ExactSum:
        """Return the exact sums over a block."""
        found = self.contributions(rows)
        if self.several:
            sums = fixed_point.number_sums(found, self.bound)
        else:
            sums = [fixed_point.number_sum(found, self.bound)]
        return ExactSum(torch.tensor(sums, dtype=torch.int64))


Task = SumTask | NumberTask


def with_norms(rows: Rows, contributions: Contributions) -> Contributions:
    """Return outer products with the norms of their rows, if these are known."""
    if not isinstance(contributions, OuterProduct):
        return contributions
    X = contributions.X
    known: FloatArray | None = None
    if type(X) is CenteredRows and X.X is rows.X:  # no kind of its own making
        known = rows.cached_for_run(
            ("norms", X.center.tobytes()), partial(row_norms, X)
        )
    elif X is rows.X and rows.norms is not None:
        known = rows.norms()
    return replace(contributions, norms=known)


@runtime_checkable
class RowBlocks(Protocol):
    """Rows that are asked for totals only: streamed files, or workers' partitions.

    Such a source serves methods whose releases are sums over rows
    (:attr:`armijo.methods.base.Method.only_sums`); others are refused before a charge,
    and so are those that sample rows unless it has an order (:class:`OrderedBlocks`).
    """

    def __len__(self) -> int:
        """Return the number of rows, as known when the run began."""

    def total(self, task: Task) -> ExactSum:
        """Return the sum of the task over all blocks, each row in exactly one.

        If rows changed since the run began, or a block was lost or counted twice, it
        raises: nothing of the sum is released.
        """

    def parts(self) -> tuple[Any, ...] | None:
        """Return what tells these rows from others, for the run key; None if unknown.

        It goes into keyed tags beside the checkpoint and nowhere else.
        """


class Manifest(NamedTuple):
    """What tells files from others, in their order; nothing of it is public but names.

    Attributes
    ----------
    columns : tuple of str
        The names of the columns.
    files : tuple
        Of each file its name, number of rows, bytes and digests.
    """

    columns: tuple[str, ...]
    files: tuple[tuple[str, int, int, tuple[str, ...]], ...]


@runtime_checkable
class OrderedBlocks(RowBlocks, Protocol):
    """Rows with a fixed order, in which they are numbered from zero."""

    @property
    def ordered(self) -> bool:
        """Whether every pass finds the same row at the same number."""

    def sampled(self, batch: PoissonRows) -> RowBlocks:
        """Return the rows of a batch, drawn by their numbers."""


def is_ordered(blocks: RowBlocks) -> bool:
    """Say whether rows in blocks can be sampled."""
    return isinstance(blocks, OrderedBlocks) and blocks.ordered


def block_total(task: Task, blocks: Iterable[Rows]) -> ExactSum:
    """Return the sum over blocks, one after the other; there is at least one."""
    return reduce(add, map(task, blocks))
