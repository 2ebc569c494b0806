# SPDX-License-Identifier: Apache-2.0
"""What a fit would do: rows, passes, bytes, time and memory, from public numbers only.

Nothing is read but the schema and the metadata of files; nothing is spent.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from armijo.data.integer_rows import free_memory
from armijo.engines.files import no_files
from armijo.errors import TableError
from armijo.estimators.linear import PrivateLinearClassifier
from armijo.methods.base import Method, Problem
from armijo.objectives.additive import AdditiveObjective
from armijo.tables.coder import coded_columns, refuse_columns
from armijo.tables.schema import Schema
from armijo.tables.stream import MemoryPlan, StreamedTable, find_stream

# Processor seconds for a number that is decoded and coded, and for one in a sum over
# rows, as `python -m benchmarks.streaming` measured them on 10^7 rows; a feature that
# is made from a cell is taken to cost what a number in a sum does.
SECONDS_PER_CELL, SECONDS_PER_FEATURE, SECONDS_PER_TERM = 1.5e-8, 3e-8, 3e-8

Path_ = str | os.PathLike[str]


def planned_fit(
    table: Path_,
    public: Schema,
    estimator: Any,
    *,
    kind: str,
    memory: int | None = None,
    engine: str | None = None,
) -> Mapping[str, Any]:
    """Return what a fit of these settings would read, take and spend.

    Parameters
    ----------
    table : path
        The table.
    public : Schema
        Its schema.
    estimator : PrivateTableEstimator or PrivateLinearClassifier
        With all settings, not fitted.
    kind : str
        The name of the model.
    memory : int or None
        Bytes that may be kept; None is half of what is free.
    engine : str or None
        The engine whose workers keep rows; None is this process.
    """
    stream = find_stream(table, everything=True)
    if stream is None and engine is not None:
        raise no_files(table)
    if stream is not None:
        refuse_columns(stream.head(), public, empty=True)
    rows, known = _public_rows(table, public, stream)
    method, features, cells = _calibrated(estimator, public, rows)
    schedule = method.schedule()
    passes = None if schedule is None else sum(n * _sums(m) for m, n in schedule)
    most = free_memory() if memory is None else memory
    plan = MemoryPlan.of(rows, 8 * cells, features, most)
    size = stream.n_bytes if stream is not None else Path(table).stat().st_size
    budget = estimator._budget()
    kept = plan.keeps_cells or engine is not None  # workers spill what does not fit
    reads = 1 if kept else passes
    if reads is not None and getattr(estimator, "person", None) is not None:
        reads += stream is not None  # to count the rows of each
    return {
        "model": kind,
        "engine": engine or "this process",
        "method": type(method).__name__.lower(),
        "rows": rows,
        "rows_known_from": known,
        "columns": cells,
        "passes": passes,
        "reads_of_the_files": reads,
        "bytes_per_pass": size,
        "kept_in_memory": plan.keeps_features or (kept and not features),
        "estimated_memory_bytes": plan.n_bytes,
        "estimated_seconds": _seconds(rows, cells, features, passes, reads, plan),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "spent": 0.0,
    }


def _sums(charge: Any) -> int:
    """Return how many sums over rows a charge pays for."""
    inner = getattr(charge, "inner", charge)
    return len(getattr(inner, "mechanisms", (inner,)))


def _seconds(
    rows: int,
    cells: int,
    features: int,
    passes: int | None,
    reads: int | None,
    plan: MemoryPlan,
) -> float | None:
    """Estimate processor time on one core, from measured rates."""
    if passes is None or reads is None:
        return None
    made = 1 if plan.keeps_features else passes
    each = reads * cells * SECONDS_PER_CELL + made * features * SECONDS_PER_FEATURE
    each += passes * max(features, cells) * SECONDS_PER_TERM
    return float(f"{rows * each:.3g}")


def _public_rows(
    table: Path_, public: Schema, stream: StreamedTable | None
) -> tuple[int, str]:
    """Return the public number of rows, and where it is known from."""
    if public.n_rows is not None:
        return public.n_rows, "the schema"
    if stream is None:
        raise TableError(
            f"{table}: Expected n_rows in the schema, got none: how many rows a CSV "
            "file has is known only by reading it. Declare it, or write Parquet files. "
            "Nothing was spent."
        )
    return len(stream), "file metadata"


def _calibrated(
    estimator: Any, public: Schema, rows: int
) -> tuple[Method[Any], int, int]:
    """Return the calibrated method, most features, and numbers of a coded row."""
    if isinstance(estimator, PrivateLinearClassifier):
        estimator.classes_ = np.arange(len(public.classes))
        estimator.n_features_in_ = len(public.feature_names)
        method, objective = estimator._problem()
        features, cells = 0, estimator.n_features_in_
        problem = Problem(objective=objective, n_rows=rows)
    else:
        estimator.schema_, estimator.classes_ = public, np.array(public.classes)
        estimator.columns_ = coded_columns(public, estimator.monotone)
        table: AdditiveObjective = estimator._objective()
        method, features = estimator._method(), table.most_features
        cells = len(estimator.columns_)
        problem = Problem(objective=table, n_rows=rows)
    return method.calibrate(estimator._budget(), problem), features, cells
