# SPDX-License-Identifier: Apache-2.0
"""Where bits come from: known answers, one stream for each charge and purpose."""

import ast
import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

import armijo._noise
from armijo import randomness
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.errors import UnchargedAccess
from armijo.randomness import (
    KEY_BYTES,
    PURPOSES,
    KeyedBits,
    Randomness,
    RowBits,
    SystemBits,
    fresh_key,
)
from tests.data.gate_doubles import GRADIENT, SpyAccountant, features

KEY = bytes(range(32))


def seeded(seed: int = 11, **more: int) -> Randomness:
    return Randomness(seed=seed, insecure_deterministic=True, **more)


def words(run: Randomness, charge: int, purpose: str, n: int = 8) -> list[int]:
    return run.for_charge(charge).stream(purpose).uint64(n).tolist()


def test_unseeded_runs_differ_and_read_the_system(monkeypatch):
    first, second = Randomness(), Randomness()
    assert not first.deterministic
    for purpose in PURPOSES:
        assert words(first, 0, purpose) != words(second, 0, purpose)
        assert isinstance(first.stream(purpose), SystemBits)
    monkeypatch.setattr(os, "urandom", lambda n: bytes([1]) + bytes(n - 1))
    assert words(first, 0, "gradient", 2) == [
        int.from_bytes(b"\1" + bytes(7), "little"),
        0,
    ]
    assert first.stream("search").uint16(3).tolist() == [1, 0, 0]


def test_a_seed_is_a_run_key_without_a_secret(monkeypatch):
    monkeypatch.delattr(os, "urandom")
    key = hashlib.blake2b(b"11 0", digest_size=32, person=b"armijo seed").digest()
    assert words(seeded(11), 3, "search") == words(Randomness(key), 3, "search")
    assert seeded().deterministic
    assert seeded().for_charge(3).deterministic
    assert not Randomness(key).for_charge(3).deterministic


def test_seeds_and_ranks_have_keys_of_their_own():
    runs = [seeded(1), seeded(11), seeded(1, rank=1), seeded(1, rank=10), seeded(110)]
    starts = [tuple(words(run, 0, "search")) for run in runs]
    assert len(set(starts)) == len(runs)


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
    assert words(Randomness(KEY), 7, "gradient", 2) == expected


@given(parts=st.lists(st.integers(0, 40), max_size=6))
def test_however_it_is_drawn_the_stream_is_the_same(parts):
    whole = KeyedBits(KEY).uint64(sum(parts)).tolist()
    bits = KeyedBits(KEY)
    assert [word for n in parts for word in bits.uint64(n).tolist()] == whole


def test_no_two_charges_or_purposes_share_a_word():
    run, other = Randomness(KEY), Randomness(bytes(32))
    found = [
        word
        for source in (run, other)
        for charge in (0, 1, 10, 11, 110)
        for purpose in PURPOSES
        for word in words(source, charge, purpose)
    ]
    assert len(set(found)) == len(found)


def test_a_charge_is_repeated_from_its_beginning_and_goes_on_within():
    run = Randomness(KEY)
    once = run.for_charge(3)
    first = once.stream("search").uint64(4).tolist()
    assert once.stream("search") is once.stream("search")
    assert once.stream("search").uint64(4).tolist() != first
    assert words(run, 3, "search", 4) == first


def test_gates_inside_a_charge_go_on_in_its_streams():
    """Their own charges are numbered from zero and must not begin a stream anew."""
    once = Randomness(KEY).for_charge(3)
    assert once.for_charge(0) is once


def test_the_bits_of_a_row_are_addressed_by_its_number():
    """First words lie in the counter stream, further ones in blocks of their own."""
    bits, stream = RowBits(KEY), KeyedBits(KEY).uint16(100)
    for start in (0, 1, 7, 8, 50):
        assert (bits.first(start, 100 - start) == stream[start:]).all()
    cipher = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    for row, word in ((0, 1), (5, 1), (2**40, 3)):
        block = cipher.update(word.to_bytes(8, "big") + row.to_bytes(8, "big"))
        expected = np.frombuffer(block, dtype=np.uint64)[:1]
        assert (bits.more(np.array([row]), word) == expected).all()
    assert bits.first(3, 0).size == bits.more(np.array([], dtype=int), 1).size == 0
    many = bits.first(1, 300_000)  # more than the zeros that are held
    assert (many[-9:] == bits.first(299_992, 9)).all()


