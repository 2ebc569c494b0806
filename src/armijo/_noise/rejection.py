# SPDX-License-Identifier: Apache-2.0
"""Exact draws by rejection: rounded Laplace noise, random choices, Poisson batches.

Under all of them stands one Bernoulli draw: whether a uniform ``U``, drawn bit by bit,
is below ``exp(-x)``.  Karney (2016), "Sampling exactly from the normal distribution": a
uniform real number is an endless string of bits, of which only those that decide the
comparison need to be drawn. Here the first 64 bits of many numbers are compared in
float64 at once. A decision counts only when ``|U - p|`` exceeds a guard that is larger
than every float error; the others, one in about ``2**39``, are repeated in exact
arithmetic with more bits of the same ``U``.
"""

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.randomness import BitSource, RowBits

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


def are_below_exp(
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
    probabilities = np.negative(exponents)
    gaps -= np.exp(probabilities, out=probabilities)
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

    The distribution is that of successes of probability ``exp(-1)`` before the first
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


MAX_SCALE = 2**50
"""The largest scale: up to here the first bits of a place decide the integer."""

# Proposals drawn at once: large enough to hide the cost of a call, small enough for
# the temporaries to stay in the cache.
_BLOCK = 1 << 16

# The share of proposals kept at a large scale; it sets the size of a block only.
_LAPLACE_ACCEPTANCE = 1 - math.exp(-1)

_PART = 1 << 18  # rows that are drawn together: 512 KiB of bits


def rounded_laplace(
    scale: int, size: int, bits: BitSource, *, _guard: float = GUARD
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Laplace noise, exactly.

    :math:`P(|K| \ge k) = \exp(-(k - 1/2)/s)` for :math:`k \ge 1`, symmetric. So ``K``
    is 0 with probability ``1 - exp(-1/(2s))``, and else ``|K| - 1`` is geometric with
    ratio ``exp(-1/s)``: ``u + s v`` with ``u`` uniform on ``0 .. s-1`` kept with
    probability ``exp(-u/s)`` and ``P(v >= j) = exp(-j)`` (Canonne, Kamath & Steinke
    2020, the sampler of the discrete Laplace distribution).

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
    >>> from armijo.randomness import SystemBits
    >>> rounded_laplace(1000, 3, SystemBits()).dtype
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
        kept = are_below_exp(
            keeps, u / scale, lambda i: rational(int(u[i]), scale), bits, _guard
        )
        half = np.full(count, 0.5 / scale)
        nonzero = are_below_exp(
            zeros, half, lambda _: rational(1, 2 * scale), bits, _guard
        )
        magnitudes = 1 + u + scale * e_folds(folds, bits, _guard).astype(np.int64)
        signs = 1 - 2 * (signed & 1)  # the lowest bit
        return (magnitudes * signs * nonzero)[kept & usable]

    return collected(size, _LAPLACE_ACCEPTANCE, propose)


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


def exponential_choice(
    gaps: Sequence[int], scale: int, bits: BitSource, *, _guard: float = GUARD
) -> int:
    """Draw ``j`` with probability proportional to ``exp(-gaps[j]/scale)``, exactly.

    The exponential mechanism of McSherry & Talwar (2007) by rejection: an index is
    proposed uniformly and kept with probability ``exp(-(gaps[j] - min(gaps))/scale)``.

    Parameters
    ----------
    gaps
        How far each candidate is from the best, integers of any size, 0 or more.
    scale
        The gap at which the probability falls by a factor e, an integer of any size.
    bits
        Where the bits come from.

    Examples
    --------
    >>> from armijo.randomness import SystemBits
    >>> exponential_choice([10**400, 0, 10**400], 1, SystemBits())
    1
    """
    gaps = _checked_gaps(gaps)
    _validate.at_least(1, scale=scale)
    scale = int(scale)
    best = min(gaps)
    excess = [gap - best for gap in gaps]
    # Integers are divided with one rounding, |dx| <= 2**-53 x and x exp(-x) < 1; what
    # is cut at the largest exponent has a probability far under the guard anyway.
    limit = int(LARGEST_EXPONENT) * scale
    exponents = np.array([min(gap, limit) / scale for gap in excess])

    def propose(count: int) -> NDArray[np.int64]:
        picks, uniforms = bits.uint64(2 * count).reshape(2, count)
        index, usable = uniform_below(picks, len(gaps))
        kept = are_below_exp(
            uniforms,
            exponents[index],
            lambda i: rational(excess[index[i]], scale),
            bits,
            _guard,
        )
        return index[kept & usable]

    # The best candidate is kept for certain: a round fails with probability < e**-2.
    while not (accepted := propose(2 * len(gaps))).size:
        pass
    return int(accepted[0])


def _checked_gaps(gaps: Sequence[int]) -> list[int]:
    if len(gaps) == 0:
        raise ValueError("Expected at least one gap, got none; give one per candidate.")
    for position, gap in enumerate(gaps):
        _validate.at_least(0, **{f"gaps[{position}]": gap})
    return [int(gap) for gap in gaps]


def poisson_sample(n: int, sampling_prob: float, bits: BitSource) -> NDArray[np.int64]:
    """Return which of ``n`` rows enter a batch, each with exactly this probability.

    From the next bits of a stream; see :class:`PoissonRows` for the comparison.

    Parameters
    ----------
    n
        The number of rows.
    sampling_prob
        The probability of one row, in (0, 1]; 1 takes all rows and draws nothing.
    bits
        Where the bits come from.

    Returns
    -------
    The row numbers, rising.

    Examples
    --------
    >>> from armijo.randomness import SystemBits
    >>> poisson_sample(4, 1.0, SystemBits())
    array([0, 1, 2, 3])
    """
    _validate.at_least(0, n=n)
    _validate.sampling_prob(sampling_prob=sampling_prob)
    if sampling_prob == 1:
        return np.arange(n, dtype=np.int64)
    return _below(bits.uint16(n), sampling_prob, lambda ties, _: bits.uint64(ties.size))


class PoissonRows:
    """A batch in which each row is with exactly this probability, by its number.

    A float is a dyadic rational, so ``U < sampling_prob`` is decided by finitely many
    bits: 16 for each row, 64 more for the few rows whose bits equal those of the
    probability so far, until its bits end (``U`` is then not below it).  All of them
    are addressed by the number of the row: which rows of a block are in the batch does
    not depend on other blocks, nor on how often it is asked.

    Parameters
    ----------
    sampling_prob
        The probability of one row, in (0, 1]; 1 takes all rows and draws nothing.
    bits
        The bits of the batch.

    Examples
    --------
    >>> from armijo.randomness import RowBits
    >>> batch = PoissonRows(0.5, RowBits(bytes(32)))
    >>> all_rows, later = batch.chosen(0, 100), batch.chosen(40, 60)
    >>> bool((all_rows[all_rows >= 40] - 40 == later).all())
    True
    """

    def __init__(self, sampling_prob: float, bits: RowBits) -> None:
        _validate.sampling_prob(sampling_prob=sampling_prob)
        self.sampling_prob, self._bits = sampling_prob, bits

    def chosen(self, start: int, n: int) -> NDArray[np.int64]:
        """Return which of ``n`` rows from number ``start`` on are in the batch.

        They are counted from ``start``, rising.
        """
        _validate.at_least(0, start=start, n=n)
        if self.sampling_prob == 1:
            return np.arange(n, dtype=np.int64)
        # In parts that stay in the processor's cache, so that cost grows with n only.
        parts = [
            place + self._drawn(start + place, min(_PART, n - place))
            for place in range(0, n, _PART)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _drawn(self, start: int, n: int) -> NDArray[np.int64]:
        words = self._bits.first(start, n)
        return _below(
            words,
            self.sampling_prob,
            lambda ties, word: self._bits.more(start + ties, word),
        )


def _below(
    words: NDArray[np.uint16],
    sampling_prob: float,
    more: Callable[[NDArray[np.int64], int], NDArray[np.uint64]],
) -> NDArray[np.int64]:
    """Return whose ``U`` is below the probability, from its first 16 bits.

    ``more(places, k)`` draws the k-th further word of those that are still equal.
    """
    numerator, denominator = float(sampling_prob).as_integer_ratio()
    head, rest = divmod(numerator << 16, denominator)
    inside = words < head
    ties, word = np.flatnonzero(words == head), 0
    while ties.size and rest:
        head, rest = divmod(rest << WORD, denominator)
        word += 1
        longer = more(ties, word)
        inside[ties[longer < head]] = True
        ties = ties[longer == head]
    return np.flatnonzero(inside)
