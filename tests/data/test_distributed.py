# SPDX-License-Identifier: Apache-2.0
"""A run in one process: its own sums, its own noise, its own decisions."""

from typing import Any

import pytest
import torch

from armijo.accounting.accountants import PrivacyFilter
from armijo.data.distributed import (
    SINGLE,
    ProcessGroup,
    TorchProcessGroup,
    number_total,
)
from armijo.data.gate import BatchPlan, PrivateDataset
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
