# SPDX-License-Identifier: Apache-2.0
"""Losses along a line of parameters: what the input meets first is multiplied once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.buffers import kept as kept_buffers
from armijo.objectives.ghost.capture import FirstOutputs
from armijo.objectives.ghost.checks import Batch, Loss, as_tuple
from armijo.objectives.ghost.engine import at_parameters, losses_at
from armijo.objectives.ghost.strategy import strategy_for


def losses_along(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    w: Tensor,
    step: Tensor,
    first: FirstOutputs,
    *,
    seed: int | None = None,
) -> Callable[[float, Batch, Tensor | None], Tensor]:
    """Return the losses at ``w - size step``, as :func:`losses_at` gives them.

    The function takes the size, the batch again and which of its examples have become
    blanks since ``first`` was noted.

    A linear layer that sees nothing but the input puts out ``a - size b``, where ``a``
    is its output at ``w``, in ``first`` from the pass of :func:`add_clipped` on the
    same batch, and ``b`` its output at ``step``.  In a perceptron on images that
    product is most of a loss.
    """
    strategy = strategy_for(module, as_tuple(batch.inputs))
    with at_parameters(strategy, step), torch.no_grad(), kept_buffers(module):
        change = {layer: layer(value) for layer, (value, _, _) in first.items()}
    known = {
        layer: (output, change[layer])
        for layer, (_, output, version) in first.items()
        if output._version == version  # else it was changed in place later
    }
    there = torch.empty_like(w)

    def at(size: float, batch: Batch, blank: Tensor | None) -> Tensor:
        torch.sub(w, step, alpha=size, out=there)
        with _answered(known, size, blank):
            return losses_at(module, loss, batch, there, seed=seed)

    return at


@contextmanager
def _answered(
    known: dict[nn.Module, tuple[Tensor, Tensor]], size: float, blank: Tensor | None
) -> Iterator[None]:
    """Let layers answer from what is known inside the block.

    Such a layer was called once, on what does not depend on trainable parameters: by
    the structure of the module its input is the same again, masks included.
    """

    def answer(output: Tensor, change: Tensor) -> Callable[[Tensor], Tensor]:
        def forward(input: Tensor) -> Tensor:
            found = torch.sub(output, change, alpha=size)
            if blank is not None:
                found.masked_fill_(blank.view(-1, *[1] * (found.dim() - 1)), 0)
            return found

        return forward

    try:
        for layer, (output, change) in known.items():
            layer.__dict__["forward"] = answer(output, change)
        yield
    finally:
        for layer in known:
            layer.__dict__.pop("forward", None)
