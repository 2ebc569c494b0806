# SPDX-License-Identifier: Apache-2.0
"""Probes with synthetic examples: one example's numbers depend on no other.

Clipping bounds what one example adds.  It means nothing once an example reaches the sum
through the numbers of others: a statistic of the batch, a branch on its values, a loss
that compares examples.  Some examples are changed, and all others must keep the bits of
their outputs, losses, activations and gradients.

A probe refutes, it does not prove.  What it cannot refute for torch's own kernels is
the assumption that a guarantee names: a row's numbers do not depend on the *contents*
of other rows.  Numbers of rows and places are the same for both sides under the
zero-out relation, and need not be tested.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations, product
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from armijo.data.certified import FINEST_BITS
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.engine import Clip, Task, add_clipped
from armijo.objectives.ghost.grads import PerExampleGrad
from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    as_tuple,
    blanked,
    check_losses,
    each_tensor,
    repeated,
    unwritten,
)
from armijo.objectives.ghost.layers import UnsupportedForward
from armijo.objectives.ghost.params import every_layer
from armijo.objectives.ghost.strategy import (
    SIZES,
    last_place,
    output_tensors,
    strategy_for,
    synthetic_batch,
)

Change = Callable[[Tensor], Tensor]
Observed = dict[str, Tensor]
"""Numbers by what they are; the examples are the first axis of each."""
Observe = Callable[[Batch], Observed | None]
"""None if the examples raise: synthetic numbers may be none that a module takes."""
Filling = tuple[str, tuple[Tensor | None, ...]]
"""What inputs become, by name; None leaves one as it is."""

EXAMPLES = max(SIZES)
ADVICE = (
    "Compute with each example alone, as GroupNorm and LayerNorm do, or train with "
    "isolate=True, which passes one example at a time. Nothing was spent."
)


def _times(scale: float) -> Change:
    return lambda like: scale * torch.randn_like(like)


def _filled(value: float) -> Change:
    return lambda like: torch.full_like(like, value)


def _outlier(like: Tensor) -> Tensor:
    made = torch.rand_like(like).view(len(like), -1)
    made[:, :1] = 1e6
    return made.view_as(like)


def _sentinels(like: Tensor) -> Tensor:
    """Return fractions among which -1 and 0 stand for what is missing."""
    made = torch.rand_like(like).view(len(like), -1)
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
    """Return other integers; ``top`` is the largest that is taken, if one is known."""
    if like.dtype is torch.bool:
        return {"False": torch.zeros_like(like), "True": torch.ones_like(like)}
    info = torch.iinfo(like.dtype)
    ends = {value: str(value) for value in (0, 1, 2, 3, 7, 255, -1, -100, 10_000)}
    ends |= {top: "the last place"} if top is not None else {info.max: "the largest"}
    found = {
        name: torch.full_like(like, value)
        for value, name in ends.items()
        if info.min <= value <= info.max
    }
    largest = 255 if top is None else min(top, info.max)
    other = torch.randint(largest + 1, like.shape, device=like.device).to(like.dtype)
    return found | {"other integers": other}


def _fillings(inputs: tuple[Tensor, ...], top: int | None) -> Iterator[Filling]:
    """Yield what inputs may become: one of them at a time, then all together."""
    with repeated(1, inputs[0].device):
        own = [
            {name: change(one) for name, change in FILLINGS.items()}
            if one.is_floating_point()
            else _integers(one, top)
            for one in inputs
        ]
    for place, fillings in enumerate(own):
        for name, filling in fillings.items():
            yield name, tuple(filling if k == place else None for k in range(len(own)))
    if len(own) > 1:
        for together in zip(*(fillings.items() for fillings in own), strict=False):
            names, tensors = zip(*together, strict=True)
            yield " and ".join(names), tensors


def _replaced(batch: Batch, which: Tensor, fill: tuple[Tensor | None, ...]) -> Batch:
    """Return a batch with other inputs for some examples."""
    fillings = iter(fill)

    def other(tensor: Tensor) -> Tensor:
        filling = next(fillings)
        if filling is None:
            return tensor
        rows = which.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
        return torch.where(rows, filling, tensor)

    inputs = each_tensor(Batch(batch.inputs, ()), other).inputs
    return Batch(inputs, batch.targets)


def _moves(
    observe: Observe, batch: Batch, changes: Iterable[tuple[Filling, Tensor]]
) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each filling, and what it moved of those that it left alone.

    Nothing if nothing moved, None if the filling raises, as it does by itself.
    """
    expected = observe(batch)
    if expected is None:
        return
    for (name, fill), which in changes:
        changed = _replaced(batch, which, fill)
        found = observe(changed)
        if found is not None:
            yield name, _first_moved(expected, found, ~which)
        elif observe(blanked(changed, ~which.to(_device(batch)))) is not None:
            yield name, "whether it raises"
        else:
            yield name, None


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


