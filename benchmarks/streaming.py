# SPDX-License-Identifier: Apache-2.0
"""Streamed passes against decoding alone and a pass in memory, in one run.

``python -m benchmarks.streaming --rows 2000000`` writes Parquet files of float32 into a
temporary folder, then measures processor time of one gradient pass of the linear
automatic method (decode, encode, sum), of decoding by pyarrow with one thread, of the
same pass over the same rows in memory, and the peak memory of the streamed passes.

``--growth`` measures the streamed pass from 10^5 to 10^8 row-columns, writes them to
docs/results and draws them; ``--fit`` measures a whole streamed fit with every pass.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from armijo import PrivateLogisticRegression
from armijo.data.blocks import ExactSum, SumTask, Task
from armijo.data.query import Rows, Taken
from armijo.estimators.encoders import ArrayBlock, ClassLabels
from armijo.methods.descent import Standardization
from armijo.objectives.linear import LinearObjective
from armijo.tables.stream import StreamedRows, find_stream

FILES, PART = 10, 100_000
DOCS = Path(__file__).parent.parent / "docs"


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
        source = opened(folder, columns)
        names = [f"x{k}" for k in range(columns)]
        task, height = gradient_task(columns), source.plan.height
        streamed = min(cpu_seconds(lambda: source.total(task)) for _ in range(2))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        decoding = min(
            cpu_seconds(lambda: decode(folder, [*names, "y"], height)) for _ in range(2)
        )
        in_memory = sum(_memory_pass(source, task))
    return {
        "rows": rows,
        "columns": columns,
        "streamed_pass_seconds": streamed,
        "decoding_seconds": decoding,
        "pass_in_memory_seconds": in_memory,
        "ratio": streamed / (decoding + in_memory),
        "peak_bytes": peak,
    }


def _memory_pass(source: StreamedRows, task: SumTask) -> Iterator[float]:
    """Yield the time of each block that is in memory: rounding, norms and sum."""
    for frame in source._table.frames(height=source.plan.height):
        block = source._encode(frame)

        def one(block: Taken = block) -> object:
            return task(Rows(block.X, block.y))

        yield cpu_seconds(one)


def opened(folder: Path, columns: int) -> StreamedRows:
    """Return the rows of the files, none of which is kept."""
    names = tuple(f"x{k}" for k in range(columns))
    table = find_stream(folder)
    assert table is not None
    encode = ArrayBlock(names, ClassLabels("y", np.array([0, 1])))
    return StreamedRows(
        table, encode, columns=[*names, "y"], cell_bytes=8 * columns, memory=0
    )


def growth(columns: int) -> dict[str, list[float]]:
    """Return processor seconds of a streamed pass for growing numbers of rows."""
    sizes = [10.0 ** (k / 2) for k in range(10, 17)]
    seconds, task = [], gradient_task(columns)
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name), round(size / columns), columns)
            source = opened(Path(name), columns)
            source.total(task)  # imports and caches of libraries
            repeats = 20 if size < 1e7 else 3
            seconds.append(
                min(cpu_seconds(partial(source.total, task)) for _ in range(repeats))
            )
    # Weighted so that each size counts by its relative error.
    X = np.column_stack([np.ones(len(sizes)), sizes]) / np.array(seconds)[:, None]
    start, rate = np.linalg.lstsq(X, np.ones(len(sizes)), rcond=None)[0]
    line = start + rate * np.array(sizes)
    return {
        "row_columns": sizes,
        "seconds": seconds,
        "line": line.tolist(),
        "off_the_line": [float(np.abs(seconds / line - 1).max())],
    }


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Draw the growth and its straight line; the same bytes each time."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "armijo"
    fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    ax.loglog(found["row_columns"], found["line"], color="#767676", label="a line")
    ax.loglog(found["row_columns"], found["seconds"], "o", color="#0072B2")
    ax.lines[-1].set_label("a streamed pass")
    ax.set(xlabel="rows times columns", ylabel="processor seconds")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def whole_fit(rows: int, columns: int) -> dict[str, float]:
    """Return processor seconds of a streamed fit of ``auto`` that keeps no row."""
    passes = 0
    total = StreamedRows.total

    def counted(self: StreamedRows, task: Task) -> ExactSum:
        nonlocal passes
        passes += 1
        return total(self, task)

    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), rows, columns)
        table = find_stream(name)
        assert table is not None
        StreamedRows.total = counted  # type: ignore[method-assign]
        model = PrivateLogisticRegression(classes=[0, 1], n_rows=rows)
        try:
            seconds = cpu_seconds(lambda: model.fit_resumable(table, "y", memory=0))
        finally:
            StreamedRows.total = total  # type: ignore[method-assign]
    return {
        "rows": rows,
        "columns": columns,
        "passes": passes,
        "fit_seconds": seconds,
        "seconds_per_cell_of_a_pass": seconds / (passes * rows * columns),
    }


def main() -> None:
    """Print one JSON object; the growth is also drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    if given.growth:
        found = growth(given.columns)
        (DOCS / "results" / "streaming.json").write_text(json.dumps(found) + "\n")
        draw(found, DOCS / "figures" / "streaming.svg")
        print(json.dumps(found))
    elif given.fit:
        print(json.dumps(whole_fit(given.rows, given.columns)))
    else:
        print(json.dumps(measure(given.rows, given.columns)))


if __name__ == "__main__":
    main()
