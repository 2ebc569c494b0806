# SPDX-License-Identifier: Apache-2.0
"""The clipped gradient sum of a batch for any module, and losses at other parameters.

One forward and one backward pass leave the inputs and output gradients of every layer;
from them come exact norms for each example over all parameters together, the weights of
the examples, and the weighted sum.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from armijo import _validate
from armijo.objectives.ghost import one_by_one
from armijo.objectives.ghost.buffers import kept
from armijo.objectives.ghost.capture import (
    FirstOutputs,
    NotRecorded,
    Record,
    backward,
    recording,
)
from armijo.objectives.ghost.checks import (
    Batch,
    Tensors,
    as_tuple,
    batch_size,
    check_losses,
)
from armijo.objectives.ghost.clipping import (
    AUTOMATIC_SHIFT,
    Clipping,
    example_weights,
)
from armijo.objectives.ghost.one_by_one import Loss, Weigh
from armijo.objectives.ghost.parameters import matching, swapped
from armijo.objectives.ghost.plan import Plan, plan_for
from armijo.objectives.ghost.randomness import repeated
from armijo.objectives.ghost.totals import (
    merged_uses,
    squared_norms,
    weighted_total,
)


class ClippedSum(NamedTuple):
    """The sum of clipped gradients as a flat vector, and the losses, (B,).

    ``first`` is for :func:`~.line.losses_along`.  All are exact: none may leave the
    gate without noise.
    """

    total: Tensor
    losses: Tensor
    first: FirstOutputs


def clipped_gradient_sum(
    module: nn.Module,
    loss: Loss,
    batch: Batch | tuple[Tensors, Tensors],
    *,
    clip: float,
    clipping: Clipping = "norm",
    stability: float = AUTOMATIC_SHIFT,
    seed: int | None = None,
    w: Tensor | None = None,
) -> ClippedSum:
    r"""Return :math:`\sum_i c_i \nabla \ell_i(w)` at the module's parameters.

    The factor is :math:`c_i = \min(1, C / \|\nabla \ell_i\|)` or, for automatic
    clipping, :math:`C / (\|\nabla \ell_i\| + 0.01)` (Bu et al. 2022, AUTO-S has C = 1);
    the norm is over all trainable parameters together.  An example whose loss or
    gradient is not finite is left out.

    Parameters
    ----------
    module : torch.nn.Module
        Its trainable parameters, in the order of ``module.parameters()``, are the
        coordinates of the sum.  Gradients stored in it are left alone.
    loss : callable
        ``loss(module(*inputs), targets)`` with shape (B,).
    batch : Batch
        Inputs and targets; tensors or tuples of tensors.
    clip : float
        The most that one example adds, as an L2 norm.
    clipping : {"norm", "automatic"}
        How the factor depends on the norm.
    stability : float
        The constant of automatic clipping.
    seed : int or None
        Where dropout masks come from; the same seed gives the same masks in
        :func:`losses_at`.  None draws from torch's global generator.
    w : Tensor or None
        Where to compute, as a flat vector; the module itself keeps its parameters.
        None is at these.

    Examples
    --------
    >>> module = nn.Linear(2, 1, bias=False)
    >>> batch = Batch(torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    >>> clipped_gradient_sum(module, lambda s, y: s[:, 0] - y, batch, clip=1.0).total
    tensor([0.6000, 0.8000])
    """
    _validate.positive(clip=clip)
    _validate.choice(("norm", "automatic"), clipping=clipping)
    batch = Batch(*batch)
    plan = plan_for(module, as_tuple(batch.inputs))
    there = nullcontext() if w is None else swapped(matching(plan.parameters, w), w)
    if batch_size(batch) == 0:
        return ClippedSum(plan.zeros(), plan.zeros()[:0], {})

    def weigh(squares: Tensor, losses: Tensor) -> Tensor:
        # Zero times a loss that is not finite is not a number, nor is the norm then.
        norms = (squares + 0 * losses).sqrt_().to(plan.parameters[0].dtype)
        return example_weights(norms, clip, clipping, stability)

    with there, torch.enable_grad(), kept(module, loss):
        if plan.recorded:
            try:
                return _from_records(module, loss, batch, plan, weigh, seed)
            except NotRecorded as error:
                plan.reason = f"a pass met {error}"
        found = one_by_one.summed(module, loss, batch, plan, weigh, seed)
        return ClippedSum(*found, {})


def _from_records(
    module: nn.Module,
    loss: Loss,
    batch: Batch,
    plan: Plan,
    weigh: Weigh,
    seed: int | None,
) -> ClippedSum:
    """Compute the sum from the records of one forward and one backward pass."""
    inputs = as_tuple(batch.inputs)
    record = Record(len(inputs[0]))
    with repeated(seed, inputs[0].device), recording(plan.layers, record):
        losses = check_losses(loss(module(*inputs), batch.targets), record.examples)
        backward(losses, record, plan.parameters)
    losses = losses.detach()
    with torch.no_grad():
        uses = merged_uses(record)
        weights = weigh(squared_norms(uses, losses), losses)
        total = weighted_total(uses, plan.parameters, weights)
    return ClippedSum(total, losses, record.first)


def losses_at(
    module: nn.Module,
    loss: Loss,
    batch: Batch | tuple[Tensors, Tensors],
    w: Tensor,
    *,
    seed: int | None = None,
) -> Tensor:
    """Return the loss of each example at the parameters ``w``, without gradients.

    The module itself keeps its parameters.  With the seed of
    :func:`clipped_gradient_sum` dropout masks are those of the gradient.

    Examples
    --------
    >>> module = nn.Linear(2, 1, bias=False)
    >>> batch = Batch(torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    >>> losses_at(module, lambda s, y: s[:, 0] - y, batch, torch.ones(2))
    tensor([7.])
    """
    batch = Batch(*batch)
    inputs = as_tuple(batch.inputs)
    plan = plan_for(module, inputs)
    if batch_size(batch) == 0:
        return w.new_zeros(0)
    there = swapped(matching(plan.parameters, w), w)
    with there, torch.no_grad(), kept(module, loss):
        if not plan.recorded:
            return one_by_one.losses_of(module, loss, batch, plan, seed)
        with repeated(seed, inputs[0].device):
            losses = loss(module(*inputs), batch.targets)
        return check_losses(losses, batch_size(batch))
