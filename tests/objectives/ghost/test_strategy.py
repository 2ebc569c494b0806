# SPDX-License-Identifier: Apache-2.0
"""Which way a module goes, and that a wrong record is found before it is used."""

import pytest
import torch
from torch import nn

from armijo import networks
from armijo.objectives.ghost import layers
from armijo.objectives.ghost.grads import Materialized
from armijo.objectives.ghost.strategy import strategy_for
from tests.objectives.ghost.oracle import assert_sums, cross_entropy


@pytest.mark.parametrize("name", ["mlp_1000", "mlp_256", "cnn_small", "cnn_cifar"])
def test_the_paper_networks_are_recorded_exactly(name):
    """Double precision: in single, an activation may flip with the batch size."""
    torch.manual_seed(0)
    model = getattr(networks, name)().double()
    shape = (3, 32, 32) if name == "cnn_cifar" else (1, 28, 28)
    batch = torch.rand(3, *shape, dtype=torch.float64), torch.tensor([1, 4, 9])
    assert_sums(model, cross_entropy, batch, 0.5)
    assert strategy_for(model, batch[:1]).captured


def test_a_rule_that_is_wrong_is_found_by_the_trial(monkeypatch):
    def halved(layer, value, gradient):
        return {"weight": Materialized(0.5 * gradient[:, :, None] * value[:, None])}

    monkeypatch.setitem(layers._RULES, nn.Linear, halved)
    model = nn.Linear(4, 3, bias=False).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    assert_sums(model, cross_entropy, batch, 0.1)
    plan = strategy_for(model, batch[:1])
    assert not plan.captured and "not the whole" in plan.reason


def test_a_rule_can_be_added(monkeypatch):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, input):
            return input * self.weight

    model = nn.Sequential(Scale(), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    assert not strategy_for(model, batch[:1]).captured
    monkeypatch.setattr(layers, "_RULES", dict(layers._RULES))
    layers.register_layer(Scale)(
        lambda layer, value, gradient: {"weight": Materialized(gradient * value)}
    )
    model = nn.Sequential(*model)
    assert_sums(model, cross_entropy, batch, 0.1)
    assert strategy_for(model, batch[:1]).captured


def test_the_reason_names_the_layer():
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    reason = strategy_for(model, (torch.ones(1, 4),)).reason
    assert reason == "there is no rule for 1, PReLU"
