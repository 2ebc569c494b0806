# SPDX-License-Identifier: Apache-2.0
"""Equal shards have equal digests, others do not, whatever holds the rows."""

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from armijo.data.shards import SAMPLED, shard_digest
from armijo.data.sources import DatasetRows, TensorRows

KEY = b"k" * 32
X, Y = torch.randn(200, 3, dtype=torch.bfloat16), torch.arange(200)
ORDER = torch.randperm(200)


def of_tensors(rows, key=KEY):
    return shard_digest(TensorRows(X[rows], Y[rows]), (X[rows], Y[rows]), key)


def of_subset(rows, key=KEY):
    part = Subset(TensorDataset(X, Y), rows.tolist())
    return shard_digest(DatasetRows(part, (X[0], Y[0])), part, key)


@pytest.mark.parametrize("digest", [of_tensors, of_subset])
def test_the_order_does_not_matter_and_every_row_does(digest):
    whole = digest(torch.arange(200))
    assert digest(ORDER) == whole
    assert digest(ORDER[1:]) != whole
    assert digest(torch.cat([ORDER[1:], ORDER[1:2]])) != whole  # as many rows
    assert digest(ORDER, b"another key".ljust(32)) != whole
    assert len(whole) == 16 and any(whole)


def test_a_target_counts_as_its_row_does():
    other = Y.clone()
    other[7] = 0
    assert shard_digest(TensorRows(X, other), (X, other), KEY) != of_tensors(ORDER)


def test_no_rows_are_zeros():
    assert shard_digest(TensorRows(X[:0], Y[:0]), (X[:0], Y[:0]), KEY) == bytes(16)


class Flaky:
    """A dataset one of whose examples cannot be read."""

    def __init__(self, bad: int) -> None:
        self.bad, self.read = bad, 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number):
        self.read += 1
        if number == self.bad:
            raise OSError("corrupt")
        return X[number], Y[number]


def test_an_example_that_cannot_be_read_raises_nothing():
    whole, broken = Flaky(-1), Flaky(0)
    example = X[0], Y[0]
    digests = {
        shard_digest(DatasetRows(one, example), one, KEY) for one in (whole, broken)
    }
    assert len(digests) == 2 and whole.read <= SAMPLED
