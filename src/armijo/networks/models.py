# SPDX-License-Identifier: Apache-2.0
"""The four networks of Chen and Lee (2020), section on neural network models.

The paper gives widths, not kernels.  Its last widths fix them: "256 and 128" is what
two convolutions of 5 x 5 without a border leave of a 28 x 28 image (16 x 4 x 4) and the
hidden layer behind, and "4096, 1024, 512" is what 3 x 3 with a border leaves of a
32 x 32 image after three poolings (256 x 4 x 4) and two hidden layers.  All activations
are rectified linear units.
"""

from itertools import pairwise

from torch import nn

_CLASSES = 10


def mlp_1000() -> nn.Sequential:
    """Return the perceptron 784-1000-10 for MNIST.

    >>> sum(p.numel() for p in mlp_1000().parameters())
    795010
    """
    return nn.Sequential(nn.Flatten(), *_dense(784, 1000, _CLASSES))


def mlp_256() -> nn.Sequential:
    """Return the perceptron 784-256-256-10 for Fashion-MNIST.

    >>> sum(p.numel() for p in mlp_256().parameters())
    269322
    """
    return nn.Sequential(nn.Flatten(), *_dense(784, 256, 256, _CLASSES))


def cnn_small() -> nn.Sequential:
    """Return the network of 6 and 16 channels for images of 1 x 28 x 28.

    >>> sum(p.numel() for p in cnn_small().parameters())
    36758
    """
    return nn.Sequential(
        *_convolved(1, 6, kernel=5, border=0),
        nn.MaxPool2d(2),
        *_convolved(6, 16, kernel=5, border=0),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dense(256, 128, _CLASSES),
    )


def cnn_cifar() -> nn.Sequential:
    """Return the network 32-64 | 128-128 | 256-256 for images of 3 x 32 x 32.

    >>> sum(p.numel() for p in cnn_cifar().parameters())
    5851338
    """
    layers: list[nn.Module] = []
    before = 3
    for first, second in ((32, 64), (128, 128), (256, 256)):
        layers += _convolved(before, first, kernel=3, border=1)
        layers += _convolved(first, second, kernel=3, border=1)
        layers.append(nn.MaxPool2d(2))
        before = second
    return nn.Sequential(*layers, nn.Flatten(), *_dense(4096, 1024, 512, _CLASSES))


def _dense(*widths: int) -> list[nn.Module]:
    """Return linear layers with activations between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def _convolved(before: int, after: int, *, kernel: int, border: int) -> list[nn.Module]:
    """Return a convolution and its activation."""
    return [nn.Conv2d(before, after, kernel, padding=border), nn.ReLU()]
