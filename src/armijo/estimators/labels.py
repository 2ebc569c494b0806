# SPDX-License-Identifier: Apache-2.0
"""Labels as the losses take them, and rows without a declared one as blank rows.

Once the classes are declared, nothing about a label may show: a job that fails because
of one label tells everybody who sees its exit code.  Only the type of the labels, which
is public, can be wrong.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""The position of a label that is not among the classes."""


def positions(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of every label among the sorted classes, or ``UNKNOWN``.

    >>> positions(np.array([1.0, np.nan, 7.0]), np.array([0, 1]))
    array([ 1, -1, -1])
    """
    refuse_other_type(y, classes)
    if y.dtype == object or classes.dtype == object:
        # Objects of any kind: what cannot be looked up is no class.
        index = {value: place for place, value in enumerate(classes.tolist())}
        found = [_looked_up(index, value) for value in y.tolist()]
        return np.array(found, dtype=np.int64)
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    return np.where(classes[places] == y, places, UNKNOWN).astype(np.int64)


def _looked_up(index: dict[Any, int], value: Any) -> int:
    """Return the position of one label; one without a hash has none."""
    try:
        return index.get(value, UNKNOWN)
    except TypeError:
        return UNKNOWN


def refuse_other_type(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse numbers where classes are text, and the other way around."""
    text = [array.dtype.kind in "US" for array in (y, classes)]
    loose = object in (y.dtype, classes.dtype)
    if text[0] != text[1] and not loose:
        raise ValueError(
            f"Expected labels of the type of the classes ({classes.dtype}), got "
            f"{y.dtype}; convert one of them. Nothing was spent."
        )


def for_loss(places: NDArray[np.int64], n_classes: int) -> NDArray[Any]:
    """Return labels -1 and +1, or positions; an unknown one is left out by the loss.

    That is NaN for the losses of a margin and ``UNKNOWN`` for softmax.
    """
    if n_classes > 2:
        return places
    return np.where(places == UNKNOWN, np.nan, 2.0 * places - 1.0)


def unknown_rows(y: Any, classes: Any) -> NDArray[np.int64]:
    """Return the numbers of the rows whose label is not among the classes.

    For the eyes of the owner of the rows, outside of any guarantee: a fit treats such
    rows as blank and says nothing.

    >>> unknown_rows(["yes", "no", "Yes"], classes=["no", "yes"])
    array([2])
    """
    found = positions(np.asarray(y), np.unique(np.asarray(classes)))
    return np.flatnonzero(found == UNKNOWN)
