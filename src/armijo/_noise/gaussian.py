# SPDX-License-Identifier: Apache-2.0
r"""Gaussian noise rounded to integers, exactly: rejection from strips over the curve.

Strips of one width ``w`` cover the curve :math:`e^{-y^2/2s^2}` (the strip method,
Devroye 1986, section VIII.2).  Their heights are whole numbers of slots, and all slots
have the same area: a uniform slot is a strip with the probability of its area, a
uniform ``y`` in that strip is kept with probability curve over height, and what is kept
has the density of the curve.  Its nearest integer is the noise.

A proposal is one word of 64 fair bits, each used for one thing:

======  =========================================================================
bits    what they are
======  =========================================================================
14      the slot, the first of them its side of zero
50 - c  the first bits of the place in the strip, at least as many as an integer has
c       the first bits of the uniform, complemented
======  =========================================================================

with ``c`` = 16, fewer beyond scale 2**38.  For most proposals they are enough; one in
25 gets a second word, for the place up to 50 bits and for the uniform up to 64, and
more bits where even these leave the comparison open (:mod:`armijo._noise.rejection`).

A proposal that is refused leaves a hole, which the next accepted one of some proposals
more fills.  All are independent and alike, and which one fills a hole does not depend
on its value, so that every number has the distribution of an accepted proposal.

Beyond four standard deviations the height is halved every eight strips, by fair bits
without end, so the tail has none either.

Many numbers are drawn in blocks, each from the AES-256 counter stream of a key that is
drawn from the caller's bits, in order: so they do not depend on how many threads draw.
Within a block, pieces that fit the processor's cache are handed on at once, with 0
where the word is not enough; these places follow when the block ends, compared all
together, each with the first of its own proposals that is accepted.
"""

import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from armijo._noise.rejection import (
    GUARD,
    WORD,
    Bounds,
    Exponent,
    LazyUniform,
    are_below_exp,
    checked_scale,
)
from armijo.randomness import KEY_BYTES, BitSource, KeyedBits

PIECE = 1 << 15
"""Numbers in a piece; a call for no more of them draws from the given bits itself."""

BLOCK = 1 << 20
"""Numbers in a block."""

_COMPARED = 1 << 13  # at a time: measured, half the time of 2**15

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
    sure: NDArray[np.uint16]  # first bits of a uniform below that need no comparison
    heights: NDArray[np.float64]  # exact
    tail: int  # the first slot of the tail on each side
    acceptance: float  # the share of proposals kept: the curve's area over the slots'
    table: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        """Make the table by which a word becomes its noise.

        Word minus entry is the place, plus one half of an integer for the rounding. The
        entry's last bits are the largest complemented uniform that is not sure: where
        the word's are larger, the difference borrows nothing from the place.
        """
        entries = np.arange(2 * _SLOTS, dtype=np.uint64) << np.uint64(_PLACE_BITS)
        entries -= self.starts.view(np.uint64)
        entries -= np.uint64(self.half)
        entries += np.uint64((1 << self.uniform_bits) - 1) - self.sure
        object.__setattr__(self, "table", entries)

    @property
    def width(self) -> float:
        """The width of a strip in standard deviations."""
        return (1 << self.shift) / self.scale

    @property
    def uniform_bits(self) -> int:
        """How many bits of a word are a uniform's."""
        return _uniform_bits(self.shift)

    @property
    def unit(self) -> int:
        """The bits of a place that are behind the integer; a uniform has fewer."""
        return _PLACE_BITS - self.shift

    @property
    def half(self) -> int:
        """One half of an integer."""
        return 1 << (self.unit - 1)


def _uniform_bits(shift: int) -> int:
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
    sure = np.floor(lowest / heights * (1 - _MARGIN) * 2.0 ** _uniform_bits(shift))
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


UseNoise = Callable[[Any, NDArray[np.int64]], None]
"""Adds noise at some places, a slice or an array of numbers of places.

Whoever adds all that is handed to it has the noise of each place, and whoever writes it
has, too: a place that comes a second time got 0 before.  Blocks may come from several
threads at once, a place only from one.
"""


