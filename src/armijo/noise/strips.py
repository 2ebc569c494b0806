# SPDX-License-Identifier: Apache-2.0
r"""Gaussian noise rounded to integers, exactly: rejection from strips over the curve.

Strips of one width ``w`` cover the curve :math:`e^{-y^2/2s^2}` (the strip method,
Devroye 1986, section VIII.2).  Their heights are whole numbers of slots, and all slots
have the same area: a uniform slot is a strip with the chance of its area, a uniform
``y`` in that strip is kept with the chance curve over height, and what is kept has the
density of the curve.  Its nearest integer is the noise.

One word is slot and place.  Sixteen bits of a coin are enough for most: below the
lowest point of the curve in a strip a coin need not be compared with an exponential.
Beyond four standard deviations the height is halved every eight strips, by fair coins
without end, so the tail has none either.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from armijo.noise.bits import BitSource
from armijo.noise.lattice import checked_scale, collected
from armijo.noise.lazy import (
    GUARD,
    WORD,
    Bounds,
    Exponent,
    LazyUniform,
    coins_below_exp,
)

_SLOT_BITS = 13
_SLOTS = 1 << _SLOT_BITS  # on each side
_PLACE_BITS = WORD - _SLOT_BITS - 1
_PLACE = np.uint64((1 << _PLACE_BITS) - 1)
_COIN_BITS = 16
_TAIL_FROM = 4  # standard deviations
_TAIL_STRIPS = 8  # of the same height
_MARGIN = 2.0**-30  # relative; far above the float errors of an exponential


@dataclass(frozen=True)
class Strips:
    """The cover of the curve for one scale.

    Places are integers: a strip's number times ``2**50`` and what is behind it.  Slots
    are those of the strips from zero on, and then those of the strips below zero.
    """

    scale: int
    shift: int  # the width of a strip is 2**shift
    starts: NDArray[np.int64]  # where the strip of each slot begins
    sure: NDArray[np.uint16]  # first bits of a coin below that need no comparison
    heights: NDArray[np.float64]  # exact
    tail: int  # the first slot of the tail on each side
    acceptance: float  # the share of proposals kept: the curve's area over the slots'

    @property
    def width(self) -> float:
        """The width of a strip in standard deviations."""
        return (1 << self.shift) / self.scale


@lru_cache(maxsize=64)
def strips_for(scale: int) -> Strips:
    """Return the cover of a scale: strips of 1/32 to 1/16 of it, at least 1 wide.

    In the tail a strip has half the height of the one eight strips before it.  The
    curve falls by more: from z >= 4 on, over a distance of 8/32, to ``exp(-4/4)``.
    """
    shift = max(0, (scale - 1).bit_length() - 5)
    tail = -(-_TAIL_FROM * scale >> shift)  # the first strip there
    z = np.arange(tail + 1) * ((1 << shift) / scale)
    curve = np.exp(-0.5 * z * z)
    needed = curve * (1 + _MARGIN)  # it falls, so it is highest where a strip begins
    # A slot of the tail is the first of its halvings in half of all cases, and then
    # each of eight strips.
    needed[tail] *= 2 * _TAIL_STRIPS
    # A slot's height has 24 bits, and a strip at most 2**13 slots: products are exact.
    slot = float(np.float32(needed.sum() / (_SLOTS - tail - 1) * (1 + 2.0**-20)))
    counts = np.floor(needed / slot).astype(np.int64) + 1
    counts[0] += _SLOTS - counts.sum()
    heights = counts * slot
    heights[tail] /= 2 * _TAIL_STRIPS
    lowest = np.append(curve[1:], 0.0) * (1 - _MARGIN)
    sure = np.floor(lowest / heights * (1 - _MARGIN) * 2.0**_COIN_BITS)
    numbers = np.arange(tail + 1, dtype=np.int64)
    starts = np.repeat([numbers, -1 - numbers], counts, axis=1).ravel()
    return Strips(
        scale=scale,
        shift=shift,
        starts=starts << _PLACE_BITS,
        sure=np.tile(np.repeat(sure.astype(np.uint16), counts), 2),
        heights=np.tile(np.repeat(heights, counts), 2),
        tail=_SLOTS - int(counts[tail]),
        acceptance=math.sqrt(math.pi / 2) / (_SLOTS * slot * float(z[1])),
    )


def rounded_gaussian(
    scale: int, size: int, bits: BitSource, *, _guard: float = GUARD
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Gaussian noise ``N(0, s**2)``, exactly.

    :math:`P(K = k) = \Phi((k + 1/2)/s) - \Phi((k - 1/2)/s)`.  Bits of the place and of
    the coin beyond the first ones are drawn when the comparison needs them.

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
    unit = _PLACE_BITS - strips.shift

    def propose(count: int) -> NDArray[np.int64]:
        words, coins = bits.uint64(count), bits.uint16(count)
        slots = (words >> np.uint64(_PLACE_BITS)).view(np.int64)
        places = strips.starts.take(slots)
        places += (words & _PLACE).view(np.int64)
        kept = coins < strips.sure.take(slots)
        rest = np.flatnonzero(~kept)
        if rest.size:
            places[rest], heights = _in_strips(slots[rest], places[rest], strips, bits)
            kept[rest] = _kept(coins[rest], places[rest], heights, strips, bits, _guard)
        places += 1 << (unit - 1)  # the nearest integer: no bit not yet drawn turns it
        places >>= unit
        return places[kept]

    return collected(size, strips.acceptance, propose)


def _in_strips(
    slots: NDArray[np.int64],
    places: NDArray[np.int64],
    strips: Strips,
    bits: BitSource,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the places, moved on where the slot is in the tail, and the heights."""
    heights = strips.heights.take(slots)
    for i in np.flatnonzero(slots % _SLOTS >= strips.tail):
        halvings, part = in_tail(bits)
        strip = (_TAIL_STRIPS * halvings + part) << _PLACE_BITS
        places[i] += strip if slots[i] < _SLOTS else -strip
        heights[i] *= 2.0**-halvings
    return places, heights


