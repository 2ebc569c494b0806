# SPDX-License-Identifier: Apache-2.0
"""Bits of a run key: known answers, one stream for each charge and purpose."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from armijo.data.batch import BatchPlan
from armijo.data.private import PrivateDataset
from armijo.errors import UnchargedAccess
from armijo.noise import PURPOSES, KeyedRandomness, Randomness
from armijo.noise.keyed import KEY_BYTES, KeyedBits, fresh_key
from tests.data.gate_doubles import GRADIENT, SpyAccountant, features

KEY = bytes(range(32))


def words(run: Randomness, charge: int, purpose: str, n: int = 8) -> list[int]:
    return run.of_charge(charge).stream(purpose).uint64(n).tolist()


def test_the_stream_is_aes_256_in_counter_mode():
    """AES-256 of the zero block under the zero key (NIST, AESAVS)."""
    first = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    assert KeyedBits(bytes(32)).uint64(2).tobytes() == first
    assert KeyedBits(bytes(32)).uint16(8).tobytes() == first


def test_a_charge_and_a_purpose_have_the_key_that_blake2b_derives():
    derived = hashlib.blake2b(
        b"7 gradient", key=KEY, digest_size=32, person=b"armijo stream"
    ).digest()
    block = Cipher(algorithms.AES(derived), modes.ECB()).encryptor().update(bytes(16))
    expected = np.frombuffer(block, dtype=np.uint64).tolist()
    assert words(KeyedRandomness(KEY), 7, "gradient", 2) == expected


@given(parts=st.lists(st.integers(0, 40), max_size=6))
def test_however_it_is_drawn_the_stream_is_the_same(parts):
    whole = KeyedBits(KEY).uint64(sum(parts)).tolist()
    bits = KeyedBits(KEY)
    assert [word for n in parts for word in bits.uint64(n).tolist()] == whole


def test_no_two_charges_or_purposes_share_a_word():
    run, other = KeyedRandomness(KEY), KeyedRandomness(bytes(32))
    found = [
        word
        for source in (run, other)
        for charge in (0, 1, 10, 11, 110)
        for purpose in PURPOSES
        for word in words(source, charge, purpose)
    ]
    assert len(set(found)) == len(found)


def test_a_charge_is_repeated_from_its_beginning_and_goes_on_within():
    run = KeyedRandomness(KEY)
    once = run.of_charge(3)
    first = once.stream("search").uint64(4).tolist()
    assert once.stream("search") is once.stream("search")
    assert once.stream("search").uint64(4).tolist() != first
    assert words(run, 3, "search", 4) == first


def test_gates_inside_a_charge_go_on_in_its_streams():
    """Their own charges are numbered from zero and must not begin a stream anew."""
    once = KeyedRandomness(KEY).of_charge(3)
    assert once.of_charge(0) is once


def test_there_are_no_bits_outside_a_charge():
    with pytest.raises(UnchargedAccess, match="outside a charge"):
        KeyedRandomness(KEY).stream("gradient")
    with pytest.raises(ValueError, match="Expected purpose to be one of"):
        KeyedRandomness(KEY).of_charge(0).stream("weather")


def test_keys_come_from_the_system():
    assert len(fresh_key()) == KEY_BYTES
    assert fresh_key() != fresh_key()
    run = KeyedRandomness(fresh_key())
    assert not run.deterministic
    assert run.state_dict() == {"deterministic": False}


def test_the_gate_draws_from_the_streams_of_the_charge_that_was_made():
    X = np.ones((50, 2))

    def answers(index: int) -> list[float]:
        account = SpyAccountant([])
        for _ in range(index):
            account.charge(GRADIENT)
        data = PrivateDataset(
            X, n_rows=50, accountant=account, randomness=KeyedRandomness(KEY)
        )
        batch = data.open(BatchPlan(mechanisms=(GRADIENT,), sampling_prob=0.5))
        return batch.noisy_sum(features(), GRADIENT).tolist()

    assert answers(0) == answers(0)
    assert answers(1) == answers(1) != answers(0)
