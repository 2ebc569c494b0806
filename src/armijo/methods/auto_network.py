# SPDX-License-Identifier: Apache-2.0
"""The automatic method for networks: DP-SGD whose settings follow from the budget.

Number of steps, sampling probability, noise and step size are functions of public
numbers alone: rows, budget, and how many weights the module comes with and how large
they are.  No choice looks at a row, so all of the budget goes to gradients.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any, Self

import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import Positive
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    epsilon_of,
    gaussian_noise,
    step_mechanism,
)
from armijo.methods.base import BATCH, Problem, calibrated, solved
from armijo.methods.sgd import DPSGD, GradientState

FEWEST, MOST = 100, 1000
"""Bounds on the number of steps."""

LONGEST_STEP = 6.0
"""In units of one over the clip: longer ones trained a small CNN worse."""

SMALLEST_NORM = math.sqrt(2)
"""What first weights count at least: one output by He et al. (2015), not zero."""

_STEPS_PER_SNR = 0.03  # steps for each unit of n_rows over the noise of one release
_ENOUGH_NOISE = 1.5  # with less in a batch, small batches waste budget
_MOST_PASSES = 40  # over all rows
_SAMPLING_PROBS = (
    *(0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04),
    *(0.05, 0.06, 0.08, 0.1, 0.15, 0.2),
)


@dataclass(frozen=True, kw_only=True)
class DecayedState(GradientState):
    """Released values, and the first step, which the weights at the start decided."""

    step_size: Positive

    def __post_init__(self) -> None:
        """Check the public numbers, which may come from a file."""
        _validate.fields(self)


@dataclass(frozen=True, kw_only=True)
class AutoNetwork(DPSGD):
    r"""DP-SGD with settings from a public rule; nothing has to be given.

    With s the noise multiplier of one Gaussian release that uses up the budget:

    * ``steps`` T is 0.03 ``n_rows`` / s, between 100 and 1,000: what noise adds to the
      weights over a given way is the same for every T, so there are as few steps as
      the longest stable one allows.
    * ``sampling_prob`` q is the smallest of 0.01, 0.0125, ... 0.2 at which T batches
      need a noise multiplier sigma of 1.5, but at most 40 passes over the rows, and at
      least 256 expected examples: with less noise in a batch, much of the budget is
      lost to sampling.
    * ``step_size`` is ``min(6, |W0| sqrt(3 / (d T)) / tau)`` over the clip, with
      ``tau = sigma / (q n_rows)`` the noise of each entry of the mean gradient, d the
      number of weights and \|W0\| their norm at the start, at least sqrt(2): the random
      walk of noise over the run, ``eta tau sqrt(T/3)`` in each weight, is as long as
      the first weights.

    The step of batch t is ``step_size (1 - t/T)``, and the last iterate is the model.

    Attributes
    ----------
    sampling_prob, steps : float, int or None
        Poisson sampling probability and number of batches.
    step_size : float or None
        The first step.
    max_grad_norm : float or None
        Clip of a gradient; None is 1.
    noise_multiplier : float or None
        Noise of each gradient sum over the clip; None solves it for the budget.
    n_rows : int or None
        What it was calibrated for.
    """

    n_rows: int | None = solved()

    def sized(self, budget: Budget, problem: Problem) -> Self:
        """Return the method with number of steps and sampling probability."""
        steps = self.steps or steps_for(budget, problem.n_rows)
        sampling_prob = self.sampling_prob or sampling_prob_for(
            budget, steps, problem.n_rows
        )
        method = replace(self, steps=steps, sampling_prob=sampling_prob)
        return method.completed(problem)

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return the clip, and for what the step is computed."""
        return {"max_grad_norm": 1.0, "n_rows": problem.n_rows}

    def init(self, w: Tensor) -> DecayedState:
        """Return the first state; the norm of its weights decides the step."""
        return DecayedState(w=w, step_size=self.step_size or self._first_step(w))

    def _first_step(self, w: Tensor) -> float:
        steps, clip = calibrated(steps=self.steps), self.gradient.sensitivity
        rows = calibrated(sampling_prob=self.sampling_prob) * calibrated(n=self.n_rows)
        noise = calibrated(noise_multiplier=self.noise_multiplier) / rows
        norm = max(float(torch.linalg.vector_norm(w.double())), SMALLEST_NORM)
        way = norm * math.sqrt(3 / (w.numel() * steps))
        return min(LONGEST_STEP, way / noise) / clip

    def step_of(self, state: GradientState) -> float:
        """Return the step of a batch: a straight line to zero (Defazio et al. 2023)."""
        if not isinstance(state, DecayedState):
            raise TypeError(f"Expected a DecayedState, got {type(state).__name__}.")
        return state.step_size * (1 - state.updates / calibrated(steps=self.steps))


def steps_for(budget: Budget, n_rows: int) -> int:
    """Return how many steps the budget is worth.

    >>> steps_for(Budget(epsilon=1.0, delta=1e-5), 60_000)
    482
    """
    steps = _STEPS_PER_SNR * n_rows / gaussian_noise(budget)
    return round(min(MOST, max(FEWEST, steps)))


def sampling_prob_for(budget: Budget, steps: int, n_rows: int) -> float:
    """Return the smallest rate whose batches need enough noise, or the largest.

    >>> sampling_prob_for(Budget(epsilon=1.0, delta=1e-5), 482, 60_000)
    0.02
    """

    def cheap(sampling_prob: float) -> bool:
        step = step_mechanism(sampling_prob, _ENOUGH_NOISE)
        return epsilon_of(step, steps, budget.delta)[0] < budget.epsilon

    lowest = min(1.0, BATCH / n_rows)
    few = [q for q in _SAMPLING_PROBS if q * steps <= _MOST_PASSES]
    *smaller, largest = few or _SAMPLING_PROBS[:1]
    if lowest >= largest:
        return lowest
    return max(lowest, next(dropwhile(cheap, smaller), largest))
