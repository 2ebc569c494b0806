# SPDX-License-Identifier: Apache-2.0
"""What an engine adds to a step, in one run: ``python -m benchmarks.engines``.

Wall-clock seconds of one exact total, a gradient of the linear automatic method:

* over a table of two rows in two partitions, which is the overhead of a step, on two
  workers of Dask and, where it is installed, on a ``local[2]`` session of Spark;
* over rows by two workers of Dask and by two plain processes that hold half of them
  each, in turns.

Least and median are of all turns: on a machine that does other things the least is
closest to what the engine costs.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from armijo.data.blocks import ExactSum, SumTask
from armijo.engines import open_blocks
from armijo.engines.blocks import Answer, Block, answer, code_block
from armijo.estimators.encoders import ArrayBlock, ClassLabels
from benchmarks.streaming import gradient_task


def frame_of(rows: int, columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns), dtype=np.float32)
    names = [f"x{k}" for k in range(columns)]
    labels = (X[:, 0] > 0).astype(np.int8)
    return pd.DataFrame(X, columns=names).assign(y=labels)


def encoder(columns: int) -> ArrayBlock:
    names = tuple(f"x{k}" for k in range(columns))
    return ArrayBlock(names, ClassLabels("y", np.array([0, 1])))


def engine_rows(table: Any, columns: int) -> Any:
    opened, _ = open_blocks(table, "y")
    assert opened is not None
    encode = encoder(columns)
    names = [*encode.names, "y"]
    return opened.rows(encode, columns=names, cell_bytes=8 * columns)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def told(times: list[float]) -> dict[str, float]:
    return {"least": round(min(times), 4), "median": round(median(times), 4)}


def overhead(rows: Any, columns: int, turns: int) -> dict[str, float]:
    """Return the seconds of a total over two rows, after some to warm up."""
    task = gradient_task(columns)
    times = [seconds(lambda: rows.total(task)) for _ in range(turns + 5)]
    return told(times[5:])


@contextmanager
def dask_client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _plain(pipe: Any, rows: int, columns: int, half: int) -> None:
    """Hold half of the rows and answer tasks, in a process of its own."""
    frame = frame_of(rows, columns)[half::2]
    block = code_block(encoder(columns), half, frame, held_rows=rows)
    assert isinstance(block, Block)
    pipe.send(len(frame))
    while (task := pipe.recv()) is not None:
        pipe.send(answer(task, block))


class PlainProcesses:
    """Two processes with half of the rows each."""

    def __init__(self, rows: int, columns: int) -> None:
        context, self.pipes = get_context("spawn"), []
        for half in range(2):
            own, other = context.Pipe()
            given = other, rows, columns, half
            context.Process(target=_plain, args=given, daemon=True).start()
            self.pipes.append(own)
        for pipe in self.pipes:
            pipe.recv()

    def total(self, task: SumTask) -> ExactSum:
        for pipe in self.pipes:
            pipe.send(task)
        found = [pipe.recv() for pipe in self.pipes]
        assert all(isinstance(one, Answer) for one in found)
        return found[0].exact + found[1].exact

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


def compared(rows: int, columns: int, turns: int) -> dict[str, Any]:
    """Return the seconds of a total by two workers of Dask and two processes."""
    import dask.dataframe as dd

    frame = frame_of(rows, columns)
    on_dask = engine_rows(dd.from_pandas(frame, npartitions=2), columns)
    plain, task = PlainProcesses(rows, columns), gradient_task(columns)
    assert np.array_equal(on_dask.total(task).steps, plain.total(task).steps)
    times: dict[str, list[float]] = {"dask": [], "plain": []}
    for _ in range(turns):
        times["dask"].append(seconds(lambda: on_dask.total(task)))
        times["plain"].append(seconds(lambda: plain.total(task)))
    plain.close()
    ratio = {
        name: round(told(times["dask"])[name] / told(times["plain"])[name], 3)
        for name in ("least", "median")
    }
    return {name: told(values) for name, values in times.items()} | {"ratio": ratio}


def spark_overhead(turns: int) -> dict[str, float] | None:
    if find_spec("pyspark") is None:
        return None
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("armijo-benchmark")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        table = session.createDataFrame(frame_of(2, 3)).repartition(2)
        return overhead(engine_rows(table, 3), 3, turns)
    finally:
        session.stop()


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    with dask_client():
        import dask.dataframe as dd

        tiny = dd.from_pandas(frame_of(2, 3), npartitions=2)
        found: dict[str, Any] = {
            "dask_overhead": overhead(engine_rows(tiny, 3), 3, given.turns),
            "rows": given.rows,
            "columns": given.columns,
            "total": compared(given.rows, given.columns, given.turns),
        }
    found["spark_overhead"] = spark_overhead(given.turns)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
