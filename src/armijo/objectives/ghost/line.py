# SPDX-License-Identifier: Apache-2.0
"""Losses along a line of parameters: what the input meets first is multiplied once.

A linear layer that sees nothing but the input puts out ``a - size b`` at parameters
``w - size step``, where ``a`` is its output at ``w``, left by the gradient's forward
pass, and ``b`` its output at ``step``.  In a perceptron on images that product is most
of a loss; with it known, further candidates of a search cost the other layers only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.buffers import kept
from armijo.objectives.ghost.capture import FirstOutputs
from armijo.objectives.ghost.checks import Batch
from armijo.objectives.ghost.engine import losses_at
from armijo.objectives.ghost.one_by_one import Loss
from armijo.objectives.ghost.parameters import parameters_at


class _Known(NamedTuple):
    """A layer whose output is known: its input, its output, and that at the step."""

    layer: nn.Module
    value: Tensor
    output: Tensor
    change: Tensor


def losses_along(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    w: Tensor,
    step: Tensor,
    first: FirstOutputs,
    *,
    seed: int | None = None,
) -> Callable[[float], Tensor]:
    """Return ``size -> losses at w - size step``, as :func:`losses_at` gives them.

    ``first`` is what :func:`clipped_gradient_sum` noted at ``w`` on the same batch.
    """
    with parameters_at(module, step), torch.no_grad(), kept(module):
        known = [
            _Known(layer, value, output, layer(value))
            for layer, (value, output, version) in first.items()
            if output._version == version  # else it was changed in place later
        ]

    there = torch.empty_like(w)

    def at(size: float) -> Tensor:
        torch.sub(w, step, alpha=size, out=there)
        with _answered(known, size):
            return losses_at(module, loss, batch, there, seed=seed)

    return at


@contextmanager
def _answered(known: list[_Known], size: float) -> Iterator[None]:
    """Let layers answer from what is known inside the block."""
    try:
        for one in known:
            one.layer.__dict__["forward"] = _forward(one, size)
        yield
    finally:
        for one in known:
            one.layer.__dict__.pop("forward", None)


def _forward(known: _Known, size: float) -> Callable[[Tensor], Tensor]:
    """Return the forward function of a layer at a size, for its one input."""
    original = known.layer.forward

    def forward(input: Tensor) -> Tensor:
        if torch.equal(input, known.value):
            return torch.sub(known.output, known.change, alpha=size)
        output: Tensor = original(input)
        return output

    return forward
