# SPDX-License-Identifier: Apache-2.0
"""Random vectors and orders for methods that hide a whole computation behind one draw.

The integers come from the exact samplers; scaling them to floats and what is computed
with them is ordinary floating point, which the exactness does not cover.
"""

import math

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo._noise.gaussian import rounded_gaussian
from armijo._noise.rejection import rounded_laplace
from armijo.randomness import BitSource

FINE = 1 << 40
"""Lattice steps in one scale: finer than anything that floats tell apart."""

_STEPS = 1 << 26  # lattice steps in one noise scale: weights still fit into 53 bits
FloatVector = NDArray[np.float64]


def gaussian_vector(noise_scale: float, size: int, bits: BitSource) -> FloatVector:
    """Draw ``N(0, noise_scale^2 I)`` from exact integers of scale 2**40.

    >>> from armijo.randomness import SystemBits
    >>> gaussian_vector(2.0, 3, SystemBits()).size
    3
    """
    _validate.non_negative(noise_scale=noise_scale)
    draws = rounded_gaussian(FINE, size, bits).astype(np.float64)
    return draws * (noise_scale / FINE)


def radial_vector(scale: float, size: int, bits: BitSource) -> FloatVector:
    """Draw a vector with density proportional to ``exp(-|v| / scale)``.

    Its norm has the Gamma distribution of shape ``size``, the sum of so many
    exponentials, and its direction is uniform (Chaudhuri, Monteleoni and Sarwate 2011,
    Algorithm 2).

    >>> from armijo.randomness import SystemBits
    >>> radial_vector(2.0, 3, SystemBits()).size
    3
    """
    _validate.non_negative(scale=scale)
    exponentials = np.abs(rounded_laplace(FINE, size, bits)) / FINE
    direction = gaussian_vector(1.0, size, bits)
    length = math.sqrt(float(direction @ direction))
    return direction * (scale * math.fsum(exponentials) / length)


def random_order(n: int, bits: BitSource) -> NDArray[np.int64]:
    """Return a uniform permutation of ``0 .. n-1``: the order of ``n`` random words.

    Words that stand twice would favor the earlier row; all are then drawn again.

    >>> from armijo.randomness import SystemBits
    >>> sorted(random_order(4, SystemBits()).tolist())
    [0, 1, 2, 3]
    """
    _validate.at_least(0, n=n)
    while True:
        words = bits.uint64(n)
        order = np.argsort(words)
        ordered = words[order]
        if not np.any(ordered[1:] == ordered[:-1]):
            return order.astype(np.int64)


def with_gaussian(
    answer: FloatVector, *, sensitivity: float, noise_scale: float, bits: BitSource
) -> FloatVector:
    """Round the answer to a lattice and add exact Gaussian integers.

    Rounding may move two answers apart by ``sqrt(d)`` lattice steps more than their
    sensitivity; the noise is raised by that share.  Noise zero leaves the answer.
    """
    if noise_scale == 0:
        return answer
    step = noise_scale / _STEPS
    excess = 1 + math.sqrt(answer.size) * step / sensitivity
    noise = rounded_gaussian(math.ceil(_STEPS * excess), answer.size, bits)
    return np.asarray((np.rint(answer / step) + noise) * step)
