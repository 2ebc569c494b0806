# SPDX-License-Identifier: Apache-2.0
"""Batches with examples that raise: those become blanks, in place.

No row may stop a run that is paid for, nor be told of by an error.  The batch keeps its
size and every other example its place, so all others are computed as before.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from armijo.objectives.ghost.checks import Batch, blanked

Result = TypeVar("Result")
Compute = Callable[[Batch, Tensor], Result]
"""From a batch and which of its examples, (B,), are blank to anything."""


def skip_failing(
    compute: Compute[Result],
    batch: Batch,
    blank: Tensor,
    attempt: Compute[object] | None = None,
) -> tuple[Result, Tensor]:
    """Return what is computed, and which examples are blank: those that raise, too.

    ``attempt`` raises what ``compute`` does and leaves nothing behind; without it,
    neither does ``compute``.
    """
    try:
        return compute(batch, blank), blank
    except Exception:
        pass
    attempt = attempt or compute
    # What blanks raise as well is no example's doing; shown without the error before,
    # which may tell of one.
    nobody = torch.ones_like(blank)
    attempt(blanked(batch, nobody), nobody)
    for index in _failing(attempt, batch, blank, list(range(len(blank)))):
        blank = blank.clone()
        blank[index] = True
    try:
        return compute(blanked(batch, blank), blank), blank
    except Exception:
        pass
    # Only several examples together raise: the module mixes them.  Nobody counts then.
    return compute(blanked(batch, nobody), nobody), nobody


def _failing(
    attempt: Compute[object], batch: Batch, blank: Tensor, some: list[int]
) -> list[int]:
    """Return those of some examples that raise among blanks, by halving."""
    others = torch.ones_like(blank)
    others[some] = blank[some]
    try:
        attempt(blanked(batch, others), others)
        return []
    except Exception:
        if len(some) == 1:
            return some
    half = len(some) // 2
    return [
        index
        for part in (some[:half], some[half:])
        for index in _failing(attempt, batch, blank, part)
    ]
