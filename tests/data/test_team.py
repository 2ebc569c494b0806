# SPDX-License-Identifier: Apache-2.0
"""A run in one process: its own sums, its own noise, its own decisions."""

import numpy as np
import pytest
import torch

from armijo.data.team import Alone, ProcessTeam, number_total, vector_total
from armijo.errors import ArmijoError


def test_alone_leads_and_totals_are_its_own():
    team, vector = Alone(), torch.tensor([1.0, -2.0])
    assert team.leads and team.rank == 0
    assert team.total(vector) is vector
    assert number_total(team, 3) == 3
    integers = np.array([1, 2])
    assert vector_total(team, integers) is integers


def test_alone_makes_and_decides_once():
    team, calls = Alone(), []

    def make():
        calls.append("make")
        return torch.ones(2)

    assert team.from_lead(make, torch.zeros(2)).tolist() == [1.0, 1.0]
    assert team.decided(lambda: calls.append("decide") is None) is True
    assert team.decided(lambda: False) is False
    assert calls == ["make", "decide"]


def test_what_fails_alone_is_raised_as_it_is():
    def fails():
        raise KeyError("own error")

    for ask in (Alone().decided, Alone().attempt):
        with pytest.raises(KeyError, match="own error"):
            ask(fails)
    assert Alone().attempt(lambda: 7) == 7


def test_several_processes_must_be_initialized():
    with pytest.raises(ArmijoError, match=r"torchrun.*init_process_group"):
        ProcessTeam()
