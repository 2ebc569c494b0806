# SPDX-License-Identifier: Apache-2.0
"""Numbers that rounding to a lattice leaves alone, for comparisons to full precision.

A test that compares with plain float64 arithmetic takes rows and weights of few bits,
so that what it sees is the mathematics and not the rounding of its own random numbers.
"""

import numpy as np

from armijo.data.lattice import rounded

BITS = 16


def few_bits(values):
    """Return numbers of at most ``BITS`` binary places below one."""
    return np.ldexp(np.rint(np.ldexp(np.asarray(values, dtype=float), BITS)), -BITS)


def on_lattice(X):
    """Return rows that are what they become."""
    return rounded(np.asarray(X, dtype=float))
