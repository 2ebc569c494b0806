# SPDX-License-Identifier: Apache-2.0
"""DP-SGD for networks whose step a private search sets, with nothing to tune.

Every ``reset_every`` batches three loss drops along the noisy direction, at half, one
and two times the present step, are released together with the gradient.  All releases
are Gaussian and known beforehand, so the run is accounted tightly; a batch with a
search is one Gaussian whose 1/sigma^2 is the sum of both.  The model is a running mean
of the iterates that forgets the early ones.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self

import numpy as np
from torch import Tensor

from armijo import _validate
from armijo._validate import Count, Positive, Share
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.methods.base import (
    Direction,
    Problem,
    SampledBatches,
    StepRecord,
    calibrated,
    noisy_gradient,
    solved,
    tail_weight,
    with_solved_noise,
)
from armijo.objectives.base import Objective
from armijo.objectives.module import as_module

FACTORS = (0.5, 1.0, 2.0)
LARGEST_STEP = 8.0
"""Where doubling ends, in units of one over the clip: longer steps have diverged."""

_MOST = 5.0  # standard deviations that one search may count
_WRONG = 0.05  # probability that noise alone ever changes the step of a run


@dataclass(frozen=True, kw_only=True)
class SearchedState:
    """Released values: mean of iterates, iterate, step, evidence of the searches."""

    w: Tensor
    point: Tensor
    step_size: Positive
    updates: int = 0
    signal: float = 0.0
    halve: float = 0.0
    double: float = 0.0

    def __post_init__(self) -> None:
        """Check the public numbers, which may come from a file."""
        _validate.fields(self)


@dataclass(frozen=True, kw_only=True)
class SearchedSGD(SampledBatches[SearchedState]):
    """Noisy gradient steps with a three-point search every few batches.

    No setting has to be given.

    Attributes
    ----------
    sampling_prob, steps : float, int or None
        Poisson sampling probability and number of batches; None is ten expected passes
        over the examples.
    max_grad_norm : float
        Clip of a gradient.
    step_size : float
        The first step, in units of one over the clip.
    reset_every : int
        Batches from one search to the next.
    search_share : float
        What a search gets of its batch's ``1/sigma^2``.
    probe_fraction : float
        The search looks at this fraction of the step: the mean of iterates bears more
        noise than one of them.
    evidence_window : int
        How many searches are averaged.
    averaging_power : float
        The mean of iterates reaches back over one part in ``averaging_power + 1``.
    noise_multiplier : float or None
        Noise of each gradient sum over the clip, from calibration.
    """

    max_grad_norm: Positive = 1.0
    step_size: Positive = 4.0
    reset_every: Count = 5
    search_share: Share = 0.3
    probe_fraction: Positive = 0.25
    evidence_window: Count = 10
    averaging_power: Positive = 8.0
    noise_multiplier: float | None = solved()

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise with which ``steps`` batches use up the budget."""
        return with_solved_noise(self.completed(problem), budget)

    @property
    def gradient(self) -> Gaussian:
        """The noisy sum of gradients of every batch."""
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        return Gaussian(
            noise_scale=noise * self.max_grad_norm, sensitivity=self.max_grad_norm
        )

    @property
    def drops(self) -> Gaussian:
        """The search of a batch, which bears ``1/(1 - share)`` of what others bear."""
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        search = noise * math.sqrt((1 - self.search_share) / self.search_share)
        root = math.sqrt(len(FACTORS))
        return Gaussian(noise_scale=search * root, sensitivity=root)

    def init(self, w: Tensor) -> SearchedState:
        """Return the first state."""
        first = self.step_size / self.max_grad_norm
        return SearchedState(w=w, point=w, step_size=first)

    def _searches(self, update: int) -> bool:
        return update % self.reset_every == 0

    def releases(self, update: int) -> tuple[Gaussian, ...]:
        """Name a gradient, and a search when it is due."""
        return (self.gradient, self.drops)[: 1 + self._searches(update)]

    def step(
        self, batch: PrivateBatch, objective: Objective, state: SearchedState
    ) -> tuple[SearchedState, StepRecord]:
        """Measure a gradient, search when it is due, and move."""
        direction = noisy_gradient(batch, objective, state.point, self.gradient)
        searches = self._searches(state.updates)
        if searches:
            state = self._searched(batch, objective, state, direction)
        record = StepRecord(
            update=state.updates,
            step_size=self._applied(state),
            tries=len(FACTORS) if searches else 0,
            direction_norm=math.sqrt(direction.squared_norm),
            gradient_rho=self.gradient.rho,
            max_grad_norm=self.gradient.sensitivity,
        )
        return self._moved(state, direction), record

    def _searched(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: SearchedState,
        direction: Direction,
    ) -> SearchedState:
        """Release three drops and change the step when searches keep saying so."""
        state, slope = self._slope(state, direction, objective.size)
        if slope == 0:  # no gradient and no noise: nothing to learn a step from
            return state
        sizes = [f * state.step_size * self.probe_fraction for f in FACTORS]
        units = np.array(sizes) * slope
        query = as_module(objective).drops_along(
            state.point, direction.vector, sizes, units=units
        )
        noisy = batch.noisy_sum(query, self.drops) * units
        if objective.l2:
            penalty = objective.penalty_drop(state.point, direction.vector)
            noisy += batch.expected_size * np.array([penalty(size) for size in sizes])
        half, full, double = noisy.tolist()
        noise = (self.drops.noise_scale * units).tolist()
        return self._changed(
            state,
            halve=_evidence(half - full, math.hypot(noise[0], noise[1])),
            double=_evidence(double - full, math.hypot(noise[2], noise[1])),
        )

    def _slope(
        self, state: SearchedState, direction: Direction, size: int
    ) -> tuple[SearchedState, float]:
        """Return what one example's loss may fall for each unit of step.

        The gradient's own length, by the released one less its noise, and at least
        what could be told from that noise: ``||noise||^2`` of so many numbers of
        variance v has standard deviation ``v sqrt(2 size)``.
        """
        variance = direction.noise_sq_norm / size
        denoised = direction.squared_norm - direction.noise_sq_norm
        share = 1 / self.evidence_window
        signal = (1 - share) * state.signal + share * denoised
        square = max(signal, 0.0) + variance * math.sqrt(2 * size)
        slope = self.max_grad_norm * math.sqrt(square)
        return replace(state, signal=signal), slope

    def _changed(
        self, state: SearchedState, *, halve: float, double: float
    ) -> SearchedState:
        """Halve or double the step once the mean evidence is more than chance.

        A step that settled looks right to a search whatever it is, since the noise of
        iterates grows with it: only what noise would hardly say in all searches of the
        run together may change it, or it would drift.  NaN comes from a step that is
        far too long.
        """
        share = 1 / self.evidence_window
        halve = (1 - share) * state.halve + share * halve
        double = (1 - share) * state.double + share * double
        enough = self._sure * math.sqrt(share / (2 - share))
        lost = math.isnan(halve) or math.isnan(double)
        if not lost and max(halve, double) < enough:
            return replace(state, halve=halve, double=double)
        factor = FACTORS[0] if lost or halve > double else FACTORS[2]
        largest = max(LARGEST_STEP, self.step_size) / self.max_grad_norm
        step_size = min(factor * state.step_size, largest)
        # Evidence about steps relative to the old one says nothing of the new.
        return replace(state, step_size=step_size, halve=0.0, double=0.0)

    @property
    def _sure(self) -> float:
        """Standard deviations that noise hardly exceeds in all searches together."""
        tests = 2 * math.ceil(calibrated(steps=self.steps) / self.reset_every)
        return NormalDist().inv_cdf(1 - _WRONG / tests)

    def _applied(self, state: SearchedState) -> float:
        """Return the step of a batch: a straight line to zero (Defazio et al. 2023).

        Late steps bring mostly noise, and the number of batches is public.
        """
        return state.step_size * (1 - state.updates / calibrated(steps=self.steps))

    def _moved(self, state: SearchedState, direction: Direction) -> SearchedState:
        """Make the step and take the iterate into the mean."""
        point = state.point - self._applied(state) * direction.vector
        done = state.updates + 1
        weight = tail_weight(done, self.averaging_power)
        mean = (1 - weight) * state.w + weight * point
        return replace(state, w=mean, point=point, updates=done)


def _evidence(gain: float, noise: float) -> float:
    """Return a gain in units of its noise, limited so that none counts for all."""
    if math.isnan(gain):
        return gain
    if noise == 0:
        return math.copysign(_MOST, gain) if gain else 0.0
    return min(max(gain / noise, -_MOST), _MOST)
