# SPDX-License-Identifier: Apache-2.0
"""The batches before the first step: scale, center and second moments of the rows."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from armijo.data.private import PrivateBatch
from armijo.optim.auto_curvature import spectrum
from armijo.optim.auto_moments import (
    chosen_norm,
    norm_histogram,
    radius,
    row_sum,
    second_moments,
    shrunk_mean,
    square_sum,
)
from armijo.optim.auto_rules import FIRST_STEP
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
    n_features: int,
    batch_size: float,
) -> AutoState:
    """Make one of the releases before the first step."""
    if stage == "norm":
        return replace(state, norm=released_norm(batch, used[0], n_features))
    if stage == "center":
        center, distance = released_center(
            batch, used, state.norm, n_features, batch_size
        )
        return replace(state, center=torch.from_numpy(center), radius=distance)
    values, vectors = released_spectrum(
        batch, used[0], center_of(state), state.radius, batch_size
    )
    return replace(
        state,
        values=torch.from_numpy(values),
        vectors=torch.from_numpy(vectors.reshape(-1)),
    )


def released_norm(batch: PrivateBatch, mechanism: Gaussian, n_features: int) -> float:
    """Release a norm that most rows do not exceed and many come near."""
    counts = batch.noisy_sum(norm_histogram(n_features), mechanism)
    return chosen_norm(counts, mechanism.noise_scale, n_features)


def released_center(
    batch: PrivateBatch,
    mechanisms: tuple[Gaussian, ...],
    norm: float,
    n_features: int,
    batch_size: float,
) -> tuple[FloatArray, float]:
    """Release center and radius; with one mechanism the center is zero."""
    scale = mechanisms[0].noise_scale / batch_size
    square = float(batch.noisy_sum(square_sum(norm), mechanisms[0])[0]) / batch_size
    center = np.zeros(n_features)
    if len(mechanisms) == 2:
        mean = batch.noisy_sum(row_sum(norm), mechanisms[1]) * (norm / batch_size)
        center = shrunk_mean(mean, scale * norm)
    return center, radius(square * norm**2, center, norm, scale)


def released_spectrum(
    batch: PrivateBatch,
    mechanism: Gaussian,
    center: FloatArray,
    distance: float,
    batch_size: float,
) -> tuple[FloatArray, FloatArray]:
    """Release eigenvalues and eigenvectors of the second moments."""
    noisy_sum = batch.noisy_sum(second_moments(center, distance), mechanism)
    return spectrum(noisy_sum, batch_size)
