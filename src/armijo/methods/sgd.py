# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and DP-Adam: noisy gradients with a step size that somebody must choose.

Abadi et al. (2016); Poisson batches, the sum clipped and noised, divided by the public
``rate * n_rows`` and never by the number of rows found.  Every charge is known before
the first, so the whole run is accounted tightly (``PlannedAccountant``).

``noise_multiplier=None`` solves the noise for the budget and ``steps``.  A given one is
the replica of earlier papers: as many of the ``steps`` are made as the budget affords.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from armijo import _validate
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.base import MethodSettings, Problem, Schedule, StepRecord, measure
from armijo.objectives.base import Objective
from armijo.privacy.budget import Budget
from armijo.privacy.calibration import affordable_steps, noise_multiplier_for
from armijo.privacy.mechanisms import Gaussian


@dataclass(frozen=True, kw_only=True)
class GradientState:
    """Released values of a run with a given step size."""

    w: Tensor
    updates: int = 0
    first_moment: Tensor | None = None
    second_moment: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Noisy gradient descent with a fixed step.

    Attributes
    ----------
    rate, steps : float, int
        Poisson sampling probability and number of batches.
    step_size : float
        The learning rate.
    gradient : Gaussian
        The noisy sum of each batch, whose sensitivity is the clip.
    """

    rate: float
    steps: int
    step_size: float
    gradient: Gaussian

    def init(self, w: Tensor) -> GradientState:
        """Return the first state."""
        return GradientState(w=w)

    def schedule(self) -> Schedule:
        """Return ``steps`` equal charges."""
        return ((self._batch().mechanism, self.steps),)

    def plan(self, state: GradientState) -> BatchPlan:
        """Name one gradient."""
        return self._batch()

    def _batch(self) -> BatchPlan:
        """Return the plan of every batch."""
        return BatchPlan(mechanisms=(self.gradient,), rate=self.rate)

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: GradientState,
        batch_size: float,
    ) -> tuple[GradientState, StepRecord]:
        """Measure a gradient and move."""
        direction = measure(batch, objective, state.w, self.gradient, batch_size)
        record = StepRecord(
            update=state.updates,
            step_size=self.step_size,
            direction_norm=math.sqrt(direction.squared_norm),
            gradient_rho=self.gradient.rho,
            grad_clip=self.gradient.sensitivity,
        )
        return self.moved(state, direction.vector), record

    def moved(self, state: GradientState, g: Tensor) -> GradientState:
        """Go against the noisy gradient."""
        return replace(state, w=state.w - self.step_size * g, updates=state.updates + 1)


@dataclass(frozen=True, kw_only=True)
class Adam(SGD):
    """The same noisy gradients, averaged and rescaled (Kingma and Ba 2015)."""

    decay: float = 0.9
    square_decay: float = 0.999
    floor: float = 1e-8

    def moved(self, state: GradientState, g: Tensor) -> GradientState:
        """Update both moments, correct their bias, and move."""
        first, second = state.first_moment, state.second_moment
        if first is None or second is None:
            first, second = torch.zeros_like(g), torch.zeros_like(g)
        first = self.decay * first + (1 - self.decay) * g
        second = self.square_decay * second + (1 - self.square_decay) * g**2
        t = state.updates + 1
        mean = first / (1 - self.decay**t)
        scale = (second / (1 - self.square_decay**t)).sqrt() + self.floor
        return GradientState(
            w=state.w - self.step_size * mean / scale,
            updates=t,
            first_moment=first,
            second_moment=second,
        )


@dataclass(frozen=True, kw_only=True)
class SGDSettings(MethodSettings):
    """Public settings of DP-SGD.

    ``step_size=None`` is 1 for smooth losses and 1/2 for the hinge.
    """

    rate: float = 0.1
    steps: int = 50
    step_size: float | None = None
    grad_clip: float = 3.0
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.rate(rate=self.rate)
        _validate.at_least(1, steps=self.steps)
        _validate.positive(grad_clip=self.grad_clip)
        for name in ("step_size", "noise_multiplier"):
            if getattr(self, name) is not None:
                _validate.positive(**{name: getattr(self, name)})

    def build(self, problem: Problem) -> SGD:
        """Return DP-SGD with its noise."""
        default = 0.5 if problem.objective.kink else 1.0
        return SGD(**self.solved(problem.budget, default))

    def solved(self, budget: Budget, step_size: float) -> dict[str, Any]:
        """Return the algorithm's settings; ``step_size`` is used if none is set."""
        noise, steps = self._noise(budget)
        gradient = Gaussian(
            noise_scale=noise * self.grad_clip, sensitivity=self.grad_clip
        )
        return {
            "rate": self.rate,
            "steps": steps,
            "step_size": step_size if self.step_size is None else self.step_size,
            "gradient": gradient,
        }

    def _noise(self, budget: Budget) -> tuple[float, int]:
        """Return noise multiplier and steps: one of them follows from the budget."""
        if self.noise_multiplier is None:
            noise = noise_multiplier_for(budget, rate=self.rate, steps=self.steps)
            return noise, self.steps
        steps = affordable_steps(
            budget,
            rate=self.rate,
            noise_multiplier=self.noise_multiplier,
            most=self.steps,
        )
        return self.noise_multiplier, steps


@dataclass(frozen=True, kw_only=True)
class AdamSettings(SGDSettings):
    """Public settings of DP-Adam; ``step_size=None`` is 0.1."""

    steps: int = 100
    decay: float = 0.9
    square_decay: float = 0.999
    floor: float = 1e-8

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _validate.open_unit(decay=self.decay, square_decay=self.square_decay)
        _validate.positive(floor=self.floor)

    def build(self, problem: Problem) -> Adam:
        """Return DP-Adam with its noise."""
        return self.solved_adam(problem.budget, 0.1)

    def solved_adam(self, budget: Budget, step_size: float) -> Adam:
        """Return DP-Adam with its noise; ``step_size`` is used if none is set."""
        return Adam(
            **self.solved(budget, step_size),
            decay=self.decay,
            square_decay=self.square_decay,
            floor=self.floor,
        )
