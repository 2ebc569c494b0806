# SPDX-License-Identifier: Apache-2.0
"""Dropout repeats its masks with a seed, in the gradient and in every loss after."""

import threading

import pytest
import torch
from torch import nn

from armijo.objectives.ghost import clipped_gradient_sum, losses_at
from armijo.objectives.ghost.guards import repeated
from armijo.objectives.ghost.params import flat_parameters
from armijo.objectives.ghost.strategy import strategy_for
from tests.objectives.ghost.oracle import (
    LATTICE,
    cross_entropy,
    factor,
    gradient_of,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
EXAMPLES = 70


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(8, 8, batch_first=True)

    def forward(self, x):
        return self.cell(x[:, None])[0][:, 0]


MODULES = {
    "recorded": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)),
    "batched": lambda: nn.Sequential(nn.Linear(4, 8), nn.PReLU(), nn.Dropout(0.5)),
    "looped": lambda: nn.Sequential(nn.Linear(4, 8), Last(), nn.Dropout(0.5)),
}


def made(name):
    torch.manual_seed(0)
    module = nn.Sequential(MODULES[name](), nn.Linear(8, 3)).double()
    x = torch.randn(EXAMPLES, 4, dtype=torch.float64)
    return module, (x, torch.arange(EXAMPLES) % 3)


@pytest.mark.parametrize("name", MODULES)
def test_losses_have_the_masks_of_the_gradient(name):
    module, batch = made(name)
    w = flat_parameters(module)
    found = clipped_gradient_sum(module, cross_entropy, batch, clip=1.0, seed=5)
    again = losses_at(module, cross_entropy, batch, w, seed=5)
    other = losses_at(module, cross_entropy, batch, w, seed=6)
    free = losses_at(module, cross_entropy, batch, w)
    assert torch.allclose(found.losses, again, rtol=1e-12)
    assert not torch.allclose(found.losses, other)
    assert not torch.allclose(found.losses, free)
    assert strategy_for(module, batch[:1]).captured == (name == "recorded")


@pytest.mark.parametrize("name", MODULES)
def test_masks_differ_between_examples_and_move_with_the_parameters_only(name):
    module, (x, y) = made(name)
    same = x[:1].expand(EXAMPLES, -1), y[:1].expand(EXAMPLES)
    w = flat_parameters(module)
    losses = losses_at(module, cross_entropy, same, w, seed=1)
    assert losses.unique().numel() > EXAMPLES // 2
    near = losses_at(module, cross_entropy, same, w * (1 + 1e-9), seed=1)
    assert (near - losses).abs().max() < 1e-6


def test_the_gradient_is_that_of_the_masked_losses():
    module, batch = made("recorded")
    found = clipped_gradient_sum(module, cross_entropy, batch, clip=0.5, seed=3)
    with repeated(3, torch.device("cpu")):
        losses = cross_entropy(module(batch[0]), batch[1])
    gradients = [gradient_of(module, loss) for loss in losses]
    expected = sum(g * factor(g.norm().item(), 0.5, "norm") for g in gradients)
    assert relative_error(found.total, expected) < LATTICE


def test_an_example_left_out_does_not_move_the_masks_of_others():
    module, (x, y) = made("recorded")
    losses = clipped_gradient_sum(module, cross_entropy, (x, y), clip=1.0, seed=2)
    x[3] = torch.nan
    spoiled = clipped_gradient_sum(module, cross_entropy, (x, y), clip=1.0, seed=2)
    kept = torch.arange(EXAMPLES) != 3
    assert torch.allclose(spoiled.losses[kept], losses.losses[kept], rtol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_a_seed_leaves_the_global_generator_alone(name):
    module, batch = made(name)
    clipped_gradient_sum(module, cross_entropy, batch, clip=1.0)  # makes the plan
    state = torch.get_rng_state()
    clipped_gradient_sum(module, cross_entropy, batch, clip=1.0, seed=4)
    losses_at(module, cross_entropy, batch, flat_parameters(module), seed=4)
    assert torch.equal(torch.get_rng_state(), state)


def test_making_a_plan_draws_nothing_from_the_global_generator():
    module, batch = made("recorded")
    state = torch.get_rng_state()
    strategy_for(module, batch[:1])
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_do_not_draw_from_each_others_seeds():
    entered = threading.Event()

    def other():
        with repeated(8, torch.device("cpu")):
            entered.set()
            torch.rand(5)

    with repeated(7, torch.device("cpu")):
        expected = torch.rand(6)
    thread = threading.Thread(target=other)
    with repeated(7, torch.device("cpu")):
        first = torch.rand(3)
        thread.start()
        assert not entered.wait(0.2)
        found = torch.cat((first, torch.rand(3)))
    thread.join()
    assert torch.equal(found, expected) and entered.is_set()
