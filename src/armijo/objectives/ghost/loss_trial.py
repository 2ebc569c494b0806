# SPDX-License-Identifier: Apache-2.0
"""A trial of the loss: what it says of one example must come from that one alone.

A loss has the right shape also when it compares the examples of a batch, takes their
mean off, or divides by their number.  Then one example reaches the sum through the
gradients of the others, which clipping does not bound.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.buffers import unwritten
from armijo.objectives.ghost.checks import Batch, as_tuple, check_losses
from armijo.objectives.ghost.one_by_one import Loss
from armijo.objectives.ghost.plan import plan_for
from armijo.objectives.ghost.randomness import repeated
from armijo.objectives.ghost.trial import SIZES, made_up

Change = Callable[[Tensor], Tensor]

_REPEATS = 3
# One example, and two sets of others for the largest batch that is tried.
_OTHERS = max(SIZES) - 1
_EXAMPLES = 1 + 2 * _OTHERS
# The same numbers in the same place give the same loss but for a few roundings; in
# another place, or beside more examples, they may be added up in another order.
_SAME, _ELSEWHERE = 1e-5, 1e-2


def refuse_mixing_loss(module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Refuse a loss that feels other examples, by made-up outputs and targets.

    ``batch`` tells shapes, and targets that the loss takes; its values must be public.
    Where examples are taken one at a time, the loss never sees two of them.
    """
    inputs = as_tuple(batch.inputs)
    if not plan_for(module, inputs).recorded:
        return
    heard, obstacle = False, "its values are not finite"
    with unwritten(loss), torch.no_grad():
        for seed, (output, targets) in enumerate(_examples(module, batch)):
            for ways in product(_OUTPUTS, _TARGETS):
                try:
                    with repeated(seed, inputs[0].device):
                        made = _each(output, ways[0]), _each(targets, ways[1])
                    heard |= _tried(loss, made, inputs[0].device)
                except UnsupportedModule:
                    raise
                except Exception as error:  # made-up numbers may be none it takes
                    obstacle = f"{type(error).__name__}: {error}"
    if not heard:
        raise UnsupportedModule(
            "The loss could not be tried on made-up outputs and targets of "
            f"{' and '.join(map(str, SIZES))} examples ({obstacle}), so whether it "
            "mixes examples is not known; let it take batches of any size."
        )


def _examples(module: nn.Module, batch: Batch) -> Iterator[tuple[Any, Any]]:
    """Yield the module's outputs for made-up inputs, and the given targets."""
    inputs = as_tuple(batch.inputs)
    device = inputs[0].device
    where = torch.arange(_EXAMPLES, device=device) % len(inputs[0])
    targets = _each(batch.targets, lambda given: given[where])
    for seed in range(_REPEATS):
        with repeated(seed, device):
            output = module(*[made_up(module, x, _EXAMPLES) for x in inputs])
        yield output, targets


def _as_it_is(tensor: Tensor) -> Tensor:
    """Keep outputs of the kind that the loss takes; they may be all alike."""
    return tensor


def _fractions(tensor: Tensor) -> Tensor:
    """Return random numbers from 0 to 1, which nearly all losses take."""
    if tensor.is_floating_point():
        return torch.rand_like(tensor)
    return torch.randint_like(tensor, 2)


def _scores(output: Tensor) -> Tensor:
    """Return large numbers of both signs."""
    return 20 * _fractions(output) - 10 if output.is_floating_point() else output


_OUTPUTS: tuple[Change, ...] = (_as_it_is, _fractions, _scores)
_TARGETS: tuple[Change, ...] = (_as_it_is, _fractions)


def _tried(loss: Loss, made: tuple[Any, Any], device: torch.device) -> bool:
    """Refuse if the first example's loss moves; say whether it was finite."""

    def losses(examples: int, place: int, others: int, seed: int = 1) -> Tensor:
        index = list(range(others, others + examples - 1))
        index.insert(place, 0)
        part = [_each(side, lambda one: one[index]) for side in made]
        with repeated(seed, device):
            return check_losses(loss(*part), examples)

    first = losses(SIZES[0], 0, 1)
    # Random numbers of a loss differ between places and sizes: not to be compared.
    random = not _close(first, losses(SIZES[0], 0, 1, seed=2), 0.0, first)
    for examples in SIZES:
        for place in range(examples):
            here = losses(examples, place, 1)
            there = losses(examples, place, 1 + _OTHERS)
            moved = not _close(here[place], there[place], _SAME, here)
            if moved or not (random or _close(here[place], first[0], _ELSEWHERE, here)):
                raise UnsupportedModule(
                    "The loss mixes examples: that of one example changed with the "
                    "others of the batch, their number, or its place among them. "
                    "Compute each loss from its own output and target only; do not "
                    "average, scale or compare over the first axis."
                )
    return bool(first[0].isfinite())


def _close(one: Tensor, other: Tensor, tolerance: float, batch: Tensor) -> bool:
    """Compare losses, also relative to the largest of the batch."""
    largest = batch[batch.isfinite()].abs()
    scale = 0.1 * tolerance * largest.max().item() if largest.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=scale, equal_nan=True)


def _each(structure: Any, change: Change) -> Any:
    """Return outputs or targets with every tensor in them changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, dict):
        found = copy.copy(structure)
        for name, value in structure.items():
            found[name] = _each(value, change)
        return found
    parts = [_each(value, change) for value in structure]
    named = hasattr(structure, "_fields")
    return type(structure)(*parts) if named else type(structure)(parts)
