# SPDX-License-Identifier: Apache-2.0
"""Functions of one number whose result does not depend on where the number stands.

IEEE 754 defines sums, products, quotients, roots and comparisons, so these are the same
in any vector loop; exponentials and logarithms it does not define, and a library may
compute the last numbers of an array by another path than the first (torch's sigmoid and
softplus do, and so do its fused ``add(..., alpha=)`` and ``addcmul``).  All that losses
need is ``exp`` and ``log`` of NumPy, here and nowhere else.

**Assumption**: these two return the same bits for a number at any place of an array
of any length and stride.  It is not proved; :func:`elementwise_self_test` looks for a
case against it.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from torch import Tensor

from armijo.accounting.budget import FloatArray

exp, log = np.exp, np.log

_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 64, 257)
_OFFSETS = (0, 1, 2, 3, 5, 8, 13, 100)


def sigmoid(x: FloatArray) -> FloatArray:
    """Return ``1 / (1 + e^-x)`` to full precision; ``e^-x`` may be infinite."""
    with np.errstate(over="ignore"):
        result = exp(-x)
    result += 1  # in place: new memory costs as much as a pass
    return np.asarray(np.divide(1, result, out=result))


def moved(start: Tensor, along: Tensor, size: float) -> Tensor:
    """Return ``start - size along`` in two operations.

    Torch's ``sub(alpha=)`` rounds once in its vector loop and twice at the loop's end.
    """
    return start - along * size


def softplus(x: FloatArray) -> FloatArray:
    """Return ``log(1 + e^x)``, without overflow or cancellation.

    With u the float nearest to ``1 + e``, ``log(1 + e)`` is ``log(u) + (1 + e - u)/u``
    up to a square of the rounding.
    """
    small = exp(-np.abs(x))
    whole = 1 + small
    small -= whole - 1
    small /= whole
    small += log(whole, out=whole)
    small += np.maximum(x, 0)
    return np.asarray(small)


@cache
def elementwise_self_test() -> str:
    """Compare numbers alone and in arrays, bit for bit; return what was compared.

    Takes some milliseconds, once in a process.

    Raises
    ------
    ArithmeticError
        If a number's result depends on its place: no guarantee of a linear model holds
        on this machine.
    """
    for name, function in (("exp", exp), ("log", log)):
        if not _same_everywhere(function):
            raise ArithmeticError(
                f"NumPy's {name} gives a number different results at different places "
                "of an array on this machine; use another build of NumPy."
            )
    return (
        "element-wise functions exp, log: tested, "
        f"{len(_LENGTHS)} lengths, {len(_OFFSETS)} offsets, with strides"
    )


def _same_everywhere(function: Callable[[FloatArray], FloatArray]) -> bool:
    """Say whether no number's result depends on its place, length or stride."""
    numbers = _numbers()
    with np.errstate(all="ignore"):
        whole = function(numbers)
        spread = np.full((numbers.size, 3), np.nan)
        spread[:, 1] = numbers
        if not _equal(function(spread[:, 1]), whole):
            return False
        for offset in _OFFSETS:
            for length in _LENGTHS:
                part = slice(offset, offset + length)
                view, alone = numbers[part], numbers[part].copy()
                if not _equal(function(view), whole[part]):
                    return False
                if not _equal(function(alone), whole[part]):
                    return False
        return all(
            _equal(function(numbers[k : k + 1].copy()), whole[k : k + 1])
            for k in range(numbers.size)
        )


def _numbers() -> FloatArray:
    """Return numbers of all sizes, the same in every run."""
    place = np.arange(1021)
    fraction = place * 0.6180339887498949 % 1.0
    scale = np.ldexp(1.0, (place * 7) % 83 - 70)
    numbers = (fraction + 0.5) * scale * np.where(place % 2, 1.0, -1.0)
    numbers[5::97], numbers[11::101], numbers[17::103] = np.nan, np.inf, 5e-324
    return np.asarray(numbers)


def _equal(first: FloatArray, second: FloatArray) -> bool:
    return bool(np.array_equal(first.view(np.uint64), second.view(np.uint64)))
