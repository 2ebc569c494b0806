# SPDX-License-Identifier: Apache-2.0
"""Any torch module with a loss per example, as an objective on its flat parameters."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data.certified import EXACT_EXAMPLES
from armijo.data.query import BoundedQuery, CertifiedSum, Rows
from armijo.objectives.base import Objective, QueryForm
from armijo.objectives.ghost.engine import (
    Clip,
    ExampleLosses,
    add_clipped,
    losses_along,
    losses_at,
    plain_sum,
)
from armijo.objectives.ghost.guards import (
    Batch,
    Loss,
    as_tuple,
    batch_size,
    blanked,
    each_tensor,
    refuse_mixing,
    skip_failing,
)
from armijo.objectives.ghost.params import (
    flat_parameters,
    flat_size,
    load_parameters,
    trainable,
)
from armijo.objectives.ghost.probe import (
    refuse_mixing_examples,
    refuse_mixing_loss,
    row_wise_test,
)
from armijo.objectives.ghost.strategy import strategy_for
from armijo.objectives.losses import clipped_losses, loss_drops


class _Part(NamedTuple):
    """Examples that go through the module together, blanks as zeros."""

    batch: Batch
    blank: Tensor


class ModuleObjective(Objective):
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
    isolate : bool
        Whether examples go through the module one at a time, each in memory of its
        own.  What an example adds is then a function of that example without any
        assumption on kernels, at the price of small products.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, *, l2: float = 0.0, isolate: bool = False
    ) -> None:
        _validate.non_negative(l2=l2)
        refuse_mixing(module)
        self.module, self.loss, self.l2 = module, loss, l2
        self.isolate = isolate
        self._size = flat_size(module)
        self._probed = isolate

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

        They are synthetic, or hold the ends of a table's integers; errors are for its
        owner.  A module or a loss that mixes them is refused as well, which no step
        would notice.
        """
        batch = Batch(inputs, targets)
        total = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        clip = Clip(bound=1.0)
        add_clipped(self.module, self.loss, batch, total, clip=clip, bits=24, seed=0)
        if not self.isolate:
            refuse_mixing_loss(self.module, self.loss, batch)
            refuse_mixing_examples(self.module, self.loss, batch)
        self._probed = True

    def row_wise_test(self, inputs: Any, targets: Any) -> str:
        """Test on this machine that an example's numbers depend on no other's."""
        if self.isolate:
            return ""
        return row_wise_test(self.module, self.loss, Batch(inputs, targets))

    def kept(self, rows: Rows) -> Tensor:
        """Say which rows count at the module's own parameters: for their owner only."""
        w = self.start()
        self._integers(rows, w, Clip(bound=1.0), bits=24)
        return torch.cat([self._found(part, w).kept for part in self._parts(rows)])

    def gradient_sum(self, w: Tensor, *, clip: float) -> BoundedQuery:
        """Ask for the sum of per-example gradients, each clipped to ``clip``."""
        return self._clipped(w, Clip(bound=clip))

    def normalized_gradient_sum(self, w: Tensor, *, stability: float) -> BoundedQuery:
        """Ask for the sum of ``g / (||g|| + stability)``, each shorter than one."""
        return self._clipped(
            w, Clip(bound=1.0, clipping="automatic", stability=stability)
        )

    def _clipped(self, w: Tensor, clip: Clip) -> BoundedQuery:
        """Ask for the clipped sum, on the lattice that the gate names."""

        def contributions(rows: Rows) -> CertifiedSum:
            return CertifiedSum(
                integers=lambda bits: self._integers(rows, w, clip, bits),
                plain=lambda: self._plain(rows, w, clip),
                dtype=w.dtype,
            )

        return BoundedQuery(contributions=contributions, bound=clip.bound)

    def _integers(self, rows: Rows, w: Tensor, clip: Clip, bits: int) -> Tensor:
        """Return the clipped sum in steps, in float64 while it is exact there."""
        exact = torch.zeros(self.size, dtype=torch.float64, device=w.device)
        total, examples = None, 0
        for part in self._parts(rows):
            self._add(part, w, clip, bits, exact)
            examples += self._part_rows(rows)
            if examples + self._part_rows(rows) > EXACT_EXAMPLES:
                total = exact.long() if total is None else total.add_(exact.long())
                exact.zero_()
                examples = 0
        return exact if total is None else total.add_(exact.long())

    def _add(self, part: Rows, w: Tensor, clip: Clip, bits: int, total: Tensor) -> None:
        how: dict[str, Any] = {"clip": clip, "bits": bits, "seed": part.seed, "w": w}

        def add(batch: Batch, blank: Tensor, out: Tensor = total) -> ExampleLosses:
            return add_clipped(self.module, self.loss, batch, out, blank=blank, **how)

        found, blank = skip_failing(
            add,
            *self._prepared(part),
            attempt=lambda batch, blank: add(batch, blank, torch.zeros_like(total)),
        )
        self._keep(part, w, found, blank)

    def _plain(self, rows: Rows, w: Tensor, clip: Clip) -> Tensor:
        """Return the clipped sum in floating point; keep the losses of its passes."""
        total = torch.zeros_like(w)
        for part in self._parts(rows):
            how: dict[str, Any] = {"clip": clip, "seed": part.seed, "w": w}

            def compute(
                batch: Batch, blank: Tensor, how: Any = how
            ) -> tuple[Tensor, ExampleLosses]:
                return plain_sum(self.module, self.loss, batch, blank=blank, **how)

            (own, found), blank = skip_failing(compute, *self._prepared(part))
            self._keep(part, w, found, blank)
            total += own
        return total

    def _part_rows(self, rows: Rows) -> int:
        """Return how many examples go through the module at once: a public number."""
        if self.isolate:
            return 1
        batch = Batch(rows.X, rows.y)
        if not self._probed:  # nobody called check(): shapes alone are looked at
            self.check(
                *each_tensor(batch, lambda one: one.new_zeros(2, *one.shape[1:]))
            )
        return strategy_for(self.module, as_tuple(batch.inputs)).part_rows

    def _parts(self, rows: Rows) -> tuple[Rows, ...]:
        return rows.parts(self._part_rows(rows))

    def _prepared(self, part: Rows) -> _Part:
        """Return the examples of a part; those with a number that is none are blank.

        Zeros are written to a copy: where a part begins in memory must not matter.
        """

        def compute() -> _Part:
            batch = Batch(part.X, part.y)
            blank = torch.zeros(batch_size(batch), dtype=torch.bool, device=self.device)
            if part.blank is not None:
                blank |= part.blank.to(self.device)
            for one in as_tuple(batch.inputs) + as_tuple(batch.targets):
                if one.is_floating_point() and one.numel():
                    # A number that is not finite is an end, or takes the place of one.
                    ends = one.unsqueeze(-1).flatten(1)
                    ends = torch.stack([ends.amin(1), ends.amax(1)], dim=1)
                    blank |= ~torch.isfinite(ends).all(1)
            return _Part(blanked(batch, blank), blank)

        return part.cached("prepared", compute)

    def _keep(self, part: Rows, w: Tensor, found: ExampleLosses, blank: Tensor) -> None:
        """Note who is blank, once for all queries of a batch, and the losses at w."""
        prepared = self._prepared(part)
        if blank is not prepared.blank:
            later = _Part(blanked(prepared.batch, blank), blank)
            part.cache["prepared"] = ((), later)
        part.cache["losses"] = (w, found)

    def loss_drop_sum(
        self, w: Tensor, step: Tensor, step_size: float, *, form: QueryForm, clip: float
    ) -> BoundedQuery:
        """Ask for the sum of loss drops along ``-step``; see the linear objective."""

        def contributions(part: Rows) -> Tensor:
            before = self._found(part, w).losses
            after = self._losses_beside(part, w, step, step_size)
            return loss_drops(before, after, form, clip)

        return self._by_parts(contributions, w, clip)

    def drops_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, units: FloatArray
    ) -> BoundedQuery:
        """Ask for the summed loss drops at ``w - size step``, each in its own unit.

        The drops of one example are clipped together, to norm root of their number.
        """

        def contributions(part: Rows) -> Tensor:
            before = self._found(part, w).losses.double()
            drops = [
                before - self._losses_beside(part, w, step, size).double()
                for size in sizes
            ]
            return torch.stack(drops, dim=1) / torch.from_numpy(units).to(before)

        return self._by_parts(contributions, w, math.sqrt(len(sizes)))

    def losses_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask for the summed losses at ``w - size step``, in units of their clip."""

        def contributions(part: Rows) -> Tensor:
            return self._along(part, w, step, sizes, clip) / clip

        return self._by_parts(contributions, w, math.sqrt(len(sizes)))

    def step_scores(
        self, w: Tensor, step: Tensor, step_sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask which step along ``-step`` has the least loss."""

        def contributions(part: Rows) -> Tensor:
            return 0.5 * clip - self._along(part, w, step, step_sizes, clip)

        return self._by_parts(contributions, w, 0.5 * clip)

    def _along(
        self, part: Rows, w: Tensor, step: Tensor, sizes: Sequence[float], clip: float
    ) -> Tensor:
        losses = [
            self._found(part, w).losses
            if size == 0
            else self._losses_beside(part, w, step, size)
            for size in sizes
        ]
        return torch.stack(
            [clipped_losses(one, clip) for one in losses], dim=1
        ).double()

    def _found(self, part: Rows, w: Tensor) -> ExampleLosses:
        """Return what is known at ``w``, from the gradient's own pass if it was one."""
        held: tuple[Tensor, ExampleLosses] | None = part.cache.get("losses")
        if held is None or held[0] is not w:

            def compute(batch: Batch, blank: Tensor) -> ExampleLosses:
                losses = losses_at(self.module, self.loss, batch, w, seed=part.seed)
                return ExampleLosses(losses, torch.isfinite(losses) & ~blank, {})

            self._keep(part, w, *skip_failing(compute, *self._prepared(part)))
            held = part.cache["losses"]
        return held[1]

    def _losses_beside(
        self, part: Rows, w: Tensor, step: Tensor, size: float
    ) -> Tensor:
        """Return the losses at ``w - size step``; sizes share the first products.

        An example that raises there, or has no number, counts as infinitely bad.
        """
        first = self._found(part, w).first
        batch, blank = self._prepared(part)
        along = part.cached(
            "along",
            lambda: losses_along(
                self.module, self.loss, batch, w, step, first, seed=part.seed
            ),
            w,
            step,
        )

        def compute(batch: Batch, now: Tensor) -> Tensor:
            return along(size, batch, None if now is blank else now)

        losses, now = skip_failing(compute, batch, blank)
        return losses.masked_fill(now | losses.isnan(), torch.inf)

    def _by_parts(
        self, numbers: Callable[[Rows], Tensor], w: Tensor, bound: float
    ) -> BoundedQuery:
        """Ask for the sum of numbers that are computed part by part.

        An example that is left out adds 0 to every query: one that is blank, or whose
        loss or gradient at ``w`` is not finite.
        """

        def of(part: Rows) -> FloatArray:
            found = numbers(part)
            kept = self._found(part, w).kept
            left_out = ~kept.view(-1, *[1] * (found.dim() - 1))
            return np.asarray(found.masked_fill(left_out, 0.0).cpu().numpy())

        def joined(rows: Rows) -> FloatArray:
            return np.concatenate([of(part) for part in self._parts(rows)])

        return BoundedQuery(contributions=joined, bound=bound)


def as_module(objective: Objective) -> ModuleObjective:
    """Return the objective of a module, refusing any other."""
    if not isinstance(objective, ModuleObjective):
        raise TypeError(
            f"Expected the objective of a module, got {type(objective).__name__}; this "
            "method is for networks."
        )
    return objective
