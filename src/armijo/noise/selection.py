# SPDX-License-Identifier: Apache-2.0
"""Random choices: the exponential mechanism's index, and which rows form a batch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.noise.bits import BitSource
from armijo.noise.lazy import (
    GUARD,
    LARGEST_EXPONENT,
    WORD,
    coins_below_exp,
    rational,
    uniform_below,
)

_PART = 1 << 18  # rows whose coins are thrown together: 512 KiB of bits


def exponential_choice(
    gaps: Sequence[int], scale: int, bits: BitSource, *, _guard: float = GUARD
) -> int:
    """Draw index ``j`` with chance proportional to ``exp(-gaps[j]/scale)``, exactly.

    The exponential mechanism of McSherry & Talwar (2007) by rejection: an index is
    proposed uniformly and kept with chance ``exp(-(gaps[j] - min(gaps))/scale)``.

    Parameters
    ----------
    gaps
        How far each candidate is from the best, integers of any size, 0 or more.
    scale
        The gap at which the chance falls by a factor e, an integer of any size.
    bits
        Where the bits come from.

    Examples
    --------
    >>> from armijo.noise import SeededBits
    >>> exponential_choice([10**400, 0, 10**400], 1, SeededBits(0))
    1
    """
    gaps = _checked_gaps(gaps)
    _validate.at_least(1, scale=scale)
    scale = int(scale)
    best = min(gaps)
    excess = [gap - best for gap in gaps]
    # Integers are divided with one rounding, |dx| <= 2**-53 x and x exp(-x) < 1; what
    # is cut at the largest exponent has a chance far under the guard anyway.
    limit = int(LARGEST_EXPONENT) * scale
    exponents = np.array([min(gap, limit) / scale for gap in excess])

    def propose(count: int) -> NDArray[np.int64]:
        picks, coins = bits.uint64(2 * count).reshape(2, count)
        index, usable = uniform_below(picks, len(gaps))
        kept = coins_below_exp(
            coins,
            exponents[index],
            lambda i: rational(excess[index[i]], scale),
            bits,
            _guard,
        )
        return index[kept & usable]

    # The best candidate is kept for certain, so a round fails with chance below e**-2.
    while not (accepted := propose(2 * len(gaps))).size:
        pass
    return int(accepted[0])


def _checked_gaps(gaps: Sequence[int]) -> list[int]:
    """Return the gaps as Python integers, refusing none, fractions and negatives."""
    if len(gaps) == 0:
        raise ValueError("Expected at least one gap, got none; give one per candidate.")
    for position, gap in enumerate(gaps):
        _validate.at_least(0, **{f"gaps[{position}]": gap})
    return [int(gap) for gap in gaps]


def poisson_coins(n: int, rate: float, bits: BitSource) -> NDArray[np.int64]:
    """Return which of ``n`` rows enter a batch, each with chance exactly ``rate``.

    A float is a dyadic rational, so ``U < rate`` is decided by finitely many bits: 16
    for each row, 64 more for the few rows whose bits equal those of the rate so far,
    until the bits of the rate end (``U`` is then not below it).

    Parameters
    ----------
    n
        The number of rows.
    rate
        The chance of one row, in (0, 1]; 1 takes all rows and draws nothing.
    bits
        Where the bits come from.

    Returns
    -------
    The row numbers, rising.

    Examples
    --------
    >>> from armijo.noise import SeededBits
    >>> poisson_coins(4, 1.0, SeededBits(0))
    array([0, 1, 2, 3])
    """
    _validate.at_least(0, n=n)
    _validate.rate(rate=rate)
    if rate == 1:
        return np.arange(n, dtype=np.int64)
    # In parts that stay in the processor's cache, so that cost grows with n only.
    parts = [
        start + _coins(min(_PART, n - start), rate, bits)
        for start in range(0, n, _PART)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _coins(n: int, rate: float, bits: BitSource) -> NDArray[np.int64]:
    """Throw the coins of one part."""
    numerator, denominator = float(rate).as_integer_ratio()
    head, rest = divmod(numerator << 16, denominator)
    words = bits.uint16(n)
    inside = words < head
    ties = np.flatnonzero(words == head)
    while ties.size and rest:
        head, rest = divmod(rest << WORD, denominator)
        longer = bits.uint64(ties.size)
        inside[ties[longer < head]] = True
        ties = ties[longer == head]
    return np.flatnonzero(inside)
