# SPDX-License-Identifier: Apache-2.0
"""What the line-search methods share: settings, state, and the parts of one step."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from armijo import _validate
from armijo.data.private import PrivateBatch
from armijo.methods.armijo_search import ArmijoSearch, Direction, StepChoice
from armijo.methods.base import Schedule, StepRecord
from armijo.objectives.base import Objective
from armijo.privacy.mechanisms import Gaussian

_DECAY = 3.0  # the last half of the updates has 1 - 1/2^(3 + 1) of the weight


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


def measure(
    batch: PrivateBatch,
    objective: Objective,
    w: Tensor,
    gradient: Gaussian,
    batch_size: float,
) -> Direction:
    """Release the noisy mean gradient; the penalty's is added after the noise.

    Each example is clipped to the sensitivity of the mechanism; the divisor is the
    public expected batch size.
    """
    query = objective.gradient_sum(w, clip=gradient.sensitivity)
    vector = batch.noisy_vector(query, gradient) / batch_size
    vector += objective.penalty_gradient(w)
    energy = objective.size * (gradient.noise_scale / batch_size) ** 2
    return Direction(vector=vector, noise_energy=energy)


def angle_between(first: Tensor, second: Tensor) -> float:
    """Return the angle in degrees; 90 when a vector is zero."""
    norms = float(first.norm() * second.norm())
    if norms == 0 or not math.isfinite(norms):
        return 90.0
    cosine = max(-1.0, min(1.0, float(first @ second) / norms))
    return math.degrees(math.acos(cosine))


def averaged(
    old: Direction, new: Direction, how: Literal["plain", "weighted"]
) -> Direction:
    """Average two measurements of one gradient, with the noise energy of the result."""
    share = 0.5
    total = old.noise_energy + new.noise_energy
    if how == "weighted" and total > 0:
        share = old.noise_energy / total  # inverse variance: the noisier counts less
    energy = (1 - share) ** 2 * old.noise_energy + share**2 * new.noise_energy
    vector = (1 - share) * old.vector + share * new.vector
    return Direction(vector=vector, noise_energy=energy)


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


def tail_weight(update: int, decay: float = _DECAY) -> float:
    """Return the weight of the iterate after an update, from one on, in the mean.

    Polynomial-decay averaging (Shamir and Zhang 2013) with decay a:

        mean_t = (1 - (a + 1) / (t + a)) mean_(t-1) + (a + 1) / (t + a) w_t

    so that with a = 3 w_t counts as ``t (t + 1) (t + 2)`` and the last half of the
    updates has about 15/16 of the weight: a mean of the tail that need not know when
    the run ends.  Failed searches leave the iterate and the mean as they are.

    >>> tail_weight(1), tail_weight(5)
    (1.0, 0.5)
    """
    return (decay + 1) / (update + decay)


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
