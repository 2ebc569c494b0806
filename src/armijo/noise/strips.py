# SPDX-License-Identifier: Apache-2.0
r"""Gaussian noise rounded to integers, exactly: rejection from strips over the curve.

Strips of one width ``w`` cover the curve :math:`e^{-y^2/2s^2}` (the strip method,
Devroye 1986, section VIII.2).  Their heights are whole numbers of slots, and all slots
have the same area: a uniform slot is a strip with the chance of its area, a uniform
``y`` in that strip is kept with the chance curve over height, and what is kept has the
density of the curve.  Its nearest integer is the noise.

A proposal is one word of 64 fair bits, each used for one thing:

======  =========================================================================
bits    what they are
======  =========================================================================
14      the slot, the first of them its side of zero
50 - c  the first bits of the place in the strip, at least as many as an integer has
c       the first bits of the coin, complemented
======  =========================================================================

with ``c`` = 16, fewer beyond scale 2**38.  For most proposals they are enough: the
integer is known, and a coin below the lowest point of the curve in its strip need not
be compared with an exponential.  One in 25 is compared.  It gets a second word, for the
place up to 50 bits and for the coin up to 64, and more bits where even these leave the
comparison open (:mod:`armijo.noise.lazy`).

A proposal that is refused leaves a hole, which the next accepted one of some proposals
more fills.  All are independent and alike, and which one fills a hole does not depend
on its value, so that every number has the law of an accepted proposal.

Beyond four standard deviations the height is halved every eight strips, by fair coins
without end, so the tail has none either.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo.noise.lazy import (
    GUARD,
    WORD,
    Bounds,
    Exponent,
    LazyUniform,
    coins_below_exp,
)
from armijo.randomness import BitSource

_SLOT_BITS = 13
_SLOTS = 1 << _SLOT_BITS  # on each side
_PLACE_BITS = WORD - _SLOT_BITS - 1
_PLACE = np.uint64((1 << _PLACE_BITS) - 1)
_MOST_COIN_BITS = 16
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
    table: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        """Make the table by which a word becomes its noise.

        Word minus entry is the place, plus one half of an integer for the rounding. The
        entry's last bits are the largest complemented coin that is not sure: where the
        word's are larger, the difference borrows nothing from the place.
        """
        entries = np.arange(2 * _SLOTS, dtype=np.uint64) << np.uint64(_PLACE_BITS)
        entries -= self.starts.view(np.uint64)
        entries -= np.uint64(self.half)
        entries += np.uint64((1 << self.coin_bits) - 1) - self.sure
        object.__setattr__(self, "table", entries)

    @property
    def width(self) -> float:
        """The width of a strip in standard deviations."""
        return (1 << self.shift) / self.scale

    @property
    def coin_bits(self) -> int:
        """How many bits of a word are a coin's."""
        return _coin_bits(self.shift)

    @property
    def unit(self) -> int:
        """The bits of a place that are behind the integer; a coin has fewer."""
        return _PLACE_BITS - self.shift

    @property
    def half(self) -> int:
        """One half of an integer."""
        return 1 << (self.unit - 1)


def _coin_bits(shift: int) -> int:
    """Return what is left when the nearest integer is known."""
    return min(_MOST_COIN_BITS, _PLACE_BITS - shift - 1)


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
    sure = np.floor(lowest / heights * (1 - _MARGIN) * 2.0 ** _coin_bits(shift))
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


class Scratch:
    """Memory of one thread for blocks of noise: fresh pages cost more than the draws.

    ``words`` are the proposals; the others hold what is computed of each.
    """

    def __init__(self) -> None:
        self._held: tuple[NDArray[Any], ...] = self._new(0)

    def _new(self, count: int) -> tuple[NDArray[Any], ...]:
        """Return words, slots, entries, two arrays of coins, and what stays open."""
        return (
            *np.empty((3, count), dtype=np.uint64),
            *np.empty((2, count), dtype=np.uint16),
            np.empty(count, dtype=np.bool_),
        )

    def arrays(self, count: int) -> tuple[NDArray[Any], ...]:
        """Return the same arrays each time, as long as they are long enough."""
        if count > len(self._held[0]):
            self._held = self._new(count)
        return tuple(array[:count] for array in self._held)


