# SPDX-License-Identifier: Apache-2.0
"""Batches with examples that raise: those are left out, the others count as before.

No row may stop a run that is paid for, nor be told of by an error.  What is computed is
what the batch without such examples gives, to the last bit and with the same masks, so
each of them adds nothing and moves nobody else.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from armijo.objectives.ghost.checks import Batch, Tensors, batch_size
from armijo.objectives.ghost.engine import ClippedSum

Found = TypeVar("Found")


def spared_sum(compute: Callable[[Batch], ClippedSum], batch: Batch) -> ClippedSum:
    """Return the sum without examples that raise; their losses are no numbers."""
    found, index = _spared(compute, batch)
    if index is None:
        return found
    return ClippedSum(found.total, _spread(found.losses, index, batch), {})


def spared_losses(compute: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Return the losses; those of examples that raise are no numbers."""
    found, index = _spared(compute, batch)
    return found if index is None else _spread(found, index, batch)


def _spared(
    compute: Callable[[Batch], Found], batch: Batch
) -> tuple[Found, list[int] | None]:
    """Return what is computed, and from which examples; None stands for all."""
    try:
        return compute(batch), None
    except Exception:
        pass
    # What zeros raise as well is no example's doing; shown without the error before,
    # which may tell of one.
    compute(_each(_part(batch, [0, 0]), torch.zeros_like))
    index = _passing(compute, batch, list(range(batch_size(batch))))
    return compute(_part(batch, index)), index


def _passing(
    compute: Callable[[Batch], Found], batch: Batch, index: list[int]
) -> list[int]:
    """Return those of the examples that do not raise, by halving those that do.

    One alone is tried beside itself: some losses fail for batches of one, whoever it
    is, and then an example would be left out because of who else is in the batch.
    """
    try:
        compute(_part(batch, index if len(index) > 1 else 2 * index))
        return index
    except Exception:
        if len(index) == 1:
            return []
    half = len(index) // 2
    parts = (_passing(compute, batch, part) for part in (index[:half], index[half:]))
    return [one for part in parts for one in part]


def _part(batch: Batch, index: list[int]) -> Batch:
    """Return some examples of a batch."""
    return _each(batch, lambda tensor: tensor[index])


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch with every tensor changed."""

    def changed(tensors: Tensors) -> Tensors:
        if isinstance(tensors, Tensor):
            return change(tensors)
        return tuple(change(one) for one in tensors)

    return Batch(changed(batch.inputs), changed(batch.targets))


def _spread(losses: Tensor, index: list[int], batch: Batch) -> Tensor:
    """Return losses for all examples from those of some."""
    every = losses.new_full((batch_size(batch),), torch.nan)
    every[index] = losses
    return every
