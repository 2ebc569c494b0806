# SPDX-License-Identifier: Apache-2.0
"""Probes with synthetic examples: one example's numbers depend on no other.

Clipping bounds what one example adds.  It means nothing once an example reaches the sum
through the numbers of others: a statistic of the batch, a branch on its values, a loss
that compares examples.  Every example is changed in turn, and all others must keep the
bits of their outputs, losses, activations and gradients.

A probe refutes, it does not prove.  What it cannot refute for torch's own kernels is
the assumption that a guarantee names: a row's numbers do not depend on the *contents*
of other rows.  Numbers of rows and places are the same for both sides under the
zero-out relation, and need not be tested.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from armijo.data.certified import FINEST_BITS
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost import vmap_fallback
from armijo.objectives.ghost.engine import Clip, add_clipped
from armijo.objectives.ghost.grads import PerExampleGrad
from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    Tensors,
    as_tuple,
    blanked,
    check_losses,
    each_tensor,
    repeated,
    unwritten,
)
from armijo.objectives.ghost.layers import (
    Capture,
    UnsupportedForward,
    backward,
    capture_activations,
)
from armijo.objectives.ghost.params import every_layer
from armijo.objectives.ghost.strategy import (
    SIZES,
    CaptureStrategy,
    output_tensors,
    strategy_for,
    synthetic_batch,
)

Change = Callable[[Tensor], Tensor]
Observed = dict[str, Tensor]
"""Numbers by what they are; the examples are the first axis of each."""

ADVICE = (
    "Compute with each example alone, as GroupNorm and LayerNorm do, or train with "
    "isolate=True, which passes one example at a time. Nothing was spent."
)


def _times(scale: float) -> Change:
    """Return normal numbers of a scale."""
    return lambda like: scale * torch.randn_like(like)


def _filled(value: float) -> Change:
    """Return one number everywhere."""
    return lambda like: torch.full_like(like, value)


def _outlier(like: Tensor) -> Tensor:
    """Return small numbers and one that is large."""
    made = torch.rand_like(like).flatten(1)
    made[:, :1] = 1e6
    return made.view_as(like)


def _sentinels(like: Tensor) -> Tensor:
    """Return fractions among which -1 and 0 stand for what is missing."""
    made = torch.rand_like(like).flatten(1)
    quarter = max(1, made.shape[1] // 4)
    made[:, :quarter], made[:, quarter : 2 * quarter] = -1.0, 0.0
    return made.view_as(like)


FILLINGS: dict[str, Change] = {
    "zeros": _filled(0.0),
    "NaN": _filled(math.nan),
    "infinity": _filled(math.inf),
    "1e30": _filled(1e30),
    "large": _times(1e4),
    "small": _times(1e-3),
    "negative": lambda like: -10 * torch.rand_like(like),
    "outlier": _outlier,
    "-1e30": _filled(-1e30),
    "-infinity": _filled(-math.inf),
    "-999": _filled(-999.0),
    "-1": _filled(-1.0),
    "0.5": _filled(0.5),
    "1": _filled(1.0),
    "255": _filled(255.0),
    "tiny fractions": lambda like: 1e-3 * torch.rand_like(like),
}
_BASES: dict[str, Change] = {
    "zeros": torch.zeros_like,
    "normal": _times(3.0),
    "sentinels": _sentinels,
    "tiny": lambda like: 1e-2 * torch.rand_like(like),
}


def _integers(like: Tensor, top: int | None) -> dict[str, Tensor]:
    """Return other integers; ``top`` is the last place of the smallest embedding."""
    if like.dtype is torch.bool:
        return {"False": torch.zeros_like(like), "True": torch.ones_like(like)}
    info = torch.iinfo(like.dtype)
    ends = {value: str(value) for value in (0, 1, 2, 7, 255, -1, -100, 10_000)}
    ends |= {top: "the last place"} if top is not None else {info.max: "the largest"}
    found = {
        name: torch.full_like(like, value)
        for value, name in ends.items()
        if info.min <= value <= info.max
    }
    largest = 255 if top is None else top
    other = torch.randint(largest + 1, like.shape, device=like.device).to(like.dtype)
    return found | {"other integers": other}


def refuse_mixing_examples(module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Refuse a module that mixes examples, in both of its modes.

    ``batch`` tells shapes, and targets that the loss takes; its values must be public.
    """
    _refuse_mixing_module(module, loss, batch, torch.rand_like, every=True)
    for base in _BASES.values():
        _refuse_mixing_module(module, loss, batch, base)
    with _other_mode(module):
        _refuse_mixing_module(module, loss, batch, torch.rand_like)


@contextmanager
def _other_mode(module: nn.Module) -> Iterator[None]:
    """Put layers in their other mode; statistics of batches stay as they are."""
    held = [(layer, layer.training) for layer in every_layer(module)]
    statistics = nn.modules.batchnorm._NormBase
    try:
        for layer, training in held:
            if not isinstance(layer, statistics):
                layer.training = not training
        yield
    finally:
        for layer, training in held:
            layer.training = training