def _device(batch: Batch) -> torch.device:
    return as_tuple(batch.inputs)[0].device


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
    with repeated(0, _device(batch)):
        made = synthetic_examples(module, batch, EXAMPLES, base)
    fillings = _fillings(as_tuple(made.inputs), last_place(module))
    changes = (
        (filling, torch.arange(EXAMPLES) == place)
        for number, filling in enumerate(fillings)
        for place in (range(EXAMPLES) if every else (number % EXAMPLES,))
    )
    for name, moved in _moves(_observer(module, loss), made, changes):
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


def _observer(module: nn.Module, loss: Loss) -> Observe:
    """Return what sees all numbers of the examples that gradients come from."""

    def observe(batch: Batch) -> Observed:
        task = Task.of(module, loss, batch, 1)
        if not task.strategy.captured:
            parts = zip(*task.each_gradient(), strict=True)
            names = ("the gradient", "the loss")
            return dict(zip(names, map(torch.cat, parts), strict=True))
        layers: Observed = {}
        titles = {layer: name for name, layer in module.named_modules()}

        def note(
            layer: nn.Module, value: Tensor, gradient: Tensor
        ) -> dict[str, PerExampleGrad]:
            title = f"layer {titles[layer] or '(the module)'} ({type(layer).__name__})"
            number = sum(key.startswith(f"the input of {title}") for key in layers)
            layers[f"the input of {title}, call {number}"] = value.clone()
            layers[f"the output gradient of {title}, call {number}"] = gradient.clone()
            return {}

        noted = [replace(layer, rule=note) for layer in task.strategy.layers]
        task = task._replace(strategy=replace(task.strategy, layers=noted))
        _, output, losses = task.capture()
        outputs = output_tensors(output, task.examples)
        numbered = {f"output {k}": part.detach() for k, part in enumerate(outputs)}
        return {**numbered, "the loss": losses, **layers}

    def unless_raising(batch: Batch) -> Observed | None:
        with unwritten(module, loss), torch.enable_grad():
            return _or_none(observe, batch)

    return unless_raising


def _or_none(observe: Callable[[Batch], Observed], batch: Batch) -> Observed | None:
    try:
        return observe(batch)
    except UnsupportedForward:
        return None
    except UnsupportedModule:
        raise
    except Exception:
        return None


# ------------------------------------------- the assumption of row-wise kernels, tested

ROW_WISE_SIZES = 8
ROW_WISE_FILLINGS = 8


