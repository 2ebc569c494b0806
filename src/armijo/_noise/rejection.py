# SPDX-License-Identifier: Apache-2.0
"""Exact draws by rejection: rounded Laplace noise, random choices, Poisson batches."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo._noise.lazy import (
    GUARD,
    LARGEST_EXPONENT,
    WORD,
    coins_below_exp,
    e_folds,
    rational,
    uniform_below,
)
from armijo.randomness import BitSource

MAX_SCALE = 2**50
"""The largest scale: up to here the first bits of a place decide the integer."""

# Proposals drawn at once: large enough to hide the cost of a call, small enough for
# the temporaries to stay in the cache.
_BLOCK = 1 << 16

# The share of proposals kept at a large scale; it sets the size of a block only.
_LAPLACE_ACCEPTANCE = 1 - math.exp(-1)

_PART = 1 << 18  # rows whose coins are thrown together: 512 KiB of bits


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
        kept = coins_below_exp(
            keeps, u / scale, lambda i: rational(int(u[i]), scale), bits, _guard
        )
        half = np.full(count, 0.5 / scale)
        nonzero = coins_below_exp(
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
    if len(gaps) == 0:
        raise ValueError("Expected at least one gap, got none; give one per candidate.")
    for position, gap in enumerate(gaps):
        _validate.at_least(0, **{f"gaps[{position}]": gap})
    return [int(gap) for gap in gaps]


def poisson_sample(n: int, sampling_prob: float, bits: BitSource) -> NDArray[np.int64]:
    """Return which of ``n`` rows enter a batch, each with exactly this probability.

    A float is a dyadic rational, so ``U < sampling_prob`` is decided by finitely many
    bits: 16 for each row, 64 more for the few rows whose bits equal those of the
    probability so far, until its bits end (``U`` is then not below it).

    Parameters
    ----------
    n
        The number of rows.
    sampling_prob
        The chance of one row, in (0, 1]; 1 takes all rows and draws nothing.
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
    # In parts that stay in the processor's cache, so that cost grows with n only.
    parts = [
        start + _coins(min(_PART, n - start), sampling_prob, bits)
        for start in range(0, n, _PART)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _coins(n: int, sampling_prob: float, bits: BitSource) -> NDArray[np.int64]:
    numerator, denominator = float(sampling_prob).as_integer_ratio()
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
