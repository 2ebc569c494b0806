# SPDX-License-Identifier: Apache-2.0
"""Which way a module goes, and that a wrong record is found before it is used."""

import pytest
import torch
from torch import nn

from armijo import networks
from armijo.objectives.ghost import clipped_gradient_sum, rules
from armijo.objectives.ghost.plan import plan_for
from armijo.objectives.ghost.uses import Stored
from tests.objectives.ghost.oracle import cross_entropy, oracle_sum, relative_error


@pytest.mark.parametrize("name", ["mlp_1000", "mlp_256", "cnn_small", "cnn_cifar"])
def test_the_paper_networks_are_recorded_exactly(name):
    """Double precision: in single, an activation may flip with the batch size."""
    torch.manual_seed(0)
    model = getattr(networks, name)().double()
    shape = (3, 32, 32) if name == "cnn_cifar" else (1, 28, 28)
    batch = torch.rand(3, *shape, dtype=torch.float64), torch.tensor([1, 4, 9])
    found = clipped_gradient_sum(model, cross_entropy, batch, clip=0.5)
    expected, _ = oracle_sum(model, cross_entropy, batch, 0.5)
    assert plan_for(model, batch[:1]).recorded
    assert relative_error(found.total, expected) < 1e-10


def test_a_rule_that_is_wrong_is_found_by_the_trial(monkeypatch):
    def halved(layer, value, gradient):
        return {"weight": Stored(0.5 * gradient[:, :, None] * value[:, None])}

    monkeypatch.setitem(rules._RULES, nn.Linear, halved)
    model = nn.Linear(4, 3, bias=False).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    found = clipped_gradient_sum(model, cross_entropy, batch, clip=0.1)
    expected, _ = oracle_sum(model, cross_entropy, batch, 0.1)
    plan = plan_for(model, batch[:1])
    assert not plan.recorded and "add up" in plan.reason
    assert relative_error(found.total, expected) < 1e-10


def test_a_rule_can_be_added(monkeypatch):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, input):
            return input * self.weight

    model = nn.Sequential(Scale(), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    assert not plan_for(model, batch[:1]).recorded
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    rules.rule(Scale)(
        lambda layer, value, gradient: {"weight": Stored(gradient * value)}
    )
    model = nn.Sequential(*model)
    found = clipped_gradient_sum(model, cross_entropy, batch, clip=0.1)
    expected, _ = oracle_sum(model, cross_entropy, batch, 0.1)
    assert plan_for(model, batch[:1]).recorded
    assert relative_error(found.total, expected) < 1e-10


def test_the_reason_names_the_layer():
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    reason = plan_for(model, (torch.ones(1, 4),)).reason
    assert reason == "there is no rule for 1, PReLU"
