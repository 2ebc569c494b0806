# SPDX-License-Identifier: Apache-2.0
"""The steps of the automatic method, each a noisy gradient and a three-point search."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.auto_curvature import Curvature
from armijo.methods.auto_frame import Frame
from armijo.methods.auto_prepare import AutoState, Stage, center_of, prepared
from armijo.methods.auto_rules import FIRST_STEP, LARGEST_STEP, SMALLEST_STEP, AutoRules
from armijo.methods.auto_search import FACTORS, ThreePoints
from armijo.methods.base import Schedule, StepRecord
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective
from armijo.privacy.mechanisms import Gaussian


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Preparation in up to three batches, then steps with a three-point search."""

    objective: LinearObjective
    rules: AutoRules
    feature_norm: float | None
    first_step: float = FIRST_STEP
    tail_mean: bool = True

    def init(self, w: Tensor) -> AutoState:
        """Return the first state."""
        return AutoState(w=w, norm=self.feature_norm or 0.0, step_size=self.first_step)

    @property
    def _stages(self) -> tuple[Stage, ...]:
        """Name the batches before the first step."""
        norm: tuple[Stage, ...] = () if self.feature_norm else ("norm",)
        moments: tuple[Stage, ...] = ("moments",) if self.rules.has_moments else ()
        return (*norm, "center", *moments)

    def _mechanisms(self, batch: int) -> tuple[Gaussian, ...]:
        """Return the releases of one batch."""
        rules, stages = self.rules, self._stages
        if batch >= len(stages):
            if not rules.shares.search:
                return (rules.gradient,)
            search = rules.search(batch - len(stages), len(FACTORS))
            return rules.gradient, search
        stage = stages[batch]
        if stage == "center" and self.objective.fit_intercept:
            half = rules.released(0.5 * rules.shares.center)
            return half, half
        return (rules.released(getattr(rules.shares, stage)),)

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        batches = (plan.mechanism for plan in self.plans())
        return tuple((kind, len(list(run))) for kind, run in groupby(batches))

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plans of all batches in their order."""
        count = len(self._stages) + self.rules.steps
        return (self._batch(i) for i in range(count))

    def plan(self, state: AutoState) -> BatchPlan:
        """Name the releases of the next batch; past the end, one that is refused."""
        last = len(self._stages) + self.rules.steps - 1
        return self._batch(min(state.batches, last))

    def _batch(self, batch: int) -> BatchPlan:
        """Return the plan of one batch, on all rows."""
        return BatchPlan(mechanisms=self._mechanisms(batch))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: AutoState,
        batch_size: float,
    ) -> tuple[AutoState, StepRecord]:
        """Prepare, or make a step."""
        stages, used = self._stages, self._mechanisms(state.batches)
        if state.batches < len(stages):
            new = prepared(
                stages[state.batches],
                batch,
                state,
                used,
                self.objective,
                batch_size,
            )
            record = StepRecord(update=0, gradients=0)
        else:
            new, record = self._moved(batch, state, used, batch_size)
        return replace(new, batches=state.batches + 1), record

    def _frame(self, state: AutoState) -> Frame:
        """Return the coordinates that were released."""
        return Frame(
            objective=self.objective,
            center=center_of(state),
            radius=state.radius,
            constant=self.rules.constant,
            clip=self.rules.clip,
        )

    def _curvature(self, state: AutoState) -> Curvature:
        """Return the released second moments, or equal ones of trace one."""
        d, constant = self.objective.n_features, self.rules.constant
        if state.values is None or state.vectors is None:
            return Curvature(values=np.full(d, 1 / d), vectors=None, constant=constant)
        vectors = state.vectors.numpy().reshape(d, d)
        return Curvature(
            values=state.values.numpy(), vectors=vectors, constant=constant
        )

    def _moved(
        self,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> tuple[AutoState, StepRecord]:
        """Release a gradient and three drops, and move by the step they choose."""
        frame, curvature = self._frame(state), self._curvature(state)
        point = torch.zeros_like(state.w) if state.point is None else state.point
        w = frame.model(point)
        noisy_sum = batch.noisy_sum(frame.gradient_sum(w), used[0])
        g = torch.from_numpy(noisy_sum * (frame.clip / batch_size))
        g = (g + frame.penalty_gradient(point)).reshape(self.objective.outputs, -1)
        # A step of eight must not overshoot the penalty's own minimum.
        damping = self.rules.damping + 4 * frame.curvature
        blocks = curvature.direction(g, damping, self.rules.intercept_damping)
        points = ThreePoints(
            frame=frame,
            sizes=tuple(factor * state.step_size for factor in FACTORS),
            rms_score=curvature.rms_score(blocks),
        )
        direction, step_size = blocks.reshape(-1), state.step_size
        for search in used[1:]:
            drops = batch.noisy_sum(points.query(w, frame.model(direction)), search)
            falls = points.penalty_falls(point, direction)
            step_size = points.chosen(drops, search.noise_scale, batch_size, falls)
            step_size = min(max(step_size, SMALLEST_STEP), LARGEST_STEP)
        new = self._averaged(state, frame, point - step_size * direction)
        record = StepRecord(
            update=state.batches - len(self._stages),
            step_size=step_size,
            tries=(len(FACTORS) + 1) * len(used[1:]),
            direction_norm=float(direction.norm()),
            gradient_rho=used[0].rho,
            grad_clip=frame.clip,
        )
        return replace(new, step_size=step_size), record

    def _averaged(self, state: AutoState, frame: Frame, point: Tensor) -> AutoState:
        """Return the state at a new point, its model averaged over the second half."""
        done = state.batches - len(self._stages) + 1
        first = self.rules.steps // 2
        if done <= first or not self.tail_mean:
            return replace(state, point=point, w=frame.model(point))
        total = point if state.total is None else state.total + point
        mean = total / (done - first)
        return replace(state, point=point, total=total, w=frame.model(mean))
