# SPDX-License-Identifier: Apache-2.0
"""Layers: a rule for each kind, and the two passes that capture what rules work on.

A rule gets the layer, the input of one call and the gradient of the examples' losses
with respect to its output, and names a :class:`~.grads.PerExampleGrad` for each
parameter.  More kinds of layers are added with :func:`register_layer`.

Inputs and gradients are captured in one forward and one backward pass.  Inside a layer
with a rule its parameters are constants, so the backward pass computes gradients of
activations only, and none at all before the first layer to train.  Outside they are
not: a parameter that is used in any other way gets a gradient of its own, which tells
that the layers are not the whole gradient.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.grads import (
    BiasGrad,
    ConvGrad,
    EmbeddingGrad,
    Gradients,
    Materialized,
    OuterProduct,
    PerExampleGrad,
    merged,
)

LayerGrads = dict[str, PerExampleGrad]
Rule = Callable[[Any, Tensor, Tensor], LayerGrads]
_RULES: dict[type[nn.Module], Rule] = {}


def register_layer(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for layers whose ``forward`` is that of one of the kinds."""

    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_for(layer: nn.Module) -> Rule | None:
    """Return the rule of a layer, or None if it computes anything else.

    A subclass counts only if it left ``forward`` alone and added no parameter.

    >>> rule_for(nn.Linear(2, 2)) is None, rule_for(nn.Bilinear(2, 2, 1)) is None
    (False, True)
    """
    for kind, function in _RULES.items():
        if isinstance(layer, kind):
            same = all(
                getattr(type(layer), name, None) is getattr(kind, name, None)
                for name in ("forward", "_conv_forward")
            )
            known = {name for name, _ in layer.named_parameters(recurse=False)}
            plain = "forward" not in layer.__dict__ and known <= {"weight", "bias"}
            return function if same and plain and _is_plain(layer) else None
    return None


def _is_plain(layer: nn.Module) -> bool:
    """Refuse embeddings that change their weights or count over the batch."""
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    return True


@register_layer(nn.Linear)
def _linear(layer: Any, value: Tensor, gradient: Tensor) -> LayerGrads:
    """Any number of places between the batch and the features."""
    right = value.reshape(value.shape[0], -1, value.shape[-1])
    left = gradient.reshape(*right.shape[:2], gradient.shape[-1])
    weight = OuterProduct(left, right)
    return {"weight": weight, "bias": BiasGrad(weight)}


@register_layer(nn.Conv1d, nn.Conv2d)
def _convolution(layer: Any, value: Tensor, gradient: Tensor) -> LayerGrads:
    """Any stride, padding, dilation and number of groups."""
    bias = Materialized(gradient.flatten(2).sum(2))
    return {"weight": ConvGrad(layer, value, gradient), "bias": bias}


@register_layer(nn.Embedding)
def _embedding(layer: Any, value: Tensor, gradient: Tensor) -> LayerGrads:
    """Rows of a table; the padding row has no gradient."""
    places = value.reshape(value.shape[0], -1)
    gradient = gradient.reshape(*places.shape, gradient.shape[-1])
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((places == layer.padding_idx)[..., None], 0)
    return {"weight": EmbeddingGrad(places, gradient, layer.num_embeddings)}


@register_layer(nn.LayerNorm)
def _layer_norm(layer: Any, value: Tensor, gradient: Tensor) -> LayerGrads:
    """Scale and shift of every normalized coordinate."""
    shape = layer.normalized_shape
    scale = gradient * functional.layer_norm(value, shape, eps=layer.eps)
    by_place = (t.reshape(t.shape[0], -1, *shape) for t in (scale, gradient))
    return _named(t[:, 0] if t.shape[1] == 1 else t.sum(1) for t in by_place)


@register_layer(nn.GroupNorm)
def _group_norm(layer: Any, value: Tensor, gradient: Tensor) -> LayerGrads:
    """Scale and shift of every channel."""
    scale = gradient * functional.group_norm(value, layer.num_groups, eps=layer.eps)
    return _named(t.reshape(*t.shape[:2], -1).sum(2) for t in (scale, gradient))


def _named(sums: Iterable[Tensor]) -> LayerGrads:
    return dict(zip(("weight", "bias"), map(Materialized, sums), strict=True))


