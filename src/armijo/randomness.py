# SPDX-License-Identifier: Apache-2.0
"""Where bits come from: the operating system, or a key with a stream for each charge.

A run key has one stream for each charge and purpose: the AES-256 counter stream under a
key that keyed BLAKE2b derives from (run key, charge, purpose).  Streams hold no state
between charges, so there is nothing to save: a step that a crash cut off is redone on
the same batch with the same noise.  Whoever lacks the key cannot tell the streams from
the system's bits; whoever has it can repeat them and subtract the noise.  A seed is a
run key that anybody can derive, so a seeded run has no guarantee.

Which rows enter a batch is drawn from :class:`RowBits`, addressed by the number of the
row.  Their key is derived like those of the streams, one way: who has it, such as a
worker that draws for its own rows, has neither the run key nor a bit of any noise.
"""

import hashlib
import os
from abc import ABC, abstractmethod

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from armijo import _validate
from armijo.errors import UnchargedAccess

Seed = int | np.random.Generator | np.random.RandomState | None
"""What a run may be seeded by; None is the operating system's generator."""

PURPOSES = ("gradient", "search", "initial", "perturbation")
"""What streams are for."""

SAMPLING = "sampling"

KEY_BYTES = 32

_EXPAND_FROM = 4096  # bytes: below that the system's generator is as fast
# Kept, since new zeros of that size cost several times what their encryption does.
_ZEROS = memoryview(bytes(1 << 19))


class BitSource(ABC):
    """Independent fair bits, in words."""

    @abstractmethod
    def _bytes(self, n: int) -> bytes:
        """Return ``n`` bytes."""

    @abstractmethod
    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write words of 64 bits into an array, without new memory."""

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` words of 64 bits."""
        return np.frombuffer(self._bytes(8 * n), dtype=np.uint64)

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """Return ``n`` words of 16 bits."""
        return np.frombuffer(self._bytes(2 * n), dtype=np.uint16)


class KeyedBits(BitSource):
    """The AES-256 counter stream of a key that is used for nothing else.

    >>> first, second = KeyedBits(bytes(32)), KeyedBits(bytes(32))
    >>> bool((first.uint64(4) == second.uint64(4)).all())
    True
    """

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def _bytes(self, n: int) -> bytes:
        return self._stream.update(_ZEROS[:n] if n <= len(_ZEROS) else bytes(n))

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write the next words of 64 bits into an array, without new memory."""
        place = words.data.cast("B")
        for start in range(0, len(place), len(_ZEROS)):
            part = place[start : start + len(_ZEROS)]
            self._stream.update_into(_ZEROS[: len(part)], part)


class RowBits:
    """Bits of rows by their numbers, whatever was drawn before.

    The first 16 bits of row ``i`` are bytes ``2 i`` and ``2 i + 1`` of the AES-256
    counter stream of the key; each further word of 64 bits begins the counter block
    with the number of the word, from 1, in its first half and ``i`` in the second.  The
    first bits of 2**67 rows end before those blocks begin, so no bit is used twice.

    >>> bits = RowBits(bytes(32))
    >>> bool(bits.first(5, 3)[1] == bits.first(0, 9)[6])
    True
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def first(self, start: int, n: int) -> NDArray[np.uint16]:
        """Return the first 16 bits of ``n`` rows from number ``start`` on."""
        block, skipped = divmod(start, 8)
        counter = modes.CTR(block.to_bytes(16, "big"))
        size = 2 * (skipped + n)
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        drawn = Cipher(algorithms.AES(self._key), counter).encryptor().update(zeros)
        return np.frombuffer(drawn, dtype=np.uint16)[skipped:]

    def more(self, rows: NDArray[np.int64], word: int) -> NDArray[np.uint64]:
        """Return the further word of this number, from 1, of each of some rows."""
        counters = np.empty((len(rows), 2), dtype=">u8")
        counters[:, 0], counters[:, 1] = word, rows
        cipher = Cipher(algorithms.AES(self._key), modes.ECB()).encryptor()
        drawn = np.frombuffer(cipher.update(counters.tobytes()), dtype=np.uint64)
        return drawn[::2]

    def __repr__(self) -> str:
        """Show nothing of the key."""
        return "RowBits(secret)"


