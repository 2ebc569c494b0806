# SPDX-License-Identifier: Apache-2.0
"""HyFreeDP: the step is that of a parabola through a few noisy losses.

Liu and Bu (2025, arXiv 2503.00703).  Gradients are normalized instead of clipped.  On
every K-th batch the losses at a few points along the direction are released as well,
clipped to a bound that follows the loss last released; the minimum of the parabola
through them is the step until the next fit.  Gradient and losses of one batch are
together one Gaussian, and every charge is known before the first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import AboveOne, Count, NonNegative, Positive
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.methods.base import (
    Problem,
    SampledBatches,
    StepRecord,
    calibrated,
    solved,
    with_solved_noise,
)
from armijo.methods.sgd import DPSGD, DPAdam, GradientState
from armijo.objectives.base import Objective


def parabola_minimum(
    places: FloatArray, values: FloatArray, noise: float = 0.0
) -> float | None:
    """Return where the fitted parabola is lowest; None unless that lies ahead.

    The ratio of slope and curvature of Liu and Bu (2025), by least squares.  Noise can
    bend a parabola downwards or tilt it backwards, and the ratio of two noises is a
    step towards zero: unless the curvature exceeds what ``noise`` in each value does
    to it, there is no answer.

    >>> round(parabola_minimum(np.array([-1, 0, 1]), np.array([4.0, 1.0, 0.0])), 9)
    1.0
    """
    weights = np.linalg.pinv(np.vander(places, 3))
    curvature, slope, _ = weights @ values
    if not (curvature > noise * np.linalg.norm(weights[0]) and slope < 0):
        return None
    minimum = float(-slope / (2 * curvature))
    return minimum if minimum < math.inf else None


@dataclass(frozen=True, kw_only=True)
class HyFreeState(GradientState):
    """Released values: parameters, moments, the step and the clip of the losses."""

    step_size: Positive
    loss_clip: Positive

    def __post_init__(self) -> None:
        _validate.fields(self)


@dataclass(frozen=True, kw_only=True)
class HyFree(SampledBatches[HyFreeState]):
    """Noisy normalized gradients with a step fitted to noisy losses.

    Liu and Bu fine-tune networks, starting with ``step_size=1e-4`` and
    ``stability=0.01``, without ``significance`` (0) and ``step_change`` (infinite).
    For linear models and few steps that fails: normalized gradients of rows that are
    right already outvote the others, losses at 1e-4 differ by less than their noise,
    and a step that follows noise shrinks.  A clip of the losses at the mean loss itself
    (``growth_cap=1``) falls with each fit, as the mean of clipped losses is below it.

    Attributes
    ----------
    sampling_prob, steps : float, int or None
        Poisson sampling probability and number of batches; None as in
        :class:`~armijo.methods.sgd.DPSGD`.
    step_size, loss_clip : float or None
        Values before the first fit; None is the optimizer's step, 0.1 or 1, and a clip
        of 1 for linear models, and 0.001 and 3 for networks.
    reset_every, points : int
        K, the batches from one fit to the next, and the losses of a fit.  They lie at
        multiples of the step, as many behind as ahead.
    growth_cap : float or None
        The next clip of the losses is so many times the loss last released; None is 3,
        and 2 for networks.
    step_change : float
        The most by which one fit multiplies or divides the step.
    significance : float
        A fit counts if its curvature exceeds so many times the (public) noise in it.
    stability : float or None
        What is added to the norm by which a gradient is divided; None is 1, and 0.01
        for networks.
    noise_growth : float
        How much more noise the gradients bear to pay for the losses.
    variant : {"adam", "sgd"}
        The optimizer that turns gradients into directions.
    noise_multiplier : float or None
        Noise of the gradients, from calibration.
    """

    only_sums: ClassVar[bool] = True
    step_size: Positive | None = None
    loss_clip: Positive | None = None
    reset_every: Count = 5
    points: Annotated[int, partial(_validate.at_least, 3)] = 3
    growth_cap: Positive | None = None
    step_change: AboveOne = 2.0
    significance: NonNegative = 1.0
    stability: Positive | None = None
    noise_growth: AboveOne = 1.01
    variant: Literal["adam", "sgd"] = "adam"
    noise_multiplier: float | None = solved()

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise of the gradients; that of the losses follows."""
        return with_solved_noise(self.completed(problem), budget)

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return sizes, first step, clip of the losses, and stability."""
        names = ("step_size", "loss_clip", "growth_cap", "stability")
        values = (0.1 if self.variant == "adam" else 1.0, 1.0, 3.0, 1.0)
        if problem.network:
            values = (1e-3, 3.0, 2.0, 0.01)
        return {**super().usual(problem), **dict(zip(names, values, strict=True))}

    @cached_property
    def base(self) -> DPSGD:
        """What turns gradients into directions: its own step is one."""
        return (DPAdam if self.variant == "adam" else DPSGD)(
            sampling_prob=self.sampling_prob,
            steps=self.steps,
            step_size=1.0,
            max_grad_norm=1.0,  # gradients are normalized
            noise_multiplier=calibrated(noise_multiplier=self.noise_multiplier),
        )

    @cached_property
    def losses(self) -> Gaussian:
        """The joint release of a fit's losses, in units of their clip.

        Liu and Bu let gradients have 1.01 times the noise sigma they would have alone;
        by 1/sigma^2, which adds up, the losses get what that leaves:
        ``steps / sigma^2 = steps / (growth sigma)^2 + fits points / loss_noise^2``.
        """
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        steps = calibrated(steps=self.steps)
        fits = math.ceil(steps / self.reset_every)
        share = (self.noise_growth**2 - 1) * steps / (fits * self.points)
        return Gaussian(
            noise_scale=noise / math.sqrt(share), sensitivity=math.sqrt(self.points)
        )

    def init(self, w: Tensor) -> HyFreeState:
        """Return the first state."""
        return HyFreeState(
            w=w,
            step_size=calibrated(step_size=self.step_size),
            loss_clip=calibrated(loss_clip=self.loss_clip),
        )

    def _fits(self, update: int) -> bool:
        return update % self.reset_every == 0

    def releases(self, update: int) -> tuple[Gaussian, ...]:
        """Name a gradient, and the losses when a fit is due."""
        return (self.base.gradient, self.losses)[: 1 + self._fits(update)]

    def step(
        self, batch: PrivateBatch, objective: Objective, state: HyFreeState
    ) -> tuple[HyFreeState, StepRecord]:
        """Measure a direction, fit the step when it is due, and move."""
        stability = calibrated(stability=self.stability)
        query = objective.normalized_gradient_sum(state.w, stability=stability)
        mean = batch.noisy_vector(query, self.base.gradient) / batch.expected_size
        g = mean + objective.penalty_gradient(state.w)
        # What a step of one would take from zero; the moments are new.
        new = self.base.moved(replace(state, w=torch.zeros_like(g)), g)
        direction = -new.w
        fits = self._fits(state.updates)
        if fits:
            at_start = replace(new, w=state.w)
            new = self._fitted(batch, objective, at_start, direction)
        record = StepRecord(
            update=state.updates,
            step_size=new.step_size,
            tries=self.points if fits else 0,
            direction_norm=float(direction.norm()),
            gradient_rho=self.base.gradient.rho,
            max_grad_norm=self.base.gradient.sensitivity,
            loss_clip=state.loss_clip,
        )
        return replace(new, w=state.w - new.step_size * direction), record

    def _fitted(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: HyFreeState,
        direction: Tensor,
    ) -> HyFreeState:
        """Release the losses, then set the step and the next clip from them."""
        middle = self.points // 2
        places = np.arange(self.points, dtype=float) - middle
        sizes = [float(place) * state.step_size for place in places]
        query = objective.losses_along(state.w, direction, sizes, clip=state.loss_clip)
        unit = state.loss_clip / batch.expected_size
        losses = batch.noisy_sum(query, self.losses) * unit
        noise = self.significance * self.losses.noise_scale * unit
        penalties = [objective.penalty(state.w - size * direction) for size in sizes]
        factor = parabola_minimum(places, losses + np.array(penalties), noise)
        if factor is not None:
            factor = min(max(factor, 1 / self.step_change), self.step_change)
            state = replace(state, step_size=factor * state.step_size)
        # Noise can take a loss below zero, where no clip is: the old one stays.
        clip = calibrated(growth_cap=self.growth_cap) * float(losses[middle])
        return replace(state, loss_clip=clip) if 0 < clip < math.inf else state
