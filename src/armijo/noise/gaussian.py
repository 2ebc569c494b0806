# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise for vectors of any length: blocks, each with bits of its own.

A block is the AES-256 counter stream of a key that is drawn from the caller's bits, in
order.  So the numbers do not depend on how many threads draw them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from armijo.noise.lazy import GUARD
from armijo.noise.rejection import checked_scale
from armijo.noise.strips import Scratch, drawn, strips_for
from armijo.randomness import KEY_BYTES, BitSource, KeyedBits

BLOCK = 1 << 17
"""Numbers in a block; a call for no more of them draws from the given bits itself."""

_SCRATCH: list[Scratch] = []  # of threads that are done; one takes it whole, or none

UseNoise = Callable[[slice, NDArray[np.int64]], None]
"""Takes the noise of some places; blocks may come from several threads at once."""


def rounded_gaussian(
    scale: int,
    size: int,
    bits: BitSource,
    *,
    threads: int = 1,
    _guard: float = GUARD,
) -> NDArray[np.int64]:
    r"""Draw the nearest integer of Gaussian noise ``N(0, s**2)``, exactly.

    :math:`P(K = k) = \Phi((k + 1/2)/s) - \Phi((k - 1/2)/s)`, by
    :mod:`armijo.noise.strips`.

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
    if size <= BLOCK:
        return drawn(strips_for(scale), size, bits, _guard)
    found = np.empty(size, dtype=np.int64)

    def put(part: slice, noise: NDArray[np.int64]) -> None:
        found[part] = noise

    each_gaussian(scale, size, bits, put, threads=threads, _guard=_guard)
    return found


def each_gaussian(
    scale: int,
    size: int,
    bits: BitSource,
    use: UseNoise,
    *,
    threads: int = 1,
    _guard: float = GUARD,
) -> None:
    """Hand the numbers of :func:`rounded_gaussian` to ``use``, block by block.

    A block stays in the processor's cache for all that is done with it.  The caller
    works as well: where the idle threads of other libraries still hold the processors,
    helpers take fewer blocks.
    """
    scale = checked_scale(scale, size)
    if scale == 0 or size <= BLOCK:
        use(slice(0, size), rounded_gaussian(scale, size, bits, _guard=_guard))
        return
    strips = strips_for(scale)
    starts = range(0, size, BLOCK)
    parts = iter([slice(start, min(start + BLOCK, size)) for start in starts])
    turn = Lock()

    def work() -> None:
        try:  # one step: between a look and a pop another thread could take the last
            scratch = _SCRATCH.pop()
        except IndexError:
            scratch = Scratch()
        while True:
            with turn:
                part = next(parts, None)
                if part is None:
                    _SCRATCH.append(scratch)
                    return
                key = bits.uint64(KEY_BYTES // 8).astype("<u8").tobytes()
            size = part.stop - part.start
            use(part, drawn(strips, size, KeyedBits(key), _guard, scratch))

    helpers = min(threads, len(starts)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers) as pool:
        waiting = [pool.submit(work) for _ in range(helpers)]
        work()
        for one in waiting:
            one.result()