def row_wise_test(module: nn.Module, loss: Loss, batch: Batch) -> str:
    """Test at many sizes that a row's numbers do not depend on other rows' contents.

    The module, the loss, the kernels and threads are those of the run.  Three rows of
    each batch stay, all others are filled; activations, output gradients, losses and
    the certified integers of one row must keep their bits.
    """
    most = strategy_for(module, as_tuple(batch.inputs)).part_rows
    sizes = sorted({round(most ** (k / ROW_WISE_SIZES)) for k in range(1, 9)} | {2})
    names, tested = set(), set()
    for examples in sizes:
        with repeated(2, _device(batch)):
            made = synthetic_examples(module, batch, examples, torch.rand_like)
        others = torch.ones(examples, dtype=torch.bool)
        others[[0, examples // 2, examples - 1]] = False
        fillings = list(_fillings(as_tuple(made.inputs), last_place(module)))
        some = fillings[:: -(-len(fillings) // ROW_WISE_FILLINGS)]
        moves = _moves(_observer(module, loss), made, ((one, others) for one in some))
        last = examples == sizes[-1]  # forming integers is as much work as passing
        own = _own_integers(module, loss, made) if last else None
        for (name, moved), (_, fill) in zip(moves, some, strict=False):
            if moved is None:
                continue
            if own is not None and not moved:
                filled = _replaced(made, others, fill)
                same = torch.equal(own, _own_integers(module, loss, filled))
                moved = "" if same else "what one row adds"
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


def _own_integers(module: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """Return what the middle row adds while all others are blank, with contents."""
    inputs = as_tuple(batch.inputs)
    out = strategy_for(module, inputs).zeros().double()
    blank = torch.ones(len(inputs[0]), dtype=torch.bool, device=out.device)
    blank[len(blank) // 2] = False
    clip = Clip(bound=1.0)
    add_clipped(
        module, loss, batch, out, clip=clip, bits=FINEST_BITS, blank=blank, seed=1
    )
    return out


# --------------------------------------------------------------------- the loss alone

_REPEATS = 3
_LARGEST_TARGET = 10**6
# In another place, or beside more examples, a loss may be added up in another order.
_ELSEWHERE = 1e-2


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _fractions(tensor: Tensor) -> Tensor:
    """Return random numbers from 0 to 1, which nearly all losses take."""
    if tensor.is_floating_point():
        return torch.rand_like(tensor)
    return torch.randint_like(tensor, 2)


def _scores(output: Tensor) -> Tensor:
    return 20 * _fractions(output) - 10 if output.is_floating_point() else output


# Outputs may be all alike, and then hide what a loss compares.
_OUTPUTS: tuple[Change, ...] = (_as_it_is, _fractions, _scores)
_TARGETS: tuple[Change, ...] = (_as_it_is, _fractions)


def refuse_mixing_loss(module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Refuse a loss that feels other examples, by synthetic outputs and targets.

    Where examples are taken one at a time, the loss never sees two of them.
    """
    if not strategy_for(module, as_tuple(batch.inputs)).captured:
        return
    device = _device(batch)
    heard, obstacle = False, "its values are not finite"
    with unwritten(loss):
        for seed in range(_REPEATS):
            with repeated(seed, device), torch.no_grad():
                made = synthetic_examples(module, batch, 2 * EXAMPLES, torch.rand_like)
                output = module(*as_tuple(made.inputs))
            for ways in product(_OUTPUTS, _TARGETS):
                try:
                    with repeated(seed, device):
                        sides = _each(output, ways[0]), _each(made.targets, ways[1])
                    heard |= _loss_tried(loss, sides, device, seed)
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


def _loss_tried(
    loss: Loss, sides: tuple[Any, Any], device: torch.device, turn: int
) -> bool:
    """Refuse if an example's loss moves with others; say whether it was finite.

    ``sides`` are outputs and targets of twice as many examples as are tried: the
    second half takes the place of others.  By the ``turn`` each filling leaves another
    example alone.
    """
    leaves: list[Tensor] = []
    _each(sides, leaves.append)
    base = Batch(tuple(one[:EXAMPLES] for one in leaves), ())
    fillings: list[Filling] = [("others", tuple(one[EXAMPLES:] for one in leaves))]
    fillings += _fillings(as_tuple(base.inputs), _LARGEST_TARGET)
    changes = (
        (filling, torch.arange(EXAMPLES) != (number + turn) % EXAMPLES)
        for number, filling in enumerate(fillings)
    )

    def losses(batch: Batch, seed: int = 1) -> Tensor:
        tensors = as_tuple(batch.inputs)
        parts = iter(tensors)
        output, targets = _each(sides, lambda _: next(parts))
        with repeated(seed, device):
            return check_losses(loss(output, targets), len(tensors[0]))

    def observe(batch: Batch) -> Observed | None:
        return _or_none(lambda batch: {"the loss": losses(batch)}, batch)

    first = losses(base)
    mixes = any(moved for _, moved in _moves(observe, base, changes))
    # Random numbers of a loss differ between places and sizes: not to be compared.
    if not mixes and torch.equal(first, losses(base, seed=2)):
        for index in (p for n in SIZES for p in permutations(range(EXAMPLES), n)):
            there = losses(each_tensor(base, itemgetter([*index])))
            mixes |= not _close(there, first[[*index]])
    if mixes:
        raise UnsupportedModule(
            "The loss mixes examples: that of one example changed with the others "
            "of the batch, their number, or its place among them. Compute each "
            "loss from its own output and target only; do not average, scale or "
            "compare over the first axis. Nothing was spent."
        )
    return bool(first.isfinite().any())


def _close(losses: Tensor, expected: Tensor) -> bool:
    """Compare losses, also relative to the largest of the batch."""
    largest = losses[losses.isfinite()].abs()
    scale = 0.1 * _ELSEWHERE * largest.max().item() if largest.numel() else 0.0
    return torch.allclose(losses, expected, rtol=_ELSEWHERE, atol=scale, equal_nan=True)


def _each(structure: Any, change: Callable[[Tensor], Any]) -> Any:
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
