# SPDX-License-Identifier: Apache-2.0
"""What a user hands to ``armijo.train``, checked before anything is spent."""

from typing import Any

from armijo import _validate
from armijo.data.sources import DatasetRows, ExampleSource, TensorRows
from armijo.objectives.module import ModuleObjective


def public_rows(n_rows: int | None, found: int, distributed: bool) -> int:
    """Return the public number of examples."""
    if n_rows is not None:
        _validate.at_least(1, n_rows=n_rows)
        return n_rows
    if distributed:
        raise ValueError(
            "Expected n_rows, the public number of all examples, when several "
            "processes hold a shard each, got None. Nothing was spent."
        )
    return found


def source_of(dataset: Any, device: Any) -> ExampleSource:
    """Return the rows of a pair of tensors or of a dataset."""
    if isinstance(dataset, tuple) and len(dataset) == 2:
        return TensorRows(*dataset, device=device)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            "Expected a pair of tensors or a dataset with __getitem__ and __len__, got "
            f"{type(dataset).__name__}. Nothing was spent."
        )
    return DatasetRows(dataset, device=device)


def check_source(
    objective: ModuleObjective, source: ExampleSource, distributed: bool
) -> None:
    """Refuse no examples, numbers that are none, and a loss of the wrong shape.

    The shard of one process may be empty if it is of tensors, whose shapes are known.
    """
    shard = distributed and isinstance(source, TensorRows)
    if len(source) == 0 and not shard:
        raise ValueError("Expected at least one example, got none. Nothing was spent.")
    if isinstance(source, TensorRows):
        source.refuse_not_finite()
    inputs, targets = source.zeros()
    objective.check(inputs, targets)
