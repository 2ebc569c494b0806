# SPDX-License-Identifier: Apache-2.0
"""How the gradients of a module's examples are had: captured, or one at a time.

Everything is decided once for a module, from its layers and by a try with synthetic
examples, never from private ones: which way it goes, how many examples make a part, and
whether formed gradients are kept.
"""

import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.guards import refuse_mixing, repeated, unwritten
from armijo.objectives.ghost.layers import (
    Capture,
    Layer,
    UnsupportedForward,
    capture_activations,
    rule_for,
)
from armijo.objectives.ghost.params import every_layer, swapped, trainable

MOST_ROWS = 512
"""The most that go through a module at once: memory does not grow with the batch."""

# Numbers of formed gradients that a part may keep, 256 MiB, and examples that a part
# must have for keeping them: fewer would leave the passes too little to do at once.
_KEPT_NUMBERS, _FEWEST_ROWS = 1 << 26, 16

# Two sizes: an axis that happens to have one length cannot pass both.
SIZES = (2, 3)
_TOLERANCE = 1e-3


@dataclass
class CaptureStrategy:
    """The layers to capture, or the reason why examples go one at a time."""

    parameters: list[nn.Parameter]
    layers: list[Layer]
    reason: str = ""
    kept_size: int = 0  # numbers that one example's formed gradients would keep
    vectorized: bool | None = None  # whether torch.func can batch it; None: not tried

    @property
    def size(self) -> int:
        """The number of trainable numbers."""
        return sum(p.numel() for p in self.parameters)

    def zeros(self) -> Tensor:
        """Return a flat vector of zeros."""
        return self.parameters[0].new_zeros(self.size)

    @property
    def captured(self) -> bool:
        """Whether every parameter is used in layers with rules only."""
        return not self.reason

    @property
    def keeps(self) -> bool:
        """Whether formed gradients stay in memory until they are added."""
        return self.kept_size * _FEWEST_ROWS <= _KEPT_NUMBERS

    @property
    def part_rows(self) -> int:
        """The most examples that go through the module at once."""
        if not self.keeps or self.kept_size == 0:
            return MOST_ROWS
        return min(MOST_ROWS, _KEPT_NUMBERS // self.kept_size)


_strategies: weakref.WeakKeyDictionary[nn.Module, tuple[object, CaptureStrategy]]
_strategies = weakref.WeakKeyDictionary()


def strategy_for(module: nn.Module, inputs: tuple[Tensor, ...]) -> CaptureStrategy:
    """Return the strategy of a module as it is now, made when it is needed first."""
    state = _state(module, inputs)
    held = _strategies.get(module)
    if held is None or held[0] != state:
        held = (state, _make(module, inputs))
        _strategies[module] = held
    return held[1]


def _state(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[object]:
    state: list[object] = [(x.shape[1:], x.dtype, x.device) for x in inputs]
    for layer in every_layer(module):
        state += (id(layer), layer.training)
        for p in layer._parameters.values():
            if p is not None:
                state += (id(p), p.requires_grad, p.dtype, p.device)
    return state


def _make(module: nn.Module, inputs: tuple[Tensor, ...]) -> CaptureStrategy:
    """Look for a rule for every layer to train, then try it."""
    parameters = trainable(module)
    refuse_mixing(module)
    layers, reason = _layers(module)
    kept_size = 0
    with unwritten(module):
        if not reason:
            try:
                for examples in SIZES:
                    layers, kept_size = _tried(
                        module, layers, parameters, inputs, examples
                    )
            except Exception as error:
                # Whatever synthetic examples break, real ones can go one by one.
                reason = f"synthetic examples met {type(error).__name__}: {error}"
        if reason:
            _pass_single(module, inputs)
    return CaptureStrategy(parameters, [] if reason else layers, reason, kept_size)


def _layers(module: nn.Module) -> tuple[list[Layer], str]:
    """Return the layers to capture, and the reason if one of them has no rule."""
    layers = []
    for name, layer in module.named_modules():
        own = tuple(p for p in layer.parameters(recurse=False) if p.requires_grad)
        if own:
            rule = rule_for(layer)
            if rule is None:
                kind = type(layer).__name__
                return [], f"there is no rule for {name or 'it'}, {kind}"
            layers.append(Layer(weakref.ref(layer), rule, own))
    return layers, ""


def _tried(
    module: nn.Module,
    layers: list[Layer],
    parameters: list[nn.Parameter],
    inputs: tuple[Tensor, ...],
    examples: int,
) -> tuple[list[Layer], int]:
    """Raise if captured gradients are not those of torch.

    Returns the layers, with what is known of their inputs, and how many numbers one
    example's formed gradients would keep.
    """
    device = inputs[0].device
    with repeated(0, device):
        made = [synthetic_batch(module, x, examples) for x in inputs]
    with repeated(1, device), torch.enable_grad():
        plain = output_tensors(module(*made), examples)
        found = torch.autograd.grad(
            _scalar(plain), parameters, allow_unused=True, materialize_grads=True
        )
    capture = _capture(module, layers, made)
    gradients = capture.gradients()
    for parameter, expected in zip(parameters, found, strict=True):
        formed = torch.zeros_like(expected)
        if (parameter,) in gradients:
            formed = gradients[parameter,].formed(slice(None)).sum(0).view_as(expected)
        if not _close(formed, expected):
            raise UnsupportedForward("captured gradients that are not the whole ones")
    elsewhere = torch.cat([p.detach().flatten() for p in parameters]).mul_(-0.7)
    with swapped(parameters, elsewhere):
        other = _capture(module, layers, made)

    def is_direct(layer: Layer) -> bool:
        seen = [found.first.get(layer.module()) for found in (capture, other)]  # type: ignore[arg-type]
        return all(seen) and torch.equal(*(one[0] for one in seen if one))

    layers = [replace(layer, direct=is_direct(layer)) for layer in layers]
    return layers, sum(one.kept_size for one in gradients.values())


def _capture(module: nn.Module, layers: list[Layer], made: list[Tensor]) -> Capture:
    capture = Capture(len(made[0]))
    with (
        repeated(1, made[0].device),
        torch.enable_grad(),
        capture_activations(layers, capture),
    ):
        outputs = output_tensors(module(*made), capture.examples)
        torch.autograd.grad(_scalar(outputs), capture.anchor, allow_unused=True)
    return capture


def _pass_single(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Make a pass over one synthetic example, as one at a time are taken.

    For what it leaves in buffers; synthetic numbers may be none that the module takes.
    """
    with repeated(0, inputs[0].device), suppress(Exception), torch.no_grad():
        module(*[synthetic_batch(module, x, 1) for x in inputs])


def _close(found: Tensor, expected: Tensor) -> bool:
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=0.0, atol=_TOLERANCE * scale)


def _scalar(outputs: list[Tensor]) -> Tensor:
    """Return a number that depends on all outputs, not in the same way."""
    parts = [t for t in outputs if t.requires_grad]
    if not parts:
        raise UnsupportedForward("outputs that do not depend on the parameters")
    sums = [(t * torch.linspace(1, 2, t.numel()).to(t).view_as(t)).sum() for t in parts]
    return torch.stack(sums).sum()


def synthetic_batch(module: nn.Module, like: Tensor, examples: int) -> Tensor:
    """Return random inputs; integers are places that every embedding has."""
    shape = (examples, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    last = last_place(module)
    most = 2 if last is None else last + 1
    return torch.randint(most, shape, device=like.device).to(like.dtype)


def last_place(module: nn.Module) -> int | None:
    """Return the last place of the smallest embedding, if there is one."""
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    return min(tables) - 1 if tables else None


def output_tensors(output: Any, examples: int) -> list[Tensor]:
    """Return the tensors in an output, one entry for each example in all of them."""
    if isinstance(output, Tensor):
        if output.shape[:1] != (examples,):
            raise UnsupportedForward(f"an output of shape {tuple(output.shape)}")
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    return [part for value in parts for part in output_tensors(value, examples)]
