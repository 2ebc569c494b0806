# SPDX-License-Identifier: Apache-2.0
"""A trial of a module with made-up examples, before any private one is recorded.

It finds what types do not show: a first axis that is not the batch, outputs that change
with the other examples of a batch, and records that are not the whole gradient.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.capture import Layer, NotRecorded, Record, recording
from armijo.objectives.ghost.randomness import repeated
from armijo.objectives.ghost.totals import merged_uses, weighted_total

# Two sizes: an axis that happens to have one length cannot pass both.
SIZES = (2, 3)
_TOLERANCE = 1e-3


def failure(
    module: nn.Module,
    layers: list[Layer],
    parameters: list[nn.Parameter],
    inputs: tuple[Tensor, ...],
) -> str:
    """Return why the layers cannot be recorded, or nothing; refuse mixed examples."""
    try:
        for examples in SIZES:
            attempt(module, layers, parameters, inputs, examples)
    except UnsupportedModule:
        raise
    except Exception as error:
        # Whatever made-up examples break, real ones can still be taken one by one.
        return f"a trial met {type(error).__name__}: {error}"
    return ""


def pass_alone(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Make a pass over one made-up example, as one at a time are taken.

    For what it leaves behind; made-up numbers may be none that the module takes.
    """
    device = inputs[0].device
    with repeated(0, device), suppress(Exception), torch.no_grad():
        module(*[made_up(module, x, 1) for x in inputs])


def attempt(
    module: nn.Module,
    layers: list[Layer],
    parameters: list[nn.Parameter],
    inputs: tuple[Tensor, ...],
    examples: int,
) -> None:
    """Raise if made-up examples of the inputs' shapes are not recorded exactly."""
    device = inputs[0].device
    with repeated(0, device):
        made = [made_up(module, x, examples) for x in inputs]
        others = [torch.cat((x[:1], made_up(module, x, examples)[1:])) for x in made]
    with repeated(1, device), torch.no_grad():
        elsewhere = _tensors(module(*others), examples)
    with repeated(1, device), torch.enable_grad():
        plain = _tensors(module(*made), examples)
        found = torch.autograd.grad(_scalar(plain), parameters, allow_unused=True)
    _refuse_mixed(plain, elsewhere)
    record = Record(examples)
    with repeated(1, device), torch.enable_grad(), recording(layers, record):
        outputs = _tensors(module(*made), examples)
        torch.autograd.grad(_scalar(outputs), record.anchor, allow_unused=True)
    with torch.no_grad():
        ones = parameters[0].new_ones(examples)
        total = weighted_total(merged_uses(record), parameters, ones)
    pairs = zip(parameters, found, strict=True)
    expected = torch.cat([(p * 0 if g is None else g).reshape(-1) for p, g in pairs])
    if not _close(total, expected):
        raise NotRecorded("records that do not add up to the gradient")


def _refuse_mixed(here: list[Tensor], elsewhere: list[Tensor]) -> None:
    """Refuse outputs of a first example that feel a change of the others."""
    for one, other in zip(here, elsewhere, strict=True):
        if not _close(other[0], one[0]):
            raise UnsupportedModule(
                "The module mixes examples: its output for one example changed with "
                "the others of the batch. Compute statistics within each example only, "
                "as GroupNorm and LayerNorm do."
            )


def _close(found: Tensor, expected: Tensor) -> bool:
    """Compare relative to the largest number."""
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=0.0, atol=_TOLERANCE * scale)


def made_up(module: nn.Module, like: Tensor, examples: int) -> Tensor:
    """Return random inputs; integers are places that every embedding has."""
    shape = (examples, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    most = min(tables, default=2)
    return torch.randint(most, shape, device=like.device).to(like.dtype)


def _tensors(output: Any, examples: int) -> list[Tensor]:
    """Return the tensors in an output, one entry for each example in all of them."""
    if isinstance(output, Tensor):
        if output.shape[:1] != (examples,):
            raise NotRecorded(f"an output of shape {tuple(output.shape)}")
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    return [part for value in parts for part in _tensors(value, examples)]


def _scalar(outputs: list[Tensor]) -> Tensor:
    """Return a number that depends on all outputs, not in the same way."""
    parts = [t for t in outputs if t.requires_grad]
    if not parts:
        raise NotRecorded("outputs that do not depend on the parameters")
    sums = [(t * torch.linspace(1, 2, t.numel()).to(t).view_as(t)).sum() for t in parts]
    return torch.stack(sums).sum()
