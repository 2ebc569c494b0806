# SPDX-License-Identifier: Apache-2.0
"""The methods of Chen and Lee (2020): DP-BLSGD, DP-BLSGD-AC and DP-BLGD.

Each batch carries one noisy gradient and one private search
(:mod:`armijo.methods.armijo_search`) and is charged once, jointly.

DP-BLSGD (Algorithms 2 and 3): when the search finds nothing, the *next* batch is the
retry (ChEB): its gradient is compared with the pending direction, budgets grow when
they disagree (or agree too well), both are averaged, and the search runs again on that
new batch.

DP-BLGD uses all rows every time, so nothing is amplified.  When a search fails, the
budget of the gradient grows from rho to (1 + growth) rho and only the difference is
bought: two measurements of the same sum, weighted by their budgets, are worth their
budgets together (GradAvg, Lee and Kifer 2018).  The search budget never grows.

=================  ==============================  ==================================
paper              here                            default
=================  ==============================  ==================================
q                  ``sampling_prob``               0.1
rho_grad, eps_BT   ``gradient_rho`` ...            from the budget, see estimators
C_grad, C_obj      ``max_grad_norm``, ``loss_clip`` 3 (networks: 1), 1
eta_0              ``initial_step``                2 (networks: 1)
xi                 ``budget_growth``               0.3
psi                ``angle_decay``                 0.8
phi_max, phi_min   ``angle_high``, ``angle_low``   1.1, 0.5
tau, varsigma      ``reset_every``, ``growth_cap`` 10, 1.2
zeta               ``clip_decay``                  0 (DP-BLSGD-AC: 0.05)
=================  ==============================  ==================================
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import Count, NonNegative, Positive, SamplingProb, Share
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import line_search_budget, noise_for_plan
from armijo.accounting.mechanisms import Composed, Gaussian, Subsampled
from armijo.data.gate import BatchPlan, PrivateBatch
from armijo.methods.armijo_search import ArmijoSearch, StepChoice
from armijo.methods.base import (
    Direction,
    Method,
    Problem,
    StepRecord,
    averaged,
    calibrated,
    noisy_gradient,
    tail_weight,
    usual_sizes,
)
from armijo.objectives.base import Objective, QueryForm

LINE_SEARCHES = ("blsgd", "blsgd-ac", "blgd")
"""DP-BLSGD, the same with clip adaptation, and full-batch DP-BLGD."""

SPLITS = 50
"""Chen and Lee (2020) divide epsilon by twice the iterations they expect."""


def _above_zero(**values: float) -> None:
    """Refuse a budget that buys nothing; without noise it is infinite."""
    _validate.positive(**{n: v for n, v in values.items() if v != math.inf})


Budgeted = Annotated[float, _above_zero]


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Released values that the line-search methods carry from batch to batch.

    ``w`` is the model; ``point`` is the last iterate where the model is a mean.
    """

    w: Tensor
    gradient_rho: Budgeted
    search_epsilon: Budgeted
    max_grad_norm: Budgeted
    loss_clip: Budgeted
    initial_step: Budgeted
    updates: int = 0
    recent_steps: tuple[float, ...] = ()
    pending: Direction | None = None
    previous: Tensor | None = None
    mean_angle: float = 90.0
    clip_lowered: bool = False
    point: Tensor | None = None

    @property
    def iterate(self) -> Tensor:
        """The last iterate, from which the next step is made."""
        return self.w if self.point is None else self.point

    def __post_init__(self) -> None:
        _validate.fields(self)
        if self.iterate.shape != self.w.shape:
            raise ValueError(
                f"Expected a point like the model, which has {self.w.numel()} numbers, "
                f"got {self.iterate.numel()}."
            )


def angle_between(first: Tensor, second: Tensor) -> float:
    """Return the angle in degrees; 90 when a vector is zero."""
    norms = float(first.norm() * second.norm())
    if norms == 0 or not math.isfinite(norms):
        return 90.0
    cosine = max(-1.0, min(1.0, float(first @ second) / norms))
    return math.degrees(math.acos(cosine))