def in_tail(bits: BitSource) -> tuple[int, int]:
    """Return ``v`` with chance ``2**-(v+1)``, and one of eight strips."""
    word = int(bits.uint64(1)[0])
    part, coins, halvings = word & 7, word >> 3, 0
    length = WORD - 3
    while coins == 0:
        halvings += length
        coins, length = int(bits.uint64(1)[0]), WORD
    return halvings + (coins & -coins).bit_length() - 1, part


def _kept(
    first: NDArray[np.uint16],
    places: NDArray[np.int64],
    heights: NDArray[np.float64],
    strips: Strips,
    bits: BitSource,
    guard: float,
) -> NDArray[np.bool_]:
    """Throw the coins of which the first bits are known."""
    coins = bits.uint64(first.size) >> np.uint64(_COIN_BITS)
    coins |= first.astype(np.uint64) << np.uint64(WORD - _COIN_BITS)
    return coins_below_exp(
        coins,
        float_exponent(places, strips),
        lambda i: exact_exponent(int(places[i]), strips, bits),
        bits,
        guard,
        heights,
    )


def float_exponent(places: NDArray[np.int64], strips: Strips) -> NDArray[np.float64]:
    """Return ``z**2/2`` in float64 with ``z = y/s``."""
    # With e = 2**-53: conversion, factor and product are rounded once each, and bits
    # not drawn are 2**-50 of a strip, which is at most one s wide. So |dz| is at most
    # 2**-50 + 3 e |z|, and |dx| at most 2**-50 |z| + 5 e z**2. As exp(-z**2/2) |z| is
    # below 0.61 and exp(-z**2/2) z**2 below 0.74, the chance times |dx| is below 2**-46
    # by far, as GUARD wants.
    z = places.astype(np.float64)
    z *= strips.width * 2.0**-_PLACE_BITS
    z *= z
    z *= 0.5
    return z


def exact_exponent(place: int, strips: Strips, bits: BitSource) -> Exponent:
    """Return bounds of the same; the place is drawn as finely as it is asked for."""
    rest = LazyUniform(bits.uint64(1)[0], bits)
    unit = Fraction(1 << strips.shift, strips.scale << _PLACE_BITS)

    def bounds(length: int) -> Bounds:
        while rest.length < length:
            rest.refine()
        # No place spans zero, so the square is largest at one of its ends.
        low, high = sorted(((place + end) * unit) ** 2 / 2 for end in rest.bounds())
        return low, high

    return bounds
