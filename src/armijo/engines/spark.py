# SPDX-License-Identifier: Apache-2.0
"""Tables of Spark: partitions are coded once and persist in the executors.

``mapInArrow`` codes a partition in blocks, and a step is one more ``mapInArrow`` over
what persists: each partition adds up its blocks, the driver adds the partitions.  There
is no ``treeReduce``: it is of RDDs, which Spark Connect does not have; it costs a step
one more stage; and the driver has to see what came from each block in any case.  What a
lost executor had is made again by Spark, from the table's own plan.
"""

import gc
import math
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from armijo.data.blocks import ExactSum, Task
from armijo.data.integer_rows import free_memory
from armijo.engines.blocks import (
    NOT_RELEASED,
    Answer,
    Block,
    Encode,
    EngineRows,
    EngineTable,
    Failure,
    answer,
    code_block,
    environment,
    failure,
    refuse_environment,
    speaking,
)
from armijo.engines.files import FileParts
from armijo.errors import ArmijoError
from armijo.tables.cells import shown
from armijo.tables.frames import arrow_to_pandas
from armijo.tables.stream import MemoryPlan

_HELD: dict[tuple[str, Hashable], Block] = {}
"""Blocks of the run that a worker serves, with what was computed of their rows."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SparkTable(EngineTable):
    """A DataFrame of Spark, or files that its workers read."""

    frame: Any
    files: FileParts | None = None

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
        _refuse_workers(self.frame.sparkSession)
        plan, run = MemoryPlan.of(0, cell_bytes, features, 0), uuid4().hex
        code = _Code(run, encode, tuple(columns), plan.height, self.files)
        chosen = self.frame if self.files else _renamed(self.frame, columns)
        coded = chosen.mapInArrow(code, "entry binary, block binary").persist()
        row_bytes = cell_bytes + 16 * features
        add = partial(_Add, run=run, row_bytes=row_bytes, memory=memory)
        try:
            with speaking("Spark", "Nothing was spent."):
                entries = _unpickled(coded.select("entry"))
            rows = EngineRows(entries, partial(_ask, coded, add))
        except BaseException:
            _forget(coded)
            raise
        weakref.finalize(rows, _forget, coded).atexit = False
        return rows


def open_spark(frame: Any) -> SparkTable:
    """Return a DataFrame of Spark as a table, of which no row is read."""
    meta = arrow_to_pandas(frame.limit(0).toArrow())
    return SparkTable(meta=meta, frame=frame)


def files_on_spark(files: FileParts, address: str | None) -> SparkTable:
    """Return files as a table whose partitions the workers of a session read.

    Parameters
    ----------
    files : FileParts
        The files.
    address : str or None
        A master, or ``sc://...`` for Spark Connect; None is the session's own
        configuration.
    """
    spark, n_parts = _session(address), len(files.parts)
    frame = spark.range(0, n_parts, 1, n_parts)
    meta = arrow_to_pandas(files.schema.empty_table())
    return SparkTable(meta=meta, frame=frame, files=files)


def _session(address: str | None) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("armijo")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        if address is not None:
            connect = address.startswith("sc://")
            builder = builder.remote(address) if connect else builder.master(address)
        return builder.getOrCreate()
    except Exception as error:
        place = "its own configuration's master" if address is None else address
        raise ArmijoError(
            f"Expected a session of Spark at {shown(place)} (the extra armijo[spark], "
            f"Java 17, and a master that answers), got {_last_line(error)} Nothing was "
            "spent."
        ) from None


def _renamed(frame: Any, columns: Sequence[str]) -> Any:
    """Return the needed columns by number: not every name passes through Spark."""
    quoted = ("`" + name.replace("`", "``") + "`" for name in columns)
    return frame.selectExpr(*(f"{name} AS c{k}" for k, name in enumerate(quoted)))


def _cells(**columns: Sequence[Any]) -> pa.RecordBatch:
    """Return objects as cells of bytes."""
    named = {
        name: pa.array([_spark_pickle().dumps(v) for v in values], pa.binary())
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(named)


def _unpickled(frame: Any) -> list[Any]:
    """Return the objects of a frame with one column of bytes."""
    loads = _spark_pickle().loads
    return [loads(row[0]) for row in frame.collect()]


def _spark_pickle() -> Any:
    """Return Spark's serializer: a driver and its workers run each other's code anyway.

    What it reads never leaves the cluster; no file of a user is read by it.
    """
    from pyspark.serializers import CPickleSerializer

    return CPickleSerializer()


@dataclass(frozen=True, eq=False)
class _Code:
    """Codes a partition in its worker, in blocks; what it holds is public.

    By the name of the run Spark tells its blocks from those of another.
    """

    run: str
    encode: Encode
    columns: tuple[str, ...]
    height: int
    files: FileParts | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield entry and block of some rows at a time."""
        place: Hashable = "?"
        try:
            for number, table in enumerate(self._tables(batches)):
                place = _partition(), number
                frame = arrow_to_pandas(table.rename_columns(list(self.columns)))
                block = code_block(self.encode, place, frame, held_rows=math.inf)
                yield self._row(place, block)
                if isinstance(block, Failure):
                    return
        except Exception as error:  # Spark would log it
            yield self._row(place, failure(error))

    def _row(self, place: Hashable, block: Block | Failure) -> pa.RecordBatch:
        entry = block if isinstance(block, Failure) else (place, block.entry)
        return _cells(entry=[entry], block=[block])

    def _tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the rows, so many at a time."""
        if self.files is not None:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    whole = self.files.parts[number].read(self.columns)
                    for start in range(0, len(whole), self.height):
                        yield whole.slice(start, self.height)
            return
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if sum(b.num_rows for b in held) >= self.height:
                yield pa.Table.from_batches(held)
                held = []
        if sum(b.num_rows for b in held):
            yield pa.Table.from_batches(held)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


@dataclass(frozen=True, eq=False)
class _Add:
    """Adds up the blocks of a partition in its worker."""

    task: Task
    run: str
    row_bytes: int
    memory: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the answers of a partition; the last has the sum of all."""
        pairs = (p for batch in batches for p in zip(*batch.columns, strict=True))
        try:
            told = _added(answer(self.task, self._block(*pair)) for pair in pairs)
        except Exception as error:  # Spark would log it
            told = [failure(error)]
        _spare_collections()
        yield _cells(answers=[told])

    def _block(self, entry: Any, block: Any) -> Block | Failure:
        """Return a block, as this worker holds it if it does."""
        loads = _spark_pickle().loads
        told = loads(entry.as_py())
        if isinstance(told, Failure):
            return told
        key = self.run, told[0]
        if key in _HELD and _HELD[key].entry == told[1]:
            return _HELD[key]
        found: Block = loads(block.as_py())
        for other in [held for held in _HELD if held[0] != self.run]:
            del _HELD[other]
        n_rows = found.entry.n_rows + sum(held.entry.n_rows for held in _HELD.values())
        most = _share() if self.memory is None else self.memory
        if n_rows * self.row_bytes <= most:
            _HELD[key] = found
        return found


