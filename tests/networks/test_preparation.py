# SPDX-License-Identifier: Apache-2.0
"""Initialization and standardization, which a caller asks for."""

import math

import pytest
import torch
from torch import nn

from armijo import train
from armijo.networks import Standardize, cnn_small, he_init_
from tests.networks.network_doubles import BUDGET, CROSS_ENTROPY, examples, network


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_weights_have_the_size_of_he_and_biases_are_zero():
    module = he_init_(cnn_small(), generator=seeded())
    for layer in (one for one in module if isinstance(one, nn.Conv2d | nn.Linear)):
        expected = 2 * layer.weight.shape[0]
        found = layer.weight.square().sum().item()
        # A sum of m squares deviates by sqrt(2/m) of itself.
        tolerance = 4 * math.sqrt(2 / layer.weight.numel())
        assert found == pytest.approx(expected, rel=tolerance)
        assert not layer.bias.any()


def test_a_generator_decides_and_frozen_and_other_layers_stay():
    def made():
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        module[1].bias.data += 1
        module[2].requires_grad_(False)
        return module

    before = made()
    one, two = (he_init_(made(), generator=seeded(5)) for _ in range(2))
    assert one[0].weight.tolist() == two[0].weight.tolist()
    assert one[0].weight.tolist() != before[0].weight.tolist()
    for part in (1, 2):
        for old, new in zip(
            before[part].parameters(), one[part].parameters(), strict=True
        ):
            assert old.tolist() == new.tolist()


def test_each_example_is_standardized_by_itself():
    X = 5 + 3 * torch.randn(4, 2, 6, 6, generator=seeded())
    found = Standardize(floor=1e-9)(X)
    assert found.shape == X.shape
    assert torch.allclose(found.flatten(1).mean(1), torch.zeros(4), atol=1e-5)
    assert torch.allclose(found.flatten(1).std(1, correction=0), torch.ones(4))
    for i in range(4):
        assert torch.allclose(Standardize(1e-9)(X[i : i + 1])[0], found[i])
    assert not Standardize()(torch.full((1, 9), 0.3)).abs().max() > 1e-5
    with pytest.raises(ValueError, match="floor"):
        Standardize(0.0)


def test_a_training_takes_both_and_leaves_inputs_alone():
    X, y = examples()
    kept = X.clone()
    module = nn.Sequential(Standardize(), he_init_(network(), generator=seeded()))
    run = train(module, CROSS_ENTROPY, (X, y), BUDGET, steps=2, seed=0)
    assert run.privacy.guarantee.assumptions  # the kernels' test passed with it
    assert torch.equal(X, kept)