class SystemBits(BitSource):
    """Bits of the operating system's cryptographic generator.

    Many bits at once are the counter stream of a key that the system draws for this one
    call.  Nothing is buffered, so forked processes never share a word.
    """

    def _bytes(self, n: int) -> bytes:
        return os.urandom(n) if n < _EXPAND_FROM else KeyedBits(fresh_key())._bytes(n)

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write words of 64 bits into an array."""
        KeyedBits(fresh_key()).fill(words)


class Randomness:
    """The streams of a run, one for each charge and purpose.

    Parameters
    ----------
    key
        The secret of a run that can be redone, 32 bytes.  None draws every bit from the
        operating system.
    seed
        A non-negative integer, from which the key is derived.
    rank
        The process that draws: ranks with the same seed have keys of their own.
    insecure_deterministic
        Must be True with a seed and only then: whoever knows the seed can subtract
        the noise, so a run with it carries no privacy guarantee.

    Examples
    --------
    >>> Randomness().deterministic
    False
    >>> run = Randomness(seed=1, insecure_deterministic=True)
    >>> words = [run.for_charge(k).stream("gradient").uint64(1)[0] for k in (0, 1, 0)]
    >>> bool(words[0] == words[2]), bool(words[0] == words[1])
    (True, False)
    """

    def __init__(
        self,
        key: bytes | None = None,
        *,
        seed: int | None = None,
        rank: int = 0,
        insecure_deterministic: bool = False,
    ) -> None:
        self.deterministic = _is_seeded(seed, insecure_deterministic)
        """Whether a seed fixes every draw (then no guarantee holds)."""
        if key is not None and (self.deterministic or len(key) != KEY_BYTES):
            raise ValueError(
                f"Expected a key of {KEY_BYTES} bytes and no seed, got {len(key)} bytes"
                f" and seed={seed!r}; give one of the two."
            )
        self._key = _key_of_seed(seed, rank) if seed is not None else key
        self._charge: int | None = None
        self._streams: dict[str, KeyedBits] = {}
        self._batches = 0

    def for_charge(self, index: int) -> "Randomness":
        """Return the streams of a charge from their beginning.

        Gates inside a charge go on in its streams: what they charge is numbered from
        zero again and must not begin a stream anew.
        """
        if self._key is None or self._charge is not None:
            return self
        streams = Randomness(self._key)
        streams.deterministic, streams._charge = self.deterministic, index
        return streams

    def stream(self, purpose: str) -> BitSource:
        """Return the stream of one purpose, the same object each time."""
        _validate.choice(PURPOSES, purpose=purpose)
        if self._key is None:
            return _SYSTEM
        if purpose not in self._streams:
            self._streams[purpose] = KeyedBits(self._derived(self._key, purpose))
        return self._streams[purpose]

    def row_bits(self) -> RowBits:
        """Return the bits that draw a batch, new ones for each batch of a charge.

        A charge has one batch; gates inside it draw several.
        """
        if self._key is None:
            return RowBits(fresh_key())
        number = f" {self._batches}" if self._batches else ""
        bits = RowBits(self._derived(self._key, SAMPLING + number))
        self._batches += 1
        return bits

    def _derived(self, key: bytes, purpose: str) -> bytes:
        """Return the key of a purpose of this charge, from which no other follows."""
        if self._charge is None:
            raise UnchargedAccess(
                f"Asked for bits for {purpose!r} outside a charge; the streams of a "
                "run key belong to its charges. Use for_charge(index)."
            )
        words = f"{self._charge} {purpose}".encode()
        return hashlib.blake2b(
            words, key=key, digest_size=KEY_BYTES, person=b"armijo stream"
        ).digest()


_SYSTEM = SystemBits()


def fresh_key() -> bytes:
    """Return a key that nobody can predict."""
    return os.urandom(KEY_BYTES)


def _key_of_seed(seed: int, rank: int) -> bytes:
    words = f"{int(seed)} {int(rank)}".encode()
    derived = hashlib.blake2b(words, digest_size=KEY_BYTES, person=b"armijo seed")
    return derived.digest()


def as_seed(value: object, *, name: str = "seed") -> int | None:
    """Return the seed of a run, or None for the operating system's generator.

    ``random_state`` of the estimators and ``seed`` of the functions mean the same: an
    integer is the seed itself, and NumPy's generators draw one.  Whoever knows a seed
    can subtract the noise, so a seeded run has no guarantee.

    >>> as_seed(7), as_seed(None)
    (7, None)
    """
    if value is None:
        return None
    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**31 - 1))
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**31 - 1))
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or int(value) < 0:  # type: ignore[call-overload]
        raise ValueError(
            f"Expected {name} to be None, an integer >= 0 or a NumPy generator, got "
            f"{value!r}; leave it out for a run with a guarantee. Nothing was spent."
        )
    return int(value)  # type: ignore[call-overload]


def _is_seeded(seed: int | None, insecure_deterministic: bool) -> bool:
    """Say whether there is a seed; it must be asked for by both arguments."""
    if seed is None:
        if insecure_deterministic:
            raise ValueError(
                "Expected a seed with insecure_deterministic=True, got None; give "
                "seed=..., or leave both out for the system's generator."
            )
        return False
    _validate.at_least(0, seed=seed)
    if insecure_deterministic is not True:
        raise ValueError(
            f"Expected insecure_deterministic=True with a seed, got seed={seed!r} "
            "alone; noise that a seed repeats can be subtracted again and protects "
            "nobody. Leave the seed out, or say insecure_deterministic=True."
        )
    return True
