# SPDX-License-Identifier: Apache-2.0
"""Integer vectors of examples whose norm is checked on the integers that are added.

A network's clipped sum is taken on the lattice ``bound * 2**-bits``, one public number
for all layers.  What an example adds is a vector of integers, and the bound holds for
these integers, not for the real numbers that they came from: floating-point norms are
estimates that choose a weight, the certificate decides.

Lemma 1.  If all operands are integers and the sum of absolute products is below
``2**53``, every algorithm that only multiplies and adds float64 numbers returns the
exact sum: any order, blocking, number of threads, fused or not.  (Every intermediate
result is an integer that float64 holds.)

The budget of bits:

====================================  ==================================================
integers of one example               norm at most ``2**40 (1 + tau)``, for factors
                                      and products alike
factors of large products             7 and 15 bits, on steps of ``bound * 2**-22``
                                      (:mod:`armijo.objectives.ghost.int8`)
squares of formed gradients           steps of ``bound * 2**-26``: a sum of squares
                                      that passes is at most ``2**52 (1 + 2 tau)``
those of many numbers, in float32     steps of ``bound * 2**-21``: ``FLOAT_ROWS``
                                      examples of them add up below ``2**24``
float64 totals                        ``2**12`` examples of ``2**40 (1 + tau)``
int64 totals, then noise              wrap around beyond ``2**63``: post-processing
====================================  ==================================================
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from armijo._noise import MAX_SCALE

FINEST_BITS = 40
"""The finest lattice of a release: the bound times 2**-40."""

FORMED_BITS = 26
"""The lattice of gradients that are formed: their squares add up exactly."""

LARGE_FORMED, FLOAT_BITS, FLOAT_ROWS = 1 << 15, 21, 7
"""Numbers from which gradients are rounded in float32, their lattice, exact sums."""

PRODUCT_BITS = 22
"""The lattice of large products of two factors: of 7 and of 15 bits."""

EXACT_EXAMPLES = 1 << 12
"""Examples whose integers may be added in float64 before they go to int64."""

EXACT_NOISE = 1 << 46
"""Scales up to which float64 holds the noise: 2**53 is 128 standard deviations."""

SLACK = 5e-4
"""An example's integer vector is at most ``1 + SLACK`` bounds long; noise covers it."""

_SHORTEST = 16
_LONGEST = 4096  # numbers whose squares float32 adds up with an error below 2**-11.9


def release_bits(noise_multiplier: float) -> int:
    """Return the bits of the lattice: the finest for which noise can be drawn.

    >>> release_bits(1.0), release_bits(2.0**26)
    (40, 23)
    """
    bits = FINEST_BITS
    while noise_steps(noise_multiplier, bits) > MAX_SCALE:
        bits -= 1
    return bits


def noise_steps(noise_multiplier: float, bits: int) -> int:
    """Return the scale of noise in lattice steps, for vectors of ``1 + SLACK`` bounds.

    Rounded up: never too little.
    """
    return math.ceil(noise_multiplier * (1 + SLACK) * 2.0**bits)


class Share(NamedTuple):
    """What one parameter may take of every example's clip.

    ``scale`` brings a gradient to lattice steps, clipped; zero leaves an example out.
    ``most`` is the largest squared norm of its integers.
    """

    scale: Tensor
    most: Tensor
    bits: int

    @property
    def grain(self) -> float:
        """The multiple of lattice steps on which gradients are formed."""
        return self.coarse(FORMED_BITS)

    def coarse(self, bits: int) -> float:
        """Return how many steps one of a lattice with fewer bits has, if it has."""
        return 2.0 ** max(0, self.bits - bits)

    def part(self, fraction: Tensor) -> "Share":
        """Return a fraction of the norm, for one of several uses of a parameter."""
        return self._replace(most=self.most * fraction.square())

    def of(self, rows: slice) -> "Share":
        """Return the share of some examples."""
        return Share(self.scale[rows], self.most[rows], self.bits)


def shares(squares: Tensor, weights: Tensor, bound: float, bits: int) -> list[Share]:
    """Return the share of each parameter, (L, B) squared norms, and (B,) weights.

    With ``n_l`` the norms, c the weight and ``c n <= bound`` for ``n^2 = sum n_l^2``,
    a parameter gets ``(1 + tau) (c n_l)^2 + tau bound^2 / L``.  That adds up to
    ``(1 + 2 tau) bound^2`` at most, the square of less than ``(1 + tau) bound``; the
    second term is for the rounding of small gradients.
    """
    steps = 2.0**bits / bound
    scale = weights * steps
    # The root first: squares of floats near either end are none.
    own = (squares.sqrt() * scale).square() * (1 + SLACK)
    # Sums and products above err by some 2**-50, relative.
    most = (own + SLACK / max(len(squares), 1) * 4.0**bits) * (1 - 2.0**-40)
    within = most.sum(0) <= (1 + 2 * SLACK) * 4.0**bits
    return [Share(scale, row.where(within, 0.0), bits) for row in most]


