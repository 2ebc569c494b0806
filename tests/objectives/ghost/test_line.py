# SPDX-License-Identifier: Apache-2.0
"""Losses along a line are those at its points, and first products are formed once."""

import pytest
import torch
from torch import nn

from armijo.objectives.ghost import clipped_gradient_sum, losses_at
from armijo.objectives.ghost.engine import losses_along
from armijo.objectives.ghost.guards import Batch
from armijo.objectives.ghost.params import flat_parameters
from tests.objectives.ghost.oracle import cross_entropy

SIZES = (0.0, 0.3, 5.0)


class Twice(nn.Module):
    """Uses its layer on two halves of the input."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.layer(x[:, :2]) * self.layer(x[:, 2:]))


class Hidden(nn.Module):
    """Feeds a layer with numbers that depend on parameters behind autograd's back."""

    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.back(self.front(x).detach()) + self.front(x)[:, :3]


def frozen_bias():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].bias.requires_grad_(False)
    return module


MODULES = {
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "one layer": lambda: nn.Linear(4, 3),
    "no bias": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3)),
    "in place": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(True), nn.Linear(5, 3)),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), nn.Dropout(0.5)),
    "frozen bias": frozen_bias,
    "twice": Twice,
    "hidden": Hidden,
    "not recorded": lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3)
    ),
}


def made(name, examples=9):
    torch.manual_seed(1)
    module = MODULES[name]().double()
    batch = torch.randn(examples, 4).double(), torch.arange(examples) % 3
    return module, batch, torch.randn_like(flat_parameters(module))


@pytest.mark.parametrize("examples", [0, 1, 9])
@pytest.mark.parametrize("name", MODULES)
def test_losses_along_a_line_are_those_at_its_points(name, examples):
    module, batch, step = made(name, examples)
    w = flat_parameters(module)
    first = clipped_gradient_sum(module, cross_entropy, batch, clip=1.0, seed=4).first
    along = losses_along(module, cross_entropy, Batch(*batch), w, step, first, seed=4)
    for size in SIZES:
        there = losses_at(module, cross_entropy, batch, w - size * step, seed=4)
        torch.testing.assert_close(
            along(size, Batch(*batch), None), there, rtol=1e-10, atol=1e-10
        )
    torch.testing.assert_close(flat_parameters(module), w, rtol=0, atol=0)


def test_the_first_product_is_formed_once(monkeypatch):
    module, batch, step = made("perceptron")
    w = flat_parameters(module)
    first = clipped_gradient_sum(module, cross_entropy, batch, clip=1.0).first
    shapes = []
    linear = nn.functional.linear

    def spy(value, weight, bias=None):
        shapes.append(tuple(weight.shape))
        return linear(value, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", spy)
    along = losses_along(module, cross_entropy, Batch(*batch), w, step, first)
    assert shapes == [(5, 4)]
    for size in SIZES:
        along(size, Batch(*batch), None)
    assert shapes == [(5, 4)] + [(3, 5)] * len(SIZES)


def test_what_is_not_linear_in_the_step_is_not_noted():
    noted = {}
    for name in MODULES:
        module, batch, _ = made(name)
        found = clipped_gradient_sum(module, cross_entropy, batch, clip=1.0)
        noted[name] = len(found.first)
    assert noted["perceptron"] == noted["one layer"] == noted["dropout"] == 1
    assert noted["frozen bias"] == noted["not recorded"] == noted["convolution"] == 0
    assert noted["twice"] == noted["hidden"] == 0


def test_layers_are_themselves_again_after_an_error():
    module, batch, step = made("perceptron")
    w = flat_parameters(module)
    first = clipped_gradient_sum(module, cross_entropy, batch, clip=1.0).first

    def failing(scores, targets):
        raise OSError("no loss today")

    along = losses_along(module, failing, Batch(*batch), w, step, first)
    with pytest.raises(OSError, match="no loss today"):
        along(0.5, Batch(*batch), None)
    assert all("forward" not in layer.__dict__ for layer in module.modules())
