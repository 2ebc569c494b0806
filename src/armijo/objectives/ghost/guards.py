# SPDX-License-Identifier: Apache-2.0
"""What keeps examples apart: batches, refusals, buffers, masks, examples that raise.

Clipping bounds what one example adds.  It means nothing once an example reaches the sum
through the gradients of others, so modules that mix examples are refused by name.
Buffers stay as they are: what a pass writes there would leave without noise, and later
batches would use it.  Dropout masks repeat for all queries of a batch.  An example that
raises becomes a blank in its place: no row may stop a run that is paid for, nor be told
of by an error, and every other example is computed as before.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.params import every_layer

Tensors = Tensor | tuple[Tensor, ...]
Loss = Callable[..., Tensor]
"""From the module's output and the targets to one loss for each example."""


class Batch(NamedTuple):
    """Inputs and targets of some examples, which are the first axis of every tensor.

    A tuple of inputs becomes the module's arguments; targets go to the loss as they
    are.
    """

    inputs: Tensors
    targets: Tensors


def as_tuple(tensors: Tensors) -> tuple[Tensor, ...]:
    """Return one tensor or several as a tuple."""
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch with every tensor changed."""

    def changed(tensors: Tensors) -> Tensors:
        if isinstance(tensors, Tensor):
            return change(tensors)
        return tuple(change(one) for one in tensors)

    return Batch(changed(batch.inputs), changed(batch.targets))


def blanked(batch: Batch, blank: Tensor) -> Batch:
    """Return a batch with zeros in the places of blank examples."""
    some = bool(blank.any())

    def zeros(tensor: Tensor) -> Tensor:
        copy = tensor.clone(memory_format=torch.contiguous_format)
        if some:  # else nothing is filled: this pass would cost three times the copy
            copy.masked_fill_(blank.view(-1, *[1] * (tensor.dim() - 1)), 0)
        return copy

    return each_tensor(batch, zeros)


def batch_size(batch: Batch) -> int:
    """Return the number of examples, refusing tensors that do not agree on it."""
    tensors = as_tuple(batch.inputs) + as_tuple(batch.targets)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError(
            "Expected inputs and targets with the examples as their first axis, got "
            f"shapes {shapes}; every tensor needs one entry for each example."
        )
    return shapes[0][0]


def check_losses(losses: object, examples: int) -> Tensor:
    """Return the losses, refusing any shape but ``(examples,)``.

    A loss of shape (B, 1) would broadcast, and a mean would divide by the private
    number of examples.
    """
    found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if not isinstance(losses, Tensor) or losses.shape != (examples,):
        raise ValueError(
            f"Expected one loss for each example, shape ({examples},), got {found}; "
            "use reduction='none', and squeeze or average within each example."
        )
    if not losses.is_floating_point():
        raise ValueError(
            f"Expected losses that are floating-point numbers, got {losses.dtype}; "
            "return a differentiable loss."
        )
    return losses


def refuse_mixing(module: nn.Module) -> None:
    """Refuse layers that compute with statistics of the batch."""
    for name, layer in module.named_modules():
        advice = _advice(layer)
        if advice:
            raise UnsupportedModule(
                f"Layer {name or '(the module itself)'!s} is a {type(layer).__name__}, "
                f"which mixes the examples of a batch; {advice}."
            )


def _advice(layer: nn.Module) -> str:
    """Return what to use instead of a layer that mixes examples; else nothing."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if layer.training or not layer.track_running_stats:
            return (
                "use GroupNorm or LayerNorm instead, or keep a pre-trained one in eval "
                "mode"
            )
    elif isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        if layer.training and layer.track_running_stats:
            return "use track_running_stats=False, or GroupNorm"
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.scale_grad_by_freq:
            return "use scale_grad_by_freq=False"
        if layer.max_norm is not None:
            return "use max_norm=None, since it changes weights that a batch looks up"
    elif isinstance(layer, nn.Softmax | nn.LogSoftmax | nn.Softmin) and layer.dim == 0:
        return "normalize over another axis than the first"
    return ""


class _Held(NamedTuple):
    """The buffers of one layer before a pass: the tensors and copies of them."""

    part: nn.Module  # the module that the layer is in
    layer: nn.Module
    buffers: dict[str, Tensor | None]
    copies: dict[str, Tensor | None]


@contextmanager
def kept_buffers(*parts: object) -> Iterator[None]:
    """Put the buffers of all modules among the parts back after the block.

    In silence: an error that depends on private examples would tell of them.
    """
    held = _noted(parts)
    try:
        yield
    finally:
        _put_back(held)


@contextmanager
def unwritten(*parts: object) -> Iterator[None]:
    """Refuse modules whose buffers change inside the block, and put them back.

    For synthetic examples.  What else is raised inside gives way to the refusal.
    """
    held = _noted(parts)
    try:
        yield
    finally:
        names = _changed(held)
        _put_back(held)
        if names:
            raise UnsupportedModule(
                f"A pass over examples writes to the buffers {', '.join(names)}, where "
                "values of private examples would be kept without noise. Put these "
                "layers in eval mode or leave them out; fill a cache that depends on "
                "shapes only by one pass over public inputs beforehand."
            )


