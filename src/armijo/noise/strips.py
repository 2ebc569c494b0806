# SPDX-License-Identifier: Apache-2.0
r"""Gaussian noise rounded to integers, exactly: rejection from strips over the curve.

Strips of one width ``w`` cover the curve :math:`e^{-y^2/2s^2}`, ``y >= 0`` (the strip
method, Devroye 1986, section VIII.2).  Their heights are whole numbers of slots, and
all slots have the same area: a uniform slot is a strip with the chance of its area, a
uniform ``y`` in that strip is kept with the chance curve over height, and what is kept
has the density of the curve.  Its nearest integer with a fair sign is the noise; zero
comes from both signs, as it has to.

One word is slot, place and sign, a second is the coin.  Beyond four standard deviations
the height is halved every four strips, by fair coins without end, so the tail has none
either.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from armijo.noise.bits import BitSource
from armijo.noise.lattice import checked_scale, collected, with_sign
from armijo.noise.lazy import (
    GUARD,
    WORD,
    Bounds,
    Exponent,
    LazyUniform,
    coins_below_exp,
)

_SLOT_BITS = 12
_SLOTS = 1 << _SLOT_BITS
_REST_BITS = WORD - _SLOT_BITS  # place in the strip, and the sign as the last bit
_PLACE_BITS = _REST_BITS - 1
_REST = np.uint64((1 << _REST_BITS) - 1)
_TAIL_FROM = 4  # standard deviations
_TAIL_STRIPS = 4  # of the same height


@dataclass(frozen=True)
class Strips:
    """The cover of the curve for one scale.

    Places are integers: a strip's number times ``2**52`` and what is behind it.
    """

    scale: int
    shift: int  # the width of a strip is 2**shift
    starts: NDArray[np.int64]  # where the strip of each slot begins
    heights: NDArray[np.float64]  # of the strip of each slot; exact
    tail_slots: int  # the last ones

    @property
    def width(self) -> float:
        """The width of a strip in standard deviations."""
        return (1 << self.shift) / self.scale

    @property
    def acceptance(self) -> float:
        """The share of proposals that are kept: area of the curve over all slots."""
        slot = self.heights[0] / np.count_nonzero(self.starts == 0)
        return math.sqrt(math.pi / 2) / float(_SLOTS * slot * self.width)


@lru_cache(maxsize=64)
def strips_for(scale: int) -> Strips:
    """Return the cover of a scale: strips of 1/16 to 1/8 of it, at least 1.

    In the tail a strip has half the height of the one four strips before it.  The curve
    falls by more: from z >= 4 on, over a distance of 4/16, to ``exp(-4/4)``.
    """
    shift = max(0, (scale - 1).bit_length() - 4)
    tail = -(-_TAIL_FROM * scale >> shift)  # the first strip there
    z = np.arange(tail + 1) * ((1 << shift) / scale)
    # The curve falls, so it is highest where a strip begins. Float errors are far below
    # the share that is added.
    needed = np.exp(-0.5 * z * z) * (1 + 2.0**-30)
    # Each of the tail's first strips gets 1/8 of the tail's slots.
    needed[tail] *= 2 * _TAIL_STRIPS
    # A slot's height has 24 bits, and a strip at most 2**12 slots: products are exact.
    slot = float(np.float32(needed.sum() / (_SLOTS - tail - 1) * (1 + 2.0**-20)))
    counts = np.floor(needed / slot).astype(np.int64) + 1
    counts[0] += _SLOTS - counts.sum()
    heights = counts * slot
    heights[tail] /= 2 * _TAIL_STRIPS
    starts = np.arange(tail + 1, dtype=np.int64) << _REST_BITS
    return Strips(
        scale=scale,
        shift=shift,
        starts=np.repeat(starts, counts),
        heights=np.repeat(heights, counts),
        tail_slots=int(counts[tail]),
    )


def rounded_gaussian(
    scale: int, size: int, bits: BitSource, *, _guard: float = GUARD
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Gaussian noise ``N(0, s**2)``, exactly.

    :math:`P(K = k) = \Phi((k + 1/2)/s) - \Phi((k - 1/2)/s)`.  Bits of the place and of
    the coin beyond the first words are drawn when the comparison needs them.

    Parameters
    ----------
    scale
        The standard deviation ``s`` in lattice units before rounding, an integer from
        0 (no noise) to 2**50.
    size
        How many numbers to draw.
    bits
        Where the bits come from.

    Examples
    --------
    >>> from armijo.noise import SeededBits
    >>> rounded_gaussian(0, 3, SeededBits(0))
    array([0, 0, 0])
    """
    scale = checked_scale(scale, size)
    if scale == 0:
        return np.zeros(size, dtype=np.int64)
    strips = strips_for(scale)
    half = 1 << (_REST_BITS - strips.shift - 1)

    def propose(count: int) -> NDArray[np.int64]:
        words, coins = bits.uint64(2 * count).reshape(2, count)
        places, heights = _placed(words, strips, bits)
        kept = coins_below_exp(
            coins,
            float_exponent(places, strips),
            lambda i: exact_exponent(int(places[i]), strips, bits),
            bits,
            _guard,
            heights,
        )
        index = np.flatnonzero(kept)
        found = places[index]
        # The sign, the last bit, is below half a unit: it turns no rounding.
        return with_sign((found + half) >> (_REST_BITS - strips.shift), found)

    return collected(size, strips.acceptance, propose)


