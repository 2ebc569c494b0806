# SPDX-License-Identifier: Apache-2.0
"""What engines share: a partition as its worker keeps it, and a check of every total.

With its sum a worker returns what tells its rows from others: their number and a
digest of their coded bytes, made when the partition was coded.  The driver keeps those
of the first pass in memory.  A total in which one is missing, comes twice or differs
ends the run before anything of it is released.  Beside a checkpoint they exist as a
tag of the run key only (:mod:`armijo.training.replay`).
"""

import platform
from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy
import torch

from armijo._noise import PoissonRows
from armijo.data.blocks import ExactSum, RowBlocks, Task
from armijo.data.certified import SLACK
from armijo.data.query import Rows, Taken
from armijo.errors import ArmijoError, TableError
from armijo.tables.cells import shown
from armijo.training.replay import Digest, update_digest

BLOCK_MEMORY = 1 << 28
"""Bytes that the features of a block may take while it is summed."""

Encode = Callable[[pd.DataFrame], Taken]
"""From a frame to the rows and labels that queries see, each row by itself."""


class BlockTable(Protocol):
    """A table that is read in blocks, of which names and types are known."""

    @property
    def named(self) -> bool:
        """Whether the columns came with names."""

    @property
    def encode(self) -> Encode | None:
        """How a block is coded for a model that does not code it by itself."""

    def head(self) -> pd.DataFrame:
        """Return the names and types of the columns as a frame without rows."""

    def rows(
        self,
        encode: Encode,
        *,
        columns: Sequence[str],
        cell_bytes: int,
        features: int = 0,
        memory: int | None = None,
    ) -> RowBlocks:
        """Return the rows for a run.

        Parameters are those of :class:`armijo.tables.stream.StreamedRows`.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineTable(ABC):
    """What tables of all engines have: names, types, and how a block is coded."""

    meta: pd.DataFrame
    named: bool = True
    encode: Encode | None = None

    def head(self) -> pd.DataFrame:
        """Return the names and types of the columns as a frame without rows."""
        return self.meta.iloc[:0]

    @abstractmethod
    def rows(
        self,
        encode: Encode,
        *,
        columns: Sequence[str],
        cell_bytes: int,
        features: int = 0,
        memory: int | None = None,
    ) -> "EngineRows":
        """Code all partitions where they lie, for a run."""


class Environment(NamedTuple):
    """What an exact sum may depend on besides rows and task."""

    armijo: str
    torch: str
    numpy: str
    scipy: str
    pandas: str
    pyarrow: str
    python: str
    machine: str
    cpu_capability: str


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of this process."""
    from armijo import __version__

    return Environment(
        __version__,
        torch.__version__,
        np.__version__,
        scipy.__version__,
        pd.__version__,
        pa.__version__,
        platform.python_version(),
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
    )


def refuse_environment(
    found: Environment, worker: str, end: str = "Nothing was spent."
) -> None:
    """Refuse a worker whose sums need not be those of the driver."""
    for name, own, other in zip(Environment._fields, environment(), found, strict=True):
        if own != other:
            raise ArmijoError(
                f"{worker}: Expected {name} {own} as in the driver, got {other}; sums "
                "would not be the same to the last bit. Run the workers in the "
                f"driver's environment, on processors of one kind. {end}"
            )


