# SPDX-License-Identifier: Apache-2.0
"""Tables of Dask: partitions are coded once, and stay and are summed with the workers.

A step sends its task to every partition and adds the sums as they come.  A partition
whose worker died is made again by the scheduler, from the table's own graph.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.data.blocks import Task
from armijo.engines.blocks import (
    NOT_RELEASED,
    Answer,
    BatchTask,
    Block,
    Encode,
    EngineRows,
    EngineTable,
    Failure,
    answer,
    code_block,
    entry_of,
    environment,
    failure,
    refuse_environment,
    speaking,
)
from armijo.engines.files import FilePart, FileParts
from armijo.errors import ArmijoError, TableError
from armijo.tables.cells import shown
from armijo.tables.frames import arrow_to_pandas

_LABELS = "y"
_SMALL_TASK = 1 << 14  # bytes
_PATIENCE = 10  # seconds that a scheduler may take to answer
_MEMORY_SHARE = 0.25  # of the workers' memory, for features that are held
# Kinds of steps of a frame that keep the order of rows.
_IN_ORDER = {
    *("Blockwise", "DelayedsExpr", "FromGraph", "StackPartition", "RepartitionSize"),
    *("RepartitionToFewer", "RepartitionToMore", "RepartitionDivisions"),
}


def open_dask(X: Any, y: Any) -> tuple["DaskTable", str | None]:
    """Return a table of Dask with its labels, and the name of their column."""
    array = not hasattr(X, "columns")
    if array and (X.ndim != 2 or X.dtype.kind not in "fiub"):
        raise ValueError(
            f"Expected rows of numbers, got an array of {X.ndim} dimensions and type "
            f"{X.dtype}. Nothing was spent."
        )
    if array:
        X = X.rechunk({1: -1})
        names = [f"x{place}" for place in range(X.shape[1])]
        head = pd.DataFrame(np.empty((0, len(names)), X.dtype), columns=names)
        parts = list(np.ravel(X.to_delayed()))
    else:
        head, parts = X._meta, X.to_delayed()
    named, ordered = not array, array or _keeps_order(X)
    if y is None or isinstance(y, str):
        return DaskTable(meta=head, parts=parts, named=named, ordered=ordered), y
    name = _LABELS
    while name in head.columns:
        name += "_"
    labels = _labels(parts, X, y)
    head = head.assign(**{name: pd.Series([], dtype=y._meta.dtype)})
    table = DaskTable(
        meta=head, parts=parts, labels=labels, named=named, ordered=ordered
    )
    return table, name


def _keeps_order(frame: Any) -> bool:
    """Say whether rows come in the same order whenever they are computed.

    Every step must be known to keep it: rows that workers exchange, to shuffle, sort or
    merge, come as they arrive.
    """
    steps = frame.optimize(fuse=False).expr.walk()
    kinds = ({kind.__name__ for kind in type(step).__mro__} for step in steps)
    return all(_IN_ORDER & names for names in kinds)


def _labels(parts: list[Any], X: Any, y: Any) -> list[Any]:
    """Return the labels of each partition."""
    if not hasattr(y, "to_delayed") or getattr(y, "ndim", 1) != 1:
        raise ValueError(
            "Expected y to be a column's name, or a Series or Array of Dask that lies "
            f"as the rows do, got {type(y).__name__}. Nothing was spent."
        )
    if hasattr(X, "chunks") and hasattr(y, "chunks") and X.shape[0] == y.shape[0]:
        y = y.rechunk((X.chunks[0],))  # of unknown lengths none is equal to another
    labels = list(np.ravel(y.to_delayed()))
    if len(labels) != len(parts):
        raise ValueError(
            f"Expected labels in as many partitions as rows, got {len(labels)} for "
            f"{len(parts)}; repartition one of them. Nothing was spent."
        )
    return labels


@dataclass(frozen=True, eq=False, kw_only=True)
class DaskTable(EngineTable):
    """A table of Dask: a delayed frame or array for each partition, and its labels.

    A partition may also be some of a file, and ``client`` who computes it; ``ordered``
    says whether rows come in the same order whenever they are computed.
    """

    parts: Sequence[Any]
    labels: Sequence[Any] | None = None
    client: Any = None
    ordered: bool = True

    def rows(
        self,
        encode: Encode,
        *,
        columns: Sequence[str],
        cell_bytes: int,
        features: int = 0,
        memory: int | None = None,
    ) -> EngineRows:
        """Code all partitions where they lie, for a run."""
        from dask import delayed

        client = connected(self.client)
        most = _memory(client) if memory is None else memory
        # Features of single columns, then those with products: both are held.
        held_rows = most / (len(self.parts) * (cell_bytes + 16 * features))
        code = _Code(encode, self.head(), tuple(columns), held_rows)
        coded, run = delayed(code, pure=False), uuid4().hex
        labels = self.labels or [None] * len(self.parts)
        pairs = enumerate(zip(self.parts, labels, strict=True))
        with speaking("Dask", "Nothing was spent."):
            blocks = client.compute(
                [coded(k, *p, dask_key_name=f"armijo-{run}-{k}") for k, p in pairs]
            )
            entries = client.gather(client.map(entry_of, blocks, pure=False))
        ask = partial(_ask, client, blocks)
        return EngineRows(entries, ask, ordered=self.ordered)


@dataclass(frozen=True, eq=False)
class _Code:
    """Codes a partition in its worker; what it holds is public."""

    encode: Encode
    head: pd.DataFrame
    columns: tuple[str, ...]
    held_rows: float

    def __call__(self, place: int, part: Any, labels: Any) -> Block | Failure:
        """Return the coded partition."""
        try:
            if labels is not None and len(labels) != len(part):
                return Failure("another number of labels than of rows in a partition")
            frame = self._frame(part, labels)
        except Exception as error:  # logged by Dask together with the rows
            return failure(error)
        return code_block(self.encode, place, frame, held_rows=self.held_rows)

    def _frame(self, part: Any, labels: Any) -> pd.DataFrame:
        """Return the needed columns of a partition."""
        if isinstance(part, FilePart):
            return arrow_to_pandas(part.read(self.columns))
        names = self.head.columns
        own = names if labels is None else names[:-1]
        frame = pd.DataFrame(part, columns=own)
        for name in own:
            if not _alike(frame[name].dtype, self.head[name].dtype):
                raise TableError(
                    f"the type {frame[name].dtype} in a partition for column "
                    f"{shown(name)}, which its table says is "
                    f"{self.head[name].dtype}: give all partitions one type"
                )
        if labels is not None:
            frame = frame.assign(**{names[-1]: np.asarray(labels)})
        return frame[list(self.columns)]


def _alike(own: Any, declared: Any) -> bool:
    """Say whether cells of both types are read alike.

    A type that follows from the cells lets one row change others: a missing cell makes
    floats of whole numbers, whose texts are not the same.
    """
    kinds = pd.api.types
    if kinds.is_numeric_dtype(declared) or kinds.is_datetime64_any_dtype(declared):
        return bool(own == declared)
    listed = isinstance(declared, pd.CategoricalDtype)
    if listed or isinstance(own, pd.CategoricalDtype):  # with any categories
        return listed and isinstance(own, pd.CategoricalDtype)
    return not kinds.is_numeric_dtype(own) and not kinds.is_datetime64_any_dtype(own)


def _ask(
    client: Any, blocks: Sequence[Any], task: Task | BatchTask
) -> Iterator[Answer | Failure]:
    """Send a task to all partitions, and yield the answers as they come."""
    from distributed import as_completed
    from distributed.protocol.pickle import dumps

    with speaking("Dask", NOT_RELEASED):
        # A small task goes with each partition, which saves a round trip.  A large one
        # is made in a worker, from which others take it; unlike scattered data it can
        # be made again.
        sent = task
        if len(dumps(task)) > _SMALL_TASK:
            sent = client.submit(_received, task, pure=False)
        asked = client.map(answer, [sent] * len(blocks), blocks, pure=False)
        for _, found in as_completed(asked, with_results=True):
            yield found


def _received(task: Task) -> Task:
    """Return a task as it arrived."""
    return task


def files_on_dask(files: FileParts, client: Any) -> DaskTable:
    """Return files as a table whose partitions the workers of a client read."""
    meta = arrow_to_pandas(files.schema.empty_table())
    return DaskTable(meta=meta, parts=files.parts, client=client)


@contextmanager
def client_of(address: str | None) -> Iterator[Any]:
    """Connect to a scheduler, or start workers on this machine if none is named."""
    try:
        from distributed import Client

        local = {"dashboard_address": None} if address is None else {}
        client = Client(address, timeout=_PATIENCE, **local)
    except Exception as error:
        raise ArmijoError(
            f"Expected a scheduler of Dask at {shown(address or 'this machine')} (and "
            f"the extra armijo[dask]), got {type(error).__name__}: "
            f"{shown(error, most=200)}. Check the address. Nothing was spent."
        ) from None
    with client:
        yield client


def connected(client: Any = None) -> Any:
    """Return a client whose workers compute as the driver does.

    It is the one of this process if none is given.

    Raises
    ------
    ArmijoError
        There is none, it has lost its scheduler, there are no workers, or one has
        other versions or another processor.
    """
    from distributed import get_client

    try:
        client = get_client() if client is None else client
        found = client.run(environment)
    except Exception as error:
        raise ArmijoError(
            "Expected a client of Dask with workers that have armijo installed, got "
            f"{type(error).__name__}: {shown(error, most=200)}. Make one first, "
            "distributed.Client(address). Nothing was spent."
        ) from None
    if not found:
        raise ArmijoError(
            "Expected workers at the scheduler of Dask, got none. Nothing was spent."
        )
    for address, own in found.items():
        refuse_environment(own, f"The worker {address}")
    return client


def _memory(client: Any) -> float:
    """Return the bytes that workers may hold of features."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return _MEMORY_SHARE * sum(worker["memory_limit"] or 0 for worker in workers)


