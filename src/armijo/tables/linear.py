# SPDX-License-Identifier: Apache-2.0
"""Features of linear models from public bounds alone: scaled numbers, one-hot levels.

For the methods that take arrays of bounded rows and learn no scale of their own.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.data.coded import CodedTable, NumericColumn
from armijo.errors import TableError
from armijo.tables.cells import listed
from armijo.tables.coder import code_column, code_table
from armijo.tables.columns import Label
from armijo.tables.schema import Schema

UNKNOWN_LABEL = -1
"""The label of a blank row: no position among the classes."""
_MIDDLE = 0.5


def encode(
    frame: pd.DataFrame, schema: Schema, *, with_target: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Encode a table for training or prediction by a linear model.

    A number becomes (min(max(x, low), high) - low) / (high - low), a missing one 1/2; a
    category one 0/1 feature per declared level, all 0 where it is missing or another.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table; its columns may stand in any order.
    schema : Schema
        The public description, with bounds of all numbers.
    with_target : bool, default=True
        Whether the target is wanted. Without, the table may have it or not.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features)
        Features in [0, 1], in the order of ``schema.feature_names``, C-contiguous.
    y : ndarray of shape (n_rows,) or None
        Positions in ``schema.classes``; :data:`UNKNOWN_LABEL` where the label is
        missing or no class.

    Raises
    ------
    TableError
        For a schema without bounds or classes, and where
        :func:`armijo.tables.coder.code_table` raises.
    """
    refuse_unbounded(schema)
    X = _features(code_table(frame, schema), schema)
    if not with_target:
        return X, None
    refuse_no_classes(schema)
    assert isinstance(schema.response, Label)
    return X, code_column(frame, schema.response).astype(np.int64)


def refuse_no_classes(schema: Schema) -> None:
    """Refuse a target that a linear model cannot learn."""
    if not isinstance(schema.response, Label):
        raise TableError(
            "Expected classes to learn, got a schema whose target is "
            f"{'a number' if schema.response else 'not named'}; linear models are "
            "classifiers: declare a label, or use PrivateRegressor for numbers."
        )


def unbounded(schema: Schema) -> list[str]:
    """Return the names of numbers without public bounds."""
    infos = (part.info for part in schema.parts)
    numbers = [info for info in infos if isinstance(info, NumericColumn)]
    return [info.name for info in numbers if info.low is None or info.high is None]


def refuse_unbounded(schema: Schema) -> None:
    """Refuse numbers without public bounds, by which alone they can be scaled."""
    names = unbounded(schema)
    if names:
        raise TableError(
            f"Expected low and high of every number, got none of {listed(names)}: with "
            "these settings a linear model scales by public bounds alone. Declare "
            "them, or leave the settings out: the default method learns scales "
            "privately. Nothing was spent."
        )


def _features(table: CodedTable, schema: Schema) -> NDArray[np.float64]:
    X = np.zeros((len(table), len(schema.feature_names)))
    start = 0
    for part, cells in zip(schema.parts, table.cells, strict=True):
        info, width = part.info, len(part.feature_names)
        if isinstance(info, NumericColumn):
            assert info.low is not None and info.high is not None
            scaled = (np.clip(cells, info.low, info.high) - info.low) / (
                info.high - info.low
            )
            X[:, start] = np.where(np.isnan(cells), _MIDDLE, scaled)
        else:
            rows = np.flatnonzero((cells >= 0) & (cells < width))
            X[rows, start + cells[rows]] = 1.0
        start += width
    return X
