# SPDX-License-Identifier: Apache-2.0
"""Any module: gradients of single examples, batched by torch.func where it can.

Examples are taken in chunks; clipping and adding happen inside a chunk, so memory holds
the gradients of one chunk and not those of the batch.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from armijo.objectives.ghost.checks import Batch, Tensors, as_tuple, check_losses
from armijo.objectives.ghost.plan import Plan
from armijo.objectives.ghost.randomness import repeated

Loss = Callable[..., Tensor]
"""From the module's output and the targets to one loss for each example."""
Weigh = Callable[[Tensor, Tensor], Tensor]
"""From squared norms and losses to the weights of examples."""

_Values = dict[str, Tensor]
_Single = Callable[[_Values, Tensors, Tensors], tuple[Tensor, ...]]
# Numbers that the gradients of a chunk may have, and the most examples in one.
_CHUNK_NUMBERS, _CHUNK_EXAMPLES = 1 << 24, 64


def summed(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    plan: Plan,
    weigh: Weigh,
    seed: int | None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted gradient sum and the losses, a chunk at a time."""
    total = plan.zeros()
    gradient = grad_and_value(lambda *values: _one_loss(module, loss, *values))

    def single(
        values: _Values, inputs: Tensors, targets: Tensors
    ) -> tuple[Tensor, ...]:
        gradients, value = gradient(values, inputs, targets)
        return torch.cat([g.reshape(-1) for g in gradients.values()]), value

    found = []
    for chunk, own_seed in _chunks(batch, total.numel(), seed):
        flat, losses = _mapped(single, _values(module), chunk, plan, own_seed)
        weights = weigh(torch.linalg.vector_norm(flat, dim=1).square(), losses)
        # Zero times what is not a number is not a number.
        flat.masked_fill_((weights == 0)[:, None], 0)
        total.addmv_(flat.T, weights)
        found.append(losses)
    return total, torch.cat(found)


def losses_of(
    module: nn.Module, loss: Loss, batch: Batch, plan: Plan, seed: int | None
) -> Tensor:
    """Return the losses of single examples, with the chunks and masks of the sum."""

    def single(
        values: _Values, inputs: Tensors, targets: Tensors
    ) -> tuple[Tensor, ...]:
        return (_one_loss(module, loss, values, inputs, targets),)

    found: list[Tensor] = []
    for chunk, own_seed in _chunks(batch, plan.size, seed):
        with torch.no_grad():
            found += _mapped(single, _values(module), chunk, plan, own_seed)
    return torch.cat(found)


def _values(module: nn.Module) -> _Values:
    """Return the trainable parameters by name, in the order of the flat vector."""
    named = module.named_parameters()
    return {name: p.detach() for name, p in named if p.requires_grad}


def _one_loss(
    module: nn.Module, loss: Loss, values: _Values, inputs: Tensors, targets: Tensors
) -> Tensor:
    """Return the loss of one example as a function of the parameters."""
    arguments = as_tuple(_alone(inputs))
    output = functional_call(module, values, arguments)
    return check_losses(loss(output, _alone(targets)), 1)[0]


def _mapped(
    single: _Single, values: _Values, chunk: Batch, plan: Plan, seed: int | None
) -> tuple[Tensor, ...]:
    """Apply a function to every example of a chunk, batched if torch.func can."""
    device = as_tuple(chunk.inputs)[0].device
    if plan.vectorized:
        batched = vmap(single, in_dims=(None, 0, 0), randomness="different")
        try:
            with repeated(seed, device):
                found: tuple[Tensor, ...] = batched(values, *chunk)
            return found
        except RuntimeError:
            # Some layers have no batched form.  If it was something else, the loop
            # meets it again, with a message that is not about batching.
            pass
    with repeated(seed, device):
        results = [single(values, *one) for one in _singles(chunk)]
    plan.vectorized = False
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _chunks(
    batch: Batch, size: int, seed: int | None
) -> Iterator[tuple[Batch, int | None]]:
    """Yield chunks, each with a seed of its own."""
    examples = as_tuple(batch.inputs)[0].shape[0]
    height = min(max(1, _CHUNK_NUMBERS // size), _CHUNK_EXAMPLES)
    for start in range(0, examples, height):
        rows = slice(start, start + height)
        own = None if seed is None else seed + start
        yield Batch(_at(batch.inputs, rows), _at(batch.targets, rows)), own


def _singles(chunk: Batch) -> Iterator[tuple[Tensors, Tensors]]:
    """Yield examples without their first axis."""
    for index in range(as_tuple(chunk.inputs)[0].shape[0]):
        yield _at(chunk.inputs, index), _at(chunk.targets, index)


def _at(tensors: Tensors, index: int | slice) -> Tensors:
    """Return one example, or some."""
    if isinstance(tensors, Tensor):
        return tensors[index]
    return tuple(t[index] for t in tensors)


def _alone(tensors: Tensors) -> Tensors:
    """Give one example its first axis again."""
    if isinstance(tensors, Tensor):
        return tensors.unsqueeze(0)
    return tuple(t.unsqueeze(0) for t in tensors)
