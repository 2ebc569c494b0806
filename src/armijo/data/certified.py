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

PRODUCT_BITS = 22
"""The lattice of large products of two factors: of 7 and of 15 bits."""

EXACT_EXAMPLES = 1 << 12
"""Examples whose integers may be added in float64 before they go to int64."""

EXACT_NOISE = 1 << 46
"""Scales up to which float64 holds the noise: 2**53 is 128 standard deviations."""

SLACK = 5e-4
"""An example's integer vector is at most ``1 + SLACK`` bounds long; noise covers it."""

_PIECES = 16


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
        return 2.0 ** max(0, self.bits - FORMED_BITS)

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


def add_formed(gradients: Tensor, share: Share, out: Tensor) -> None:
    """Add formed gradients, (K, b, n) or (b, n), to integers (K, n) or (n,).

    The examples are the axis before the last, so that gradients may come in K parts.
    Rounded, certified, added: all of it in float64 and, by Lemma 1, exact.
    """
    grain = share.grain
    numbers = gradients.to(torch.float64)
    if numbers is gradients:
        numbers = numbers * (share.scale / grain)[:, None]
    else:
        numbers *= (share.scale / grain)[:, None]
    keep_certified(numbers.round_(), share.most / grain**2)
    # A product with ones: torch takes sums over any but the last axis half as fast.
    parts = numbers.view(-1, *numbers.shape[-2:])
    ones = numbers.new_ones(1, 1, 1).expand(len(parts), 1, numbers.shape[-2])
    out.view(len(parts), 1, -1).baddbmm_(ones, parts, alpha=grain)


def keep_certified(integers: Tensor, most: Tensor) -> None:
    """Shorten, in place, vectors of integers whose squared norm exceeds ``most``.

    Rounded toward zero they can only become shorter; what still does not pass, or is
    no number, becomes zero.  An example that passes is not touched.
    """
    over = ~(exact_squares(integers) <= most)
    if not over.any():
        return
    long = integers[..., over, :].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    factor = (
        (most[over] / exact_squares(long)).sqrt_().mul_(1 - 2.0**-20).clamp_(max=1.0)
    )
    long.mul_(factor.to(long.dtype)[:, None]).trunc_()
    bad = ~(exact_squares(long) <= most[over])
    integers[..., over, :] = long.masked_fill_(bad[:, None], 0.0)


def exact_squares(integers: Tensor, largest: float = math.inf) -> Tensor:
    """Return the squared norm of each example's integers, in float64.

    Exact where it is at most 2**53; where it is more, the float sum is as well.  Of
    integers that are known to be small float32 adds up squares exactly, up to 2**24.
    """
    small = largest**2 * integers.shape[-1] <= 2**24
    squares = squared_norms(integers if small else integers.double()).double()
    return squares if squares.dim() == 1 else squares.sum(0)


def squared_norms(vectors: Tensor) -> Tensor:
    """Return squared norms along the last axis, in the precision of the numbers."""
    if vectors.shape[-1] >= _PIECES and vectors.shape[-1] % _PIECES == 0:
        # torch shares out rows among its threads, and an example may be one long row.
        pieces = vectors.reshape(*vectors.shape[:-1], _PIECES, -1)
        return torch.linalg.vecdot(pieces, pieces).sum(-1)
    return torch.linalg.vecdot(vectors, vectors)
