# SPDX-License-Identifier: Apache-2.0
"""Bits that a number repeats."""

from armijo.randomness import KEY_BYTES, KeyedBits


class SeededBits(KeyedBits):
    def __init__(self, seed: int) -> None:
        super().__init__(seed.to_bytes(KEY_BYTES, "little"))
