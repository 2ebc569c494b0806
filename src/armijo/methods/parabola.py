# SPDX-License-Identifier: Apache-2.0
"""Where a parabola through noisy values is lowest."""

import math

import numpy as np

from armijo.privacy.budget import FloatArray


def parabola_minimum(
    places: FloatArray, values: FloatArray, noise: float = 0.0
) -> float | None:
    """Return where the fitted parabola is lowest; None unless that lies ahead.

    The ratio of slope and curvature of Liu and Bu (2025), by least squares.  Noise can
    bend a parabola downwards or tilt it backwards, and the ratio of two noises is a
    step towards zero: unless the curvature exceeds what ``noise`` in each value does
    to it, there is no answer.

    >>> round(parabola_minimum(np.array([-1, 0, 1]), np.array([4.0, 1.0, 0.0])), 9)
    1.0
    """
    weights = np.linalg.pinv(np.vander(places, 3))
    curvature, slope, _ = weights @ values
    if not (curvature > noise * np.linalg.norm(weights[0]) and slope < 0):
        return None
    minimum = float(-slope / (2 * curvature))
    return minimum if minimum < math.inf else None
