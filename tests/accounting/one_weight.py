# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation of a model with one weight: its exact law, by quadrature.

The released w solves ``sum of slopes(w) + curvature w + b = 0``.  With the density f of
b, w has the density ``f(g(w)) g'(w)``, ``g(w) = sum of slopes(w) + curvature w``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
LogDensity = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Row:
    """A logistic loss (smoothness 1/4) or a Huberized hinge (smoothness 1)."""

    x: float
    huber: bool = False

    def slope(self, w: FloatArray) -> FloatArray:
        if self.huber:
            return -self.x * np.clip(1.5 - self.x * w, 0.0, 1.0)
        return -self.x / (1 + np.exp(np.clip(self.x * w, -500, 500)))

    def bend(self, w: FloatArray) -> FloatArray:
        if self.huber:
            return self.x**2 * (np.abs(1 - self.x * w) <= 0.5)
        p = 1 / (1 + np.exp(np.clip(self.x * w, -500, 500)))
        return self.x**2 * p * (1 - p)


def gaussian_log_density(noise: float) -> LogDensity:
    constant = math.log(noise) + 0.5 * math.log(2 * math.pi)
    return lambda b: -0.5 * (b / noise) ** 2 - constant


def laplace_log_density(scale: float) -> LogDensity:
    return lambda b: -np.abs(b) / scale - math.log(2 * scale)


def log_law(
    w: FloatArray, rows: list[Row], curvature: float, noise: LogDensity
) -> FloatArray:
    """Return the log density of the released weight."""
    g = curvature * w + sum((row.slope(w) for row in rows), np.zeros_like(w))
    bend = curvature + sum((row.bend(w) for row in rows), np.zeros_like(w))
    return noise(g) + np.log(bend)


def weights(reach: float) -> FloatArray:
    """Return a fine grid; a kink of the law falls between two of its many points."""
    return np.linspace(-reach, reach, 200_001)


def hockey_stick(
    w: FloatArray, log_p: FloatArray, log_q: FloatArray, epsilon: float
) -> float:
    """Return the exact delta at epsilon, the larger of both directions."""
    sides = []
    for one, other in ((log_p, log_q), (log_q, log_p)):
        excess = np.exp(one) - np.exp(np.minimum(other + epsilon, 700))
        sides.append(float(np.trapezoid(np.maximum(excess, 0.0), w)))
    return max(sides)


def renyi(w: FloatArray, log_p: FloatArray, log_q: FloatArray, order: float) -> float:
    """Return the exact Renyi divergence, the larger of both directions."""
    sides = []
    for one, other in ((log_p, log_q), (log_q, log_p)):
        moment = np.trapezoid(np.exp(order * one + (1 - order) * other), w)
        sides.append(math.log(float(moment)) / (order - 1))
    return max(sides)
