# SPDX-License-Identifier: Apache-2.0
"""A sampler that the package once had for large vectors, kept as a planted mistake.

Its radius has 63 bits and double precision, its angle 32 bits and single precision.
Every marginal law is right for all tests of laws here; pairs of integers are not.
"""

import math

import numpy as np


def box_muller(scale, size, bits):
    """Draw rounded normals, all cosines first and then all sines."""
    pairs = -(-size // 2)
    words = bits.uint64(pairs + -(-pairs // 2))
    radius = np.abs(words[:pairs].view(np.int64).astype(np.float64))
    radius = np.sqrt(-2 * scale**2 * np.log(radius * 2.0**-63 + 2.0**-64))
    turns = words[pairs:].view(np.int32)[:pairs].astype(np.float32)
    angle = turns * np.float32(math.pi * 2.0**-31)
    both = np.concatenate([np.cos(angle) * radius, np.sin(angle) * radius])
    return np.rint(both)[:size].astype(np.int64)


def each_box_muller(scale, size, bits, use, *, threads=1):
    """Stand in for the gate's own noise."""
    use(slice(0, size), box_muller(float(scale), size, bits))
