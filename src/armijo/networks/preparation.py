# SPDX-License-Identifier: Apache-2.0
"""What a caller may do to a module and its inputs before a private training.

Neither costs privacy: one looks at no example, the other at one example at a time.
"""

import torch
from torch import Tensor, nn

from armijo import _validate

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Standardize(nn.Module):
    """Shift and scale each example by its own numbers: (x - mean) / (std + floor).

    A first layer without parameters.  It maps every example by itself, so it costs no
    privacy.

    Parameters
    ----------
    floor : float
        Added to the standard deviation, so that flat examples do not become noise.

    Examples
    --------
    >>> Standardize()(torch.tensor([[0.0, 1.9], [7.0, 7.0]]))
    tensor([[-0.9500,  0.9500],
            [ 0.0000,  0.0000]])
    """

    def __init__(self, floor: float = 0.05) -> None:
        super().__init__()
        _validate.positive(floor=floor)
        self.floor = floor

    def forward(self, x: Tensor) -> Tensor:
        """Return examples along the first axis, standardized."""
        flat = x.flatten(1)
        centered = flat - flat.mean(1, keepdim=True)
        std = centered.square().mean(1, keepdim=True).sqrt()
        return (centered / (std + self.floor)).view_as(x)

    def extra_repr(self) -> str:
        """Name the floor."""
        return f"floor={self.floor}"


def he_init_(
    module: nn.Module, *, generator: torch.Generator | None = None
) -> nn.Module:
    """Draw the weights of linear and convolutional layers anew (He et al. 2015).

    Normal of variance 2 / inputs; biases are set to zero.  Frozen parameters and other
    layers stay as they are.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place, and returned.
    generator : torch.Generator or None
        None draws from torch's own generator, as the layers themselves do.

    Examples
    --------
    >>> seeded = torch.Generator().manual_seed(1)
    >>> layer = he_init_(nn.Linear(2000, 10), generator=seeded)
    >>> round(layer.weight.square().sum().item()), layer.bias.abs().max().item()
    (20, 0.0)
    """
    for layer in module.modules():
        if isinstance(layer, _LAYERS):
            if layer.weight.requires_grad:
                nn.init.kaiming_normal_(layer.weight, generator=generator)
            if layer.bias is not None and layer.bias.requires_grad:
                nn.init.zeros_(layer.bias)
    return module
