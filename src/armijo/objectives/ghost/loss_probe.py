# SPDX-License-Identifier: Apache-2.0
"""A probe of the loss by itself, with synthetic outputs and targets of all sizes."""

import copy
import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.buffers import unwritten
from armijo.objectives.ghost.checks import Batch, Loss, as_tuple, check_losses
from armijo.objectives.ghost.probe import Change, same_bits, synthetic_examples
from armijo.objectives.ghost.randomness import repeated
from armijo.objectives.ghost.strategy import SIZES, strategy_for

_REPEATS = 3
# One example, and two sets of others for the largest batch that is tried.
_OTHERS = max(SIZES) - 1
_EXAMPLES = 1 + 2 * _OTHERS
# In another place, or beside more examples, a loss may be added up in another order.
_ELSEWHERE = 1e-2


def refuse_mixing_loss(module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Refuse a loss that feels other examples, by synthetic outputs and targets.

    Where examples are taken one at a time, the loss never sees two of them.
    """
    inputs = as_tuple(batch.inputs)
    if not strategy_for(module, inputs).captured:
        return
    heard, obstacle = False, "its values are not finite"
    with unwritten(loss):
        for seed, (output, targets) in enumerate(_outputs(module, batch)):
            for ways in product(_OUTPUTS, _TARGETS):
                try:
                    with repeated(seed, inputs[0].device):
                        made = _each(output, ways[0]), _each(targets, ways[1])
                    heard |= _loss_tried(loss, made, inputs[0].device)
                except UnsupportedModule:
                    raise
                except Exception as error:  # synthetic numbers may be none it takes
                    obstacle = f"{type(error).__name__}: {error}"
    if not heard:
        raise UnsupportedModule(
            "The loss could not be tried on synthetic outputs and targets of "
            f"{' and '.join(map(str, SIZES))} examples ({obstacle}), so whether it "
            "mixes examples is not known; let it take batches of any size."
        )


def _outputs(module: nn.Module, batch: Batch) -> Iterator[tuple[Any, Any]]:
    """Yield the module's outputs for synthetic inputs, and the given targets."""
    device = as_tuple(batch.inputs)[0].device
    for seed in range(_REPEATS):
        with repeated(seed, device), torch.no_grad():
            made = synthetic_examples(module, batch, _EXAMPLES, torch.rand_like)
            yield module(*as_tuple(made.inputs)), made.targets


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
_FAR: tuple[float, ...] = (1e3, -1e3, 0.0, math.nan, math.inf)
_FAR_TARGETS: tuple[float, ...] = (
    *(0.0, 1.0, 2.0, 3.0, 7.0, 9.0, 255.0, 1e3, 1e6, -1.0, -100.0, -1e3),
    *(math.nan, math.inf),
)


def _loss_tried(loss: Loss, made: tuple[Any, Any], device: torch.device) -> bool:
    """Refuse if the first example's loss moves; say whether it was finite."""

    def losses(
        examples: int,
        place: int,
        others: int,
        *,
        seed: int = 1,
        far: float | None = None,
        target: float | None = None,
    ) -> Tensor:
        index = list(range(others, others + examples - 1))
        index.insert(place, 0)
        output, targets = (_each(side, lambda one: one[index]) for side in made)
        if far is not None:
            output = _each(output, lambda one: _except(one, place, far))
        if target is not None:
            targets = _each(targets, lambda one: _except(one, place, target))
        with repeated(seed, device):
            return check_losses(loss(output, targets), examples)

    first = losses(SIZES[0], 0, 1)
    # Random numbers of a loss differ between places and sizes: not to be compared.
    random = not torch.equal(first, losses(SIZES[0], 0, 1, seed=2))
    for examples in SIZES:
        for place in range(examples):
            here = losses(examples, place, 1)
            others = [losses(examples, place, 1 + _OTHERS)]
            ways = [{"far": far} for far in _FAR]
            ways += [{"target": value} for value in _FAR_TARGETS]
            others += [_attempted(losses, examples, place, way, here) for way in ways]
            one = torch.arange(examples) == place
            moved = not all(same_bits(here, there, one) for there in others)
            if moved or not (random or _close(here[place], first[0], here)):
                raise UnsupportedModule(
                    "The loss mixes examples: that of one example changed with the "
                    "others of the batch, their number, or its place among them. "
                    "Compute each loss from its own output and target only; do not "
                    "average, scale or compare over the first axis. Nothing was spent."
                )
    return bool(first[0].isfinite())


def _attempted(
    losses: Callable[..., Tensor],
    examples: int,
    place: int,
    way: dict[str, float],
    else_: Tensor,
) -> Tensor:
    """Return the losses beside far outputs or targets; some losses take none."""
    try:
        return losses(examples, place, 1, **way)
    except Exception:
        return else_


def _except(output: Tensor, place: int, value: float) -> Tensor:
    """Return numbers of which all but those of one place are the same."""
    if not output.is_floating_point():
        if not math.isfinite(value) or output.dtype is torch.bool:
            return output
        info = torch.iinfo(output.dtype)
        value = min(max(int(value), info.min), info.max)
    filled = torch.full_like(output, value)
    filled[place] = output[place]
    return filled


def _close(one: Tensor, other: Tensor, batch: Tensor) -> bool:
    """Compare losses, also relative to the largest of the batch."""
    largest = batch[batch.isfinite()].abs()
    scale = 0.1 * _ELSEWHERE * largest.max().item() if largest.numel() else 0.0
    return torch.allclose(one, other, rtol=_ELSEWHERE, atol=scale, equal_nan=True)


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