@dataclass(frozen=True)
class Layer:
    """A layer with a rule; the reference is weak, so that a plan keeps no module."""

    module: "weakref.ref[nn.Module]"
    rule: Rule
    parameters: tuple[nn.Parameter, ...]  # those to train
    direct: bool = True  # no trainable parameter decides on its input


FirstOutputs = dict[nn.Module, tuple[Tensor, Tensor, int]]
"""Input, output and its version, for linear layers on nothing but the input."""


class UnsupportedForward(UnsupportedModule):
    """The module did something that its layers do not show."""

    def __init__(self, found: str) -> None:
        super().__init__(
            "Expected a module that computes as it did when it was tried with synthetic"
            f" examples, got {found}; make its forward pass the same for all examples."
        )


@dataclass
class Capture:
    """What the passes of one batch left: the gradients of every parameter."""

    examples: int
    uses: dict[nn.Parameter, list[PerExampleGrad]] = field(default_factory=dict)
    first: FirstOutputs = field(default_factory=dict)
    calls: Counter[nn.Module] = field(default_factory=Counter)
    _merged: Gradients | None = None
    # A graph must begin somewhere: every first layer hangs on this number.
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))

    def add(
        self, layer: nn.Module, rule: Rule, value: Tensor, gradient: Tensor
    ) -> None:
        """Note the gradients of one call of a layer."""
        for name, use in rule(layer, value, gradient).items():
            parameter = getattr(layer, name)
            if parameter is not None and parameter.requires_grad:
                self.uses.setdefault(parameter, []).append(use)

    def gradients(self) -> Gradients:
        """Return one gradient for each parameter that was used."""
        if self._merged is None:
            self._merged = {(p,): merged(uses) for p, uses in self.uses.items()}
        return self._merged

    def count(self, module: nn.Module) -> None:
        """Count a call; a layer that is called again has no first output."""
        self.calls[module] += 1
        if self.calls[module] > 1:
            self.first.pop(module, None)

    def begin(
        self, layer: Layer, module: nn.Module, value: Tensor, output: Tensor
    ) -> None:
        """Note the output of a layer that is linear in what is trained: all of it."""
        own = [p for p in module._parameters.values() if p is not None]
        whole = layer.direct and len(own) == len(layer.parameters)
        if isinstance(module, nn.Linear) and whole and self.calls[module] == 1:
            self.first[module] = (value, output.detach(), output._version)


class GraphRoot(torch.autograd.Function):
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
def capture_activations(layers: list[Layer], capture: Capture) -> Iterator[None]:
    """Let the layers write to the capture inside the block."""
    modules = [(layer, layer.module()) for layer in layers]
    try:
        for layer, module in modules:
            if module is not None:
                module.__dict__["forward"] = _forward(layer, module, capture)
        yield
    finally:
        for _, module in modules:
            if module is not None:
                module.__dict__.pop("forward", None)


def _forward(
    layer: Layer, module: nn.Module, capture: Capture
) -> Callable[[Tensor], Tensor]:
    """Return the layer's forward function with a note for the backward pass."""
    original = module.forward

    def forward(input: Tensor) -> Tensor:
        capture.count(module)
        if not torch.is_grad_enabled():
            return original(input)
        if input.shape[:1] != (capture.examples,):
            raise UnsupportedForward(f"an input of shape {tuple(input.shape)}")
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
                raise UnsupportedForward("an input that was changed after its use")
            capture.add(module, layer.rule, value, gradient)

        if output._is_view():
            # A change in place would take a view off the graph, and the hook with it.
            output = torch.ops.aten._unsafe_view(output, output.shape)
        if not output.requires_grad:
            output = GraphRoot.apply(output, capture.anchor)  # type: ignore[no-untyped-call]
            capture.begin(layer, module, value, output)
        output.register_hook(note)  # type: ignore[no-untyped-call]
        return output

    return forward


def backward(losses: Tensor, capture: Capture, parameters: list[nn.Parameter]) -> None:
    """Run the backward pass, which fills the capture."""
    if not losses.requires_grad:
        raise ValueError(
            "Expected losses that depend on the trainable parameters, got constants; "
            "do not detach what the module returns."
        )
    inputs = [capture.anchor, *parameters]
    gradients = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
    if any(gradient is not None for gradient in gradients[1:]):
        raise UnsupportedForward("a parameter outside of its layer")
