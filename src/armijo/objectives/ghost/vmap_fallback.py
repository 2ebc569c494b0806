# SPDX-License-Identifier: Apache-2.0
"""Any module: gradients of single examples, batched by torch.func where it can.

Examples are taken in chunks; clipping and adding happen inside a chunk, so memory holds
the gradients of one chunk and not those of the batch.  Batched kernels run here too: it
is a way for layers without a rule, not an isolation of examples.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    Tensors,
    as_tuple,
    check_losses,
    each_tensor,
    repeated,
)
from armijo.objectives.ghost.strategy import CaptureStrategy

_Values = dict[str, Tensor]
_Single = Callable[[_Values, Tensors, Tensors], tuple[Tensor, ...]]
# Numbers that the gradients of a chunk may have, and the most examples in one.
_CHUNK_NUMBERS, _CHUNK_EXAMPLES = 1 << 24, 64


def each_gradient(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the flat gradients and the losses of a chunk of examples at a time."""
    gradient = grad_and_value(lambda *values: _one_loss(module, loss, *values))

    def single(
        values: _Values, inputs: Tensors, targets: Tensors
    ) -> tuple[Tensor, ...]:
        gradients, value = gradient(values, inputs, targets)
        return torch.cat([g.reshape(-1) for g in gradients.values()]), value

    for chunk, own_seed in _chunks(batch, strategy.size, seed):
        flat, losses = _mapped(single, _values(module), chunk, strategy, own_seed)
        yield flat, losses


def losses_of(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
) -> Tensor:
    """Return the losses of single examples, with the chunks and masks of the sum."""

    def single(
        values: _Values, inputs: Tensors, targets: Tensors
    ) -> tuple[Tensor, ...]:
        return (_one_loss(module, loss, values, inputs, targets),)

    found: list[Tensor] = []
    for chunk, own_seed in _chunks(batch, strategy.size, seed):
        with torch.no_grad():
            found += _mapped(single, _values(module), chunk, strategy, own_seed)
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
    single: _Single,
    values: _Values,
    chunk: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
) -> tuple[Tensor, ...]:
    """Apply a function to every example of a chunk, batched if torch.func can."""
    if strategy.vectorized is None:
        strategy.vectorized = _can_batch(single, values, chunk)
    device = as_tuple(chunk.inputs)[0].device
    if strategy.vectorized:
        with repeated(seed, device):
            return _batched(single, values, chunk)
    results = []
    for number, one in enumerate(_singles(chunk)):
        # Masks of its own: how many numbers one example draws may depend on it.
        with repeated(None if seed is None else seed + number, device):
            results.append(single(values, *one))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _batched(single: _Single, values: _Values, chunk: Batch) -> tuple[Tensor, ...]:
    """Apply a function to all examples at once."""
    batched = vmap(single, in_dims=(None, 0, 0), randomness="different")
    found: tuple[Tensor, ...] = batched(values, *chunk)
    return found


def _can_batch(single: _Single, values: _Values, chunk: Batch) -> bool:
    """Say whether torch.func takes two blank examples; some layers have no such form.

    Real examples must not decide that: one of them could send all others another way.
    """

    def two(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(2, *tensor.shape[1:])

    try:
        with repeated(0, as_tuple(chunk.inputs)[0].device):
            _batched(single, values, each_tensor(chunk, two))
    except RuntimeError:
        return False
    return True


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
