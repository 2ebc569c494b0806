# SPDX-License-Identifier: Apache-2.0
"""Any torch module with a loss per example, as an objective on its flat parameters."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from armijo import _validate
from armijo.data.query import BoundedQuery, ClippedTotal, Rows
from armijo.objectives.base import Objective, QueryForm
from armijo.objectives.ghost.capture import FirstOutputs
from armijo.objectives.ghost.checks import Batch, refuse_mixing
from armijo.objectives.ghost.clipping import Clipping
from armijo.objectives.ghost.engine import clipped_gradient_sum, losses_at
from armijo.objectives.ghost.line import losses_along
from armijo.objectives.ghost.loss_trial import refuse_mixing_loss
from armijo.objectives.ghost.one_by_one import Loss
from armijo.objectives.ghost.parameters import (
    flat_parameters,
    flat_size,
    load_parameters,
    trainable,
)
from armijo.objectives.ghost.sparing import spared_losses, spared_sum
from armijo.objectives.losses import clipped_losses, loss_drops
from armijo.objectives.penalty import SquaredPenalty
from armijo.privacy.budget import FloatArray

EXAMPLES = 512
"""The most that go through a module at once: memory does not grow with the batch."""

Numbers = Callable[[Rows], FloatArray]


class ModuleObjective(SquaredPenalty):
    """A module's loss, summed over examples, plus ``l2/2 ||w||^2``.

    Parameters
    ----------
    module : torch.nn.Module
        Layers that mix examples are refused.  Its trainable parameters in their order
        are ``w``; frozen ones stay as they are.
    loss : callable
        ``loss(module(*inputs), targets)`` of shape (B,): one number for each example.
    l2 : float
        Penalty, outside the clipping and of every sensitivity.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, l2: float = 0.0) -> None:
        _validate.non_negative(l2=l2)
        refuse_mixing(module)
        self.module, self.loss, self.l2 = module, loss, l2
        self._size = flat_size(module)

    @property
    def size(self) -> int:
        """The number of trainable parameters."""
        return self._size

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return trainable(self.module)[0].device

    def start(self) -> Tensor:
        """Return the module's parameters as the vector to start from."""
        return flat_parameters(self.module)

    def load(self, w: Tensor) -> None:
        """Write parameters into the module."""
        load_parameters(self.module, w)

    def check(self, inputs: Any, targets: Any) -> None:
        """Raise what a step would raise for such examples, before anything is spent.

        They are made up, or hold the ends of a table's integers; errors are for its
        owner.  A loss that mixes them is refused as well, which no step would notice.
        """
        batch = Batch(inputs, targets)
        clipped_gradient_sum(self.module, self.loss, batch, clip=1.0)
        refuse_mixing_loss(self.module, self.loss, batch)

    def gradient_sum(self, w: Tensor, *, clip: float) -> BoundedQuery:
        """Ask for the sum of per-example gradients, each clipped to ``clip``."""
        return BoundedQuery(
            contributions=lambda rows: self._total(rows, w, clip, "norm"), bound=clip
        )

    def normalized_gradient_sum(self, w: Tensor, *, stability: float) -> BoundedQuery:
        """Ask for the sum of ``g / (||g|| + stability)``, each shorter than one."""
        return BoundedQuery(
            contributions=lambda rows: self._total(
                rows, w, 1.0, "automatic", stability=stability
            ),
            bound=1.0,
        )

    def _total(
        self,
        rows: Rows,
        w: Tensor,
        clip: float,
        clipping: Clipping,
        *,
        stability: float = 0.01,
    ) -> ClippedTotal:
        """Return the clipped sum and keep the losses of its forward passes."""

        def total(part: Rows) -> Tensor:
            found = spared_sum(
                lambda batch: clipped_gradient_sum(
                    self.module,
                    self.loss,
                    batch,
                    clip=clip,
                    clipping=clipping,
                    stability=stability,
                    seed=part.seed,
                    w=w,
                ),
                Batch(part.X, part.y),
            )
            part.cache["losses"] = (w, found.losses)
            part.cache["first"] = (w, found.first)
            return found.total

        return ClippedTotal(reduce(Tensor.add_, map(total, rows.parts(EXAMPLES))))

    def loss_drop_sum(
        self,
        w: Tensor,
        step: Tensor,
        step_size: float,
        *,
        form: QueryForm,
        clip: float,
        offset: float = 0.0,
    ) -> BoundedQuery:
        """Ask for the sum of loss drops along ``-step``; see the linear objective."""

        def contributions(rows: Rows) -> FloatArray:
            before = self._losses(rows, w)
            after = self._losses_beside(rows, w, step, step_size)
            return loss_drops(before, after, form, clip).cpu().numpy()

        return BoundedQuery(
            contributions=_by_parts(contributions), bound=clip, offset=offset
        )

    def drops_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, units: FloatArray
    ) -> BoundedQuery:
        """Ask for the summed loss drops at ``w - size step``, each in its own unit.

        The drops of one example are clipped together, to norm root of their number.
        """

        def contributions(rows: Rows) -> FloatArray:
            before = self._losses(rows, w).double()
            drops = [
                before - self._losses_beside(rows, w, step, size).double()
                for size in sizes
            ]
            return torch.stack(drops, dim=1).cpu().numpy() / units

        return BoundedQuery(
            contributions=_by_parts(contributions), bound=math.sqrt(len(sizes))
        )

    def losses_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask for the summed losses at ``w - size step``, in units of their clip."""

        def contributions(rows: Rows) -> FloatArray:
            return (self._along(rows, w, step, sizes, clip) / clip).cpu().numpy()

        return BoundedQuery(
            contributions=_by_parts(contributions), bound=math.sqrt(len(sizes))
        )

    def step_scores(
        self, w: Tensor, step: Tensor, step_sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask which step along ``-step`` has the least loss."""

        def contributions(rows: Rows) -> FloatArray:
            losses = self._along(rows, w, step, step_sizes, clip)
            return (0.5 * clip - losses).cpu().numpy()

        return BoundedQuery(contributions=_by_parts(contributions), bound=0.5 * clip)

    def _along(
        self, rows: Rows, w: Tensor, step: Tensor, sizes: Sequence[float], clip: float
    ) -> Tensor:
        """Return clipped losses, one column for each size."""
        losses = [
            self._losses(rows, w)
            if size == 0
            else self._losses_beside(rows, w, step, size)
            for size in sizes
        ]
        return torch.stack(
            [clipped_losses(one, clip) for one in losses], dim=1
        ).double()

    def _losses(self, rows: Rows, w: Tensor) -> Tensor:
        """Return the losses at ``w``, from the gradient's own pass if there was one."""
        held: tuple[Tensor, Tensor] | None = rows.cache.get("losses")
        if held is None or held[0] is not w:
            held = (w, self._losses_at(rows, w))
            rows.cache["losses"] = held
        return held[1]

    def _losses_beside(
        self, rows: Rows, w: Tensor, step: Tensor, size: float
    ) -> Tensor:
        """Return the losses at ``w - size step``; sizes share the first products."""

        def compute() -> Callable[[float], Tensor]:
            held: tuple[Tensor, FirstOutputs] = rows.cache.get("first", (w, {}))
            first = held[1] if held[0] is w else {}
            batch = Batch(rows.X, rows.y)
            return losses_along(
                self.module, self.loss, batch, w, step, first, seed=rows.seed
            )

        with suppress(Exception):
            return rows.remember("along", compute, w, step)(size)
        # The longer way leaves out the examples that raise.
        return self._losses_at(rows, torch.sub(w, step, alpha=size))

    def _losses_at(self, rows: Rows, w: Tensor) -> Tensor:
        """Return the losses at any parameters, with the masks of this batch."""

        def compute(batch: Batch) -> Tensor:
            return losses_at(self.module, self.loss, batch, w, seed=rows.seed)

        return spared_losses(compute, Batch(rows.X, rows.y))


def _by_parts(numbers: Numbers) -> Numbers:
    """Return the function that computes the numbers of a batch part by part."""

    def joined(rows: Rows) -> FloatArray:
        return np.concatenate([numbers(part) for part in rows.parts(EXAMPLES)])

    return joined


def as_module(objective: Objective) -> ModuleObjective:
    """Return the objective of a module, refusing any other."""
    if not isinstance(objective, ModuleObjective):
        raise TypeError(
            f"Expected the objective of a module, got {type(objective).__name__}; this "
            "method is for networks."
        )
    return objective