def _placed(
    words: NDArray[np.uint64], strips: Strips, bits: BitSource
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the place that each word means, and the height of its strip."""
    slots = (words >> np.uint64(_REST_BITS)).view(np.int64)
    places, heights = strips.starts.take(slots), strips.heights.take(slots)
    places += (words & _REST).view(np.int64)
    for i in np.flatnonzero(slots >= _SLOTS - strips.tail_slots):
        halvings, part = in_tail(bits)
        places[i] += (_TAIL_STRIPS * halvings + part) << _REST_BITS
        heights[i] *= 2.0**-halvings
    return places, heights


def in_tail(bits: BitSource) -> tuple[int, int]:
    """Return ``v`` with chance ``2**-(v+1)``, and one of four strips."""
    word = int(bits.uint64(1)[0])
    part, coins, halvings = word & 3, word >> 2, 0
    length = WORD - 2
    while coins == 0:
        halvings += length
        coins, length = int(bits.uint64(1)[0]), WORD
    return halvings + (coins & -coins).bit_length() - 1, part


def float_exponent(places: NDArray[np.int64], strips: Strips) -> NDArray[np.float64]:
    """Return ``z**2/2`` in float64 with ``z = y/s``."""
    # With e = 2**-53: conversion, factor and product are rounded once each, and the
    # sign's bit and those not drawn are 2**-51 of a strip, which is at most one s wide.
    # So |dz| <= 2**-51 + 3 e z, |dx| <= z 2**-51 + 5 e z**2. As exp(-z**2/2) z < 0.61
    # and exp(-z**2/2) z**2 < 0.74, the chance times |dx| is below 2**-46 by far, as
    # GUARD wants.
    z = places.astype(np.float64)
    z *= strips.width * 2.0**-_REST_BITS
    z *= z
    z *= 0.5
    return z


def exact_exponent(place: int, strips: Strips, bits: BitSource) -> Exponent:
    """Return bounds of the same; places are drawn as finely as they are asked for."""
    rest = LazyUniform(bits.uint64(1)[0], bits)
    unit = Fraction(1 << strips.shift, strips.scale << _PLACE_BITS)

    def bounds(length: int) -> Bounds:
        while rest.length < length:
            rest.refine()
        low, high = ((place >> 1) + end for end in rest.bounds())
        return (low * unit) ** 2 / 2, (high * unit) ** 2 / 2

    return bounds
