# SPDX-License-Identifier: Apache-2.0
"""Rows on a cluster: tables of Dask and Spark, whose workers sum and nothing else.

An engine codes each partition where it lies, keeps it there, and answers
:meth:`armijo.data.blocks.RowBlocks.total`.  Nothing of an engine is imported before
one of its tables is given.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from armijo.engines.blocks import BlockTable as BlockTable
from armijo.engines.blocks import EngineTable as EngineTable
from armijo.engines.files import open_files
from armijo.tables.frames import is_frame
from armijo.tables.stream import StreamedTable, is_stream, open_stream


def engine_of(X: object) -> str | None:
    """Return the name of the engine that a table belongs to; None if to none.

    >>> engine_of([1, 2]) is None
    True
    """
    kind = type(X)
    package, name = kind.__module__.split("."), kind.__name__
    if package[0] in ("dask", "dask_expr") and name in ("DataFrame", "Array"):
        return "dask"
    return (
        "spark" if package[:2] == ["pyspark", "sql"] and name == "DataFrame" else None
    )


def is_table(X: object) -> bool:
    """Say whether columns have names and types, and nothing has coded them yet."""
    if isinstance(X, StreamedTable | EngineTable):
        return X.encode is None
    if engine_of(X) is not None:
        return type(X).__name__ == "DataFrame"
    return is_frame(X) or is_stream(X)


def open_blocks(X: Any, y: Any) -> tuple[BlockTable | None, Any]:
    """Return a table that is read in blocks, and the name of the column to learn.

    Parameters
    ----------
    X : stream, DataFrame or Array of Dask, DataFrame of Spark
        The rows; of anything else the table is None.
    y : str, Series or Array of Dask, or None
        The name of a column, or labels that lie as the rows of Dask do.
    """
    if is_stream(X):
        return open_stream(X), y
    if isinstance(X, EngineTable):
        return X, y
    if engine_of(X) == "spark":
        from armijo.engines.spark import open_spark

        return open_spark(X), y
    if engine_of(X) == "dask":
        from armijo.engines.dask import open_dask

        return open_dask(X, y)
    return None, y


ENGINES = ("dask", "spark")


@contextmanager
def engine_table(
    path: str | os.PathLike[str], engine: str, address: str | None
) -> Iterator[EngineTable]:
    """Yield Parquet files as a table that workers of an engine read.

    Parameters
    ----------
    path : path
        A folder, a pattern or an address of files, or a file.
    engine : {"dask", "spark"}
        The engine.
    address : str or None
        Its scheduler or master; None starts workers on this machine, unless the
        configuration of Spark names others.

    Raises
    ------
    ArmijoError
        Files do not belong together, nobody answers at the address, or a worker has
        other versions than the driver.
    """
    files = open_files(path)
    if engine == "spark":
        from armijo.engines.spark import files_on_spark

        yield files_on_spark(files, address)
        return
    from armijo.engines.dask import client_of, connected, files_on_dask

    with client_of(address) as client:
        yield files_on_dask(files, connected(client))


def predict_blocks(
    predict: Callable[[Any], Any],
    X: Any,
    dtype: Any,
    width: int | None,
    *,
    features: Sequence[str] | None,
    column: str,
) -> Any:
    """Return what a model says of a table of an engine, lazily and as its engine does.

    Parameters
    ----------
    predict : callable
        From a partition to an array; it travels to the workers.
    X : DataFrame or Array of Dask, DataFrame of Spark
        The rows.
    dtype : numpy.dtype
        The type of the array.
    width : int or None
        Its number of columns; None is for a vector.
    features : sequence of str or None
        The columns that the model takes of a DataFrame of Spark; None is all.
    column : str
        The column that Spark has them in.
    """
    if engine_of(X) == "spark":
        from armijo.engines.spark import predict_spark

        return predict_spark(predict, X, dtype, width, features, column)
    from armijo.engines.dask import predict_dask

    return predict_dask(predict, X, dtype, width)
