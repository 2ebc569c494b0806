# SPDX-License-Identifier: Apache-2.0
"""What is refused: layers that mix examples, losses that are not one per example.

Clipping bounds what one example adds.  It means nothing once an example reaches the sum
through the gradients of others, so such modules are refused by name.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from armijo.errors import UnsupportedModule

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

    def zeros(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(blank.view(-1, *[1] * (tensor.dim() - 1)), 0)

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
