# SPDX-License-Identifier: Apache-2.0
"""The trainable parameters of a module as one flat vector, and back.

The order is that of ``module.parameters()``; frozen parameters are not part of the
vector, and a parameter that several layers share is in it once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float64)


def every_layer(module: nn.Module) -> list[nn.Module]:
    """Return a module and all inside it, each once, in the order of ``modules()``.

    That makes up a name for each, which costs several times the walk, and a step of a
    small network walks often.

    Examples
    --------
    >>> [type(layer).__name__ for layer in every_layer(nn.Sequential(nn.ReLU()))]
    ['Sequential', 'ReLU']
    """
    found: dict[int, nn.Module] = {}

    def visit(layer: nn.Module) -> None:
        found[id(layer)] = layer
        for child in layer._modules.values():
            if child is not None and id(child) not in found:
                visit(child)

    visit(module)
    return list(found.values())


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters to train, refusing a module that has none.

    All must have the same type, float32 or float64, and be on the same device.
    """
    found = [p for p in module.parameters() if p.requires_grad]
    if not found:
        raise ValueError(
            "Expected a module with parameters to train, got none with requires_grad; "
            "unfreeze at least one layer."
        )
    kinds = {(p.dtype, p.device) for p in found}
    if len(kinds) > 1 or found[0].dtype not in DTYPES:
        shown = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(
            "Expected all trainable parameters in float32 or all in float64 and on one "
            f"device, got {shown}; call module.to(device, dtype)."
        )
    return found


def flat_size(module: nn.Module) -> int:
    """Return the number of trainable numbers.

    >>> flat_size(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in trainable(module))


def flat_parameters(module: nn.Module) -> Tensor:
    """Return a copy of the trainable parameters as one vector.

    >>> layer = nn.Linear(3, 2)
    >>> bool((flat_parameters(layer)[:6].view(2, 3) == layer.weight).all())
    True
    """
    return torch.cat([p.detach().reshape(-1) for p in trainable(module)])


def views(parameters: list[nn.Parameter], w: Tensor) -> list[Tensor]:
    """Return the parts of a flat vector in the shapes of the parameters, no copy."""
    parts = torch.split_with_sizes(w, [p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def load_parameters(module: nn.Module, w: Tensor) -> None:
    """Copy a flat vector into the module's trainable parameters."""
    parameters = matching(trainable(module), w)
    with torch.no_grad():
        for p, part in zip(parameters, views(parameters, w), strict=True):
            p.copy_(part)


@contextmanager
def parameters_at(module: nn.Module, w: Tensor) -> Iterator[None]:
    """Let the module compute with the numbers of ``w`` inside the block.

    The parameters point into ``w`` and are put back afterwards: nothing is copied, and
    shared parameters stay shared.
    """
    parameters = matching(trainable(module), w)
    with swapped(parameters, w):
        yield


@contextmanager
def swapped(parameters: list[nn.Parameter], w: Tensor) -> Iterator[None]:
    """Let parameters that are known to fit point into ``w`` inside the block."""
    held = [p.data for p in parameters]
    try:
        for p, part in zip(parameters, views(parameters, w.detach()), strict=True):
            p.data = part
        yield
    finally:
        for p, data in zip(parameters, held, strict=True):
            p.data = data


def matching(parameters: list[nn.Parameter], w: Tensor) -> list[nn.Parameter]:
    """Return the parameters, refusing a vector that does not fit them."""
    size = sum(p.numel() for p in parameters)
    kind = parameters[0].dtype, parameters[0].device
    if w.shape != (size,) or (w.dtype, w.device) != kind:
        raise ValueError(
            f"Expected a vector of {size} numbers, {kind[0]} on {kind[1]}, got shape "
            f"{tuple(w.shape)}, {w.dtype} on {w.device}; start from "
            "flat_parameters(module)."
        )
    return parameters
