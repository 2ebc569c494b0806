# SPDX-License-Identifier: Apache-2.0
"""The clipped gradient sum of a batch for any module, and losses at other parameters.

One forward and one backward pass leave the inputs and output gradients of every layer.
From them come estimates of the norm of each example's gradient over all parameters
together, the weights of the examples, and integers that are certified and added.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from armijo import _validate
from armijo.data.certified import FINEST_BITS, shares
from armijo.objectives.ghost import vmap_fallback
from armijo.objectives.ghost.grads import Gradients, Materialized, blocks, joined
from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    Tensors,
    as_tuple,
    batch_size,
    check_losses,
    kept_buffers,
    repeated,
)
from armijo.objectives.ghost.layers import (
    Capture,
    FirstOutputs,
    backward,
    capture_activations,
)
from armijo.objectives.ghost.params import matching, swapped, views
from armijo.objectives.ghost.strategy import CaptureStrategy, strategy_for

Clipping = Literal["norm", "automatic"]
"""Scale down to the clip where needed, or bring every gradient near the clip."""

AUTOMATIC_SHIFT = 0.01
"""The constant that keeps small gradients small (Bu et al. 2022, AUTO-S)."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    r"""How an example's gradient becomes at most ``bound`` long.

    Its factor is :math:`\min(1, C / \|g\|)` or, for automatic clipping,
    :math:`C / (\|g\| + 0.01)` (Bu, Wang, Zha and Karypis 2022; AUTO-S has C = 1).

    Examples
    --------
    >>> Clip(bound=2.0).weights(torch.tensor([0.5, 4.0, torch.nan]))
    tensor([1.0000, 0.5000, 0.0000])
    """

    bound: float
    clipping: Clipping = "norm"
    stability: float = AUTOMATIC_SHIFT

    def __post_init__(self) -> None:
        _validate.positive(bound=self.bound)
        _validate.choice(("norm", "automatic"), clipping=self.clipping)

    def weights(self, norms: Tensor) -> Tensor:
        """Return the factor of each norm; one that is not finite gets 0."""
        if self.clipping == "automatic":
            weights = self.bound / (norms + self.stability)
        else:
            weights = (self.bound / norms).clamp_(max=1.0)
        return weights.nan_to_num_(nan=0.0)


class ExampleLosses(NamedTuple):
    """What a pass leaves of its examples: all of it is exact and private.

    ``kept`` says which examples count; ``first`` is for :func:`losses_along`.
    """

    losses: Tensor
    kept: Tensor
    first: FirstOutputs


class ClippedSum(NamedTuple):
    """A clipped sum as a flat vector, and what its pass left of the examples."""

    total: Tensor
    losses: Tensor
    kept: Tensor
    first: FirstOutputs


def clipped_gradient_sum(
    module: nn.Module,
    loss: Loss,
    batch: Batch | tuple[Tensors, Tensors],
    *,
    clip: float,
    clipping: Clipping = "norm",
    seed: int | None = None,
    w: Tensor | None = None,
) -> ClippedSum:
    r"""Return :math:`\sum_i c_i \nabla \ell_i` at the module's parameters, in float64.

    The sum is a multiple of ``clip * 2**-40``: see :func:`add_clipped`.

    Examples
    --------
    >>> module = nn.Linear(2, 1, bias=False)
    >>> batch = Batch(torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    >>> clipped_gradient_sum(module, lambda s, y: s[:, 0] - y, batch, clip=1.0).total
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    _validate.positive(clip=clip)
    batch = Batch(*batch)
    size = strategy_for(module, as_tuple(batch.inputs)).size
    total = as_tuple(batch.inputs)[0].new_zeros(size, dtype=torch.float64)
    rule = Clip(bound=clip, clipping=clipping)
    found = add_clipped(
        module, loss, batch, total, clip=rule, bits=FINEST_BITS, seed=seed, w=w
    )
    return ClippedSum(total.mul_(clip * 2.0**-FINEST_BITS), *found)


def add_clipped(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    out: Tensor,
    *,
    clip: Clip,
    bits: int,
    blank: Tensor | None = None,
    seed: int | None = None,
    w: Tensor | None = None,
) -> ExampleLosses:
    r"""Add clipped gradients to ``out``, in steps of ``clip.bound * 2**-bits``.

    What an example adds is a vector of integers of norm ``(1 + SLACK) 2**bits`` at
    most.  An example whose loss or gradient is not finite is left out.

    Parameters
    ----------
    module : torch.nn.Module
        Its trainable parameters, in the order of ``module.parameters()``, are the
        coordinates of the sum.  Gradients stored in it are left alone.
    loss : callable
        ``loss(module(*inputs), targets)`` with shape (B,).
    batch : Batch
        Inputs and targets; tensors or tuples of tensors.
    out : Tensor
        Integers in float64, as many as there are trainable numbers.
    clip : Clip
        The most that one example adds, as an L2 norm over all parameters together.
    bits : int
        The lattice.
    blank : Tensor or None
        Which examples, (B,), only keep their place: they add nothing.
    seed : int or None
        Where dropout masks come from; the same seed gives the same masks in
        :func:`losses_at`.  None draws from torch's global generator.
    w : Tensor or None
        Where to compute, as a flat vector; the module itself keeps its parameters.
        None is at these.
    """
    strategy = strategy_for(module, as_tuple(batch.inputs))
    found = [_nothing(batch, strategy, w)]
    # A later chunk may raise: what was added before must then be forgotten.
    total = out if strategy.captured else torch.zeros_like(out)
    for rows, gradients, losses, first in _passes(
        module, loss, batch, strategy, seed, w
    ):
        own = None if blank is None else blank[rows]
        with torch.no_grad():
            gradients = joined(gradients)
            weights, kept, squares = _weights(
                gradients, losses, clip, own, strategy.keeps
            )
            parts = shares(squares, weights, clip.bound, bits)
            places = _places(gradients, strategy, total)
            for one, share, place in zip(
                gradients.values(), parts, places, strict=True
            ):
                one.add_integers(share, *place)
        found.append(ExampleLosses(losses, kept, first))
    if total is not out:
        out += total
    return _joined(found)


def plain_sum(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    *,
    clip: Clip,
    blank: Tensor | None = None,
    seed: int | None = None,
    w: Tensor | None = None,
) -> tuple[Tensor, ExampleLosses]:
    """Return the clipped sum in the precision of the module: for runs without noise."""
    strategy = strategy_for(module, as_tuple(batch.inputs))
    total, found = strategy.zeros(), [_nothing(batch, strategy, w)]
    for rows, gradients, losses, first in _passes(
        module, loss, batch, strategy, seed, w
    ):
        own = None if blank is None else blank[rows]
        with torch.no_grad():
            weights, kept, _ = _weights(gradients, losses, clip, own, strategy.keeps)
            weights = weights.to(total.dtype)
            places = _places(gradients, strategy, total)
            for one, (place,) in zip(gradients.values(), places, strict=True):
                for part in blocks(one.examples, one.size):
                    formed = one.formed(part).flatten(1)
                    formed = formed.where(kept[part, None], 0.0)
                    place.view(-1).add_(weights[part] @ formed)
        found.append(ExampleLosses(losses, kept, first))
    return total, _joined(found)


def _nothing(
    batch: Batch, strategy: CaptureStrategy, w: Tensor | None
) -> ExampleLosses:
    """Return what no examples leave, after a check that all tensors fit."""
    batch_size(batch)
    if w is not None:
        matching(strategy.parameters, w)
    none = strategy.parameters[0].new_zeros(0)
    return ExampleLosses(none, none.bool(), {})


def _joined(found: list[ExampleLosses]) -> ExampleLosses:
    """Return what several passes leave as one."""
    losses = torch.cat([one.losses for one in found])
    kept = torch.cat([one.kept for one in found])
    return ExampleLosses(losses, kept, found[-1].first)


class _Pass(NamedTuple):
    """Which examples a pass took, and their gradients and losses."""

    rows: slice
    gradients: Gradients
    losses: Tensor
    first: FirstOutputs


def _passes(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
    w: Tensor | None,
) -> Iterator[_Pass]:
    """Yield the passes over a batch: one, or one for each chunk without rules."""
    examples = batch_size(batch)
    if examples == 0:
        return
    with at_parameters(strategy, w), torch.enable_grad(), kept_buffers(module, loss):
        if strategy.captured:
            capture, losses = _captured(module, loss, batch, strategy, seed)
            yield _Pass(slice(None), capture.gradients(), losses, capture.first)
            return
        start = 0
        for flat, losses in vmap_fallback.each_gradient(
            module, loss, batch, strategy, seed
        ):
            rows = slice(start, start + len(losses))
            yield _Pass(rows, {(): Materialized(flat)}, losses.detach(), {})
            start = rows.stop


def _places(
    gradients: Gradients, strategy: CaptureStrategy, flat: Tensor
) -> list[list[Tensor]]:
    """Return the parts of a flat vector that each gradient is of."""
    parts = views(strategy.parameters, flat)
    places = dict(zip(strategy.parameters, parts, strict=True))
    return [[places[p] for p in parameters] or [flat] for parameters in gradients]


def at_parameters(
    strategy: CaptureStrategy, w: Tensor | None
) -> AbstractContextManager[None]:
    """Compute with the numbers of ``w``, or with the module's own."""
    if w is None:
        return nullcontext()
    return swapped(matching(strategy.parameters, w), w)


def _captured(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
) -> tuple[Capture, Tensor]:
    """Run both passes; return what they leave, and the losses."""
    inputs = as_tuple(batch.inputs)
    capture = Capture(len(inputs[0]))
    with (
        repeated(seed, inputs[0].device),
        capture_activations(strategy.layers, capture),
    ):
        losses = check_losses(loss(module(*inputs), batch.targets), capture.examples)
        backward(losses, capture, strategy.parameters)
    return capture, losses.detach()


def _weights(
    gradients: Gradients,
    losses: Tensor,
    clip: Clip,
    blank: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, who is kept, and squared norms by parameter, in float64."""
    norms = [gradient.squared_norms(keep) for gradient in gradients.values()]
    squares = torch.stack(norms) if norms else losses.new_zeros(0, len(losses)).double()
    together = squares.sum(0)
    kept = torch.isfinite(together) & torch.isfinite(losses)
    if blank is not None:
        kept &= ~blank
    weights = clip.weights(together.sqrt()).where(kept, 0.0)
    return weights, kept, squares.where(kept, 0.0)


def losses_at(
    module: nn.Module,
    loss: Loss,
    batch: Batch | tuple[Tensors, Tensors],
    w: Tensor,
    *,
    seed: int | None = None,
) -> Tensor:
    """Return the loss of each example at the parameters ``w``, without gradients.

    The module itself keeps its parameters.  With the seed of :func:`add_clipped`
    dropout masks are those of the gradient.

    Examples
    --------
    >>> module = nn.Linear(2, 1, bias=False)
    >>> batch = Batch(torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    >>> losses_at(module, lambda s, y: s[:, 0] - y, batch, torch.ones(2))
    tensor([7.])
    """
    batch = Batch(*batch)
    inputs = as_tuple(batch.inputs)
    strategy = strategy_for(module, inputs)
    if batch_size(batch) == 0:
        return w.new_zeros(0)
    with at_parameters(strategy, w), torch.no_grad(), kept_buffers(module, loss):
        if not strategy.captured:
            return vmap_fallback.losses_of(module, loss, batch, strategy, seed)
        with repeated(seed, inputs[0].device):
            losses = loss(module(*inputs), batch.targets)
        return check_losses(losses, batch_size(batch))


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
