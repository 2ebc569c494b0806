# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and DP-Adam: noisy gradients with a step size that somebody must choose.

Abadi et al. (2016); Poisson batches, the sum clipped and noised, divided by the public
``sampling_prob * n_rows`` and never by the number of rows drawn.  Every charge is known
before the first, so the whole run is accounted tightly (``PlannedAccountant``).

``noise_multiplier=None`` solves the noise for the budget and ``steps``.  A given one is
the replica of earlier papers: as many of the ``steps`` are made as the budget affords.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import NonNegative, Positive, Share
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import affordable_steps, noise_multiplier_for
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.methods.base import (
    Problem,
    SampledBatches,
    Schedule,
    StepRecord,
    calibrated,
    noisy_gradient,
)
from armijo.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class GradientState:
    """Released values of a run with a given step size."""

    w: Tensor
    updates: int = 0
    first_moment: Tensor | None = None
    second_moment: Tensor | None = None


G = TypeVar("G", bound=GradientState)


@dataclass(frozen=True, kw_only=True)
class DPSGD(SampledBatches[GradientState]):
    """Noisy gradient descent with a fixed step.

    Attributes
    ----------
    sampling_prob, steps : float, int or None
        Poisson sampling probability and number of batches; None is 0.1 and 50 for
        linear models, and ten expected passes over the examples of a network.
    step_size : float or None
        The learning rate; None is 1 for smooth losses, 1/2 for one with a
        kink, and 0.2 for networks.
    max_grad_norm : float or None
        Clip of a gradient; None is 3 for linear models and 1 for networks.
    noise_multiplier : float or None
        Noise of each gradient sum over the clip; None solves it for the budget.
    """

    only_sums: ClassVar[bool] = True
    step_size: Positive | None = None
    max_grad_norm: Positive | None = None
    noise_multiplier: NonNegative | None = None

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget, or the steps for a given noise."""
        method = self.sized(budget, problem)
        sampling_prob = calibrated(sampling_prob=method.sampling_prob)
        steps = calibrated(steps=method.steps)
        if self.noise_multiplier is None:
            noise = noise_multiplier_for(
                budget, sampling_prob=sampling_prob, steps=steps
            )
            return replace(method, noise_multiplier=noise)
        _validate.positive(noise_multiplier=self.noise_multiplier)
        steps = affordable_steps(
            budget,
            sampling_prob=sampling_prob,
            noise_multiplier=self.noise_multiplier,
            most=steps,
        )
        return replace(method, steps=steps)

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return sizes, step and clip; those of networks are Chen and Lee's (2020)."""
        sizes = super().usual(problem)
        if problem.network:
            return {**sizes, "step_size": 0.2, "max_grad_norm": 1.0}
        step_size = 1.0 if problem.linear.smooth else 0.5
        return {**sizes, "step_size": step_size, "max_grad_norm": 3.0}

    @property
    def gradient(self) -> Gaussian:
        """The noisy sum of each batch, whose sensitivity is the clip."""
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        clip = calibrated(max_grad_norm=self.max_grad_norm)
        return Gaussian(noise_scale=noise * clip, sensitivity=clip)

    def init(self, w: Tensor) -> GradientState:
        """Return the first state."""
        return GradientState(w=w)

    def releases(self, update: int) -> tuple[Gaussian, ...]:
        """Name one gradient."""
        return (self.gradient,)

    def schedule(self) -> Schedule:
        """Return ``steps`` equal charges."""
        return ((self._batch(0).mechanism, calibrated(steps=self.steps)),)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: GradientState
    ) -> tuple[GradientState, StepRecord]:
        """Measure a gradient and move."""
        gradient = self.gradient
        direction = noisy_gradient(batch, objective, state.w, gradient)
        record = StepRecord(
            update=state.updates,
            step_size=self.step_of(state),
            direction_norm=math.sqrt(direction.squared_norm),
            gradient_rho=gradient.rho,
            max_grad_norm=gradient.sensitivity,
        )
        return self.moved(state, direction.vector), record

    def moved(self, state: G, g: Tensor) -> G:
        """Go against the noisy gradient."""
        w = state.w - self.step_of(state) * g
        return replace(state, w=w, updates=state.updates + 1)

    def step_of(self, state: GradientState) -> float:
        """Return the step of the next batch."""
        return calibrated(step_size=self.step_size)


@dataclass(frozen=True, kw_only=True)
class DPAdam(DPSGD):
    """The same noisy gradients, averaged and rescaled (Kingma and Ba 2015).

    ``step_size=None`` is 0.1, and 0.001 for networks; ``steps=None`` is 100 for linear
    models.
    """

    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return the same with shorter steps."""
        if problem.network:
            return {**super().usual(problem), "step_size": 1e-3}
        return {**super().usual(problem), "step_size": 0.1, "steps": 100}

    def moved(self, state: G, g: Tensor) -> G:
        """Update both moments, correct their bias, and move."""
        first, second = state.first_moment, state.second_moment
        if first is None or second is None:
            first, second = torch.zeros_like(g), torch.zeros_like(g)
        first = self.beta1 * first + (1 - self.beta1) * g
        second = self.beta2 * second + (1 - self.beta2) * g**2
        t = state.updates + 1
        mean = first / (1 - self.beta1**t)
        scale = (second / (1 - self.beta2**t)).sqrt() + self.eps
        return replace(
            state,
            w=state.w - self.step_of(state) * mean / scale,
            updates=t,
            first_moment=first,
            second_moment=second,
        )
