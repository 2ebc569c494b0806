# SPDX-License-Identifier: Apache-2.0
"""When a run has grown beyond all bounds, and going on would only spend."""

import math
from typing import Any

import torch
from torch import Tensor

from armijo.errors import Diverged
from armijo.methods.base import Direction, State, StepRecord
from armijo.training.checkpoint import state_values

MAX_WEIGHT = 1e80
"""Far above any trained weight; its square, and its scores, are still numbers."""


def refuse_diverged(state: State, record: StepRecord) -> None:
    """Raise if the step left something that no later step could use.

    To be asked of released values only: whether it raises is seen by everybody.

    Raises
    ------
    Diverged
        A weight is above :data:`MAX_WEIGHT`, or some value is no finite number.
    """
    released = {**vars(record), "gradient_rho": 0.0}  # infinite in a step without noise
    values = (*state_values(state).values(), *released.values())
    bounded = bool((state.w.abs() <= MAX_WEIGHT).all())
    if bounded and all(map(_finite, values)):
        return
    raise Diverged(
        f"The run diverged: expected finite values and weights of at most "
        f"{MAX_WEIGHT:g}, found others after batch {record.batch}. The "
        f"{record.batch + 1} charges (epsilon {record.epsilon:.4g} so far) stay spent, "
        "and there is no model; begin a new run, with a budget of its own and a "
        "smaller step size."
    )


def _finite(value: Any) -> bool:
    """Say whether a field of a state or a record has finite numbers only."""
    if isinstance(value, Tensor):
        # One pass in most cases: a sum of finite numbers may still be too large.
        return math.isfinite(value.sum()) or bool(torch.isfinite(value).all())
    if isinstance(value, Direction):
        return _finite(value.vector) and _finite(value.noise_sq_norm)
    if isinstance(value, tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