class Entry(NamedTuple):
    """What tells the rows of a block from others; held in memory only."""

    n_rows: int
    digest: bytes
    environment: Environment

    def __repr__(self) -> str:
        """Show nothing of the rows, neither in a log."""
        return "Entry(private)"


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """A coded partition, or a part of one, as its worker keeps it.

    ``rows`` is None where there are none.
    """

    place: Hashable
    entry: Entry
    rows: Rows | None

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what was computed of the rows."""
        rows = self.rows
        if rows is not None:
            held: dict[object, Any] | None = None if rows.run_cache is None else {}
            rows = replace(rows, cache={}, run_cache=held)
        return {**vars(self), "rows": rows}

    def __repr__(self) -> str:
        """Show nothing of the rows, neither in a log."""
        return "Block(private)"


@dataclass(frozen=True)
class Failure:
    """What a worker says instead of an error, whose text engines would log."""

    reason: str


class Answer(NamedTuple):
    """The sum over a block; None where it has no rows."""

    place: Hashable
    entry: Entry
    exact: ExactSum | None

    def __repr__(self) -> str:
        """Show nothing of the rows, neither in a log."""
        return "Answer(private)"


def code_block(
    encode: Encode, place: Hashable, frame: pd.DataFrame, *, held_rows: float = 0
) -> Block | Failure:
    """Code a partition, in the worker that has it.

    What its rows become is held for the run if there are at most ``held_rows``.
    """
    try:
        rows, digest = None, Digest(digest_size=16)
        if len(frame):
            X, y, _ = encode(frame)
            update_digest(digest, (X, y))
            held: dict[object, Any] | None = {} if len(frame) <= held_rows else None
            rows = Rows(X, y, run_cache=held, memory=BLOCK_MEMORY)
        return Block(place, Entry(len(frame), digest.digest(), environment()), rows)
    except Exception as error:  # an engine would log it together with the rows
        return failure(error)


def failure(error: Exception) -> Failure:
    """Return what may be said of an error: the text of our own, else its kind."""
    own = isinstance(error, ArmijoError)
    return Failure(str(error) if own else f"an error of type {type(error).__name__}")


def entry_of(block: Block | Failure) -> tuple[Hashable, Entry] | Failure:
    """Return what the driver keeps of a block."""
    return block if isinstance(block, Failure) else (block.place, block.entry)


@dataclass(frozen=True, eq=False, repr=False)
class BatchTask:
    """A task for the rows of one batch, which a worker draws by their numbers.

    ``first`` is the number of the first row of each block.  The bits of the batch are
    all that workers get of the run's randomness.
    """

    task: Task
    batch: PoissonRows
    first: Mapping[Hashable, int]

    def over(self, block: Block, rows: Rows) -> ExactSum:
        """Return the sum over those of a block's rows that are in the batch."""
        first = self.first[block.place]
        return self.task(rows.drawn(self.batch.chosen(first, block.entry.n_rows)))

    def __repr__(self) -> str:
        """Show nothing of the batch."""
        return "BatchTask(secret)"


def answer(task: Task | BatchTask, block: Block | Failure) -> Answer | Failure:
    """Return the sum of a task over a block, in the worker that has it."""
    if isinstance(block, Failure):
        return block
    try:
        exact = None
        if block.rows is not None:
            rows = replace(block.rows, cache={})
            if isinstance(task, BatchTask):
                exact = task.over(block, rows)
            else:
                exact = task(rows)
        return Answer(
            block.place, block.entry._replace(environment=environment()), exact
        )
    except Exception as error:
        return failure(error)