class FormedSum:
    """Adds formed gradients to integers (K, n): rounded, certified, exact by Lemma 1.

    Gradients of many numbers are rounded in float32, which adds up so many examples
    exactly as ``FLOAT_ROWS`` says; all others in float64.  A public shape decides.
    """

    def __init__(self, out: Tensor, dtype: torch.dtype) -> None:
        self.out = out
        self.small = out.numel() < LARGE_FORMED or dtype != torch.float32
        self._sum = None if self.small else torch.zeros_like(out, dtype=dtype)
        self._added, self._grain = 0, 1.0

    def add(self, gradients: Tensor, share: Share, *, overwrite: bool = False) -> None:
        """Add gradients (K, b, n) of b examples."""
        self._grain = share.coarse(FORMED_BITS if self.small else FLOAT_BITS)
        numbers = gradients.double() if self.small else gradients
        scale = (share.scale / self._grain).to(numbers.dtype)[:, None]
        kept = numbers is gradients and not overwrite
        numbers = numbers * scale if kept else numbers.mul_(scale)
        keep_certified(numbers.round_(), share.most / self._grain**2)
        if self._sum is None:
            _add_rows(self.out, numbers, self._grain)
            return
        start, end = 0, numbers.shape[1]
        while start < end:
            stop = min(end, start + FLOAT_ROWS - self._added)
            _add_rows(self._sum, numbers[:, start:stop])
            self._added += stop - start
            if self._added == FLOAT_ROWS:
                self.close()
            start = stop

    def close(self) -> None:
        """Add what is still held in float32."""
        if self._sum is not None and self._added:
            self.out.add_(self._sum.double(), alpha=self._grain)
            self._sum.zero_()
            self._added = 0


def _add_rows(out: Tensor, numbers: Tensor, grain: float = 1.0) -> None:
    """Add (K, b, n) to (K, n)."""
    if numbers.shape[1] == 1 or numbers.dtype == torch.float32:
        # No product: a setting of torch lets those of float32 round to bfloat16.
        for row in numbers.unbind(1):
            out.add_(row, alpha=grain)
        return
    # A product with ones: torch takes sums over any but the last axis half as fast.
    ones = numbers.new_ones(1, 1, 1).expand(len(numbers), 1, numbers.shape[1])
    out.unsqueeze(1).baddbmm_(ones, numbers, alpha=grain)


def keep_certified(integers: Tensor, most: Tensor) -> None:
    """Shorten, in place, vectors of integers whose squared norm exceeds ``most``.

    Rounded toward zero they can only become shorter; what still does not pass, or is
    no number, becomes zero.  An example that passes is not touched.
    """
    over = ~(_bounds(integers) <= most)
    if not over.any():
        return
    # Squares of all rows: above 2**53 sums are rounded, and what one row gets must not
    # depend on how many others are too long.
    finite = integers.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    squares, most = exact_squares(finite)[over], most[over]
    long = finite[..., over, :]
    factor = (most / squares).sqrt_().mul_(1 - 2.0**-20).clamp_(max=1.0)
    factor = factor.where(squares > most, 1.0).to(long.dtype)
    long.mul_(factor[:, None]).trunc_()
    bad = ~(exact_squares(long) <= most)
    integers[..., over, :] = long.masked_fill_(bad[:, None], 0.0)


def _bounds(integers: Tensor) -> Tensor:
    """Return at least the squared norm of each example's integers, in float64.

    A sum of n squares in float32 errs by less than ``(n + 2) 2**-24``, in any order:
    no term is negative.  Twice that, also for the root, is added.
    """
    length = _length(integers.shape[-1])
    if integers.dtype != torch.float32 or length > _LONGEST:
        return exact_squares(integers)
    squares = squared_norms(integers).mul_(1 + (length + 4) * 2.0**-23)
    return squares if squares.dim() == 1 else squares.sum(0)


def exact_squares(integers: Tensor, largest: float = math.inf) -> Tensor:
    """Return the squared norm of each example's integers, in float64.

    Exact where it is at most 2**53; where it is more, the float sum is as well.  Of
    integers that are known to be small float32 adds up squares exactly, up to 2**24.
    """
    small = largest**2 * integers.shape[-1] <= 2**24
    pieces = _pieces(integers if small else integers.double())
    squares = torch.linalg.vecdot(pieces, pieces).double().sum(-1)
    return squares if squares.dim() == 1 else squares.sum(0)


def squared_norms(vectors: Tensor) -> Tensor:
    """Return squared norms along the last axis, estimates in float64."""
    return torch.linalg.vector_norm(_pieces(vectors), dim=-1).double().square_().sum(-1)


def _pieces(vectors: Tensor) -> Tensor:
    """Return vectors (..., n) in pieces of one length, (..., n / k, k)."""
    length = max(_length(vectors.shape[-1]), 1)
    return vectors.reshape(*vectors.shape[:-1], vectors.shape[-1] // length, length)


def _length(size: int) -> int:
    """Return the length of pieces of so many numbers: all of them if few or odd."""
    power = min(size & -size, _LONGEST)
    return size if size <= _LONGEST or power < _SHORTEST else power
