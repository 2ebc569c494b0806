# SPDX-License-Identifier: Apache-2.0
"""What a user hands to ``armijo.train``, checked before anything is spent."""

from typing import Any

from armijo import _validate
from armijo.data.sources import DatasetRows, ExampleSource, TensorRows
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.checks import as_tuple
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
    """Refuse no examples, numbers that are none, and a loss of the wrong kind.

    The shard of one process may be empty if it is of tensors, whose shapes are known.
    """
    shard = distributed and isinstance(source, TensorRows)
    if len(source) == 0 and not shard:
        raise ValueError("Expected at least one example, got none. Nothing was spent.")
    if isinstance(source, TensorRows):
        source.refuse_not_finite()
    objective.check(*source.zeros())
    if isinstance(source, TensorRows):
        _refuse_integers(objective, source)


def _refuse_integers(objective: ModuleObjective, source: TensorRows) -> None:
    """Refuse classes that a loss does not have, or places that no embedding has.

    Two examples are tried: all integers at their smallest and all at their largest.
    """
    examples, found = _ends(source)
    if not found:
        return
    try:
        objective.check(*examples)
    except UnsupportedModule:
        raise
    except Exception as error:
        raise ValueError(
            "Expected integers that module and loss take, got "
            f"{', '.join(found)}, whose ends they refuse ({type(error).__name__}: "
            f"{error}); correct such examples or leave them out. Nothing was spent."
        ) from error


def _ends(source: TensorRows) -> tuple[tuple[Any, Any], list[str]]:
    """Return two examples with the ends of all integers, and a name for each range."""
    examples, found = source.zeros(), []
    groups = zip(("input", "target"), source.parts()[0], examples, strict=True)
    for name, tensors, made in groups:
        for number, (one, two) in enumerate(zip(tensors, as_tuple(made), strict=True)):
            if one.numel() and not (one.is_floating_point() or one.is_complex()):
                values = one.cpu().numpy()  # torch has no minimum of some integers
                least, most = values.min().item(), values.max().item()
                two[0], two[1] = least, most
                found.append(f"{name} {number} from {least} to {most}")
    return examples, found