@dataclass(frozen=True, kw_only=True)
class LineSearch(Method[SearchState]):
    """What the line-search methods share.

    Attributes
    ----------
    gradient_rho, search_epsilon : float or None
        First budgets of a gradient and of a search, before amplification.  None is the
        paper's ``epsilon_iter^2 / 2`` and ``epsilon_iter = epsilon / 100``, or solved.
    expected_steps : int or None
        Solve both so that this many steps use up the budget.
    search_share : float or None
        The search's part of the budget of each of the expected steps, for Gaussian
        searches (Chen and Lee 2020, networks); None gives both the same rho.
    search, search_form : str or None
        Kind and form of the line search, see :class:`~.armijo_search.ArmijoSearch`;
        None is its default, "gaussian" and "difference" for DP-BLSGD on networks.
    slope, shrink, max_tries, subtract_noise, armijo_scaling, fallback
        Those of :class:`~.armijo_search.ArmijoSearch`; None is its default, for
        DP-BLSGD on networks a slope of 0.1, noise subtracted and a fallback step.
    max_grad_norm, loss_clip : float
        Clips of gradients and losses; a ``max_grad_norm`` of None is 3, for DP-BLSGD
        on networks 1.
    initial_step : float or None
        First candidate; None is 2, for DP-BLSGD on networks 1.
    budget_growth : float
        A budget that grows is multiplied by one plus this.
    reset_every, growth_cap : int, float
        Every so many updates the first candidate falls to growth_cap times the largest
        recent step, if that is lower.
    average_iterates : bool
        Whether the model is a mean of the iterates in which late ones count most, see
        :func:`~armijo.methods.base.tail_weight`, or else the last one.  Both are made
        of released values only, so that neither costs more.
    """

    only_sums: ClassVar[bool] = True
    gradient_rho: Budgeted | None = None
    search_epsilon: Budgeted | None = None
    expected_steps: Count | None = None
    search_share: Share | None = None
    search: Literal["laplace", "gaussian"] | None = None
    search_form: QueryForm | None = None
    slope: Share | None = None
    shrink: Share = 0.8
    max_tries: Count = 20
    subtract_noise: bool | None = None
    armijo_scaling: Literal["sum", "as-published"] = "sum"
    fallback: bool | None = None
    max_grad_norm: Positive | None = None
    loss_clip: Positive = 1.0
    initial_step: Positive | None = None
    budget_growth: NonNegative = 0.3
    reset_every: Count = 10
    growth_cap: Positive = 1.2
    average_iterates: bool = False

    @property
    def sampling(self) -> float:
        """The sampling probability, one where all rows are used."""
        return 1.0

    @cached_property
    def line_search(self) -> ArmijoSearch:
        """The line search of its options."""
        given: dict[str, Any] = {
            "kind": self.search,
            "form": self.search_form,
            "slope": self.slope,
            "shrink": self.shrink,
            "max_tries": self.max_tries,
            "subtract_noise": self.subtract_noise,
            "armijo_scaling": self.armijo_scaling,
            "fallback": self.fallback,
        }
        return ArmijoSearch(
            **{name: value for name, value in given.items() if value is not None}
        )

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return clip and first candidate, and the steps that a network expects."""
        usual = {"max_grad_norm": 3.0, "initial_step": 2.0}
        if not problem.network:
            return usual
        return {**usual, "expected_steps": usual_sizes(problem, self.sampling)[1]}

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Set the first budgets that are not given."""
        method = self.completed(problem)
        rho, epsilon = method._first_budgets(budget)
        return replace(
            method,
            gradient_rho=method.gradient_rho or rho,
            search_epsilon=method.search_epsilon or epsilon,
        )

    def _first_budgets(self, budget: Budget) -> tuple[float, float]:
        """Return gradient rho and search epsilon of the first batch."""
        if self.expected_steps is None:
            epsilon = budget.epsilon / (2 * SPLITS)
            return epsilon**2 / 2, epsilon
        if self.search_share is not None:
            return self._shared_budgets(budget, self.search_share, self.expected_steps)
        solved = line_search_budget(
            budget,
            sampling_prob=self.sampling,
            steps=self.expected_steps,
            search=self.line_search.mechanism,
        )
        return solved.gradient_rho, solved.search_epsilon

    def _shared_budgets(
        self, budget: Budget, share: float, steps: int
    ) -> tuple[float, float]:
        """Return the same where rho is split between gradient and search."""

        def rhos(noise: float) -> tuple[float, float]:
            rho = 0.5 / noise**2
            return (1 - share) * rho, share * rho

        def plan_at(noise: float) -> list[tuple[Subsampled, int]]:
            for_gradient, for_search = rhos(noise)
            search = self.line_search.mechanism((2 * for_search) ** 0.5)
            both = Composed((Gaussian.from_rho(for_gradient), search))
            return [(Subsampled(both, self.sampling), steps)]

        for_gradient, for_search = rhos(noise_for_plan(budget, plan_at))
        return for_gradient, (2 * for_search) ** 0.5

    def init(self, w: Tensor) -> SearchState:
        """Return the first state."""
        return SearchState(
            w=w,
            gradient_rho=calibrated(gradient_rho=self.gradient_rho),
            search_epsilon=calibrated(search_epsilon=self.search_epsilon),
            max_grad_norm=calibrated(max_grad_norm=self.max_grad_norm),
            loss_clip=self.loss_clip,
            initial_step=calibrated(initial_step=self.initial_step),
        )

    def schedule(self) -> None:
        """Return None: what a search answers decides what is charged next."""
        return None

    def plan(self, state: SearchState) -> BatchPlan:
        """Name one gradient and one search on one batch."""
        search = self.line_search.mechanism(state.search_epsilon)
        return BatchPlan(
            mechanisms=(self._gradient(state), search), sampling_prob=self.sampling
        )

    def _gradient(self, state: SearchState) -> Gaussian:
        return Gaussian.from_rho(self._rho(state), state.max_grad_norm)

    def _rho(self, state: SearchState) -> float:
        return state.gradient_rho

    def step(
        self, batch: PrivateBatch, objective: Objective, state: SearchState
    ) -> tuple[SearchState, StepRecord]:
        """Measure a gradient, average it with a pending one, search, and move."""
        w, gradient = state.iterate, self._gradient(state)
        direction = noisy_gradient(batch, objective, w, gradient)
        angle: float | None = None
        adapted = state
        if state.pending is not None:
            direction, angle, adapted = self._retried(state, state.pending, direction)
        choice = self.line_search.choose(
            batch,
            objective,
            w,
            direction,
            mechanism=self.line_search.mechanism(state.search_epsilon),
            initial_step=state.initial_step,
            loss_clip=state.loss_clip,
            max_grad_norm=state.max_grad_norm,
        )
        if choice.step_size == 0:
            new = replace(self._failed(adapted), pending=direction)
        else:
            new = self.moved(adapted, direction, choice)
            if state.previous is not None:
                angle = angle_between(state.previous, direction.vector)
                new = self._turned_by(new, angle)
        record = StepRecord(
            update=state.updates,
            step_size=choice.step_size,
            tries=choice.tries,
            direction_norm=math.sqrt(direction.squared_norm),
            angle=angle,
            gradient_rho=self._rho(state),
            search_epsilon=state.search_epsilon,
            max_grad_norm=state.max_grad_norm,
            loss_clip=state.loss_clip,
            initial_step=state.initial_step,
        )
        return new, record

    @abstractmethod
    def _retried(
        self, state: SearchState, pending: Direction, fresh: Direction
    ) -> tuple[Direction, float | None, SearchState]:
        """Return direction and angle of a retry, and budgets for the batches after."""

    def _failed(self, state: SearchState) -> SearchState:
        """Return the state after a search without success."""
        return state

    def _turned_by(self, state: SearchState, angle: float) -> SearchState:
        """Return the state after a step at an angle to the one before."""
        return state

    def moved(
        self, state: SearchState, direction: Direction, choice: StepChoice
    ) -> SearchState:
        """Move, remember the step, and refresh the first candidate when it is due."""
        steps = (*state.recent_steps, choice.step_size)
        initial_step, updates = state.initial_step, state.updates + 1
        if updates % self.reset_every == 0:
            initial_step = min(self.growth_cap * max(steps), initial_step)
            steps = ()
        w = point = torch.sub(state.iterate, direction.vector, alpha=choice.step_size)
        if self.average_iterates:
            w = torch.lerp(state.w, point, tail_weight(updates))
        return replace(
            state,
            w=w,
            point=point if self.average_iterates else None,
            updates=updates,
            initial_step=initial_step,
            recent_steps=steps,
            pending=None,
            previous=direction.vector,
            clip_lowered=False,
        )