class EngineRows(RowBlocks):
    """The rows of a table on a cluster, for the gate: answers totals only.

    Parameters
    ----------
    entries : iterable
        Place and entry of every block, from the first pass.
    ask : callable
        Sends a task to all blocks and yields their answers as they come.
    ordered : bool
        Whether entries come in the order of the rows, the same at any time.
    """

    def __init__(
        self,
        entries: Iterable[tuple[Hashable, Entry] | Failure],
        ask: Callable[[Task | BatchTask], Iterator[Answer | Failure]],
        *,
        ordered: bool = False,
    ) -> None:
        self.ordered = ordered
        self._entries: dict[Hashable, Entry] = {}
        for found in entries:
            if isinstance(found, Failure):
                raise TableError(
                    f"Expected partitions that can be coded, got {shown_reason(found)} "
                    "Nothing was spent."
                )
            place, entry = found
            refuse_environment(entry.environment, "A worker")
            if place in self._entries:
                raise ArmijoError(
                    "Expected each partition once, got one twice. Nothing was spent."
                )
            self._entries[place] = entry
        self._ask, self._n_rows = ask, sum(e.n_rows for e in self._entries.values())
        if self._n_rows == 0:
            raise TableError("Expected rows, got an empty table. Nothing was spent.")

    def __len__(self) -> int:
        """Return the number of rows at the first pass."""
        return self._n_rows

    def total(self, task: Task | BatchTask) -> ExactSum:
        """Return the exact sum over all blocks, each in it exactly once."""
        try:
            exact: ExactSum = reduce(add, self._checked(self._ask(task)))
        except ArmijoError:
            raise
        except ValueError:  # they are of different lattices or lengths
            raise ArmijoError(
                f"Expected the sums of one task from all workers, got others. {_KEPT}"
            ) from None
        self._refuse_impossible(exact)
        return exact

    def sampled(self, batch: PoissonRows) -> "BatchOfBlocks":
        """Return the rows of a batch; they are numbered in the order of the blocks."""
        ends = accumulate(e.n_rows for e in self._entries.values())
        first = dict(zip(self._entries, (0, *ends), strict=False))
        return BatchOfBlocks(self, batch, first)

    def _checked(self, answers: Iterator[Answer | Failure]) -> Iterator[ExactSum]:
        """Yield the sums of answers, refusing other rows than those of the first pass.

        The last sum is yielded before it is known that none is missing: who asks adds
        up all of them first.
        """
        missing = dict(self._entries)
        for found in answers:
            if isinstance(found, Failure):
                raise ArmijoError(
                    f"A worker could not sum: {shown_reason(found)} {_KEPT}"
                )
            refuse_environment(found.entry.environment, "A worker", _KEPT)
            if missing.pop(found.place, None) != found.entry:
                raise ArmijoError(
                    "Expected each partition once and as it was when the run began, "
                    f"got one that changed or was counted twice. {_KEPT}"
                )
            if found.exact is not None:
                self._refuse_impossible(found.exact)
                yield found.exact
        if missing:
            raise ArmijoError(
                f"Expected the sums of all partitions, {len(missing)} were lost. "
                f"{_KEPT}"
            )

    def _refuse_impossible(self, exact: ExactSum) -> None:
        """Refuse numbers that no rows add up to: each adds at most one bound.

        That finds a worker gone wrong, not one that lies within the bounds.
        """
        steps, most = exact.steps, self._n_rows * 2.0**exact.bits * (1 + SLACK)
        whole = isinstance(steps, torch.Tensor) and steps.dtype == torch.int64
        if not whole or steps.ndim != 1 or (steps.double().abs() > most).any():
            raise ArmijoError(
                "Expected whole numbers that the rows of the table can add up to, got "
                f"others: a worker's memory or code is not sound. {_KEPT}"
            )

    def parts(self) -> tuple[Any, ...]:
        """Return the manifest: number of rows and digest of each block.

        Sorted where blocks have no order.
        """
        found = [(e.n_rows, e.digest.hex()) for e in self._entries.values()]
        return tuple(found if self.ordered else sorted(found))

    def environments(self) -> tuple[Environment, ...]:
        """Return what the workers that coded the blocks are, for the run key."""
        return tuple(sorted({e.environment for e in self._entries.values()}))


@dataclass(frozen=True, eq=False, repr=False)
class BatchOfBlocks(RowBlocks):
    """The rows of one batch of a table on a cluster."""

    rows: EngineRows
    batch: PoissonRows
    first: Mapping[Hashable, int]

    def __len__(self) -> int:
        """Return the number of rows that are drawn from."""
        return len(self.rows)

    def total(self, task: Task) -> ExactSum:
        """Return the exact sum over the rows of the batch."""
        return self.rows.total(BatchTask(task, self.batch, self.first))

    def parts(self) -> tuple[Any, ...]:
        """Return what tells the table from others."""
        return self.rows.parts()


NOT_RELEASED = "Nothing of this total was released; what was charged stays charged."
_KEPT = f"{NOT_RELEASED} Bring the rows or workers back and resume."


@contextmanager
def speaking(engine: str, end: str) -> Iterator[None]:
    """Say what became of the workers in words, without what they hold."""
    try:
        yield
    except ArmijoError:
        raise
    except Exception as error:
        raise ArmijoError(
            f"Expected workers of {engine} that answer, got {type(error).__name__}; "
            f"look into their logs. {end}"
        ) from None


def shown_reason(failed: Failure) -> str:
    """Return what a worker said, as one sentence of at most some length."""
    return f"{shown(failed.reason, most=400).rstrip('.')}."
