# SPDX-License-Identifier: Apache-2.0
"""DP-BLSGD and DP-BLSGD-AC: Chen and Lee (2020), Algorithms 2 and 3.

Each batch carries one noisy gradient and one private search and is charged once,
jointly.  When the search finds nothing, the *next* batch is the retry (ChEB): its
gradient is compared with the pending direction, budgets grow when they disagree (or
agree too well), both are averaged, and the search runs again on that new batch.

=================  ==============================  ==================================
paper              here                            default
=================  ==============================  ==================================
q                  ``rate``                        0.1
rho_grad, eps_BT   ``gradient_rho`` ...            from the budget, see estimators
C_grad, C_obj      ``grad_clip``, ``loss_clip``    3, 1
eta_0              ``step_max``                    2
xi                 ``budget_growth``               0.3
psi                ``angle_decay``                 0.8
phi_max, phi_min   ``angle_high``, ``angle_low``   1.1, 0.5
tau, varsigma      ``refresh_every``, ``headroom`` 10, 1.2
zeta               ``clip_decay``                  0 (DP-BLSGD-AC: 0.05)
=================  ==============================  ==================================
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from armijo import _validate
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.armijo_search import Direction
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
class BLSGD(SearchSettings):
    """Private stochastic gradient descent with a private Armijo search.

    Attributes
    ----------
    rate : float
        Poisson sampling probability.
    adapt : {"angle", "always", "never"}
        When the gradient budget grows on a failed search: by the angle test of ChEB,
        always, or never.
    angle_decay, angle_high, angle_low : float
        Moving average of angles and the two thresholds relative to it.
    clip_decay : float
        DP-BLSGD-AC: clips shrink by this share, at most once per update, when the
        gradient budget grew.
    average : {"plain", "weighted"}
        How a retry averages directions: one half each as printed, or by inverse noise
        variance.
    """

    rate: float = 0.1
    adapt: Literal["angle", "always", "never"] = "angle"
    angle_decay: float = 0.8
    angle_high: float = 1.1
    angle_low: float = 0.5
    clip_decay: float = 0.0
    average: Literal["plain", "weighted"] = "plain"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _validate.rate(rate=self.rate)
        _validate.choice(("angle", "always", "never"), adapt=self.adapt)
        _validate.choice(("plain", "weighted"), average=self.average)
        _validate.open_unit(angle_decay=self.angle_decay)
        _validate.positive(angle_high=self.angle_high, angle_low=self.angle_low)
        _validate.finite(clip_decay=self.clip_decay)
        if not 0 <= self.clip_decay < 1:
            raise ValueError(
                f"Expected 0 <= clip_decay < 1, got {self.clip_decay!r}; give the "
                "share by which clips shrink (0 for DP-BLSGD)."
            )

    def init(self, w: Tensor) -> SearchState:
        """Return the first state."""
        return first_state(self, w)

    def plan(self, state: SearchState) -> BatchPlan:
        """Name one gradient and one search on one batch."""
        gradient = Gaussian.from_rho(state.gradient_rho, state.grad_clip)
        search = self.search.mechanism(state.search_epsilon)
        return BatchPlan(mechanisms=(gradient, search), rate=self.rate)

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: SearchState,
        batch_size: float,
    ) -> tuple[SearchState, StepRecord]:
        """Measure a gradient, adapt the budgets on a retry, search, and move."""
        gradient = Gaussian.from_rho(state.gradient_rho, state.grad_clip)
        fresh = measure(batch, objective, state.here, gradient, batch_size)
        direction, angle, adapted = fresh, None, state
        if state.pending is not None:
            angle = angle_between(state.pending.vector, fresh.vector)
            adapted = self._adapted(state, state.pending, fresh, angle)
            direction = averaged(state.pending, fresh, self.average)
        choice = search_step(self, batch, objective, state, direction, batch_size)
        if choice.step_size == 0:
            waiting = replace(adapted, pending=direction)
            return waiting, record(state, direction, angle, choice, state.gradient_rho)
        moved = updated(self, adapted, direction, choice)
        if state.previous is not None:
            angle = angle_between(state.previous, direction.vector)
            mean = self.angle_decay * state.mean_angle + (1 - self.angle_decay) * angle
            moved = replace(moved, mean_angle=mean)
        return moved, record(state, direction, angle, choice, state.gradient_rho)

    def _adapted(
        self, state: SearchState, old: Direction, new: Direction, angle: float
    ) -> SearchState:
        """Return the state with the budgets of ChEB (Algorithm 3) for later batches."""
        against = float(old.vector @ new.vector) < 0
        disagree = against or angle > self.angle_high * state.mean_angle
        if self.adapt == "always" or (self.adapt == "angle" and disagree):
            grown = replace(
                state, gradient_rho=state.gradient_rho * (1 + self.budget_growth)
            )
            return self._lower_clips(grown)
        if self.adapt == "angle" and angle < self.angle_low * state.mean_angle:
            return replace(
                state, search_epsilon=state.search_epsilon * (1 + self.budget_growth)
            )
        return state

    def _lower_clips(self, state: SearchState) -> SearchState:
        """Shrink both clips, at most once per update (DP-BLSGD-AC)."""
        if self.clip_decay == 0 or state.clip_lowered:
            return state
        keep = 1 - self.clip_decay
        return replace(
            state,
            grad_clip=state.grad_clip * keep,
            loss_clip=state.loss_clip * keep,
            clip_lowered=True,
        )
