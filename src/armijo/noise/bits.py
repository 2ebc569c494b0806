# SPDX-License-Identifier: Apache-2.0
"""Where bits come from: the operating system, unless a seed is asked for by name."""

import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import (
    Cipher,
    CipherContext,
    algorithms,
    modes,
)
from numpy.typing import NDArray

from armijo import _validate

Seed = int | np.random.Generator | np.random.RandomState | None
"""What a run may be seeded by; None is the operating system's generator."""

PURPOSES = ("sampling", "gradient", "search", "initial", "perturbation")


class BitSource(Protocol):
    """Independent fair bits, in words."""

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` words of 64 bits."""
        ...

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """Return ``n`` words of 16 bits."""
        ...

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write words of 64 bits into an array."""
        ...


_EXPAND_FROM = 4096  # bytes: below that the system's generator is as fast
# Kept, since new zeros of that size cost several times what their encryption does.
_ZEROS = memoryview(bytes(1 << 19))


_PHILOX_WORDS = {"counter": 4, "key": 2, "buffer": 4}  # of 64 bits


class SystemBits:
    """Bits of the operating system's cryptographic generator.

    Many bits at once are the AES-256 counter stream of a key that the system draws for
    this one call.  Nothing is buffered, so forked processes never share a word.
    """

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` words of 64 bits."""
        return np.frombuffer(_system_bytes(8 * n), dtype=np.uint64)

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """Return ``n`` words of 16 bits."""
        return np.frombuffer(_system_bytes(2 * n), dtype=np.uint16)

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write words of 64 bits into an array."""
        words[:] = self.uint64(words.size)


def _system_bytes(n: int) -> bytes:
    """Return ``n`` bytes nobody can predict."""
    if n < _EXPAND_FROM:
        return os.urandom(n)
    return stream_bytes(counter_stream(os.urandom(32)), n)


