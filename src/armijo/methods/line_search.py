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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from armijo import _validate
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.armijo_search import ArmijoSearch, StepChoice
from armijo.methods.base import (
    Direction,
    MethodSettings,
    Problem,
    Schedule,
    StepRecord,
    averaged,
    measure,
    tail_weight,
)
from armijo.objectives.base import Objective
from armijo.privacy.budget import Budget
from armijo.privacy.calibration import line_search_budget
from armijo.privacy.mechanisms import Gaussian


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of every line-search method.

    Attributes
    ----------
    gradient_rho, search_epsilon : float
        First budgets of a gradient and of a search, before amplification.
    search : ArmijoSearch
        The line search.
    grad_clip, loss_clip : float
        Clips of gradients and losses.
    step_max : float
        First candidate.
    budget_growth : float
        A budget that grows is multiplied by one plus this.
    refresh_every, headroom : int, float
        Every so many updates the first candidate falls to headroom times the largest
        recent step, if that is lower.
    tail_mean : bool
        Whether the model is a mean of the iterates in which late ones count most, see
        :func:`tail_weight`, or else the last one.  Both are made of released values
        only, so that neither costs more.
    """

    gradient_rho: float
    search_epsilon: float
    search: ArmijoSearch = field(default_factory=ArmijoSearch)
    grad_clip: float = 3.0
    loss_clip: float = 1.0
    step_max: float = 2.0
    budget_growth: float = 0.3
    refresh_every: int = 10
    headroom: float = 1.2
    tail_mean: bool = False

    def schedule(self) -> Schedule | None:
        """Return None: what a search answers decides what is charged next."""
        return None

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.positive(
            grad_clip=self.grad_clip,
            loss_clip=self.loss_clip,
            step_max=self.step_max,
            headroom=self.headroom,
        )
        _validate.non_negative(budget_growth=self.budget_growth)
        _validate.at_least(1, refresh_every=self.refresh_every)
        if not isinstance(self.tail_mean, bool):
            raise ValueError(
                f"Expected tail_mean True or False, got {self.tail_mean!r}."
            )


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Released values that the line-search methods carry from batch to batch.

    ``w`` is the model; ``point`` is the last iterate where the model is a mean.
    """

    w: Tensor
    gradient_rho: float
    search_epsilon: float
    grad_clip: float
    loss_clip: float
    step_max: float
    updates: int = 0
    recent_steps: tuple[float, ...] = ()
    pending: Direction | None = None
    previous: Tensor | None = None
    mean_angle: float = 90.0
    clip_lowered: bool = False
    point: Tensor | None = None

    @property
    def here(self) -> Tensor:
        """The last iterate, from which the next step is made."""
        return self.w if self.point is None else self.point

    def __post_init__(self) -> None:
        """Check the public numbers, which may come from a file."""
        budgets = (self.gradient_rho, self.search_epsilon)  # infinite without noise
        clips = (self.grad_clip, self.loss_clip, self.step_max)
        if not all(value > 0 for value in (*budgets, *clips)):
            raise ValueError(
                f"Expected positive budgets and clips, got {budgets} and {clips}."
            )
        if self.here.shape != self.w.shape:
            raise ValueError(
                f"Expected a point like the model, which has {self.w.numel()} numbers, "
                f"got {self.here.numel()}."
            )


def first_state(settings: SearchSettings, w: Tensor) -> SearchState:
    """Return the state before the first batch."""
    return SearchState(
        w=w,
        gradient_rho=settings.gradient_rho,
        search_epsilon=settings.search_epsilon,
        grad_clip=settings.grad_clip,
        loss_clip=settings.loss_clip,
        step_max=settings.step_max,
    )


def angle_between(first: Tensor, second: Tensor) -> float:
    """Return the angle in degrees; 90 when a vector is zero."""
    norms = float(first.norm() * second.norm())
    if norms == 0 or not math.isfinite(norms):
        return 90.0
    cosine = max(-1.0, min(1.0, float(first @ second) / norms))
    return math.degrees(math.acos(cosine))


def search_step(
    settings: SearchSettings,
    batch: PrivateBatch,
    objective: Objective,
    state: SearchState,
    direction: Direction,
    batch_size: float,
) -> StepChoice:
    """Run the search that the batch was charged for."""
    return settings.search.choose(
        batch,
        objective,
        state.here,
        direction,
        mechanism=settings.search.mechanism(state.search_epsilon),
        step_max=state.step_max,
        loss_clip=state.loss_clip,
        grad_clip=state.grad_clip,
        batch_size=batch_size,
    )


def updated(
    settings: SearchSettings,
    state: SearchState,
    direction: Direction,
    choice: StepChoice,
) -> SearchState:
    """Move, remember the step, and refresh the first candidate when it is due."""
    steps = (*state.recent_steps, choice.step_size)
    step_max, updates = state.step_max, state.updates + 1
    if updates % settings.refresh_every == 0:
        step_max = min(settings.headroom * max(steps), step_max)
        steps = ()
    point = torch.sub(state.here, direction.vector, alpha=choice.step_size)
    return replace(
        state,
        w=_model(settings, state.w, point, updates),
        point=point if settings.tail_mean else None,
        updates=updates,
        step_max=step_max,
        recent_steps=steps,
        pending=None,
        previous=direction.vector,
        clip_lowered=False,
    )