def _noted(parts: tuple[object, ...]) -> list[_Held]:
    """Copy all buffers; one that several layers share gets one copy."""
    copies: dict[int, Tensor] = {}

    def copy(buffer: Tensor | None) -> Tensor | None:
        if buffer is None:
            return None
        return copies.setdefault(id(buffer), buffer.detach().clone())

    return [
        _Held(
            part,
            layer,
            dict(layer._buffers),
            {key: copy(buffer) for key, buffer in layer._buffers.items()},
        )
        for part in parts
        if isinstance(part, nn.Module)
        for layer in every_layer(part)
    ]


def _changed(held: list[_Held]) -> list[str]:
    """Return the names of buffers that have another value than before, or are new."""
    return [
        _name(one, key)
        for one in held
        for key in {**one.buffers, **one.layer._buffers}
        if not _same(one.layer._buffers.get(key), one.copies.get(key))
    ]


def _name(held: _Held, key: str) -> str:
    names = {id(layer): name for name, layer in held.part.named_modules()}
    prefix = names[id(held.layer)]
    return f"{prefix}.{key}" if prefix else key


def _put_back(held: list[_Held]) -> None:
    """Give every layer its tensors again, or the copy of one that was overwritten."""
    for one in held:
        for key in one.layer._buffers.keys() - one.buffers.keys():
            del one.layer._buffers[key]
        for key, buffer in one.buffers.items():
            copy = one.copies[key]
            one.layer._buffers[key] = buffer if _same(buffer, copy) else copy


def _same(buffer: Tensor | None, copy: Tensor | None) -> bool:
    """Compare values; what is no number equals itself."""
    if buffer is None or copy is None:
        return buffer is copy
    kinds = {(one.shape, one.dtype, one.device, one.layout) for one in (buffer, copy)}
    if len(kinds) > 1 or buffer.grad_fn is not None:
        return False
    return all(
        torch.equal(one, other)
        or bool(((one == other) | ((one != one) & (other != other))).all())
        for one, other in zip(_numbers(buffer), _numbers(copy), strict=True)
    )


def _numbers(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return what torch can compare: the parts of a sparse tensor, else itself."""
    if tensor.layout is torch.strided:
        return (tensor,)
    sparse = tensor.to_sparse()
    return sparse._indices(), sparse._values()


# Torch draws masks from one generator for all threads: without turns, trainings side by
# side would draw from each other's seeds.
_turn = threading.RLock()


@contextmanager
def repeated(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw what torch draws inside the block from ``seed``; None changes nothing.

    The state of the generators outside is put back, so a run goes on as if nothing had
    been drawn.  These numbers decide on masks only, never on noise for privacy.
    Threads take turns.

    Examples
    --------
    >>> with repeated(7, torch.device("cpu")):
    ...     first = torch.rand(3)
    >>> with repeated(7, torch.device("cpu")):
    ...     second = torch.rand(3)
    >>> bool((first == second).all())
    True
    """
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with _turn, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


Result = TypeVar("Result")
Compute = Callable[[Batch, Tensor], Result]
"""From a batch and which of its examples, (B,), are blank to anything."""


def skip_failing(
    compute: Compute[Result],
    batch: Batch,
    blank: Tensor,
    attempt: Compute[object] | None = None,
) -> tuple[Result, Tensor]:
    """Return what is computed, and which examples are blank: those that raise, too.

    ``attempt`` raises what ``compute`` does and leaves nothing behind; without it,
    neither does ``compute``.
    """
    try:
        return compute(batch, blank), blank
    except Exception:
        pass
    attempt = attempt or compute
    # What blanks raise as well is no example's doing; shown without the error before,
    # which may tell of one.
    nobody = torch.ones_like(blank)
    attempt(blanked(batch, nobody), nobody)
    for index in _failing(attempt, batch, blank, list(range(len(blank)))):
        blank = blank.clone()
        blank[index] = True
    try:
        return compute(blanked(batch, blank), blank), blank
    except Exception:
        pass
    # Only several examples together raise: the module mixes them.  Nobody counts then.
    return compute(blanked(batch, nobody), nobody), nobody


def _failing(
    attempt: Compute[object], batch: Batch, blank: Tensor, some: list[int]
) -> list[int]:
    """Return those of some examples that raise among blanks, by halving."""
    others = torch.ones_like(blank)
    others[some] = blank[some]
    try:
        attempt(blanked(batch, others), others)
        return []
    except Exception:
        if len(some) == 1:
            return some
    half = len(some) // 2
    return [
        index
        for part in (some[:half], some[half:])
        for index in _failing(attempt, batch, blank, part)
    ]
