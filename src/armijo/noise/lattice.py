# SPDX-License-Identifier: Apache-2.0
"""Laplace noise rounded to integers, exactly, and what all integer noise shares."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.noise.bits import BitSource
from armijo.noise.lazy import (
    GUARD,
    coins_below_exp,
    e_folds,
    rational,
    uniform_below,
)

MAX_SCALE = 2**50
"""The largest scale: up to here the first bits of a place decide the integer."""

# Proposals drawn at once: large enough to hide the cost of a call, small enough for
# the temporaries to stay in the cache.
_BLOCK = 1 << 16

# The share of proposals kept at a large scale; it sets the size of a block only.
_LAPLACE_ACCEPTANCE = 1 - math.exp(-1)


def rounded_laplace(
    scale: int, size: int, bits: BitSource, *, _guard: float = GUARD
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Laplace noise, exactly.

    :math:`P(|K| \ge k) = \exp(-(k - 1/2)/s)` for :math:`k \ge 1`, symmetric. So
    ``K`` is 0 with chance ``1 - exp(-1/(2s))``, and else ``|K| - 1`` is geometric with
    ratio ``exp(-1/s)``: ``u + s v`` with ``u`` uniform on ``0 .. s-1`` kept with chance
    ``exp(-u/s)`` and ``P(v >= j) = exp(-j)`` (Canonne, Kamath & Steinke 2020, the
    sampler of the discrete Laplace law).

    Parameters
    ----------
    scale
        The scale ``s`` in lattice units, an integer from 0 (no noise) to 2**50.
    size
        How many numbers to draw.
    bits
        Where the bits come from.

    Examples
    --------
    >>> from armijo.noise import SeededBits
    >>> rounded_laplace(1000, 3, SeededBits(0)).dtype
    dtype('int64')
    """
    scale = checked_scale(scale, size)
    if scale == 0:
        return np.zeros(size, dtype=np.int64)

    def propose(count: int) -> NDArray[np.int64]:
        places, folds, keeps, zeros = bits.uint64(4 * count).reshape(4, count)
        signed, usable = uniform_below(places, 2 * scale)
        u = signed >> 1
        # x = u/s < 1 is rounded once: |dx| <= 2**-53. So is 1/(2s).
        kept = coins_below_exp(
            keeps, u / scale, lambda i: rational(int(u[i]), scale), bits, _guard
        )
        half = np.full(count, 0.5 / scale)
        nonzero = coins_below_exp(
            zeros, half, lambda _: rational(1, 2 * scale), bits, _guard
        )
        magnitudes = 1 + u + scale * e_folds(folds, bits, _guard).astype(np.int64)
        return (_signed(magnitudes, signed) * nonzero)[kept & usable]

    return collected(size, _LAPLACE_ACCEPTANCE, propose)


def _signed(
    magnitudes: NDArray[np.int64], signed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give a magnitude the sign in the lowest bit of ``signed``."""
    noise: NDArray[np.int64] = magnitudes * (1 - 2 * (signed & 1))
    return noise


def collected(
    size: int, acceptance: float, propose: Callable[[int], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Propose in blocks until ``size`` numbers were accepted; the first ones count."""
    found = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        missing = size - done
        count = int((missing + 3 * math.sqrt(missing) + 8) / acceptance)
        accepted = propose(min(count, _BLOCK))[:missing]
        found[done : done + accepted.size] = accepted
        done += accepted.size
    return found


def checked_scale(scale: int, size: int) -> int:
    """Return the scale, refusing what the samplers do not cover."""
    _validate.at_least(0, scale=scale, size=size)
    if scale > MAX_SCALE:
        raise ValueError(
            f"Expected scale <= 2**50 lattice units, got {scale!r}; take a coarser "
            "lattice."
        )
    return int(scale)
