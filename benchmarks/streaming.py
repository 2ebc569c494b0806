# SPDX-License-Identifier: Apache-2.0
"""Streamed passes against decoding alone and a pass in memory, in one run.

``python -m benchmarks.streaming --rows 2000000`` writes Parquet files of float32 into a
temporary folder, then measures processor time of one gradient pass of the linear
automatic method (decode, encode, sum), of decoding by pyarrow with one thread, of the
same pass over the same rows in memory, and the peak memory of the streamed passes.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from armijo.data.blocks import SumTask
from armijo.data.query import Rows, Taken
from armijo.estimators.encoders import ArrayBlock, ClassLabels
from armijo.methods.descent import Standardization
from armijo.objectives.linear import LinearObjective
from armijo.tables.stream import StreamedRows, find_stream

FILES, PART = 10, 100_000


def write_files(folder: Path, rows: int, columns: int) -> None:
    """Write synthetic rows, some at a time."""
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(columns)]
    for number in range(FILES):
        left, writer = rows // FILES, None
        while left:
            height = min(left, PART)
            X = rng.standard_normal((height, columns), dtype=np.float32)
            arrays = [pa.array(column) for column in X.T]
            labels = pa.array((X[:, 0] > 0).astype(np.int8))
            table = pa.table([*arrays, labels], names=[*names, "y"])
            if writer is None:
                place = folder / f"part-{number}.parquet"
                writer = pq.ParquetWriter(place, table.schema)
            writer.write_table(table)
            left -= height
        if writer is not None:
            writer.close()


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, all threads."""
    start = time.process_time()
    call()
    return time.process_time() - start


def decode(folder: Path, names: list[str], height: int) -> None:
    """Decode all files by pyarrow alone, in the batches of the pass."""
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(height, columns=names, use_threads=False):
                assert batch.num_rows


def gradient_task(columns: int) -> SumTask:
    """Return the sum of one gradient at weights that are not zero."""
    objective = LinearObjective(loss="logistic", n_features=columns)
    frame = Standardization(
        objective=objective,
        center=np.full(columns, 0.1),
        radius=float(np.sqrt(columns)),
        constant=0.3,
        clip=1.0,
    )
    query = frame.gradient_sum(torch.full((columns + 1,), 0.01, dtype=torch.float64))
    return SumTask(query.contributions, query.bound, 1.0)


def measure(rows: int, columns: int) -> dict[str, float]:
    """Return processor seconds of a pass, and peak memory of what is streamed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, rows, columns)
        names = tuple(f"x{k}" for k in range(columns))
        encode = ArrayBlock(names, ClassLabels("y", np.array([0, 1])))
        table = find_stream(folder)
        assert table is not None
        source = StreamedRows(
            table, encode, columns=[*names, "y"], cell_bytes=8 * columns, memory=0
        )
        task, height = gradient_task(columns), source.plan.height
        streamed = min(cpu_seconds(lambda: source.total(task)) for _ in range(2))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        decoding = min(
            cpu_seconds(lambda: decode(folder, [*names, "y"], height)) for _ in range(2)
        )
        in_memory = sum(_memory_pass(table.frames(height=height), encode, task))
    return {
        "rows": rows,
        "columns": columns,
        "streamed_pass_seconds": streamed,
        "decoding_seconds": decoding,
        "pass_in_memory_seconds": in_memory,
        "ratio": streamed / (decoding + in_memory),
        "peak_bytes": peak,
    }


def _memory_pass(
    frames: Iterator[pd.DataFrame],
    encode: Callable[[pd.DataFrame], Taken],
    task: SumTask,
) -> Iterator[float]:
    """Yield the time of each block that is in memory: rounding, norms and sum."""
    for frame in frames:
        block = encode(frame)

        def one(block: Taken = block) -> object:
            return task(Rows(block.X, block.y))

        yield cpu_seconds(one)


def main() -> None:
    """Print one JSON object for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=100)
    given = parser.parse_args()
    print(json.dumps(measure(given.rows, given.columns)))


if __name__ == "__main__":
    main()