@dataclass(frozen=True, kw_only=True)
class BLSGD(LineSearch):
    """Private stochastic gradient descent with a private Armijo search.

    Attributes
    ----------
    sampling_prob : float or None
        Poisson sampling probability; None is 0.1, for networks that of
        :func:`~armijo.methods.base.usual_sizes`.
    adapt : {"angle", "always", "never"} or None
        When the gradient budget grows on a failed search: by the angle test of ChEB,
        always, or never; None is "angle", for networks "never".
    angle_decay, angle_high, angle_low : float
        Moving average of angles and the two thresholds relative to it.
    clip_decay : float
        DP-BLSGD-AC: clips shrink by this share, at most once per update, when the
        gradient budget grew.
    average : {"plain", "weighted"}
        How a retry averages directions: one half each as published, or by inverse noise
        variance.
    """

    sampling_prob: SamplingProb | None = None
    adapt: Literal["angle", "always", "never"] | None = None
    angle_decay: Share = 0.8
    angle_high: Positive = 1.1
    angle_low: Positive = 0.5
    clip_decay: Annotated[float, _validate.finite] = 0.0
    average: Literal["plain", "weighted"] = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.clip_decay < 1:
            raise ValueError(
                f"Expected 0 <= clip_decay < 1, got {self.clip_decay!r}; give the "
                "share by which clips shrink (0 for DP-BLSGD)."
            )

    @property
    def sampling(self) -> float:
        """The sampling probability."""
        return calibrated(sampling_prob=self.sampling_prob)

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return those of linear models, or Chen and Lee's (2020) for networks.

        A Gaussian search with a tenth of each step's budget, a fallback step instead of
        none, and no budget that grows, unless a growing one shall shrink the clips.
        """
        sampling_prob, steps = usual_sizes(problem, self.sampling_prob)
        if not problem.network:
            usual = super().usual(problem)
            return {**usual, "sampling_prob": sampling_prob, "adapt": "angle"}
        return {
            "sampling_prob": sampling_prob,
            "expected_steps": steps,
            "search_share": 0.1,
            "max_grad_norm": 1.0,
            "initial_step": 1.0,
            "adapt": "angle" if self.clip_decay else "never",
            "search": "gaussian",
            "slope": 0.1,
            "search_form": "difference",
            "subtract_noise": True,
            "fallback": not self.clip_decay,
        }

    def completed(self, problem: Problem) -> Self:
        """Return the method with what is usual, refusing what goes ill together."""
        method = super().completed(problem)
        if method.adapt != "never" and method.line_search.fallback:
            raise ValueError(
                f"Expected fallback=False with adapt={method.adapt!r}, got True: with "
                "a fallback step no search fails, so that no budget would ever grow. "
                "Nothing was spent."
            )
        return method

    def _retried(
        self, state: SearchState, pending: Direction, fresh: Direction
    ) -> tuple[Direction, float | None, SearchState]:
        angle = angle_between(pending.vector, fresh.vector)
        adapted = self._adapted(state, pending, fresh, angle)
        return averaged(pending, fresh, self.average), angle, adapted

    def _turned_by(self, state: SearchState, angle: float) -> SearchState:
        mean = self.angle_decay * state.mean_angle + (1 - self.angle_decay) * angle
        return replace(state, mean_angle=mean)

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
            max_grad_norm=state.max_grad_norm * keep,
            loss_clip=state.loss_clip * keep,
            clip_lowered=True,
        )


@dataclass(frozen=True, kw_only=True)
class BLGD(LineSearch):
    """Private full-batch gradient descent with a private Armijo search."""

    budget_growth: Positive = 0.3  # without growth a failed search would buy nothing

    def _rho(self, state: SearchState) -> float:
        """Return its budget: a whole one, or the increase that refines."""
        if state.pending is None:
            return state.gradient_rho
        return state.gradient_rho * self.budget_growth / (1 + self.budget_growth)

    def _retried(
        self, state: SearchState, pending: Direction, fresh: Direction
    ) -> tuple[Direction, float | None, SearchState]:
        # Inverse variance is proportional to rho: old rho against the increase.
        return averaged(pending, fresh, "weighted"), None, state

    def _failed(self, state: SearchState) -> SearchState:
        grown = state.gradient_rho * (1 + self.budget_growth)
        return replace(state, gradient_rho=grown)
