# SPDX-License-Identifier: Apache-2.0
"""The clipped gradient sum of a batch for any module, and losses at other parameters.

One forward and one backward pass leave the inputs and output gradients of every layer.
From them come estimates of the norm of each example's gradient over all parameters
together, the weights of the examples, and integers that are certified and added.

Modules with layers that have no rule are differentiated example by example, batched by
torch.func where it can, in chunks: memory holds the gradients of one chunk and not
those of the batch.  Batched kernels run there too: it is no isolation of examples.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from armijo import _validate
from armijo.data.certified import FINEST_BITS, shares
from armijo.objectives.ghost.grads import Gradients, Materialized, blocks, joined
from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    Tensors,
    as_tuple,
    batch_size,
    check_losses,
    each_tensor,
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

# Numbers that the gradients of a chunk may have, and the most examples in one.
_CHUNK_NUMBERS, _CHUNK_EXAMPLES = 1 << 24, 64


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
    task = Task.of(module, loss, batch, seed)
    # A later chunk may raise: what was added before must then be forgotten.
    total = out if task.strategy.captured else torch.zeros_like(out)
    found = []
    for rows, gradients, losses, first in _passes(task, w):
        own = None if blank is None else blank[rows]
        with torch.no_grad():
            gradients = joined(gradients)
            keep = task.strategy.keeps
            weights, kept, squares = _weights(gradients, losses, clip, own, keep)
            parts = shares(squares, weights, clip.bound, bits)
            places = _places(gradients, task.strategy, total)
            for one, share, place in zip(
                gradients.values(), parts, places, strict=True
            ):
                one.add_integers(share, *place)
        found.append(ExampleLosses(losses, kept, first))
    if total is not out:
        out += total
    return _joined(task, found)


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
    task = Task.of(module, loss, batch, seed)
    total, found = task.strategy.zeros(), []
    for rows, gradients, losses, first in _passes(task, w):
        own = None if blank is None else blank[rows]
        with torch.no_grad():
            keep = task.strategy.keeps
            weights, kept, _ = _weights(gradients, losses, clip, own, keep)
            weights = weights.to(total.dtype)
            places = _places(gradients, task.strategy, total)
            for one, (place,) in zip(gradients.values(), places, strict=True):
                for part in blocks(one.examples, one.size):
                    formed = one.formed(part).flatten(1)
                    formed = formed.where(kept[part, None], 0.0)
                    place.view(-1).add_(weights[part] @ formed)
        found.append(ExampleLosses(losses, kept, first))
    return total, _joined(task, found)


class Task(NamedTuple):
    """What a pass is made of: a module, a loss, and examples that fit together."""

    module: nn.Module
    loss: Loss
    batch: Batch
    strategy: CaptureStrategy
    seed: int | None
    examples: int

    @classmethod
    def of(
        cls, module: nn.Module, loss: Loss, batch: Batch, seed: int | None
    ) -> "Task":
        """Return the task, refusing tensors that do not agree on the examples."""
        strategy = strategy_for(module, as_tuple(batch.inputs))
        return cls(module, loss, batch, strategy, seed, batch_size(batch))

    @property
    def device(self) -> torch.device:
        """Where the examples are."""
        return as_tuple(self.batch.inputs)[0].device

    @contextmanager
    def at(self, w: Tensor | None) -> Iterator[None]:
        """Compute with the numbers of ``w``, or with the module's own."""
        own = self.strategy.parameters
        moved = nullcontext() if w is None else swapped(matching(own, w), w)
        with moved, kept_buffers(self.module, self.loss):
            yield

    def capture(self) -> tuple[Capture, Any, Tensor]:
        """Run both passes; return what they leave, the output, and the losses."""
        capture = Capture(self.examples)
        with (
            repeated(self.seed, self.device),
            capture_activations(self.strategy.layers, capture),
        ):
            output = self.module(*as_tuple(self.batch.inputs))
            losses = check_losses(self.loss(output, self.batch.targets), self.examples)
            backward(losses, capture, self.strategy.parameters)
        return capture, output, losses.detach()

    def each_gradient(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the flat gradients and the losses of a chunk of examples at a time."""
        gradient = grad_and_value(lambda *one: _one_loss(self, *one))

        def single(*one: Any) -> tuple[Tensor, ...]:
            gradients, value = gradient(*one)
            return torch.cat([g.reshape(-1) for g in gradients.values()]), value

        return _chunks(self, single)


def _joined(task: Task, found: list[ExampleLosses]) -> ExampleLosses:
    """Return what several passes leave as one."""
    if not found:
        none = task.strategy.parameters[0].new_zeros(0)
        return ExampleLosses(none, none.bool(), {})
    losses = torch.cat([one.losses for one in found])
    kept = torch.cat([one.kept for one in found])
    return ExampleLosses(losses, kept, found[-1].first)


_Pass = tuple[slice, Gradients, Tensor, FirstOutputs]
"""Which examples a pass took, and their gradients and losses."""


def _passes(task: Task, w: Tensor | None) -> Iterator[_Pass]:
    """Yield the passes over a batch: one, or one for each chunk without rules."""
    with task.at(w), torch.enable_grad():
        if task.examples and task.strategy.captured:
            capture, _, losses = task.capture()
            yield slice(None), capture.gradients(), losses, capture.first
            return
        start = 0
        for flat, losses in task.each_gradient():
            rows = slice(start, start + len(losses))
            yield rows, {(): Materialized(flat)}, losses.detach(), {}
            start = rows.stop


def _places(
    gradients: Gradients, strategy: CaptureStrategy, flat: Tensor
) -> list[list[Tensor]]:
    """Return the parts of a flat vector that each gradient is of."""
    parts = views(strategy.parameters, flat)
    places = dict(zip(strategy.parameters, parts, strict=True))
    return [[places[p] for p in parameters] or [flat] for parameters in gradients]


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
    task = Task.of(module, loss, Batch(*batch), seed)
    if task.examples == 0:
        return w.new_zeros(0)
    with task.at(w), torch.no_grad():
        if not task.strategy.captured:
            parts = _chunks(task, lambda *one: (_one_loss(task, *one),))
            return torch.cat([losses for (losses,) in parts])
        with repeated(seed, task.device):
            output = module(*as_tuple(task.batch.inputs))
            return check_losses(loss(output, task.batch.targets), task.examples)


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
    with Task.of(module, loss, batch, seed).at(step), torch.no_grad():
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


_Values = dict[str, Tensor]
_Single = Callable[[_Values, Tensors, Tensors], tuple[Tensor, ...]]
"""From parameters by name, the input and the target of one example."""


def _one_loss(task: Task, values: _Values, inputs: Tensors, targets: Tensors) -> Tensor:
    """Return the loss of one example as a function of the parameters."""
    one = each_tensor(Batch(inputs, targets), lambda tensor: tensor.unsqueeze(0))
    output = functional_call(task.module, values, as_tuple(one.inputs))
    return check_losses(task.loss(output, one.targets), 1)[0]


def _chunks(task: Task, single: _Single) -> Iterator[tuple[Tensor, ...]]:
    """Yield what a function gives of all examples of a chunk, with masks of its own."""
    named = task.module.named_parameters()  # in the order of the flat vector
    values = {name: p.detach() for name, p in named if p.requires_grad}
    height = min(max(1, _CHUNK_NUMBERS // task.strategy.size), _CHUNK_EXAMPLES)
    for start in range(0, task.examples, height):
        chunk = each_tensor(task.batch, itemgetter(slice(start, start + height)))
        seed = None if task.seed is None else task.seed + start
        yield _mapped(single, values, chunk, task.strategy, seed)


def _mapped(
    single: _Single,
    values: _Values,
    chunk: Batch,
    strategy: CaptureStrategy,
    seed: int | None,
) -> tuple[Tensor, ...]:
    """Apply a function to every example of a chunk, batched if torch.func can."""
    first = as_tuple(chunk.inputs)[0]
    if strategy.vectorized is None:
        strategy.vectorized = _can_batch(single, values, chunk)
    if strategy.vectorized:
        with repeated(seed, first.device):
            return _batched(single, values, chunk)
    results = []
    for number in range(len(first)):
        one = each_tensor(chunk, itemgetter(number))
        # Masks of its own: how many numbers one example draws may depend on it.
        with repeated(None if seed is None else seed + number, first.device):
            results.append(single(values, *one))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _batched(single: _Single, values: _Values, chunk: Batch) -> tuple[Tensor, ...]:
    batched = vmap(single, in_dims=(None, 0, 0), randomness="different")
    found: tuple[Tensor, ...] = batched(values, *chunk)
    return found


def _can_batch(single: _Single, values: _Values, chunk: Batch) -> bool:
    """Say whether torch.func takes two blank examples; some layers have no such form.

    Real examples must not decide that: one of them could send all others another way.
    """
    two = each_tensor(chunk, lambda one: one.new_zeros(2, *one.shape[1:]))
    try:
        with repeated(0, as_tuple(chunk.inputs)[0].device):
            _batched(single, values, two)
    except RuntimeError:
        return False
    return True
