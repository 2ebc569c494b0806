# SPDX-License-Identifier: Apache-2.0
"""The batches before the first step: scale, center and second moments of the rows."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from armijo.data.private import PrivateBatch
from armijo.methods.auto_curvature import spectrum
from armijo.methods.auto_moments import (
    chosen_norm,
    norm_histogram,
    radius,
    row_sum,
    second_moments,
    shrunk_mean,
    square_sum,
)
from armijo.methods.auto_rules import FIRST_STEP
from armijo.objectives.linear import LinearObjective
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import Gaussian

Stage = Literal["norm", "center", "moments"]


@dataclass(frozen=True, kw_only=True)
class AutoState:
    """Released values: the frame, the point in it, and the model of the rows.

    ``values`` and ``vectors`` are the spectrum of the second moments, flat; ``total``
    is the sum of the points of the second half.
    """

    w: Tensor
    batches: int = 0
    norm: float = 0.0
    center: Tensor | None = None
    radius: float = 1.0
    values: Tensor | None = None
    vectors: Tensor | None = None
    point: Tensor | None = None
    total: Tensor | None = None
    step_size: float = FIRST_STEP


def center_of(state: AutoState) -> FloatArray:
    """Return the released center."""
    if state.center is None:
        raise ValueError("Expected a state whose center was released, got none.")
    return state.center.numpy()


def prepared(
    stage: Stage,
    batch: PrivateBatch,
    state: AutoState,
    used: tuple[Gaussian, ...],
    objective: LinearObjective,
    batch_size: float,
) -> AutoState:
    """Make one of the releases before the first step."""
    if stage == "norm":
        return replace(state, norm=released_norm(batch, used[0], objective))
    if stage == "center":
        center, distance = released_center(
            batch, used, state.norm, objective, batch_size
        )
        return replace(state, center=torch.from_numpy(center), radius=distance)
    query = second_moments(center_of(state), state.radius, objective.labelled)
    noisy_sum = batch.noisy_sum(query, used[0])
    values, vectors = spectrum(noisy_sum, batch_size)
    return replace(
        state,
        values=torch.from_numpy(values),
        vectors=torch.from_numpy(vectors.reshape(-1)),
    )


def released_norm(
    batch: PrivateBatch, mechanism: Gaussian, objective: LinearObjective
) -> float:
    """Release a norm that most rows do not exceed and many come near."""
    query = norm_histogram(objective.n_features, objective.labelled)
    counts = batch.noisy_sum(query, mechanism)
    return chosen_norm(counts, mechanism.noise_scale, objective.n_features)


def released_center(
    batch: PrivateBatch,
    mechanisms: tuple[Gaussian, ...],
    norm: float,
    objective: LinearObjective,
    batch_size: float,
) -> tuple[FloatArray, float]:
    """Release center and radius; with one mechanism the center is zero."""
    scale = mechanisms[0].noise_scale / batch_size
    squares = square_sum(norm, objective.labelled)
    square = float(batch.noisy_sum(squares, mechanisms[0])[0]) / batch_size
    center = np.zeros(objective.n_features)
    if len(mechanisms) == 2:
        query = row_sum(norm, objective.labelled)
        mean = batch.noisy_sum(query, mechanisms[1]) * (norm / batch_size)
        center = shrunk_mean(mean, scale * norm)
    return center, radius(square * norm**2, center, norm, scale)
