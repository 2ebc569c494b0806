# SPDX-License-Identifier: Apache-2.0
"""A run in one process: its own sums, its own noise, its own decisions."""

from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from armijo.accounting.accountants import PrivacyFilter
from armijo.data.distributed import (
    SINGLE,
    ProcessGroup,
    TorchProcessGroup,
    number_total,
)
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.data.shards import SAMPLED, shard_digest
from armijo.data.sources import DatasetRows, TensorRows
from armijo.errors import ArmijoError
from tests.data.gate_doubles import (
    BUDGET,
    CHOICE,
    GRADIENT,
    PERTURBATION,
    SEARCH,
    X3,
    SpyRandomness,
    features,
    level,
    spied,
)


def test_alone_leads_and_totals_are_its_own():
    group, vector = SINGLE, torch.tensor([1.0, -2.0])
    assert group.is_main and group.rank == 0
    assert group.total(vector) is vector
    assert number_total(group, 3) == 3


def test_alone_makes_and_decides_once():
    group, calls = SINGLE, []

    def make():
        calls.append("make")
        return torch.ones(2)

    assert group.broadcast(make, torch.zeros(2)).tolist() == [1.0, 1.0]
    assert group.broadcast_bool(lambda: calls.append("decide") is None) is True
    assert group.broadcast_bool(lambda: False) is False
    assert calls == ["make", "decide"]


def test_what_fails_alone_is_raised_as_it_is():
    def fails():
        raise KeyError("own error")

    for ask in (SINGLE.broadcast_bool, SINGLE.all_or_none):
        with pytest.raises(KeyError, match="own error"):
            ask(fails)
    assert SINGLE.all_or_none(lambda: 7) == 7


def test_several_processes_must_be_initialized():
    with pytest.raises(ArmijoError, match=r"torchrun.*init_process_group"):
        TorchProcessGroup()


class Several(ProcessGroup):
    """Not alone to the gate, though nobody else is there."""

    size = 2


def shared(events: list[str]) -> PrivateDataset:
    return PrivateDataset(
        spied(X3, events),
        n_rows=3,
        accountant=PrivacyFilter(BUDGET),
        randomness=SpyRandomness(events),
        group=Several(),
    )


@pytest.mark.parametrize("part", [CHOICE, PERTURBATION])
def test_what_needs_all_rows_in_one_process_is_refused_before_it_is_paid(part):
    events: list[str] = []
    data = shared(events)
    with pytest.raises(ValueError, match=r"one process.*torchrun.*Nothing was spent"):
        data.open(BatchPlan(mechanisms=(GRADIENT, part), sampling_prob=0.5))
    assert data.accountant.n_charges == 0 and events == []


def test_sums_and_searches_are_for_several_processes():
    data = shared([])
    batch = data.open(BatchPlan(mechanisms=(GRADIENT, SEARCH)))
    assert batch.noisy_sum(features(), GRADIENT).shape == (2,)
    assert batch.first_above([level(1e6)], SEARCH) == 0
    assert data.accountant.n_charges == 1


def test_a_gaussian_that_was_paid_for_a_sum_perturbs_no_output_of_a_shard():
    seen: list[Any] = []
    for ask in ("noisy_output", "release"):
        batch = shared([]).open(BatchPlan(mechanisms=(GRADIENT,)))
        with pytest.raises(ValueError, match=r"one process.*stays charged"):
            getattr(batch, ask)(lambda *given: seen.append(given), GRADIENT)
    assert seen == []


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
