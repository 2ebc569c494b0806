# SPDX-License-Identifier: Apache-2.0
"""Which way a module goes: recorded layer by layer, or one example at a time.

The decision is made once for a module, from its layers and from a trial with made-up
examples, never from private ones.
"""

import weakref
from dataclasses import dataclass

from torch import Tensor, nn

from armijo.objectives.ghost import trial
from armijo.objectives.ghost.buffers import unwritten
from armijo.objectives.ghost.capture import Layer
from armijo.objectives.ghost.checks import refuse_mixing
from armijo.objectives.ghost.parameters import every_layer, trainable
from armijo.objectives.ghost.rules import rule_for


@dataclass
class Plan:
    """The layers to record, or the reason why examples go one at a time."""

    parameters: list[nn.Parameter]
    layers: list[Layer]
    reason: str = ""
    vectorized: bool = True  # without records: whether torch.func can batch the module

    @property
    def size(self) -> int:
        """The number of trainable numbers."""
        return sum(p.numel() for p in self.parameters)

    def zeros(self) -> Tensor:
        """Return a flat vector of zeros."""
        return self.parameters[0].new_zeros(self.size)

    @property
    def recorded(self) -> bool:
        """Whether every parameter is used in layers with rules only."""
        return not self.reason


_plans: weakref.WeakKeyDictionary[nn.Module, tuple[object, Plan]]
_plans = weakref.WeakKeyDictionary()


def plan_for(module: nn.Module, inputs: tuple[Tensor, ...]) -> Plan:
    """Return the plan of a module as it is now, made when it is needed first."""
    state = _state(module, inputs)
    held = _plans.get(module)
    if held is None or held[0] != state:
        held = (state, _make(module, inputs))
        _plans[module] = held
    return held[1]


def _state(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[object]:
    """Return what a plan depends on."""
    state: list[object] = [(x.dim(), x.dtype, x.device) for x in inputs]
    for layer in every_layer(module):
        state += (id(layer), layer.training)
        for p in layer._parameters.values():
            if p is not None:
                state += (id(p), p.requires_grad, p.dtype, p.device)
    return state


def _make(module: nn.Module, inputs: tuple[Tensor, ...]) -> Plan:
    """Look for a rule for every layer to train, then try it."""
    parameters = trainable(module)
    refuse_mixing(module)
    layers, reason = _layers(module)
    with unwritten(module):
        reason = reason or trial.failure(module, layers, parameters, inputs)
        if reason:
            trial.pass_alone(module, inputs)
    return Plan(parameters, [] if reason else layers, reason)


def _layers(module: nn.Module) -> tuple[list[Layer], str]:
    """Return the layers to record, and the reason if one of them has no rule."""
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