def drawn(
    strips: Strips,
    size: int,
    bits: BitSource,
    guard: float = GUARD,
    scratch: Scratch | None = None,
) -> NDArray[np.int64]:
    """Return so many rounded Gaussian numbers of the scale of the strips.

    They lie in the scratch memory, until it is used again.
    """
    # So many proposals nearly always leave enough.
    count = int((size + 3 * math.sqrt(size) + 8) / strips.acceptance)
    arrays = (scratch or Scratch()).arrays(count)
    words, slots, entries, coins, sure, opened = arrays
    bits.fill(words)
    np.right_shift(words, np.uint64(_PLACE_BITS), out=slots)
    # Slots have 14 bits, so that nothing is clipped; it spares a copy of the result.
    strips.table.take(slots.view(np.int64), out=entries, mode="clip")
    np.less_equal(_last(words, strips, coins), _last(entries, strips, sure), out=opened)
    unsure = np.flatnonzero(opened)
    noise = np.subtract(words, entries, out=entries).view(np.int64)
    noise >>= strips.unit
    if unsure.size:
        noise[unsure], kept = _compared(words[unsure], strips, bits, guard)
        _fill(noise, unsure[~kept], strips, size, bits, guard)
    return noise[:size]


def _last(
    words: NDArray[np.uint64], strips: Strips, last: NDArray[np.uint16]
) -> NDArray[np.uint16]:
    """Return the bits of coins, in front: what is cut off is less than 2**16."""
    np.copyto(last, words, casting="unsafe")
    if strips.coin_bits < _MOST_COIN_BITS:
        last <<= np.uint16(_MOST_COIN_BITS - strips.coin_bits)
    return last


def _fill(
    noise: NDArray[np.int64],
    refused: NDArray[np.int64],
    strips: Strips,
    size: int,
    bits: BitSource,
    guard: float,
) -> None:
    """Fill the holes before ``size`` by what was accepted behind, and draw the rest."""
    holes = refused[refused < size]
    accepted = np.ones(noise.size - size, dtype=np.bool_)
    accepted[refused[holes.size :] - size] = False
    spare = noise[size:][accepted][: holes.size]
    noise[holes[: spare.size]] = spare
    still = holes[spare.size :]
    if still.size:
        noise[still] = drawn(strips, still.size, bits, guard)


def _compared(
    words: NDArray[np.uint64], strips: Strips, bits: BitSource, guard: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the noise of proposals and which are kept, by all bits of their coins."""
    more = bits.uint64(words.size)
    slots = (words >> np.uint64(_PLACE_BITS)).view(np.int64)
    length = np.uint64(strips.coin_bits)
    coin = np.uint64((1 << strips.coin_bits) - 1)
    behind = (words & (_PLACE ^ coin)) | (more & coin)
    places = strips.starts.take(slots) + behind.view(np.int64)
    heights = strips.heights.take(slots)
    tail = np.flatnonzero(slots & (_SLOTS - 1) >= strips.tail)
    if tail.size:
        halvings, parts = in_tail(tail.size, bits)
        # Coins that go on for a thousand halvings, where this would not fit, do not
        # occur: their chance is 2**-1000.
        moved = (_TAIL_STRIPS * halvings + parts) << _PLACE_BITS
        places[tail] += np.where(slots[tail] < _SLOTS, moved, -moved)
        heights[tail] = np.ldexp(heights[tail], -halvings)
    kept = coins_below_exp(
        (~words << (np.uint64(WORD) - length)) | (more >> length),
        float_exponent(places, strips),
        lambda i: exact_exponent(int(places[i]), strips, bits),
        bits,
        guard,
        heights,
    )
    # The nearest integer: no bit not yet drawn turns it.
    return (places + strips.half) >> strips.unit, kept


def in_tail(size: int, bits: BitSource) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return numbers ``v`` with chance ``2**-(v+1)``, and one of eight strips each."""
    words = bits.uint64(size)
    parts = (words & np.uint64(_TAIL_STRIPS - 1)).view(np.int64)
    coins = words >> np.uint64(3)
    lowest = coins & (~coins + np.uint64(1))
    # A power of two is a float exactly, of which frexp takes the exponent.
    halvings = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    for i in np.flatnonzero(coins == 0):
        halvings[i] = WORD - 3 + _zeros(bits)
    return halvings, parts


def _zeros(bits: BitSource) -> int:
    """Return how many coins are 0 before the first 1."""
    count, word = 0, int(bits.uint64(1)[0])
    while word == 0:
        count, word = count + WORD, int(bits.uint64(1)[0])
    return count + (word & -word).bit_length() - 1


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
