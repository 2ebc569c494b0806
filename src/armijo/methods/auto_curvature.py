# SPDX-License-Identifier: Apache-2.0
"""Directions from gradients by the released second moments of the features.

For a linear model the Hessian is the mean of ``l'' z z^T``; with the slope of the
slope taken as a constant, the second moments precondition all steps and are paid once.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from armijo.privacy.budget import FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    """Eigenvalues and eigenvectors of the second moments, and the constant feature.

    Attributes
    ----------
    values : array of shape (features,)
        Eigenvalues, none negative.
    vectors : array of shape (features, features) or None
        Eigenvectors in columns; None is the identity.
    constant : float
        The constant feature, whose second moment is its square.
    """

    values: FloatArray
    vectors: FloatArray | None
    constant: float

    def direction(self, g: Tensor, damping: float, intercept_damping: float) -> Tensor:
        """Return ``(A + damping I)^-1 g`` for the weights of each class.

        The intercept is divided by its own second moment and damping.
        """
        weights, intercepts = self._parts(g)
        turned = self._turned(weights) / (self.values + damping)
        weights = turned if self.vectors is None else turned @ self.vectors.T
        intercepts = intercepts / (self.constant**2 + intercept_damping)
        return torch.from_numpy(np.column_stack([weights, intercepts]))

    def rms_score(self, direction: Tensor) -> float:
        """Return the root mean square of ``z.direction`` over the rows, never zero."""
        weights, intercepts = self._parts(direction)
        square = float((self.values * self._turned(weights) ** 2).sum())
        square += self.constant**2 * float((intercepts**2).sum())
        return math.sqrt(max(square, 1e-24))

    def _parts(self, blocks: Tensor) -> tuple[FloatArray, FloatArray]:
        """Return weights and intercepts (perhaps none) of each class."""
        table, d = blocks.numpy(), self.values.size
        return table[:, :d], table[:, d:]

    def _turned(self, weights: FloatArray) -> FloatArray:
        """Return weights along the eigenvectors."""
        return weights if self.vectors is None else np.asarray(weights @ self.vectors)


def spectrum(noisy_sum: FloatArray, n_rows: float) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and eigenvectors of the noisy mean second moments.

    The matrix is made symmetric, and eigenvalues below zero are noise: both are free.
    """
    d = math.isqrt(noisy_sum.size)
    square = noisy_sum.reshape(d, d) / n_rows
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    return np.maximum(values, 0.0), np.asarray(vectors)
