# SPDX-License-Identifier: Apache-2.0
"""Modules without a rule for every layer: single examples, in chunks."""

import pytest
import torch
from torch import nn

from armijo.objectives.ghost import clipped_gradient_sum, engine, losses_at
from armijo.objectives.ghost.params import flat_parameters
from armijo.objectives.ghost.strategy import strategy_for
from tests.objectives.ghost.oracle import (
    assert_sums,
    cross_entropy,
    oracle_sum,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


class First(nn.Module):
    """The first of the outputs of a module, for single tensors."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class Gate(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(torch.tanh(x * self.scale))


class Weighted(nn.Linear):
    """A layer with another forward function."""

    def forward(self, input):
        return 2 * super().forward(input).tanh()


def sequences(make):
    return lambda: nn.Sequential(First(make()), nn.Flatten(), nn.Linear(20, 3))


MODULES = {
    "own parameter": (Gate, (4,)),
    "own forward": (lambda: Weighted(4, 3), (4,)),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), (4,)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Flatten()),
        (2, 3, 3),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 5, dropout=0, batch_first=True),
        (5, 4),
    ),
    "lstm": (sequences(lambda: nn.LSTM(2, 4, batch_first=True)), (5, 2)),
    "gru": (sequences(lambda: nn.GRU(2, 4, batch_first=True)), (5, 2)),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        (4,),
    ),
}


def made(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return make().double(), torch.randn(7, *shape, dtype=torch.float64)


def targets():
    return torch.arange(7) % 3


@pytest.mark.parametrize("clipping", ["norm", "automatic"])
@pytest.mark.parametrize("name", MODULES)
def test_sum_equals_one_example_at_a_time(name, clipping):
    module, x = made(name)
    batch = x, targets()
    found = assert_sums(module, cross_entropy, batch, 0.1, clipping)
    _, losses = oracle_sum(module, cross_entropy, batch, 0.1, clipping)
    assert not strategy_for(module, (x,)).captured
    assert torch.allclose(found.losses, losses, rtol=1e-12)
    again = losses_at(module, cross_entropy, batch, flat_parameters(module))
    assert torch.allclose(again, losses, rtol=1e-12)


@pytest.mark.parametrize("name", ["own parameter", "gru"])
def test_chunks_bound_the_gradients_that_are_held(name, monkeypatch):
    module, x = made(name)
    whole = clipped_gradient_sum(module, cross_entropy, (x, targets()), clip=0.1)
    heights = []
    mapped = engine._mapped

    def watched(single, values, chunk, plan, seed):
        heights.append(len(chunk.targets))
        return mapped(single, values, chunk, plan, seed)

    monkeypatch.setattr(engine, "_mapped", watched)
    monkeypatch.setattr(engine, "_CHUNK_NUMBERS", 3 * whole.total.numel())
    chunked = clipped_gradient_sum(module, cross_entropy, (x, targets()), clip=0.1)
    assert heights == [3, 3, 1]
    assert relative_error(chunked.total, whole.total) < 1e-12
    assert torch.allclose(chunked.losses, whole.losses, rtol=1e-12)


def test_an_example_that_is_not_finite_is_left_out_of_its_chunk():
    module, x = made("own parameter")
    x[2, 0] = torch.nan
    found = clipped_gradient_sum(module, cross_entropy, (x, targets()), clip=0.1)
    kept = torch.tensor([0, 1, 3, 4, 5, 6])
    rest = x[kept], targets()[kept]
    expected = clipped_gradient_sum(module, cross_entropy, rest, clip=0.1)
    assert relative_error(found.total, expected.total) < 1e-12
    assert found.losses.isnan().tolist() == [i == 2 for i in range(7)]


def test_a_module_whose_first_axis_is_not_the_batch():
    """Steps first inside; equal lengths of both axes must not go unnoticed."""

    class StepsFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(x.transpose(0, 1))).mean(0))

    module = StepsFirst().double()
    batch = torch.randn(7, 7, 3, dtype=torch.float64), targets()
    assert_sums(module, cross_entropy, batch, 0.01)
    assert not strategy_for(module, (batch[0],)).captured


def test_a_batch_folded_into_another_axis():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x):
            y = torch.tanh(self.layer(x.reshape(-1, 3)))
            return self.head(y.view(len(x), -1, 4).mean(1))

    module = Folded().double()
    batch = torch.randn(7, 2, 3, dtype=torch.float64), targets()
    assert_sums(module, cross_entropy, batch, 0.01)


def test_an_error_of_the_module_is_shown_as_it_is():
    module, x = made("own parameter")
    with pytest.raises(RuntimeError, match="must match the size"):
        clipped_gradient_sum(module, cross_entropy, (x[:, :3], targets()), clip=0.1)
