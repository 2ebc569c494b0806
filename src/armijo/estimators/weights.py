# SPDX-License-Identifier: Apache-2.0
"""What multiplies a row: sample weights, class weights, and one over a person's rows.

Each is at most one, so their product is: the one number that a sum's certificate sees,
applied after clipping.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo import _validate
from armijo.estimators.base import as_column
from armijo.tables.cells import to_numbers

ClassWeight = Mapping[Any, float] | str | None


def clipped_weights(sample_weight: Any, n_rows: int) -> NDArray[np.float64] | None:
    """Return weights in [0, 1]; what is no number weighs nothing.

    >>> clipped_weights([0.5, 3.0, float("nan"), -1.0], 4)
    array([0.5, 1. , 0. , 0. ])
    """
    if sample_weight is None:
        return None
    values = as_column(sample_weight)
    _validate.same_length("a sample_weight for each row", len(values), n_rows)
    if values.dtype == object:  # each by itself: one may be of any type
        values, unfit = to_numbers(pd.Series(values))
        values[unfit] = np.nan
    if values.dtype.kind not in "fiub":
        raise ValueError(
            f"Expected sample_weight to be numbers, got the type {values.dtype}; "
            "convert it. Nothing was spent."
        )
    numbers = values.astype(np.float64)
    return np.clip(np.where(np.isnan(numbers), 0.0, numbers), 0.0, 1.0)


def class_weights(
    class_weight: ClassWeight, classes: NDArray[Any]
) -> tuple[float, ...] | Literal["balanced"] | None:
    """Return a weight for each class, divided by the largest.

    >>> class_weights({"no": 1.0, "yes": 4.0}, np.array(["no", "yes"]))
    (0.25, 1.0)
    """
    if class_weight is None:
        return None
    if class_weight == "balanced":  # by released counts, in the run
        return "balanced"
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"Expected class_weight to be None, 'balanced' or a dict of weights by "
            f"class, got {class_weight!r}. Nothing was spent."
        )
    known = classes.tolist()
    strangers = [name for name in class_weight if name not in known]
    given = [class_weight.get(name, 1.0) for name in known]
    numbers = all(isinstance(weight, Real) for weight in given)
    weights = np.array(given if numbers else [math.nan], dtype=np.float64)
    if strangers or not np.isfinite(weights).all() or weights.min() < 0:
        raise ValueError(
            "Expected class_weight to give classes finite weights of 0 or more, got "
            f"{dict(class_weight)!r}; the classes are {known}. Nothing was spent."
        )
    if weights.max() == 0:
        raise ValueError(
            "Expected a class with a weight above 0, got none. Nothing was spent."
        )
    return tuple((weights / weights.max()).tolist())


def person_weights(persons: Any, n_rows: int) -> NDArray[np.float64]:
    """Return one over the number of rows of each row's person.

    A row that names no person weighs nothing: it belongs to nobody whose rows could be
    counted.

    >>> person_weights(["a", "b", "a", None], 4)
    array([0.5, 1. , 0.5, 0. ])
    """
    values = np.asarray(persons, dtype=object)
    _validate.same_length("a person for each row", len(values), n_rows)
    codes, _ = pd.factorize(pd.Series(values, dtype=object))
    counts = np.bincount(codes[codes >= 0], minlength=1)
    return shared_weights(np.where(codes < 0, np.nan, counts[codes]))


def shared_weights(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one over the rows of each row's person, zero where there is none (NaN).

    >>> shared_weights(np.array([2.0, np.nan, 1.0]))
    array([0.5, 0. , 1. ])
    """
    return np.where(np.isnan(counts), 0.0, 1.0 / counts)


def row_weights(*parts: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Return the product of all weights; None if every row weighs one."""
    given = [part for part in parts if part is not None]
    return np.prod(given, axis=0) if given else None
