# SPDX-License-Identifier: Apache-2.0
"""Rows on a cluster: tables of Dask, whose workers sum and nothing else.

An engine codes each partition where it lies, keeps it there, and answers
:meth:`armijo.data.blocks.RowBlocks.total`.  Nothing of an engine is imported before
one of its tables is given.
"""

from collections.abc import Callable
from typing import Any

from armijo.engines.blocks import BlockTable as BlockTable
from armijo.tables.frames import is_frame
from armijo.tables.stream import StreamedTable, is_stream, open_stream


def engine_of(X: object) -> str | None:
    """Return the name of the engine that a table belongs to; None if to none.

    >>> engine_of([1, 2]) is None
    True
    """
    kind = type(X)
    package, name = kind.__module__.partition(".")[0], kind.__name__
    known = package in ("dask", "dask_expr") and name in ("DataFrame", "Array")
    return "dask" if known else None


def is_table(X: object) -> bool:
    """Say whether columns have names and types, and nothing has coded them yet."""
    if isinstance(X, StreamedTable):
        return X.encode is None
    if engine_of(X) is not None:
        return type(X).__name__ == "DataFrame"
    return is_frame(X) or is_stream(X)


def open_blocks(X: Any, y: Any) -> tuple[BlockTable | None, Any]:
    """Return a table that is read in blocks, and the name of the column to learn.

    Parameters
    ----------
    X : stream, or DataFrame or Array of Dask
        The rows; of anything else the table is None.
    y : str, Series or Array of Dask, or None
        The name of a column, or labels that lie as the rows do.
    """
    if is_stream(X):
        return open_stream(X), y
    if engine_of(X) == "dask":
        from armijo.engines.dask import open_dask

        return open_dask(X, y)
    return None, y


def predict_blocks(
    predict: Callable[[Any], Any], X: Any, dtype: Any, width: int | None
) -> Any:
    """Return what a model says of a table of an engine, lazily and as its engine does.

    Parameters
    ----------
    predict : callable
        From a partition to an array; it travels to the workers.
    X : DataFrame or Array of Dask
        The rows.
    dtype : numpy.dtype
        The type of the array.
    width : int or None
        Its number of columns; None is for a vector.
    """
    from armijo.engines.dask import predict_dask

    return predict_dask(predict, X, dtype, width)
