# SPDX-License-Identifier: Apache-2.0
"""Integer noise: the Laplace law exactly, the Gaussian fast, rounded to integers."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.noise.bits import BitSource
from armijo.noise.lazy import (
    GUARD,
    WORD,
    coins_below_exp,
    e_folds,
    rational,
    uniform_below,
)

MAX_SCALE = 2**50
"""The largest scale: up to here float64 holds the integers of the fast path."""

# Measured with system bits on one core, 1e4 to 1e6 numbers a call: exact 13 to 27
# nanoseconds a number, fast 6 to 20, mostly half of it. Up to 100,000 numbers exact
# noise is at most 3 ms of a step; at 800,000 it would be 11 ms, more than all else of a
# step of a network with one hidden layer.
EXACT_UP_TO = 100_000
"""The dimension up to which exact noise is the default."""

# Proposals drawn at once: large enough to hide the cost of a call, small enough for
# the temporaries to stay in the cache.
_BLOCK = 1 << 16

# Numbers of the fast path drawn at once: measured, 2**14 needs 10 % more time.
_FAST_BLOCK = 1 << 16

UseNoise = Callable[[slice, NDArray[Any]], None]
"""Takes the noise of some places; blocks may come from several threads at once."""

# The share of proposals kept at a large scale; it sets the size of a block only.
_LAPLACE_ACCEPTANCE = 1 - math.exp(-1)


def default_noise(size: int) -> Literal["exact", "fast"]:
    """Return the sampler used for ``size`` numbers unless one is asked for.

    Examples
    --------
    >>> default_noise(124), default_noise(1_000_000)
    ('exact', 'fast')
    """
    _validate.at_least(0, size=size)
    return "exact" if size <= EXACT_UP_TO else "fast"


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


def fast_gaussian(scale: float, size: int, bits: BitSource) -> NDArray[np.int64]:
    """Draw Gaussian noise in float64 and round it to integers (``noise="fast"``).

    Covered: the noise is added to integers as an integer, which is post-processing of
    the Gaussian mechanism, so the addition leaks nothing; the bits are those of
    ``bits``. Not covered, and not proved: the sampler's own law. The Box-Muller method
    (1958) with a 63-bit radius ends at 9.4 standard deviations (two-sided normal tail
    about 5e-21), the angle has 32 bits, and logarithm, root, sine and cosine are
    rounded. This path is not hardened; use :func:`rounded_gaussian` where a proof is
    wanted.

    Parameters
    ----------
    scale
        The standard deviation in lattice units, from 0 (no noise) to 2**50.
    size
        How many numbers to draw.
    bits
        Where the bits come from.

    Examples
    --------
    >>> from armijo.noise import SeededBits
    >>> fast_gaussian(2.5, 4, SeededBits(0)).size
    4
    """
    _validate.at_least(0, size=size)
    found = np.zeros(size, dtype=np.int64)

    def keep(part: slice, noise: NDArray[np.float64]) -> None:
        found[part] = noise

    if scale != 0:
        each_fast_gaussian(scale, size, bits, keep)
    return found


def each_fast_gaussian(
    scale: float, size: int, bits: BitSource, use: UseNoise, *, threads: int = 1
) -> None:
    """Hand the numbers of :func:`fast_gaussian` to ``use``, in blocks of float64.

    A block stays in the processor's cache for all that is done with it.  Bits are drawn
    in order, by whoever takes the next block, so that draws do not depend on
    ``threads``.  The caller works as well: where the idle threads of other libraries
    still hold the processors, helpers take fewer blocks.
    """
    _validate.non_negative(scale=scale)
    _refuse_large(scale)
    starts = range(0, size, _FAST_BLOCK)
    parts = iter([slice(i, min(i + _FAST_BLOCK, size)) for i in starts])
    turn = Lock()

    def work() -> None:
        while True:
            with turn:
                part = next(parts, None)
                if part is None:
                    return
                pairs = -(-(part.stop - part.start) // 2)
                drawn = bits.uint64(pairs + -(-pairs // 2))
            use(part, _box_muller(scale, part.stop - part.start, drawn))

    helpers = min(threads, len(starts)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers) as pool:
        waiting = [pool.submit(work) for _ in range(helpers)]
        work()
        for one in waiting:
            one.result()


def _box_muller(
    scale: float, size: int, words: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return ``size`` rounded normals; half a unit keeps the logarithm off zero.

    The radius, which decides the tail, has 63 bits and double precision; the angle has
    32 bits and single precision.
    """
    pairs = -(-size // 2)
    # The magnitude of a signed word has 63 bits, and its type is converted the fastest.
    radius = words[:pairs].view(np.int64).astype(np.float64)
    np.abs(radius, out=radius)
    radius *= 2.0 ** (1 - WORD)
    radius += 2.0**-WORD
    np.log(radius, out=radius)
    radius *= -2.0 * scale * scale
    np.sqrt(radius, out=radius)
    turns = words[pairs:].astype("<u8", copy=False).view("<i4")[:pairs]
    angle = turns.astype(np.float32)
    angle *= np.float32(math.pi * 2.0**-31)
    noise = np.empty((2, pairs))
    noise[0] = np.cos(angle)
    noise[1] = np.sin(angle, out=angle)
    noise *= radius
    return np.rint(noise, out=noise).ravel()[:size]


def checked_scale(scale: int, size: int) -> int:
    """Return the scale, refusing what the exact samplers do not cover."""
    _validate.at_least(0, scale=scale, size=size)
    _refuse_large(scale)
    return int(scale)


def _refuse_large(scale: float) -> None:
    """Refuse a scale beyond the certified range."""
    if scale > MAX_SCALE:
        raise ValueError(
            f"Expected scale <= 2**50 lattice units, got {scale!r}; take a coarser "
            "lattice."
        )