def _refuse_mixing_module(
    module: nn.Module, loss: Loss, batch: Batch, base: Change, *, every: bool = False
) -> None:
    """Change the examples of a synthetic batch in turn and compare all others.

    ``every`` gives each of them every filling, otherwise fillings take turns.
    """
    examples = max(SIZES)
    with repeated(0, as_tuple(batch.inputs)[0].device):
        made = synthetic_examples(module, batch, examples, base)
    expected = _observed(module, loss, made)
    if expected is None:
        return
    for number, (name, fill) in enumerate(_fillings(module, made)):
        for place in range(examples) if every else (number % examples,):
            others = torch.arange(examples) != place
            changed = _replaced(made, ~others, fill)
            found = _observed(module, loss, changed)
            if found is None:
                alone = _observed(module, loss, blanked(changed, others))
                moved = "" if alone is None else "whether it raises"
            else:
                moved = _first_moved(expected, found, others)
            if moved:
                raise UnsupportedModule(
                    f"The module mixes examples: {moved} of one example changed when "
                    f"another one of the batch became {name}. {ADVICE}"
                )


def synthetic_examples(
    module: nn.Module, batch: Batch, examples: int, base: Change
) -> Batch:
    """Return synthetic inputs, and the given targets as often as it takes."""

    def made(like: Tensor) -> Tensor:
        numbers = synthetic_batch(module, like, examples)
        if numbers.is_floating_point():
            return base(numbers)
        # Integers have a base of zeros too, beside which any other is large or long.
        return torch.zeros_like(numbers) if base is torch.zeros_like else numbers

    where = torch.arange(examples) % len(as_tuple(batch.inputs)[0])
    inputs = each_tensor(Batch(batch.inputs, ()), made).inputs
    targets = each_tensor(Batch((), batch.targets), lambda one: one[where]).targets
    return Batch(inputs, targets)


def _fillings(
    module: nn.Module, batch: Batch
) -> Iterator[tuple[str, tuple[Tensor | None, ...]]]:
    """Yield what inputs may become: one of them at a time, then all together."""
    inputs = as_tuple(batch.inputs)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    top = min(tables) - 1 if tables else None
    with repeated(1, inputs[0].device):
        own = [
            {name: change(one) for name, change in FILLINGS.items()}
            if one.is_floating_point()
            else _integers(one, top)
            for one in inputs
        ]
    for place, fillings in enumerate(own):
        for name, filling in fillings.items():
            yield (
                name,
                tuple(filling if k == place else None for k in range(len(inputs))),
            )
    if len(inputs) > 1:
        for names in zip(*own, strict=False):
            yield (
                " and ".join(names),
                tuple(
                    fillings[name] for fillings, name in zip(own, names, strict=True)
                ),
            )


def _replaced(batch: Batch, which: Tensor, fill: tuple[Tensor | None, ...]) -> Batch:
    """Return a batch with other inputs for some examples."""

    def other(tensor: Tensor, filling: Tensor | None) -> Tensor:
        if filling is None:
            return tensor
        rows = which.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
        return torch.where(rows, filling, tensor)

    found = tuple(map(other, as_tuple(batch.inputs), fill))
    inputs: Tensors = found[0] if isinstance(batch.inputs, Tensor) else found
    return Batch(inputs, batch.targets)


def _observed(module: nn.Module, loss: Loss, batch: Batch) -> Observed | None:
    """Return all numbers of the examples that gradients come from.

    None if the examples raise: synthetic numbers may be none that module or loss take.
    """
    strategy = strategy_for(module, as_tuple(batch.inputs))
    found: Observed = {}
    try:
        with unwritten(module, loss), torch.enable_grad():
            if strategy.captured:
                _observe_layers(module, loss, batch, strategy, found)
            else:
                passes = vmap_fallback.each_gradient(module, loss, batch, strategy, 1)
                flat, losses = zip(*passes, strict=True)
                found["the gradient"] = torch.cat(flat)
                found["the loss"] = torch.cat(losses).detach()
    except UnsupportedForward:
        return None
    except UnsupportedModule:
        raise
    except Exception:
        return None
    return found


def _observe_layers(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    strategy: CaptureStrategy,
    found: Observed,
) -> None:
    """Note outputs and losses, and the input and output gradient of every layer."""
    names = {layer: name for name, layer in module.named_modules()}
    inputs = as_tuple(batch.inputs)

    def note(
        layer: nn.Module, value: Tensor, gradient: Tensor
    ) -> dict[str, PerExampleGrad]:
        title = f"layer {names[layer] or '(the module)'} ({type(layer).__name__})"
        number = sum(key.startswith(f"the input of {title}") for key in found)
        found[f"the input of {title}, call {number}"] = value.clone()
        found[f"the output gradient of {title}, call {number}"] = gradient.clone()
        return {}

    capture = Capture(len(inputs[0]))
    layers = [replace(layer, rule=note) for layer in strategy.layers]
    with repeated(1, inputs[0].device), capture_activations(layers, capture):
        output = module(*inputs)
        for number, part in enumerate(output_tensors(output, capture.examples)):
            found[f"output {number}"] = part.detach().clone()
        losses = check_losses(loss(output, batch.targets), capture.examples)
        found["the loss"] = losses.detach().clone()
        backward(losses, capture, strategy.parameters)


