# SPDX-License-Identifier: Apache-2.0
"""Exact coins: whether a uniform ``U``, drawn bit by bit, is below ``exp(-x)``.

Karney (2016), "Sampling exactly from the normal distribution": a uniform real number
is an endless string of bits, of which only those that decide the comparison need to
be drawn. Here the first 64 bits of many numbers are compared in float64 at once. A
decision counts only when ``|U - p|`` exceeds a guard that is larger than every float
error; the others, one in about ``2**39``, are repeated in exact arithmetic with more
bits of the same ``U``.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from armijo.randomness import BitSource

WORD = 64

# Float error of h U - p, with e = 2**-53 and a height h <= 2, mostly 1. U: converting
# the prefix costs e, its 64th bit and those not yet drawn 2**-63, the product with h
# 2 e more. p = exp(-x): |dp| <= p |dx| (1 + |dx|) plus the error
# of numpy.exp, taken as at most 16 units in the last place, 2**-49. Callers must keep
# p |dx| <= 2**-46 (they say why). The sum is below 2**-45: 32 times under the guard.
GUARD = 2.0**-40

# Exponents of the fast path are cut here: exp(-700) is far under the guard, and it
# does not underflow.
LARGEST_EXPONENT = 700.0

# How near -log(U) may come to a whole number, in guards. Above the guard U is known to
# 2**-53 + 2**-63/2**-40 relative, so -log(U) to 2**-22: 4 times under 2**-20.
_NEAR = 2.0**20

# Above 4,096 e-folds an int64 may not hold the noise; probability exp(-4096).
_MOST_FOLDS = 4096

Bounds = tuple[Fraction, Fraction]
Exponent = Callable[[int], Bounds]
"""Bounds of ``x``; the argument asks for about that many bits behind the point."""


class LazyUniform:
    """A uniform number in [0, 1) of which the first ``length`` bits are known."""

    def __init__(self, word: int | np.uint64, bits: BitSource) -> None:
        self.prefix = int(word)
        self.length = WORD
        self._bits = bits

    def refine(self) -> None:
        """Draw the next 64 bits."""
        self.prefix = (self.prefix << WORD) | int(self._bits.uint64(1)[0])
        self.length += WORD

    def bounds(self) -> Bounds:
        """Return the ends of the interval in which the number lies."""
        unit = 1 << self.length
        return Fraction(self.prefix, unit), Fraction(self.prefix + 1, unit)


def exp_bounds(low: Fraction, high: Fraction, digits: int) -> Bounds:
    """Enclose ``exp(-x)`` for ``low <= x <= high``; exact where the exponent is 0."""
    largest, smallest = Fraction(1), Fraction(1)
    if low:
        context = _context(digits, ROUND_FLOOR)
        x = context.divide(Decimal(low.numerator), Decimal(low.denominator))
        # Decimal's exp is correctly rounded, so the next numbers enclose it.
        largest = Fraction(context.next_plus(context.exp(x.copy_negate())))
    if high:
        context = _context(digits, ROUND_CEILING)
        x = context.divide(Decimal(high.numerator), Decimal(high.denominator))
        smallest = Fraction(context.next_minus(context.exp(x.copy_negate())))
    return smallest, largest


def _context(digits: int, rounding: str) -> Context:
    """Return a decimal context of its own, whatever the program has set."""
    return Context(prec=digits, rounding=rounding, Emin=-99999, Emax=99999, traps=[])


def is_below_exp(
    uniform: LazyUniform, exponent: Exponent, height: Fraction | int = 1
) -> bool:
    """Decide ``height * uniform < exp(-x)`` rigorously, with as many bits as it takes.

    Heights are positive, and at most 2.
    """
    while True:
        low, high = exponent(uniform.length)
        if low < uniform.length:
            digits = uniform.length // 3 + 10
            smallest, largest = exp_bounds(low, high, digits)
            start, end = (height * end for end in uniform.bounds())
            if end <= smallest:
                return True
            if start >= largest:
                return False
        elif uniform.prefix and height >= 1:
            # exp(-x) <= exp(-length) < 2**-length <= U, without computing exp(-x).
            return False
        uniform.refine()


def unit_floats(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the numbers in [0, 1] that words begin, from 63 bits of each.

    Signed integers are converted several times as fast as unsigned ones.
    """
    numbers = (words >> 1).view(np.int64).astype(np.float64)
    numbers *= 2.0 ** (1 - WORD)
    return numbers


def coins_below_exp(
    words: NDArray[np.uint64],
    exponents: NDArray[np.float64],
    exact: Callable[[int], Exponent],
    bits: BitSource,
    guard: float,
    heights: NDArray[np.float64] | None = None,
) -> NDArray[np.bool_]:
    """Decide ``h U < exp(-x)`` for arrays; ``exact(i)`` gives the i-th ``x`` exactly.

    Heights are 1 unless given; they are taken as the numbers that the floats are.
    """
    gaps = unit_floats(words)
    if heights is not None:
        gaps *= heights
    chances = np.negative(exponents)
    gaps -= np.exp(chances, out=chances)
    below = gaps < 0
    for i in np.flatnonzero(np.abs(gaps, out=gaps) <= guard):
        height = 1 if heights is None else Fraction(float(heights[i]))
        uniform = LazyUniform(words[i], bits)
        below[i] = is_below_exp(uniform, exact(int(i)), height)
    return below


def e_folds(
    words: NDArray[np.uint64], bits: BitSource, guard: float
) -> NDArray[np.float64]:
    """Return ``v`` with ``P(v >= j) = exp(-j)``: how many ``exp(-j)`` lie above ``U``.

    The law is that of the successes of a coin of chance ``exp(-1)`` before its first
    failure (Canonne, Kamath & Steinke 2020), by inversion of one uniform number.  The
    numbers are whole, in the type that callers go on computing with.
    """
    uniforms = unit_floats(words)
    logs = np.maximum(uniforms, guard)
    np.negative(np.log(logs, out=logs), out=logs)
    gaps = np.rint(logs)
    gaps -= logs
    undecided = np.abs(gaps, out=gaps) <= _NEAR * guard
    undecided |= uniforms <= guard
    folds = np.floor(logs, out=logs)
    for i in np.flatnonzero(undecided):
        folds[i] = _exact_folds(LazyUniform(words[i], bits))
    return folds


def _exact_folds(uniform: LazyUniform) -> int:
    folds = 0
    while folds < _MOST_FOLDS and is_below_exp(uniform, rational(folds + 1)):
        folds += 1
    return folds


def rational(numerator: int, denominator: int = 1) -> Exponent:
    """Return the exponent that is exactly ``numerator / denominator``."""
    x = Fraction(numerator, denominator)
    return lambda _: (x, x)


def uniform_below(
    words: NDArray[np.uint64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return numbers in ``0 .. count-1`` and which of them may be used.

    Words beyond the last whole multiple of ``count`` are to be drawn again: without
    that rejection small numbers would come more often.
    """
    last = (1 << WORD) // count * count - 1
    below = words // np.uint64(count)  # vectorized, several times as fast as "%"
    below *= np.uint64(count)
    np.subtract(words, below, out=below)
    return below.view(np.int64), words <= np.uint64(last)