def counter_stream(key: bytes) -> CipherContext:
    """Return the AES-256 counter stream of a key that is used for nothing else."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def stream_bytes(stream: CipherContext, n: int) -> bytes:
    """Return the next ``n`` bytes of a stream: what it makes of zeros."""
    return stream.update(_ZEROS[:n] if n <= len(_ZEROS) else bytes(n))


def fill_bytes(stream: CipherContext, words: NDArray[np.uint64]) -> None:
    """Write the next bytes of a stream where they are wanted, without new memory."""
    place = words.data.cast("B")
    for start in range(0, len(place), len(_ZEROS)):
        part = place[start : start + len(_ZEROS)]
        stream.update_into(_ZEROS[: len(part)], part)


class SeededBits:
    """Bits that anyone with the seed can repeat: for tests and reproduction only.

    Parameters
    ----------
    seed
        A non-negative integer, or a NumPy seed sequence.

    Examples
    --------
    >>> first, second = SeededBits(3), SeededBits(3)
    >>> bool((first.uint64(4) == second.uint64(4)).all())
    True
    """

    def __init__(self, seed: int | np.random.SeedSequence) -> None:
        if not isinstance(seed, np.random.SeedSequence):
            _validate.at_least(0, seed=seed)
        self._generator = np.random.Generator(np.random.Philox(seed))

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` words of 64 bits."""
        words: NDArray[np.uint64] = self._generator.bit_generator.random_raw(n)
        return words

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """Return ``n`` words of 16 bits; whole 64-bit words are used up."""
        words = self.uint64(-(-n // 4)).astype("<u8").view("<u2")
        return words[:n].astype(np.uint16)

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Write words of 64 bits into an array."""
        words[:] = self.uint64(words.size)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, as plain numbers and lists."""
        state: Any = self._generator.bit_generator.state
        return {
            "counter": [int(word) for word in state["state"]["counter"]],
            "key": [int(word) for word in state["state"]["key"]],
            "buffer": [int(word) for word in state["buffer"]],
            "buffer_pos": int(state["buffer_pos"]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        try:
            words = {
                name: np.array(state[name], dtype=np.uint64).reshape(size)
                for name, size in _PHILOX_WORDS.items()
            }
            position = range(_PHILOX_WORDS["buffer"] + 1).index(state["buffer_pos"])
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"Expected the state of a stream, got {state!r:.200}; give an unchanged"
                " state_dict()."
            ) from error
        self._generator.bit_generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": words["counter"], "key": words["key"]},
            "buffer": words["buffer"],
            "buffer_pos": position,
            "has_uint32": 0,
            "uinteger": 0,
        }


class Randomness:
    """One stream of bits for each purpose.

    Parameters
    ----------
    seed
        A non-negative integer; streams are then derived from ``(seed, purpose)``, so
        that drawing more from one leaves the others where they are.
    insecure_deterministic
        Must be True with a seed and only then: whoever knows the seed can subtract
        the noise, so a run with it carries no privacy guarantee.

    Examples
    --------
    >>> Randomness().deterministic
    False
    >>> coins = Randomness(seed=1, insecure_deterministic=True).stream("sampling")
    >>> coins.uint16(2).size
    2
    """

    def __init__(
        self, *, seed: int | None = None, insecure_deterministic: bool = False
    ) -> None:
        self._seed = _checked_seed(seed, insecure_deterministic)
        self._system = SystemBits()
        self._seeded: dict[str, SeededBits] = {}
        if self._seed is not None:
            self._seeded = {name: _derive(self._seed, name) for name in PURPOSES}

    @property
    def deterministic(self) -> bool:
        """Whether a seed fixes every draw (then no guarantee holds)."""
        return self._seed is not None

    def of_charge(self, index: int) -> "Randomness":
        """Return the streams for a charge: these, unless a run key derives others."""
        return self

    def stream(self, purpose: str) -> BitSource:
        """Return the stream of one purpose, the same object each time."""
        _validate.choice(PURPOSES, purpose=purpose)
        return self._seeded[purpose] if self.deterministic else self._system

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, ready for JSON."""
        if not self.deterministic:
            return {"deterministic": False}
        streams = {name: bits.state_dict() for name, bits in self._seeded.items()}
        return {"deterministic": True, "seed": self._seed, "streams": streams}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, also in streams handed out before."""
        saved = (state.get("deterministic"), state.get("seed"))
        own = (self.deterministic, self._seed)
        if saved != own:
            raise ValueError(
                f"Expected a state with (deterministic, seed) = {own}, got {saved}; "
                "make the Randomness with the arguments of the run to be resumed."
            )
        streams: Any = state.get("streams")
        names = set(streams) if isinstance(streams, Mapping) else None
        if self.deterministic and names != set(PURPOSES):
            raise ValueError(
                f"Expected a state with the streams {', '.join(PURPOSES)}, got "
                f"{streams!r:.200}; give an unchanged state_dict()."
            )
        for name, bits in self._seeded.items():
            bits.load_state_dict(streams[name])


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


def _checked_seed(seed: int | None, insecure_deterministic: bool) -> int | None:
    """Return the seed, refusing one that was not asked for by both arguments."""
    if seed is None:
        if insecure_deterministic:
            raise ValueError(
                "Expected a seed with insecure_deterministic=True, got None; give "
                "seed=..., or leave both out for the system's generator."
            )
        return None
    _validate.at_least(0, seed=seed)
    if insecure_deterministic is not True:
        raise ValueError(
            f"Expected insecure_deterministic=True with a seed, got seed={seed!r} "
            "alone; noise that a seed repeats can be subtracted again and protects "
            "nobody. Leave the seed out, or say insecure_deterministic=True."
        )
    return int(seed)


def _derive(seed: int, purpose: str) -> SeededBits:
    """Return the stream of ``(seed, purpose)``; the name itself is the spawn key."""
    key = tuple(purpose.encode())
    return SeededBits(np.random.SeedSequence(seed, spawn_key=key))
