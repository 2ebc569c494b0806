# SPDX-License-Identifier: Apache-2.0
"""Bits of a secret run key: a charge that is redone draws the same ones again.

Each charge of a run has streams of its own, one for each purpose: the AES-256 counter
stream under a key that keyed BLAKE2b derives from (run key, charge, purpose).  Whoever
lacks the run key cannot tell them from the system's bits; whoever has it can repeat
them, so a step that a crash cut off is redone on the same batch with the same noise.
"""

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo.errors import UnchargedAccess
from armijo.noise.bits import (
    PURPOSES,
    BitSource,
    Randomness,
    counter_stream,
    fill_bytes,
    stream_bytes,
)

KEY_BYTES = 32


def fresh_key() -> bytes:
    """Return a key that nobody can predict."""
    return os.urandom(KEY_BYTES)


class KeyedBits:
    """The counter stream of one key, each word of it once.

    >>> first, second = KeyedBits(bytes(32)), KeyedBits(bytes(32))
    >>> bool((first.uint64(4) == second.uint64(4)).all())
    True
    """

    def __init__(self, key: bytes) -> None:
        self._stream = counter_stream(key)

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return the next ``n`` words of 64 bits."""
        return np.frombuffer(stream_bytes(self._stream, 8 * n), dtype=np.uint64)

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write the next words of 64 bits into an array."""
        fill_bytes(self._stream, words)

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """Return the next ``n`` words of 16 bits."""
        return np.frombuffer(stream_bytes(self._stream, 2 * n), dtype=np.uint16)


class KeyedRandomness(Randomness):
    """The streams of a run key, which belong to its charges; it has none itself.

    Examples
    --------
    >>> run = KeyedRandomness(bytes(32))
    >>> words = [run.of_charge(k).stream("gradient").uint64(1)[0] for k in (0, 1, 0)]
    >>> bool(words[0] == words[2]), bool(words[0] == words[1])
    (True, False)
    """

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key = key

    def of_charge(self, index: int) -> Randomness:
        """Return the streams of a charge from their beginning."""
        return _ChargeRandomness(self._key, index)

    def stream(self, purpose: str) -> BitSource:
        """Refuse: bits before a charge would be those of no charge."""
        raise UnchargedAccess(
            f"Asked for bits for {purpose!r} outside a charge; the streams of a run "
            "key belong to its charges. Use of_charge(index)."
        )


class _ChargeRandomness(Randomness):
    """The streams of one charge, also for gates inside it."""

    def __init__(self, key: bytes, index: int) -> None:
        super().__init__()
        self._key, self._index = key, index
        self._streams: dict[str, KeyedBits] = {}

    def stream(self, purpose: str) -> BitSource:
        """Return the stream of one purpose, the same object each time."""
        _validate.choice(PURPOSES, purpose=purpose)
        if purpose not in self._streams:
            words = f"{self._index} {purpose}".encode()
            derived = hashlib.blake2b(
                words, key=self._key, digest_size=KEY_BYTES, person=b"armijo stream"
            )
            self._streams[purpose] = KeyedBits(derived.digest())
        return self._streams[purpose]