def _first_moved(expected: Observed, found: Observed, rows: Tensor) -> str:
    """Return what changed for some of the rows, in bits; nothing if nothing did.

    Where a layer's input changed, so did what comes behind it: the shortest way there
    is named first, as backward passes see layers from the last to the first.
    """
    moved = [
        name
        for name, numbers in expected.items()
        if name not in found or not same_bits(numbers, found[name], rows)
    ]
    inputs = [name for name in moved if name.startswith("the input")]
    return (inputs[-1:] or moved[:1] or [""])[0]


def same_bits(one: Tensor, other: Tensor, rows: Tensor) -> bool:
    """Compare some rows of two tensors to the last bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    sides = [side.detach().cpu()[rows].contiguous() for side in (one, other)]
    return torch.equal(*(side.view(torch.uint8) for side in sides if side.dim()))


# ------------------------------------------- the assumption of row-wise kernels, tested

ROW_WISE_SIZES = 8
ROW_WISE_FILLINGS = 8


def row_wise_test(module: nn.Module, loss: Loss, batch: Batch) -> str:
    """Test at many sizes that a row's numbers do not depend on other rows' contents.

    The module, the loss, the kernels and threads are those of the run.  Three rows of
    each batch stay, all others are filled; activations, output gradients, losses and
    the certified integers of one row must keep their bits.
    """
    device = as_tuple(batch.inputs)[0].device
    most = strategy_for(module, as_tuple(batch.inputs)).part_rows
    sizes = sorted({round(most ** (k / ROW_WISE_SIZES)) for k in range(1, 9)} | {2})
    names, tested = set(), set()
    for examples in sizes:
        with repeated(2, device):
            made = synthetic_examples(module, batch, examples, torch.rand_like)
        rows = torch.zeros(examples, dtype=torch.bool)
        rows[[0, examples // 2, examples - 1]] = True
        expected = _observed(module, loss, made)
        if expected is None:
            continue
        last = examples == sizes[-1]  # forming integers is as much work as passing
        own = _own_integers(module, loss, made, examples // 2) if last else None
        fillings = list(_fillings(module, made))
        for name, fill in fillings[:: -(-len(fillings) // ROW_WISE_FILLINGS)]:
            filled = _replaced(made, ~rows, fill)
            found = _observed(module, loss, filled)
            if found is None:
                continue
            moved = _first_moved(expected, found, rows)
            if own is not None and not moved:
                integers = _own_integers(module, loss, filled, examples // 2)
                moved = "" if torch.equal(own, integers) else "what one row adds"
            if moved:
                raise UnsupportedModule(
                    f"On this machine {moved} depends on the "
                    f"contents of other rows of a batch of {examples} (filled with "
                    f"{name}). {ADVICE}"
                )
            names.add(name)
            tested.add(examples)
    return (
        f"row-wise kernels: tested, {len(tested)} sizes up to {most}, "
        f"{len(names)} fillings"
    )


def _own_integers(module: nn.Module, loss: Loss, batch: Batch, place: int) -> Tensor:
    """Return what one row adds while all others are blank, but have their contents."""
    strategy = strategy_for(module, as_tuple(batch.inputs))
    out = strategy.zeros().double()
    blank = torch.ones(len(as_tuple(batch.inputs)[0]), dtype=torch.bool)
    blank[place] = False
    add_clipped(
        module,
        loss,
        batch,
        out,
        clip=Clip(bound=1.0),
        bits=FINEST_BITS,
        blank=blank.to(out.device),
        seed=1,
    )
    return out


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

    def losses(batch: Sequence[Any], seed: int = 1) -> Tensor:
        with repeated(seed, device):
            return check_losses(loss(*batch), examples)

    def beside(others: int) -> list[Any]:
        index = list(range(others, others + examples - 1))
        index.insert(place, 0)
        return [_each(side, lambda one: one[index]) for side in made]

    examples, place = SIZES[0], 0
    first = losses(beside(1))
    # Random numbers of a loss differ between places and sizes: not to be compared.
    random = not torch.equal(first, losses(beside(1), seed=2))
    for examples, place in ((n, place) for n in SIZES for place in range(n)):
        base = beside(1)
        here = losses(base)
        others = [losses(beside(1 + _OTHERS))]
        for side, value in (*product([0], _FAR), *product([1], _FAR_TARGETS)):
            with suppress(Exception):  # some losses take none of them
                batch = [*base]
                batch[side] = _each(batch[side], partial(_except, place, value))
                others.append(losses(batch))
        one = torch.arange(examples) == place
        moved = not all(same_bits(here, there, one) for there in others)
        if moved or not (random or _close(here[place], first[0], here)):
            raise UnsupportedModule(
                "The loss mixes examples: that of one example changed with the others "
                "of the batch, their number, or its place among them. Compute each "
                "loss from its own output and target only; do not average, scale or "
                "compare over the first axis. Nothing was spent."
            )
    return bool(first[0].isfinite())


def _except(place: int, value: float, output: Tensor) -> Tensor:
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
