# SPDX-License-Identifier: Apache-2.0
"""One forward and one backward pass that leave a record of every layer's use.

Inside a layer with a rule its parameters are constants, so the backward pass computes
gradients of activations only, and none at all before the first layer to train.  Outside
they are not: a parameter that is used in any other way gets a gradient of its own,
which tells that the records are not the whole truth.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.rules import Rule
from armijo.objectives.ghost.uses import Use


@dataclass(frozen=True)
class Layer:
    """A layer with a rule; the reference is weak, so that a plan keeps no module."""

    module: "weakref.ref[nn.Module]"
    rule: Rule
    parameters: tuple[nn.Parameter, ...]  # those to train


FirstOutputs = dict[nn.Module, tuple[Tensor, Tensor, int]]
"""Input, output and its version, for linear layers on nothing but the input."""


class NotRecorded(Exception):
    """The module did something that the records do not show."""


@dataclass
class Record:
    """What the passes of one batch left: the uses of every parameter."""

    examples: int
    uses: dict[nn.Parameter, list[Use]] = field(default_factory=dict)
    first: FirstOutputs = field(default_factory=dict)
    # A graph must begin somewhere: every first layer hangs on this number.
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))

    def add(
        self, layer: nn.Module, rule: Rule, value: Tensor, gradient: Tensor
    ) -> None:
        """Note what one call of a layer adds."""
        for name, use in rule(layer, value, gradient).items():
            parameter = getattr(layer, name)
            if parameter is not None and parameter.requires_grad:
                self.uses.setdefault(parameter, []).append(use)

    def begin(
        self, layer: Layer, module: nn.Module, value: Tensor, output: Tensor
    ) -> None:
        """Note the output of a layer that is linear in what is trained: all of it."""
        own = [p for p in module._parameters.values() if p is not None]
        if isinstance(module, nn.Linear) and len(own) == len(layer.parameters):
            self.first[module] = (value, output.detach(), output._version)


class _Begin(torch.autograd.Function):
    """The identity, as the beginning of a graph; the gradient goes to a hook."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """Return the same tensor, so that it may be changed in place later."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Pass nothing on: there is nothing to train before."""
        return None, None


@contextmanager
def recording(layers: list[Layer], record: Record) -> Iterator[None]:
    """Let the layers write to the record inside the block."""
    modules = [(layer, layer.module()) for layer in layers]
    try:
        for layer, module in modules:
            if module is not None:
                module.__dict__["forward"] = _forward(layer, module, record)
        yield
    finally:
        for _, module in modules:
            if module is not None:
                module.__dict__.pop("forward", None)


def _forward(
    layer: Layer, module: nn.Module, record: Record
) -> Callable[[Tensor], Tensor]:
    """Return the layer's forward function with a note for the backward pass."""
    original = module.forward

    def forward(input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return original(input)
        if input.shape[:1] != (record.examples,):
            raise NotRecorded(f"an input of shape {tuple(input.shape)}")
        try:
            for p in layer.parameters:
                p.requires_grad_(False)
            output: Tensor = original(input)
        finally:
            for p in layer.parameters:
                p.requires_grad_(True)
        value, version = input.detach(), input._version

        def note(gradient: Tensor) -> None:
            if value._version != version:
                raise NotRecorded("an input that was changed after its use")
            record.add(module, layer.rule, value, gradient)

        if output._is_view():
            # A change in place would take a view off the graph, and the hook with it.
            output = torch.ops.aten._unsafe_view(output, output.shape)
        if not output.requires_grad:
            output = _Begin.apply(output, record.anchor)  # type: ignore[no-untyped-call]
            record.begin(layer, module, value, output)
        output.register_hook(note)  # type: ignore[no-untyped-call]
        return output

    return forward


def backward(losses: Tensor, record: Record, parameters: list[nn.Parameter]) -> None:
    """Run the backward pass, which fills the record."""
    if not losses.requires_grad:
        raise ValueError(
            "Expected losses that depend on the trainable parameters, got constants; "
            "do not detach what the module returns."
        )
    inputs = [record.anchor, *parameters]
    gradients = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
    if any(gradient is not None for gradient in gradients[1:]):
        raise NotRecorded("a parameter outside of its layer")
