# SPDX-License-Identifier: Apache-2.0
"""The paper's four networks: widths as printed, trainable as they are."""

import pytest
import torch
from torch import nn

from armijo.networks import cnn_cifar, cnn_small, mlp_256, mlp_1000

MODELS = {
    mlp_1000: ([], [784, 1000, 10]),
    mlp_256: ([], [784, 256, 256, 10]),
    cnn_small: ([6, 16], [256, 128, 10]),
    cnn_cifar: ([32, 64, 128, 128, 256, 256], [4096, 1024, 512, 10]),
}
every_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


@every_model
def test_widths_are_the_papers(make):
    channels, widths = MODELS[make]
    layers = list(make())
    convolutions = [one for one in layers if isinstance(one, nn.Conv2d)]
    dense = [one for one in layers if isinstance(one, nn.Linear)]
    assert [one.out_channels for one in convolutions] == channels
    assert [dense[0].in_features, *(one.out_features for one in dense)] == widths
    pools = [one for one in layers if isinstance(one, nn.MaxPool2d)]
    assert len(pools) == {0: 0, 2: 2, 6: 3}[len(channels)]
    assert isinstance(layers[-1], nn.Linear)
    relus = [one for one in layers if isinstance(one, nn.ReLU)]
    assert len(relus) == len(convolutions) + len(dense) - 1


def test_each_call_makes_its_own():
    assert not torch.equal(mlp_256()[1].weight, mlp_256()[1].weight)
