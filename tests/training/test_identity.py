# SPDX-License-Identifier: Apache-2.0
"""Digests of values: the same for the same bits, different for all others."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from armijo.data.sources import ArrayRows, DatasetRows, TensorRows
from armijo.training import replay as identity
from armijo.training.replay import machine, update_digest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def digest(value: Any) -> str:
    found = hashlib.blake2b()
    update_digest(found, value)
    return found.hexdigest()


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


@given(one=PLAIN, other=PLAIN)
def test_values_are_told_apart_as_their_text_is(one, other):
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (((1,), 2), (1, (2,))),
        (((), ()), ((),)),
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("1", 1),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(2, np.float32), np.zeros(1)),
        (np.zeros(1, np.int64), np.zeros(1)),
        (np.array([0.0]), np.array([-0.0])),
        ((np.ones(1), np.ones(2)), (np.ones(2), np.ones(1))),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (Pair(1, 2), Pair(2, 1)),
        (Pair(1, 2), {"first": 1, "second": 2}),
        (sparse.csr_matrix(np.eye(3)), np.eye(3)),
        (sparse.csr_matrix(np.eye(3)), sparse.csr_matrix(2 * np.eye(3))),
        (sparse.csr_matrix((3, 4)), sparse.csr_matrix((3, 5))),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_different_values_differ(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (np.float64(0.1), 0.1),
        (np.int64(7), 7),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)),
        (
            torch.arange(6.0).reshape(2, 3).T.contiguous(),
            torch.arange(6.0).reshape(2, 3).T,
        ),
    ],
)
def test_what_a_file_does_not_tell_apart_is_the_same(one, other):
    assert digest(one) == digest(other)


@given(
    array=arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.bool_, np.uint8]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    ),
    block=st.integers(1, 100),
)
def test_blocks_do_not_matter(array, block):
    whole, before = digest(array), identity._BLOCK
    identity._BLOCK = block
    try:
        assert digest(array) == whole
    finally:
        identity._BLOCK = before


@given(place=st.integers(0, 79), bit=st.integers(0, 7))
def test_one_bit_of_a_table_is_enough(place, bit):
    table = np.arange(10.0)
    other = table.copy()
    other.view(np.uint8)[place] ^= 1 << bit
    assert digest(other) != digest(table)


def test_a_memmap_is_read_in_blocks_and_is_its_array(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_BLOCK", 1 << 10)
    table = np.random.default_rng(0).normal(size=(1000, 5))
    np.save(tmp_path / "table.npy", table)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert digest(mapped) == digest(table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_tensors_of_any_type(dtype):
    one = torch.arange(6).to(dtype)
    assert digest(one) == digest(one.clone())
    assert digest(one) != digest(one.flip(0))


def test_an_object_without_a_text_of_its_own_is_like_no_other():
    one, other = object(), object()
    assert digest(one) != digest(other)
    assert digest(np.array(["a", None], dtype=object)) == digest(["a", None])


def test_sources_say_what_tells_their_rows_from_others():
    X, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    known = digest(ArrayRows(X, y).parts())
    assert digest(ArrayRows(X.copy(), y.copy()).parts()) == known
    assert digest(ArrayRows(X, y[::-1]).parts()) != known
    assert digest(ArrayRows(X[::-1], y).parts()) != known
    assert digest(ArrayRows(np.asfortranarray(X), y).parts()) != known
    tensors = torch.from_numpy(X), torch.from_numpy(y)
    known = digest(TensorRows(*tensors).parts())
    assert digest(TensorRows(*(one.clone() for one in tensors)).parts()) == known
    assert digest(TensorRows(tensors[0], tensors[1].flip(0)).parts()) != known
    pairs = [(one, 0) for one in tensors[0]]
    assert DatasetRows(pairs, pairs[0]).parts() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr("armijo.__version__", "9"),
        lambda patch: patch.setattr(np, "__version__", "9"),
        lambda patch: patch.setattr(torch, "__version__", "9"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 99),
        lambda patch: patch.setattr("platform.machine", lambda: "abacus"),
        lambda patch: patch.setenv("OMP_NUM_THREADS", "99"),
    ],
)
def test_what_may_change_the_last_bit_changes_the_machine(change, monkeypatch):
    before = machine()
    assert machine() == before
    change(monkeypatch)
    assert machine() != before
