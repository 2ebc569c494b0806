# SPDX-License-Identifier: Apache-2.0
"""Flat vectors and the parameters of a module."""

import pytest
import torch
from torch import nn

from armijo.objectives.ghost import (
    clipped_gradient_sum,
    flat_parameters,
    flat_size,
    load_parameters,
    losses_at,
    parameters_at,
)
from armijo.objectives.ghost.params import every_layer


def partly_frozen():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].requires_grad_(False)
    return module


def test_the_order_is_that_of_parameters_without_the_frozen():
    module = partly_frozen()
    expected = [*module[0].parameters(), *module[2].parameters()]
    flat = flat_parameters(module)
    assert flat_size(module) == flat.numel() == 26
    assert torch.equal(flat, torch.cat([p.detach().reshape(-1) for p in expected]))


def test_load_is_the_inverse_and_copies():
    module, other = partly_frozen(), partly_frozen()
    w = flat_parameters(module)
    load_parameters(other, w)
    assert torch.equal(flat_parameters(other), w)
    kept = w.clone()
    w += 1
    assert torch.equal(flat_parameters(other), kept)


def test_parameters_at_computes_elsewhere_and_comes_back():
    module = nn.Linear(2, 1, bias=False)
    before = flat_parameters(module)
    x = torch.tensor([[1.0, 2.0]])
    with parameters_at(module, torch.tensor([3.0, 4.0])):
        assert module(x).item() == 11.0
    assert torch.equal(flat_parameters(module), before)


def test_a_sum_elsewhere_is_that_of_a_module_moved_there():
    module, moved = partly_frozen(), partly_frozen()
    moved.load_state_dict(module.state_dict())
    before = flat_parameters(module)
    w = before + 0.3
    load_parameters(moved, w)
    batch = torch.rand(5, 3), torch.rand(5)

    def loss(scores, y):
        return (scores.sum(1) - y).square()

    found = clipped_gradient_sum(module, loss, batch, clip=0.5, w=w)
    expected = clipped_gradient_sum(moved, loss, batch, clip=0.5)
    assert torch.equal(found.total, expected.total)
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(flat_parameters(module), before)
    at_home = clipped_gradient_sum(module, loss, batch, clip=0.5)
    assert not torch.equal(at_home.total, found.total)


def test_every_layer_comes_once_in_the_order_of_modules():
    shared = nn.Linear(2, 2)
    module = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.Tanh())
    module.register_module("absent", None)
    assert every_layer(module) == list(module.modules())
    assert len(every_layer(module)) == 5


def test_tied_parameters_move_together():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    w = 2 * torch.eye(2).flatten()
    found = losses_at(
        module, lambda s, y: s.sum(1), (torch.ones(1, 2), torch.ones(1)), w
    )
    assert found.tolist() == [8.0]


@pytest.mark.parametrize(
    "w",
    [torch.zeros(5), torch.zeros(1, 6), torch.zeros(6, dtype=torch.float64)],
    ids=["length", "shape", "type"],
)
def test_a_vector_that_does_not_fit(w):
    module = nn.Linear(2, 2)
    batch = torch.ones(1, 2), torch.ones(1)
    with pytest.raises(ValueError, match=r"vector of 6 numbers, torch\.float32"):
        load_parameters(module, w)
    with (
        pytest.raises(ValueError, match="vector of 6 numbers"),
        parameters_at(module, w),
    ):
        pass
    with pytest.raises(ValueError, match="vector of 6 numbers"):
        losses_at(module, lambda s, y: s.sum(1), batch, w)
    for size in (1, 0):  # a batch without examples is no reason to take anything
        few = torch.ones(size, 2), torch.ones(size)
        with pytest.raises(ValueError, match="vector of 6 numbers"):
            clipped_gradient_sum(module, lambda s, y: s.sum(1), few, clip=1.0, w=w)
