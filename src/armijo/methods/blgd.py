# SPDX-License-Identifier: Apache-2.0
"""DP-BLGD: the full-batch method, which refines one gradient until a step is found.

All rows are used every time, so nothing is amplified.  When a search fails, the budget
of the gradient grows from rho to (1 + growth) rho and only the difference is bought:
two measurements of the same sum, weighted by their budgets, are worth their budgets
together (GradAvg, Lee and Kifer 2018).  The search budget never grows.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from armijo import _validate
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.base import StepRecord
from armijo.methods.descent import (
    SearchSettings,
    SearchState,
    angle_between,
    averaged,
    first_state,
    measure,
    record,
    search_step,
    updated,
)
from armijo.objectives.base import Objective
from armijo.privacy.mechanisms import Gaussian


@dataclass(frozen=True, kw_only=True)
class BLGD(SearchSettings):
    """Private full-batch gradient descent with a private Armijo search."""

    def __post_init__(self) -> None:
        """Check the settings; without growth a failed search would buy nothing."""
        super().__post_init__()
        _validate.positive(budget_growth=self.budget_growth)

    def init(self, w: Tensor) -> SearchState:
        """Return the first state."""
        return first_state(self, w)

    def plan(self, state: SearchState) -> BatchPlan:
        """Name the gradient, or what refines the pending one, and a search."""
        search = self.search.mechanism(state.search_epsilon)
        return BatchPlan(mechanisms=(self._gradient(state), search))

    def _gradient(self, state: SearchState) -> Gaussian:
        """Return the measurement of this batch."""
        return Gaussian.from_rho(self._rho(state), state.grad_clip)

    def _rho(self, state: SearchState) -> float:
        """Return its budget: a whole one, or the increase that refines."""
        if state.pending is None:
            return state.gradient_rho
        return state.gradient_rho * self.budget_growth / (1 + self.budget_growth)

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: SearchState,
        batch_size: float,
    ) -> tuple[SearchState, StepRecord]:
        """Measure or refine the gradient, search, and move."""
        gradient = self._gradient(state)
        direction = measure(batch, objective, state.here, gradient, batch_size)
        angle = None
        if state.pending is not None:
            # Inverse variance is proportional to rho: old rho against the increase.
            direction = averaged(state.pending, direction, "weighted")
        choice = search_step(self, batch, objective, state, direction, batch_size)
        if choice.step_size == 0:
            grown = state.gradient_rho * (1 + self.budget_growth)
            waiting = replace(state, pending=direction, gradient_rho=grown)
            return waiting, record(state, direction, angle, choice, self._rho(state))
        if state.previous is not None:
            angle = angle_between(state.previous, direction.vector)
        moved = updated(self, state, direction, choice)
        return moved, record(state, direction, angle, choice, self._rho(state))
