# SPDX-License-Identifier: Apache-2.0
"""Noise: where its bits come from, and one stream for each purpose."""

import ast
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import armijo.noise
from armijo.noise import (
    PURPOSES,
    Randomness,
    SeededBits,
    SystemBits,
    poisson_sample,
    rejection,
)


def seeded(seed: int = 11) -> Randomness:
    return Randomness(seed=seed, insecure_deterministic=True)


def words_of(randomness: Randomness, purpose: str, n: int = 8) -> list[int]:
    return randomness.stream(purpose).uint64(n).tolist()


def test_unseeded_runs_differ_and_read_the_system(monkeypatch):
    first, second = Randomness(), Randomness()
    assert not first.deterministic
    for purpose in PURPOSES:
        assert words_of(first, purpose) != words_of(second, purpose)
        assert isinstance(first.stream(purpose), SystemBits)
    monkeypatch.setattr(os, "urandom", lambda n: bytes([1]) + bytes(n - 1))
    assert words_of(first, "gradient", 2) == [
        int.from_bytes(b"\1" + bytes(7), "little"),
        0,
    ]
    assert first.stream("sampling").uint16(3).tolist() == [1, 0, 0]


def test_seeded_runs_repeat_and_their_streams_are_apart(monkeypatch):
    monkeypatch.delattr(os, "urandom")
    first, second = seeded(), seeded()
    assert first.deterministic
    words_of(first, "sampling", 1_000)
    first.stream("search").uint16(3)
    assert words_of(first, "gradient") == words_of(second, "gradient")
    starts = [tuple(words_of(seeded(), purpose)) for purpose in PURPOSES]
    assert len(set(starts)) == len(PURPOSES)
    assert words_of(seeded(11), "search") != words_of(seeded(12), "search")
    assert first.stream("search") is first.stream("search")
    assert words_of(first, "search") != words_of(first, "search")


def test_short_words_are_all_the_bits_of_long_ones():
    words = SeededBits(3).uint64(2).tolist()
    expected = [(word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
    assert SeededBits(3).uint16(7).tolist() == expected[:7]


@given(st.lists(st.tuples(st.sampled_from(PURPOSES), st.integers(0, 9)), max_size=8))
def test_saved_state_goes_on_identically(uses):
    run = seeded()
    for purpose, n in uses:
        run.stream(purpose).uint64(n)
        run.stream(purpose).uint16(n)
    state = json.loads(json.dumps(run.state_dict()))
    resumed = seeded()
    handed_out = resumed.stream("gradient")
    handed_out.uint64(5)
    resumed.load_state_dict(state)
    assert resumed.stream("gradient") is handed_out
    for purpose in PURPOSES:
        assert words_of(run, purpose) == words_of(resumed, purpose)


def test_states_of_other_runs_are_refused():
    system = Randomness()
    assert system.state_dict() == {"deterministic": False}
    system.load_state_dict({"deterministic": False})
    for run, state in [
        (system, seeded().state_dict()),
        (seeded(), system.state_dict()),
        (seeded(1), seeded(2).state_dict()),
        (seeded(), {**seeded().state_dict(), "streams": {}}),
    ]:
        with pytest.raises(ValueError, match="Expected a state with"):
            run.load_state_dict(state)


def test_a_seed_needs_the_flag_and_the_flag_a_seed():
    with pytest.raises(ValueError, match="insecure_deterministic=True with a seed"):
        Randomness(seed=0)
    with pytest.raises(ValueError, match="Expected a seed with"):
        Randomness(insecure_deterministic=True)
    with pytest.raises(ValueError, match="Expected seed >= 0"):
        Randomness(seed=-1, insecure_deterministic=True)
    with pytest.raises(ValueError, match="Expected purpose to be one of"):
        Randomness().stream("weather")


def test_no_global_generator_is_used_or_seeded():
    names, modules = set(), set()
    for path in Path(armijo.noise.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(
                "random"
            ):
                names.add(node.attr)
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
    # The legacy class is named as the type of a caller's own generator only.
    assert names == {"Generator", "Philox", "SeedSequence", "RandomState"}
    assert "random" not in modules


def test_coins_of_many_rows_are_thrown_in_parts(monkeypatch):
    """Every part has its own bits, and no row is lost or doubled at a seam."""
    monkeypatch.setattr(rejection, "_PART", 7)
    rounds, n, sampling_prob = 4_000, 20, 0.3
    bits, seen = SeededBits(11), np.zeros(n)
    for _ in range(rounds):
        rows = poisson_sample(n, sampling_prob, bits)
        assert rows.tolist() == sorted(set(rows.tolist()))
        seen[rows] += 1
    z = (seen - sampling_prob * rounds) / np.sqrt(
        rounds * sampling_prob * (1 - sampling_prob)
    )
    assert np.abs(z).max() < 5
    assert poisson_sample(20, 1.0, bits).tolist() == list(range(20))
