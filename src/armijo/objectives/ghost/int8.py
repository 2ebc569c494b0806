# SPDX-License-Identifier: Apache-2.0
"""Exact products of integer factors, in int8 where this machine has them right.

``V'U`` for whole numbers is the same however it is computed, so what is used here
changes no bit of a release.  In float64 it is exact by Lemma 1 of
:mod:`armijo.data.certified`.  With ``|V| <= 127`` and ``U = 256 H + L``, both slices
within ``-128 .. 127``, it is ``256 V'H + V'L``: two products of int8 numbers that are
added in int32, each at a quarter of the cost of one in float32.  All of it stays below
``2**31`` for ``ROWS`` examples: ``512 * 127 * 32640 < 2**31``.

``torch._int_mm`` is a private function, and kernels for processors without VNNI add
pairs of products in int16, where they saturate without a word: a hole in the guarantee.
So each shape is tried before its first use, in the layout and on the threads that will
be used, with the largest numbers in all signs, against float64.  The first difference,
or error, sends this process to float64 for good.  Processors without VNNI use float64
from the start: what torch has for them in place of such kernels took 30 times as long.
"""

import torch
from torch import Tensor

LEFT_LIMIT, RIGHT_LIMIT = 127, 127 * 256 + 127
"""The largest entries of V and U."""

ROWS = 512
_BASE = 256
_ROW_STEP = 64  # examples are padded to a multiple: few shapes are to be tried
_COLUMN_STEP = 16  # measured, 800 columns take half the time of 785
_tried: dict[tuple[int, ...], bool] = {}
_has_vnni = getattr(torch.cpu, "_is_vnni_supported", bool)


ASSUMPTION = "int8 products: each shape checked against float64 before its first use"
"""What a guarantee names where a module has large products."""


def product(V: Tensor, U: Tensor) -> Tensor:
    """Return ``V'U`` in float64, exactly, for whole numbers within the limits.

    >>> product(torch.tensor([[3.0], [2.0]]), torch.tensor([[1.0], [-1000.0]]))
    tensor([[-1997.]], dtype=torch.float64)
    """
    total = _part(V[:ROWS], U[:ROWS])
    for start in range(ROWS, len(V), ROWS):
        total += _part(V[start : start + ROWS], U[start : start + ROWS])
    return total


def _part(V: Tensor, U: Tensor) -> Tensor:
    rows, width = _padded(len(V), _ROW_STEP), _padded(U.shape[1], _COLUMN_STEP)
    if V.device.type != "cpu" or not _usable(rows, V.shape[1], width):
        return V.double().t() @ U.double()
    left = torch.empty(rows, V.shape[1], dtype=torch.int8)
    right = torch.empty(2, rows, width, dtype=torch.int8)
    left[len(V) :], right[:, len(V) :], right[:, :, U.shape[1] :] = 0, 0, 0
    left[: len(V)].copy_(V)
    high = (U + _BASE // 2).mul_(1 / _BASE).floor_()
    right[0, : len(U), : U.shape[1]].copy_(high)
    right[1, : len(U), : U.shape[1]].copy_(torch.sub(U, high, alpha=_BASE, out=high))
    return _joined(left, right)[:, : U.shape[1]].double()


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


def _joined(left: Tensor, right: Tensor) -> Tensor:
    """Return ``256 V'H + V'L`` in int32."""
    high, low = (torch._int_mm(left.t(), part) for part in right)
    return low.add_(high, alpha=_BASE)


def _usable(*shape: int) -> bool:
    """Say whether products of this shape are right here; try them the first time."""
    if not _has_vnni() or not all(_tried.values()):
        return False
    key = (*shape, torch.get_num_threads())
    if key not in _tried:
        _tried[key] = _is_exact(*shape)
    return _tried[key]


def _is_exact(rows: int, left: int, right: int) -> bool:
    """Compare products of the largest numbers with float64."""
    even, third = (torch.arange(rows)[:, None] % k == 0 for k in (2, 3))
    mixed = torch.Generator().manual_seed(0)
    none = torch.zeros(rows, 1, dtype=torch.bool)
    pairs = [(none, none), (none, ~none), (~none, ~none), (even, even), (even, third)]
    widths = ((rows, left), (rows, right))
    pairs.append(
        tuple(torch.randint(2, w, generator=mixed).bool() for w in widths)  # type: ignore[arg-type]
    )
    try:
        for one, other in pairs:
            V = torch.full(widths[0], 127).where(~one, -127).to(torch.int8)
            H = torch.full(widths[1], 127).where(~other, -127).to(torch.int8)
            L = torch.full(widths[1], 127).where(~other, -128).to(torch.int8)
            U = H.double().mul_(_BASE).add_(L)
            found = _joined(V, torch.stack([H, L])).double()
            if not torch.equal(found, V.double().t() @ U):
                return False
    except RuntimeError:
        return False
    return True