def predict_dask(
    predict: Callable[[Any], Any], X: Any, dtype: Any, width: int | None
) -> Any:
    """Return what a model says of a table of Dask, partition by partition, lazily.

    An Array for an Array; for a DataFrame a Series, or a DataFrame with ``width``
    columns, with the index of the rows.
    """
    like = np.empty((0,) if width is None else (0, width), dtype)
    call = _Predict(predict, like)
    if hasattr(X, "columns"):
        return X.map_partitions(call.framed, meta=call.framed(X._meta.iloc[:0]))
    X = X.rechunk({1: -1})
    if width is None:
        return X.map_blocks(call, drop_axis=1, meta=like)
    return X.map_blocks(call, chunks=(X.chunks[0], (width,)), meta=like)


@dataclass(frozen=True, eq=False)
class _Predict:
    """Predicts a partition in its worker."""

    predict: Callable[[Any], Any]
    like: NDArray[Any]

    def __call__(self, part: Any) -> NDArray[Any]:
        """Return predictions; none of no rows."""
        return np.asarray(self.predict(part)) if len(part) else self.like

    def framed(self, part: Any) -> Any:
        """Return predictions with the index of their rows."""
        made = pd.Series if self.like.ndim == 1 else pd.DataFrame
        return made(self(part), index=part.index)
