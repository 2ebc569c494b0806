# SPDX-License-Identifier: Apache-2.0
"""Clipped sums one example at a time, and the layers to try them on."""

import math

import torch
from torch import nn
from torch.nn import functional

from armijo.objectives.ghost import Batch, Clip, clipped_gradient_sum
from armijo.objectives.ghost.engine import plain_sum
from armijo.objectives.ghost.grads import LARGE_PRODUCT

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# Factors have 20 bits where a gradient is as long as the clip, formed gradients 26.
LATTICE = 5e-5


def cross_entropy(output, target):
    return functional.cross_entropy(output.flatten(1), target, reduction="none")


def squares(output, target):
    return (output.flatten(1).mean(1) - target) ** 2


def hinge(output, target):
    signs = 2.0 * (target % 2) - 1
    return torch.relu(1 - signs * output.flatten(1).sum(1))


LOSSES = {"cross_entropy": cross_entropy, "squares": squares, "hinge": hinge}


def part(tensors, rows):
    if isinstance(tensors, torch.Tensor):
        return tensors[rows]
    return tuple(t[rows] for t in tensors)


def gradient_of(module, loss_value):
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(
        loss_value, parameters, allow_unused=True, retain_graph=True
    )
    filled = [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, found, strict=True)
    ]
    return torch.cat([g.detach().reshape(-1) for g in filled])


def factor(norm, clip, clipping):
    if clipping == "automatic":
        return clip / (norm + 0.01)
    return min(1.0, clip / norm) if norm > 0 else 1.0


def oracle_sum(module, loss, batch, clip, clipping="norm"):
    """Return the clipped sum and the losses, from single examples."""
    inputs, targets = batch
    examples = len(targets[0] if isinstance(targets, tuple) else targets)
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    total, losses = torch.zeros(size, dtype=torch.float64), []
    for i in range(examples):
        x, y = (part(side, slice(i, i + 1)) for side in (inputs, targets))
        output = module(*x) if isinstance(x, tuple) else module(x)
        value = loss(output, y)[0]
        gradient = gradient_of(module, value).double()
        norm = gradient.norm().item()
        losses.append(value.detach())
        if torch.isfinite(gradient).all() and torch.isfinite(value):
            total += factor(norm, clip, clipping) * gradient
    return total, torch.stack(losses) if losses else torch.zeros(0)


def relative_error(found, expected):
    scale = max(expected.norm().item(), 1e-30)
    return (found.double() - expected).norm().item() / scale


def assert_sums(module, loss, batch, clip, clipping="norm", tolerance=1e-10):
    """Compare both sums with the oracle: in floating point, and on the lattice."""
    expected, _ = oracle_sum(module, loss, batch, clip, clipping)
    rule = Clip(bound=clip, clipping=clipping)
    plain, _ = plain_sum(module, loss, Batch(*batch), clip=rule)
    assert relative_error(plain, expected) < tolerance
    found = clipped_gradient_sum(module, loss, batch, clip=clip, clipping=clipping)
    examples = len(found.losses)
    room = examples * clip * 2.0**-26 * math.sqrt(len(expected)) / 2
    if any(p.numel() >= LARGE_PRODUCT for p in module.parameters()):
        room += 0.01 * examples * clip  # factors of 7 and 15 bits
    error = (found.total - expected).norm().item()
    assert error <= (LATTICE + tolerance) * expected.norm().item() + room
    return found


class Ids(nn.Module):
    """Integers in, through an embedding."""

    def __init__(self, **settings):
        super().__init__()
        self.table = nn.Embedding(6, 4, **settings)

    def forward(self, ids):
        return self.table(ids)


def _conv2d(**settings):
    return lambda: nn.Conv2d(4, 6, **{"kernel_size": 3, **settings})


def _conv1d(**settings):
    return lambda: nn.Conv1d(4, 6, **{"kernel_size": 3, **settings})


IMAGE, SEQUENCE = (4, 7, 6), (4, 11)
LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear on a sequence": (lambda: nn.Linear(5, 3), (9, 5)),
    "linear on few places": (lambda: nn.Linear(30, 40), (2, 30)),
    "linear on a grid": (lambda: nn.Linear(5, 3), (2, 3, 5)),
    "conv2d": (_conv2d(), IMAGE),
    "conv2d, border": (_conv2d(padding=1), IMAGE),
    "conv2d, two borders": (_conv2d(padding=(2, 1), bias=False), IMAGE),
    "conv2d, wide border": (_conv2d(padding=4, kernel_size=2), IMAGE),
    "conv2d, same": (_conv2d(padding="same", dilation=(2, 1)), IMAGE),
    "conv2d, same, even": (_conv2d(padding="same", kernel_size=(2, 4)), IMAGE),
    "conv2d, valid": (_conv2d(padding="valid", kernel_size=(1, 3)), IMAGE),
    "conv2d, stride": (_conv2d(stride=(2, 3), padding=1), IMAGE),
    "conv2d, dilation": (_conv2d(dilation=2, padding=2), IMAGE),
    "conv2d, groups": (_conv2d(groups=2), IMAGE),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2), IMAGE),
    "conv2d, reflect": (_conv2d(padding=2, padding_mode="reflect"), IMAGE),
    "conv2d, circular": (_conv2d(padding=(1, 2), padding_mode="circular"), IMAGE),
    "conv2d, replicate": (
        _conv2d(padding="same", padding_mode="replicate", stride=1),
        IMAGE,
    ),
    "conv2d, deep": (lambda: nn.Conv2d(24, 40, 3, padding=1), (24, 3, 3)),
    "conv1d": (_conv1d(), SEQUENCE),
    "conv1d, same": (_conv1d(padding="same", kernel_size=4), SEQUENCE),
    "conv1d, all": (_conv1d(padding=3, stride=2, dilation=2, groups=2), SEQUENCE),
    "conv1d, reflect": (_conv1d(padding=2, padding_mode="reflect"), SEQUENCE),
    "embedding": (lambda: Ids(), (8,)),
    "embedding of one place": (lambda: Ids(), ()),
    "embedding with padding": (lambda: Ids(padding_idx=2), (2, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (5,)),
    "layer norm on a sequence": (lambda: nn.LayerNorm(5), (3, 5)),
    "layer norm of two axes": (lambda: nn.LayerNorm((3, 5), bias=False), (2, 3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "group norm on features": (lambda: nn.GroupNorm(2, 4, eps=1e-3), (4,)),
}


def model_of(name, dtype=torch.float64, seed=0):
    """Return the layer between activations and a linear head."""
    torch.manual_seed(seed)
    make, _ = LAYERS[name]
    with torch.no_grad():
        layer = make()
        for p in layer.parameters():
            p.normal_()
    width = layer(batch_of(name, 1, torch.float32)[0]).flatten(1).shape[1]
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)).to(dtype)


def batch_of(name, examples, dtype=torch.float64, seed=0):
    _, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (examples,), generator=generator)
    if name.startswith("embedding"):
        return torch.randint(6, (examples, *shape), generator=generator), targets
    inputs = torch.randn(examples, *shape, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), targets
