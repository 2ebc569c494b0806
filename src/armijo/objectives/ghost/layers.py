# SPDX-License-Identifier: Apache-2.0
"""One rule for each kind of layer: from input and output gradient to its own gradients.

A rule gets the layer, the input of one call and the gradient of the examples' losses
with respect to its output, and names a :class:`~.grads.PerExampleGrad` for each
parameter.  More kinds of layers are added with :func:`register_layer`.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from armijo.objectives.ghost.conv import ConvGrad, geometry
from armijo.objectives.ghost.grads import (
    BiasGrad,
    EmbeddingGrad,
    Materialized,
    OuterProduct,
    PerExampleGrad,
)

Rule = Callable[[nn.Module, Tensor, Tensor], dict[str, PerExampleGrad]]
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
            same = type(layer).forward is kind.forward and _same_helpers(layer, kind)
            known = {name for name, _ in layer.named_parameters(recurse=False)}
            plain = "forward" not in layer.__dict__ and known <= {"weight", "bias"}
            return function if same and plain and _is_plain(layer) else None
    return None


def _same_helpers(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Say whether a convolution's inner function is the original as well."""
    name = "_conv_forward"
    return getattr(type(layer), name, None) is getattr(kind, name, None)


def _is_plain(layer: nn.Module) -> bool:
    """Refuse embeddings that change their weights or count over the batch."""
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    return True


def _over_places(gradient: Tensor) -> Tensor:
    """Sum (B, T, d) over its places."""
    return gradient[:, 0] if gradient.shape[1] == 1 else gradient.sum(1)


@register_layer(nn.Linear)
def _linear(
    layer: nn.Module, value: Tensor, gradient: Tensor
) -> dict[str, PerExampleGrad]:
    """Any number of places between the batch and the features."""
    right = value.reshape(value.shape[0], -1, value.shape[-1])
    left = gradient.reshape(*right.shape[:2], gradient.shape[-1])
    weight = OuterProduct(left, right)
    return {"weight": weight, "bias": BiasGrad(weight)}


@register_layer(nn.Conv1d, nn.Conv2d)
def _convolution(
    layer: nn.Module, value: Tensor, gradient: Tensor
) -> dict[str, PerExampleGrad]:
    """Any stride, padding, dilation and number of groups."""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        raise TypeError(f"Expected a convolution, got {type(layer).__name__}.")
    bias = Materialized(gradient.flatten(2).sum(2))
    if value.dim() == 3:
        value, gradient = value.unsqueeze(2), gradient.unsqueeze(2)
    return {"weight": ConvGrad(geometry(layer), value, gradient), "bias": bias}


@register_layer(nn.Embedding)
def _embedding(
    layer: nn.Module, value: Tensor, gradient: Tensor
) -> dict[str, PerExampleGrad]:
    """Rows of a table; the padding row has no gradient."""
    if not isinstance(layer, nn.Embedding):
        raise TypeError(f"Expected an embedding, got {type(layer).__name__}.")
    places = value.reshape(value.shape[0], -1)
    gradient = gradient.reshape(*places.shape, gradient.shape[-1])
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((places == layer.padding_idx)[..., None], 0)
    return {"weight": EmbeddingGrad(places, gradient, layer.num_embeddings)}


@register_layer(nn.LayerNorm)
def _layer_norm(
    layer: nn.Module, value: Tensor, gradient: Tensor
) -> dict[str, PerExampleGrad]:
    """Scale and shift of every normalized coordinate."""
    if not isinstance(layer, nn.LayerNorm):
        raise TypeError(f"Expected a LayerNorm, got {type(layer).__name__}.")
    shape = layer.normalized_shape
    scale = gradient * functional.layer_norm(value, shape, eps=layer.eps)
    sums = [t.reshape(t.shape[0], -1, *shape) for t in (scale, gradient)]
    return {name: Materialized(_over_places(t)) for name, t in _named(sums)}


@register_layer(nn.GroupNorm)
def _group_norm(
    layer: nn.Module, value: Tensor, gradient: Tensor
) -> dict[str, PerExampleGrad]:
    """Scale and shift of every channel."""
    if not isinstance(layer, nn.GroupNorm):
        raise TypeError(f"Expected a GroupNorm, got {type(layer).__name__}.")
    scale = gradient * functional.group_norm(value, layer.num_groups, eps=layer.eps)
    sums = [t.reshape(*t.shape[:2], -1).sum(2) for t in (scale, gradient)]
    return {name: Materialized(t) for name, t in _named(sums)}


def _named(sums: list[Tensor]) -> list[tuple[str, Tensor]]:
    """Name the gradients of scale and shift."""
    return list(zip(("weight", "bias"), sums, strict=True))
