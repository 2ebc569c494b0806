# SPDX-License-Identifier: Apache-2.0
"""Splits for cross-validation that stay the same from release to release."""

import numpy as np
from numpy.typing import NDArray

from armijo import _validate

Fold = tuple[NDArray[np.int64], NDArray[np.int64]]

# Part of the seed: rows generated from the same small seed must not decide the split.
_PURPOSE = 0x666F6C6473


def folds(n: int, k: int = 10, seed: int = 0) -> list[Fold]:
    """Split ``n`` rows at random into ``k`` test sets of nearly equal size.

    The order of the rows is that of one 64-bit number per row drawn from PCG64. NumPy
    promises that the raw stream of a bit generator never changes (NEP 19), which it
    does not for shuffles, and stored results depend on the split.

    Parameters
    ----------
    n : int
        Number of rows.
    k : int, default=10
        Number of folds, from 2 to ``n``.
    seed : int, default=0
        Seed of the split, which is public.

    Returns
    -------
    list of (train, test)
        Sorted row numbers. The first ``n % k`` test sets have one row more than the
        others.

    Examples
    --------
    >>> train, test = folds(5, k=2)[0]
    >>> train, test
    (array([1, 2]), array([0, 3, 4]))
    """
    _validate.at_least(2, n=n, k=k)
    _validate.at_least(0, seed=seed)
    if k > n:
        raise ValueError(f"Expected k <= n = {n}, got {k}; use fewer folds.")
    keys = np.random.PCG64([_PURPOSE, seed]).random_raw(n)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    result = []
    for test in np.array_split(order, k):
        held_out = np.zeros(n, dtype=bool)
        held_out[test] = True
        result.append((np.flatnonzero(~held_out), np.flatnonzero(held_out)))
    return result