def _model(
    settings: SearchSettings, mean: Tensor, point: Tensor, updates: int
) -> Tensor:
    """Return the mean with a new iterate taken in, or the iterate alone."""
    if not settings.tail_mean:
        return point
    return torch.lerp(mean, point, tail_weight(updates))


def record(
    state: SearchState,
    direction: Direction,
    angle: float | None,
    choice: StepChoice,
    gradient_rho: float,
) -> StepRecord:
    """Write down what this batch released, with the settings it was measured with."""
    return StepRecord(
        update=state.updates,
        step_size=choice.step_size,
        tries=choice.tries,
        direction_norm=math.sqrt(direction.squared_norm),
        angle=angle,
        gradient_rho=gradient_rho,
        search_epsilon=state.search_epsilon,
        grad_clip=state.grad_clip,
        loss_clip=state.loss_clip,
        step_max=state.step_max,
    )


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


LINE_SEARCHES = ("blsgd", "blsgd-ac", "blgd")
"""DP-BLSGD, the same with clip adaptation, and full-batch DP-BLGD."""

SPLITS = 50
"""Chen and Lee (2020) divide epsilon by twice the iterations they expect."""

_SEARCH_NAMES = {  # what a user calls a field of the search
    "search": "kind",
    "search_form": "form",
    "slope": "slope",
    "shrink": "shrink",
    "max_tries": "max_tries",
    "subtract_noise": "subtract_noise",
    "armijo": "armijo",
}
_STOCHASTIC = {"rate", "adapt", "angle_decay", "angle_high", "angle_low", "average"}


@dataclass(frozen=True, kw_only=True)
class LineSearchSettings(MethodSettings):
    """Every public setting of the line-search methods, in the paper's defaults.

    ``gradient_rho`` and ``search_epsilon`` default to the paper's
    ``epsilon_iter^2 / 2`` and ``epsilon_iter = epsilon / 100``; with
    ``expected_steps`` they are solved so that this many steps use up the budget.
    """

    method: str = "blsgd"
    rate: float = 0.1
    gradient_rho: float | None = None
    search_epsilon: float | None = None
    expected_steps: int | None = None
    grad_clip: float = 3.0
    loss_clip: float = 1.0
    step_max: float = 2.0
    budget_growth: float = 0.3
    adapt: Literal["angle", "always", "never"] = "angle"
    angle_decay: float = 0.8
    angle_high: float = 1.1
    angle_low: float = 0.5
    refresh_every: int = 10
    headroom: float = 1.2
    clip_decay: float = 0.05
    average: Literal["plain", "weighted"] = "plain"
    tail_mean: bool = False
    search: ArmijoSearch = field(default_factory=ArmijoSearch)

    def build(self, problem: Problem) -> BLSGD | BLGD:
        """Return the method with its first budgets."""
        return line_search_method(self, problem.budget)


def line_search_settings(method: str, asked: Mapping[str, Any]) -> LineSearchSettings:
    """Return settings from flat parameters, those of the search among them."""
    search = {_SEARCH_NAMES[name]: asked[name] for name in asked.keys() & _SEARCH_NAMES}
    rest = {name: asked[name] for name in asked.keys() - _SEARCH_NAMES}
    return LineSearchSettings(method=method, search=ArmijoSearch(**search), **rest)


def line_search_takes(method: str) -> set[str]:
    """Return the names of the flat parameters that a line-search method takes."""
    names = {field.name for field in fields(LineSearchSettings)} - {"method", "search"}
    names |= _SEARCH_NAMES.keys()
    if method != "blsgd-ac":
        names -= {"clip_decay"}
    return names - _STOCHASTIC if method == "blgd" else names


def line_search_method(settings: LineSearchSettings, budget: Budget) -> BLSGD | BLGD:
    """Return the method that the settings name, with its first budgets."""
    _validate.choice(LINE_SEARCHES, method=settings.method)
    rho, epsilon = _first_budgets(settings, budget)
    kind = BLGD if settings.method == "blgd" else BLSGD
    shared = _shared(settings, kind)
    if settings.method == "blsgd":
        shared["clip_decay"] = 0.0
    return kind(gradient_rho=rho, search_epsilon=epsilon, **shared)


def _shared(settings: LineSearchSettings, kind: type[BLSGD | BLGD]) -> dict[str, Any]:
    """Return the settings that the method has under the same name."""
    names = {field.name for field in fields(kind)} - {"gradient_rho", "search_epsilon"}
    return {name: getattr(settings, name) for name in sorted(names)}


def _first_budgets(settings: LineSearchSettings, budget: Budget) -> tuple[float, float]:
    """Return gradient rho and search epsilon of the first batch."""
    if settings.expected_steps is not None:
        _validate.at_least(1, expected_steps=settings.expected_steps)
        solved = line_search_budget(
            budget,
            rate=1.0 if settings.method == "blgd" else settings.rate,
            steps=settings.expected_steps,
            search=settings.search.mechanism,
        )
        per_step = solved.gradient_rho, solved.search_epsilon
    else:
        each = budget.epsilon / (2 * SPLITS)
        per_step = each**2 / 2, each
    rho = per_step[0] if settings.gradient_rho is None else settings.gradient_rho
    epsilon = per_step[1]
    if settings.search_epsilon is not None:
        epsilon = settings.search_epsilon
    _validate.positive(gradient_rho=rho, search_epsilon=epsilon)
    return rho, epsilon