def _added(answers: Iterable[Answer | Failure]) -> list[Answer | Failure]:
    """Return answers with the sum of all in the last, or the first failure."""
    told: list[Answer | Failure] = []
    total: ExactSum | None = None
    for found in answers:
        if isinstance(found, Failure):
            return [found]
        if found.exact is not None:
            total = found.exact if total is None else total + found.exact
        told.append(found._replace(exact=None))
        last = found._replace(exact=total)
    return [*told[:-1], last] if told else []


@lru_cache(maxsize=1)
def _spare_collections() -> None:
    """Leave what this worker has imported out of its collections of garbage.

    A Python worker of Spark collects after every task, which goes through some 300,000
    objects of modules: 0.15 seconds that the next step waits for.  They live as long as
    the worker in any case.
    """
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=1)
def _share() -> float:
    """Return the bytes that a worker may hold, one on each processor."""
    return free_memory() / (os.cpu_count() or 1)


def _ask(
    coded: Any, add: Callable[[Task], _Add], task: Task
) -> Iterator[Answer | Failure]:
    """Send a task to all partitions, and yield their answers."""
    with speaking("Spark", NOT_RELEASED):
        found = _unpickled(coded.mapInArrow(add(task), "answers binary"))
    for answers in found:
        yield from answers


def _forget(coded: Any) -> None:
    with suppress(Exception):  # the session may be gone
        coded.unpersist()


def _environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield _cells(found=[environment()])


def _refuse_workers(spark: Any) -> None:
    """Refuse a session whose workers cannot compute as the driver does.

    One of them is asked; the others say what they are with what they coded.
    """
    try:
        probe = spark.range(0, 1, 1, 1)
        (found,) = _unpickled(probe.mapInArrow(_environment, "found binary"))
    except Exception as error:  # which knows of no rows
        raise ArmijoError(
            "Expected workers of Spark that have armijo installed, got "
            f"{_last_line(error)} Give them the driver's environment "
            "(PYSPARK_PYTHON). Nothing was spent."
        ) from None
    refuse_environment(found, "A worker")


def _last_line(error: Exception) -> str:
    """Return what is said last, without the places of Java's own code."""
    lines = [line.strip(" \t:") for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "... "))]
    said = shown(told[-1] if told else "", most=200).rstrip(".")
    return f"{type(error).__name__}: {said}."


def predict_spark(
    predict: Callable[[Any], Any],
    X: Any,
    dtype: Any,
    width: int | None,
    features: Sequence[str] | None,
    column: str,
) -> Any:
    """Return a DataFrame of Spark with one more column, what a model says of a row.

    Rows of Spark have no order and no index, so predictions stay beside them; several
    numbers of a row are an array.
    """
    from pyspark.sql import types

    if column in X.columns:
        raise ValueError(
            f"Expected a DataFrame without a column {column!r}, which predictions get, "
            "got one with it; rename or drop it."
        )
    kinds = {"f": types.DoubleType(), "b": types.BooleanType()}
    kinds |= dict.fromkeys("iu", types.LongType())
    kind = kinds.get(np.dtype(dtype).kind, types.StringType())
    told = kind if width is None else types.ArrayType(kind)
    schema = types.StructType([*X.schema.fields, types.StructField(column, told)])
    taken = tuple(X.columns if features is None else features)
    call = _Predict(predict, tuple(X.columns), taken, column)
    return _renamed(X, X.columns).mapInArrow(call, schema)


@dataclass(frozen=True, eq=False)
class _Predict:
    """Predicts a partition in its worker, batch by batch."""

    predict: Callable[[Any], Any]
    names: tuple[str, ...]
    features: tuple[str, ...]
    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with what the model says of them."""
        for batch in batches:
            table = pa.Table.from_batches([batch]).rename_columns(list(self.names))
            if len(table):
                frame = arrow_to_pandas(table.select(list(self.features)))
                said = pa.array(np.asarray(self.predict(frame)).tolist())
                yield from table.append_column(self.column, said).to_batches()
