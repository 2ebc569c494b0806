# SPDX-License-Identifier: Apache-2.0
"""DP-AGD: full-batch descent whose step is the private best of an even grid.

Lee and Kifer (2018).  NoisyMin chooses among ``0, s, 2s, ..., max_step`` along the
normalized noisy gradient.  Step zero says that the direction is no descent: the
gradient's budget then grows from rho to (1 + growth) rho, only the difference is
bought, and all measurements are averaged by their budgets (GradAvg).

NoisyMin here is the exponential mechanism on losses clipped to C.  Under one row more
or less all sums move the same way by at most C, so its weights are
``exp(-epsilon loss / C)``, without the factor two of scores that may go both ways.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from armijo import _validate
from armijo._validate import Count, Positive
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import SelectionRule, selection_epsilon
from armijo.accounting.mechanisms import ExponentialMechanism, Gaussian
from armijo.data.gate import BatchPlan, PrivateBatch
from armijo.methods.base import (
    Direction,
    Method,
    Problem,
    StepRecord,
    averaged,
    calibrated,
    solved,
)
from armijo.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class AGDState:
    """Released values between batches; ``pending`` holds a sum, not a mean."""

    w: Tensor
    gradient_rho: float
    max_step: Positive
    updates: int = 0
    recent_steps: tuple[float, ...] = ()
    pending: Direction | None = None

    def __post_init__(self) -> None:
        _validate.fields(self)


@dataclass(frozen=True, kw_only=True)
class AGD(Method[AGDState]):
    """Private gradient descent with a private choice of the step.

    Attributes
    ----------
    initial_split : {"equal", "classical"}
        The first gradient gets as much as a selection, or what the classical Gaussian
        calibration at e asks for, ``e^2 / (4 log(1.25/delta))`` (the authors' script).
    splits : int
        A selection gets ``rho = e^2 / 2`` with ``e = epsilon / (2 splits)``.
    selection : {"bounded", "pure"}
        Buy epsilon 2e with that rho, or the published e, for which the selection is
        still charged by its bounded range, that is a quarter of rho.
    max_grad_norm, loss_clip : float
        Clips of gradients and losses.
    max_step, grid_size : float, int
        Largest step at first and ever, and how many positive steps the grid has.
    budget_growth : float
        A failed selection multiplies the gradient's budget by one plus this.
    reset_every, growth_cap : int, float
        Every so many updates the largest step becomes growth_cap times the largest
        recent one, at most ``max_step``.
    gradient_rho, search_epsilon : float or None
        First budget of a gradient, and epsilon of each selection, which never grows;
        both from calibration.
    """

    only_sums: ClassVar[bool] = True
    initial_split: Literal["equal", "classical"] = "equal"
    splits: Count = 60
    selection: SelectionRule = "bounded"
    max_grad_norm: Positive = 3.0
    loss_clip: Positive = 3.0
    max_step: Positive = 2.0
    grid_size: Count = 20
    budget_growth: Positive = 0.1  # without it a failed selection would buy nothing
    reset_every: Count = 10
    growth_cap: Positive = 1.1
    gradient_rho: float | None = solved()
    search_epsilon: float | None = solved()

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Set the first budgets."""
        share = budget.epsilon / (2 * self.splits)
        rho = gradient_rho = share**2 / 2
        if self.initial_split == "classical":
            gradient_rho = share**2 / (4 * math.log(1.25 / budget.delta))
        epsilon = selection_epsilon(rho, self.selection)
        return replace(self, gradient_rho=gradient_rho, search_epsilon=epsilon)

    def init(self, w: Tensor) -> AGDState:
        """Return the first state."""
        rho = calibrated(gradient_rho=self.gradient_rho)
        return AGDState(w=w, gradient_rho=rho, max_step=self.max_step)

    def schedule(self) -> None:
        """Return None: what a selection answers decides what is charged next."""
        return None

    def plan(self, state: AGDState) -> BatchPlan:
        """Name the gradient, or what refines the pending one, and a selection."""
        return BatchPlan(mechanisms=(self._gradient(state), self._selection()))

    def _gradient(self, state: AGDState) -> Gaussian:
        """Return the measurement: a whole budget, or the increase that refines."""
        bought = state.gradient_rho
        if state.pending is not None:
            bought *= self.budget_growth / (1 + self.budget_growth)
        return Gaussian.from_rho(bought, self.max_grad_norm)

    def _selection(self) -> ExponentialMechanism:
        """Return NoisyMin as the exponential mechanism on scores within C/2."""
        epsilon = calibrated(search_epsilon=self.search_epsilon)
        return ExponentialMechanism(epsilon, 0.5 * self.loss_clip)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: AGDState
    ) -> tuple[AGDState, StepRecord]:
        """Measure or refine the gradient, select a step, and move."""
        total = self._measured(batch, objective, state)
        norm = math.sqrt(total.squared_norm)
        unit = total.vector / norm if norm > 0 else total.vector
        # The regularizer joins after the normalization, as in the authors' code.
        direction = unit + objective.penalty_gradient(state.w)
        steps = [state.max_step * j / self.grid_size for j in range(self.grid_size + 1)]
        query = objective.step_scores(state.w, direction, steps, clip=self.loss_clip)
        chosen = steps[batch.noisy_argmax(query, self._selection())]
        record = StepRecord(
            update=state.updates,
            step_size=chosen,
            tries=len(steps),
            direction_norm=norm / batch.expected_size,
            gradient_rho=self._gradient(state).rho,
            search_epsilon=self.search_epsilon,
            max_grad_norm=self.max_grad_norm,
            loss_clip=self.loss_clip,
            initial_step=state.max_step,
        )
        if chosen == 0:
            grown = state.gradient_rho * (1 + self.budget_growth)
            return replace(state, pending=total, gradient_rho=grown), record
        return self._moved(state, direction, chosen), record

    def _measured(
        self, batch: PrivateBatch, objective: Objective, state: AGDState
    ) -> Direction:
        """Release the noisy sum of gradients, averaged with what is pending."""
        gradient = self._gradient(state)
        query = objective.gradient_sum(state.w, clip=self.max_grad_norm)
        new = Direction(
            vector=batch.noisy_vector(query, gradient),
            noise_sq_norm=objective.size * gradient.noise_scale**2,
        )
        if state.pending is None:
            return new
        # Inverse variance is proportional to rho: everything so far against the new.
        return averaged(state.pending, new, "weighted")

    def _moved(self, state: AGDState, direction: Tensor, chosen: float) -> AGDState:
        """Move by a positive step and refresh the grid when it is due."""
        steps = (*state.recent_steps, chosen)
        max_step, updates = state.max_step, state.updates + 1
        if updates % self.reset_every == 0:
            max_step = min(self.growth_cap * max(steps), self.max_step)
            steps = ()
        return AGDState(
            w=state.w - chosen * direction,
            gradient_rho=state.gradient_rho,
            max_step=max_step,
            updates=updates,
            recent_steps=steps,
        )