def test_the_key_of_a_batch_is_derived_and_yields_no_noise():
    """Who has it has neither the run key nor a stream, of this or another charge."""
    run = Randomness(KEY).for_charge(7)
    bits = run.row_bits()
    derived = hashlib.blake2b(
        b"7 sampling", key=KEY, digest_size=32, person=b"armijo stream"
    ).digest()
    assert (bits.first(0, 64) == RowBits(derived).first(0, 64)).all()
    state = pickle.dumps(bits)
    assert derived in state and KEY not in state
    own = set(KeyedBits(derived).uint64(4096).tolist())
    used_as_run_key = Randomness(derived)
    for charge in (0, 7):
        for purpose in PURPOSES:
            noise = words(Randomness(KEY), charge, purpose, 64)
            assert not own & set(noise)
            assert words(used_as_run_key, charge, purpose, 64) != noise
    assert derived.hex() not in repr(bits)


def test_each_charge_and_each_batch_inside_it_draws_anew_and_repeats():
    run = Randomness(KEY)
    once = run.for_charge(1)
    found = [
        once.row_bits(),
        once.for_charge(0).row_bits(),
        run.for_charge(2).row_bits(),
    ]
    drawn = [tuple(bits.first(0, 16).tolist()) for bits in found]
    assert len(set(drawn)) == 3
    again = run.for_charge(1)
    assert [tuple(again.row_bits().first(0, 16).tolist()) for _ in range(2)] == drawn[
        :2
    ]
    system = Randomness()
    assert (system.row_bits().first(0, 16) != system.row_bits().first(0, 16)).any()
    with pytest.raises(UnchargedAccess, match="outside a charge"):
        run.row_bits()
    with pytest.raises(ValueError, match="Expected purpose to be one of"):
        once.stream("sampling")  # would begin with the bits of rows


def test_there_are_no_bits_outside_a_charge():
    with pytest.raises(UnchargedAccess, match="outside a charge"):
        Randomness(KEY).stream("gradient")
    with pytest.raises(ValueError, match="Expected purpose to be one of"):
        Randomness(KEY).for_charge(0).stream("weather")


def test_keys_come_from_the_system():
    assert len(fresh_key()) == KEY_BYTES
    assert fresh_key() != fresh_key()
    run = Randomness(fresh_key())
    assert not run.deterministic


def test_a_seed_needs_the_flag_and_the_flag_a_seed():
    with pytest.raises(ValueError, match="insecure_deterministic=True with a seed"):
        Randomness(seed=0)
    with pytest.raises(ValueError, match="Expected a seed with"):
        Randomness(insecure_deterministic=True)
    with pytest.raises(ValueError, match="Expected seed >= 0"):
        Randomness(seed=-1, insecure_deterministic=True)
    with pytest.raises(ValueError, match="Expected purpose to be one of"):
        Randomness().stream("weather")


@pytest.mark.parametrize("more", [{"seed": 1, "insecure_deterministic": True}, {}])
def test_a_key_is_whole_and_comes_without_a_seed(more):
    key = KEY if more else KEY[:16]
    with pytest.raises(ValueError, match="Expected a key of 32 bytes and no seed"):
        Randomness(key, **more)


def test_no_global_generator_is_used_or_seeded():
    names, modules = set(), set()
    folder = Path(armijo._noise.__file__).parent
    for path in (Path(randomness.__file__), *folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(
                "random"
            ):
                names.add(node.attr)
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
    # They are named as the types of a caller's own generator only.
    assert names == {"Generator", "RandomState"}
    assert "random" not in modules


def test_the_gate_draws_from_the_streams_of_the_charge_that_was_made():
    X = np.ones((50, 2))

    def answers(index: int) -> list[float]:
        account = SpyAccountant([])
        for _ in range(index):
            account.charge(GRADIENT)
        data = PrivateDataset(
            X, n_rows=50, accountant=account, randomness=Randomness(KEY)
        )
        batch = data.open(BatchPlan(mechanisms=(GRADIENT,), sampling_prob=0.5))
        return batch.noisy_sum(features(), GRADIENT).tolist()

    assert answers(0) == answers(0)
    assert answers(1) == answers(1) != answers(0)