def rounded_gaussian(
    scale: int,
    size: int,
    bits: BitSource,
    *,
    threads: int = 1,
    _guard: float = GUARD,
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Gaussian noise ``N(0, s**2)``, exactly.

    :math:`P(K = k) = \Phi((k + 1/2)/s) - \Phi((k - 1/2)/s)`.

    Parameters
    ----------
    scale
        The standard deviation ``s`` in lattice units before rounding, an integer from
        0 (no noise) to 2**50.
    size
        How many numbers to draw.
    bits
        Where the bits come from.
    threads
        How many threads draw; the numbers are the same.

    Examples
    --------
    >>> from armijo.randomness import SystemBits
    >>> rounded_gaussian(0, 3, SystemBits())
    array([0, 0, 0])
    """
    scale = checked_scale(scale, size)
    if scale == 0:
        return np.zeros(size, dtype=np.int64)
    if size <= PIECE:
        return _few(strips_for(scale), size, bits, _guard)
    numbers = np.empty(size, dtype=np.int64)
    put = numbers.__setitem__
    add_gaussian(scale, size, bits, put, threads=threads, _guard=_guard)
    return numbers


def add_gaussian(
    scale: int,
    size: int,
    bits: BitSource,
    use: UseNoise,
    *,
    threads: int = 1,
    _guard: float = GUARD,
) -> None:
    """Hand the numbers of :func:`rounded_gaussian` to ``use``, piece by piece.

    A piece stays in the processor's cache for all that is done with it.  The caller
    works as well: where the idle threads of other libraries still hold the processors,
    helpers take fewer blocks.
    """
    scale = checked_scale(scale, size)
    if scale == 0 or size <= PIECE:
        use(slice(0, size), rounded_gaussian(scale, size, bits, _guard=_guard))
        return
    strips = strips_for(scale)
    starts = range(0, size, BLOCK)
    blocks = iter([range(start, min(start + BLOCK, size)) for start in starts])
    turn = Lock()

    def work() -> None:
        try:  # one step: between a look and a pop another thread could take the last
            scratch = _SCRATCH.pop()
        except IndexError:
            scratch = _Scratch()
        while True:
            with turn:
                block = next(blocks, None)
                if block is None:
                    _SCRATCH.append(scratch)
                    return
                key = bits.uint64(KEY_BYTES // 8).astype("<u8").tobytes()
            _draw_block(strips, block, KeyedBits(key), use, _guard, scratch)

    helpers = min(threads, len(starts)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers) as pool:
        waiting = [pool.submit(work) for _ in range(helpers)]
        work()
        for helper in waiting:
            helper.result()


class _Scratch:
    """Memory of one thread for a piece: fresh pages cost more than the draws."""

    def __init__(self, count: int = PIECE) -> None:
        self.words, self.slots, self.entries = np.empty((3, count), dtype=np.uint64)
        self.uniforms, self.sure = np.empty((2, count), dtype=np.uint16)
        self.opened = np.empty(count, dtype=np.bool_)


_SCRATCH: list[_Scratch] = []  # of threads that are done; one takes it whole, or none


def _proposed(
    strips: Strips, count: int, bits: BitSource, scratch: _Scratch
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Return proposals, the places of those to be compared, and their words.

    Proposals lie in the scratch memory, until it is used again.
    """
    words, slots = scratch.words[:count], scratch.slots[:count]
    entries, opened = scratch.entries[:count], scratch.opened[:count]
    bits.fill(words)
    np.right_shift(words, np.uint64(_PLACE_BITS), out=slots)
    # Slots have 14 bits, so that nothing is clipped; it spares a copy of the result.
    strips.table.take(slots.view(np.int64), out=entries, mode="clip")
    uniforms = _last(words, strips, scratch.uniforms[:count])
    sure = _last(entries, strips, scratch.sure[:count])
    np.less_equal(uniforms, sure, out=opened)
    unsure = np.flatnonzero(opened)
    noise = np.subtract(words, entries, out=entries).view(np.int64)
    noise >>= strips.unit
    return noise, unsure, words[unsure]


def _draw_block(
    strips: Strips,
    block: range,
    bits: BitSource,
    use: UseNoise,
    guard: float,
    scratch: _Scratch,
) -> None:
    places, words = [], []
    for start in block[::PIECE]:
        count = min(PIECE, block.stop - start)
        noise, unsure, open_words = _proposed(strips, count, bits, scratch)
        noise[unsure] = 0
        use(slice(start, start + count), noise)
        places.append(unsure + start)
        words.append(open_words)
    late, kept = _compared(np.concatenate(words), strips, bits, guard)
    refused = np.flatnonzero(~kept)
    late[refused] = _few(strips, refused.size, bits, guard, scratch)
    use(np.concatenate(places), late)


def _few(
    strips: Strips,
    size: int,
    bits: BitSource,
    guard: float = GUARD,
    scratch: _Scratch | None = None,
) -> NDArray[np.int64]:
    """Return so many numbers: holes are filled from some proposals more."""
    # So many proposals nearly always leave enough.
    count = int((size + 3 * math.sqrt(size) + 8) / strips.acceptance)
    if scratch is None or count > len(scratch.words):
        scratch = _Scratch(count)
    noise, unsure, words = _proposed(strips, count, bits, scratch)
    if unsure.size:
        noise[unsure], kept = _compared(words, strips, bits, guard)
        _fill(noise, unsure[~kept], strips, size, bits, guard)
    return noise[:size]


def _last(
    words: NDArray[np.uint64], strips: Strips, last: NDArray[np.uint16]
) -> NDArray[np.uint16]:
    """Return the bits of uniforms: the last of each word."""
    first = 0 if sys.byteorder == "little" else 3
    mask = np.uint16((1 << strips.uniform_bits) - 1)
    return np.bitwise_and(words.view(np.uint16)[first::4], mask, out=last)


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
        noise[still] = _few(strips, still.size, bits, guard)


def _compared(
    words: NDArray[np.uint64], strips: Strips, bits: BitSource, guard: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the noise of proposals and which are kept, by all of their bits."""
    more = bits.uint64(words.size)
    slots = (words >> np.uint64(_PLACE_BITS)).view(np.int64)
    tails = _no_tails
    tail = np.flatnonzero(slots & (_SLOTS - 1) >= strips.tail)
    if tail.size:
        tails = _Tails(tail, *in_tail(tail.size, bits))
    if words.size <= _COMPARED:
        return _compared_part(words, more, slots, tails, strips, bits, guard)
    noise = np.empty(words.size, dtype=np.int64)
    kept = np.empty(words.size, dtype=np.bool_)
    # Some at a time: what one operation leaves for the next one stays in the cache.
    for start in range(0, words.size, _COMPARED):
        part = slice(start, start + _COMPARED)
        noise[part], kept[part] = _compared_part(
            words[part],
            more[part],
            slots[part],
            tails.within(start, part.stop),
            strips,
            bits,
            guard,
        )
    return noise, kept


class _Tails(NamedTuple):
    """Which proposals lie in the tail, in order, and where each of them lies there."""

    places: NDArray[np.int64]
    halvings: NDArray[np.int64]
    parts: NDArray[np.int64]

    def within(self, start: int, stop: int) -> "_Tails":
        """Return those of some proposals, counted from the first of these."""
        some = slice(*np.searchsorted(self.places, (start, stop)))
        return _Tails(self.places[some] - start, self.halvings[some], self.parts[some])


_no_tails = _Tails(*np.empty((3, 0), dtype=np.int64))


def _compared_part(
    words: NDArray[np.uint64],
    more: NDArray[np.uint64],
    slots: NDArray[np.int64],
    tails: _Tails,
    strips: Strips,
    bits: BitSource,
    guard: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return noise and decisions of proposals from both of their words."""
    length = np.uint64(strips.uniform_bits)
    uniform = np.uint64((1 << strips.uniform_bits) - 1)
    behind = (words & (_PLACE ^ uniform)) | (more & uniform)
    places = strips.starts.take(slots) + behind.view(np.int64)
    heights = strips.heights.take(slots)
    tail, halvings, parts = tails
    if tail.size:
        # Uniforms that go on for a thousand halvings, where this would not fit, do not
        # occur: their probability is 2**-1000.
        moved = (_TAIL_STRIPS * halvings + parts) << _PLACE_BITS
        places[tail] += np.where(slots[tail] < _SLOTS, moved, -moved)
        heights[tail] = np.ldexp(heights[tail], -halvings)
    kept = are_below_exp(
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
    """Return ``v`` with probability ``2**-(v+1)``, and one of eight strips each."""
    words = bits.uint64(size)
    parts = (words & np.uint64(_TAIL_STRIPS - 1)).view(np.int64)
    uniforms = words >> np.uint64(3)
    lowest = uniforms & (~uniforms + np.uint64(1))
    # A power of two is a float exactly, of which frexp takes the exponent.
    halvings = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    for i in np.flatnonzero(uniforms == 0):
        halvings[i] = WORD - 3 + _zeros(bits)
    return halvings, parts


def _zeros(bits: BitSource) -> int:
    count, word = 0, int(bits.uint64(1)[0])
    while word == 0:
        count, word = count + WORD, int(bits.uint64(1)[0])
    return count + (word & -word).bit_length() - 1


def float_exponent(places: NDArray[np.int64], strips: Strips) -> NDArray[np.float64]:
    """Return ``z**2/2`` in float64 with ``z = y/s``."""
    # With e = 2**-53: conversion, factor and product are rounded once each, and bits
    # not drawn are 2**-50 of a strip, which is at most one s wide. So |dz| is at most
    # 2**-50 + 3 e |z|, and |dx| at most 2**-50 |z| + 5 e z**2. As exp(-z**2/2) |z| is
    # below 0.61 and exp(-z**2/2) z**2 below 0.74, the product with |dx| is below 2**-46
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
