# SPDX-License-Identifier: Apache-2.0
"""The automatic method: a private line search with nothing left to set.

Before the first step it pays for the scale, the mean and the second moments of the
features; each step then pays for a gradient in the frame they make, and for a search
of three points along the preconditioned direction.  The model is the mean of the second
half of the iterates.

All releases are Gaussian, on all rows and known beforehand, so that together they are
one Gaussian of noise multiplier sigma: a release with the share f of ``1/sigma^2`` has
the multiplier ``sigma / sqrt(f)``.  Every other constant is a function of sigma, of the
public number of rows and features, and of nothing else.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.calibration import noise_for_plan
from armijo.accounting.mechanisms import Gaussian
from armijo.data.private import BatchPlan, PrivateBatch, refuse_unsampleable
from armijo.methods.auto_queries import (
    FACTORS,
    Curvature,
    Standardization,
    ThreePoints,
    chosen_norm,
    norm_histogram,
    radius,
    row_sum,
    second_moments,
    shrunk_mean,
    spectrum,
    square_sum,
)
from armijo.methods.base import (
    Method,
    Problem,
    Schedule,
    StepRecord,
    calibrated,
    solved,
)
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective

FIRST_STEP = 8.0
"""First step along the preconditioned direction: twice Newton's at zero weights."""

SMALLEST_STEP, LARGEST_STEP = FIRST_STEP / 8, FIRST_STEP * 4
"""Where the search stops."""

TARGET_SNR = 8.0
"""Standard deviations of noise that the count of all rows shall be, in the histogram
of their norms."""

MAX_NORM_SHARE = 0.25
"""The most that this histogram may take of what the other releases leave."""

MOST_FEATURES = 1024
"""Beyond so many the matrix of second moments is not measured."""

SCORE_NOISE = 16.0
"""Noise that all steps together may leave in a weight, times the root of d."""

INTERCEPT_NOISE = 4.0
"""The same for the intercept."""

INTERCEPT_DAMPING = 2.0
"""Damping of the intercept's step, in squares of the constant feature.

A hinge whose features say little has all its kinks in one place, where full steps of
the intercept jump back and forth."""

SMALL_NOISE = 0.004
"""Noise of the mean gradient beyond which weights are held back further."""

MOMENT_FLOOR = 0.5
"""Smallest damping, in spectral norms of the noise in the second moments."""

SMALLEST_DAMPING = 1e-6
"""Smallest damping of all, where there is no noise."""

LARGEST_CLIP = 1e3
"""Where the clip ends as noise vanishes; it clips nothing there."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How ``1/sigma^2`` is split; the gradients get the rest."""

    norm: float
    center: float
    moments: float
    search: float

    @property
    def gradients(self) -> float:
        """What is left for the gradients of all steps."""
        return 1.0 - (self.norm + self.center + self.moments + self.search)


@dataclass(frozen=True, kw_only=True)
class AutoRules:
    """Mechanisms, clips and damping from public numbers.

    Attributes
    ----------
    noise : float
        Noise multiplier sigma of the whole run.
    n_rows, n_features, steps : int
        Public sizes.
    shares : Shares
        The split of the budget.
    fit_intercept : bool
        Whether there is an intercept.

    Examples
    --------
    >>> shares = Shares(norm=0.01, center=0.02, moments=0.03, search=0.05)
    >>> rules = AutoRules(noise=10.0, n_rows=40000, n_features=100, steps=30,
    ...                   shares=shares, fit_intercept=True)
    >>> round(rules.clip, 3), round(rules.constant, 3)
    (0.849, 0.3)
    """

    noise: float
    n_rows: int
    n_features: int
    steps: int
    shares: Shares
    fit_intercept: bool

    def released(self, share: float) -> Gaussian:
        """Return the mechanism of a sum of sensitivity one with this share."""
        return Gaussian(noise_scale=self.noise / math.sqrt(share))

    @property
    def gradient(self) -> Gaussian:
        """The gradient of every step, in units of its clip."""
        return self.released(self.shares.gradients / self.steps)

    def search(self, update: int, points: int) -> Gaussian:
        """Return the search of one step, of ``points`` drops in units of their clip.

        Every doubling of the number of steps gets the same share: the first searches
        find the step, the later ones follow it.
        """
        octave = int(math.log2(update + 1))
        octaves = int(math.log2(self.steps)) + 1
        length = min(2**octave, self.steps + 1 - 2**octave)
        share = self.shares.search / (octaves * length)
        root = math.sqrt(points)
        return Gaussian(
            noise_scale=root * self.noise / math.sqrt(share), sensitivity=root
        )

    @property
    def clip(self) -> float:
        """The clip of a gradient in the frame, where an average row has norm one.

        A small clip has little noise and more bias: fourth root of rows over noise.
        """
        if self.noise == 0:
            return LARGEST_CLIP
        root = (1e-3 * self.n_rows / self.noise) ** 0.25
        return min(max(0.6 * root, 0.5), LARGEST_CLIP)

    @property
    def mean_noise(self) -> float:
        """Noise that is left in the mean of the gradients of all steps."""
        root = math.sqrt(self.shares.gradients)
        return self.noise * self.clip / (self.n_rows * root)

    @property
    def constant(self) -> float:
        """The constant feature: larger under noise, when the intercept is worth more.

        Zero without an intercept.
        """
        if not self.fit_intercept:
            return 0.0
        return min(max(30 * self.noise * self.clip / self.n_rows, 0.3), 1.0)

    def _held_back(self, most: float) -> float:
        """Return the damping under which noise moves a weight by at most ``most``.

        Steps of size ``FIRST_STEP / damping`` add up to ``FIRST_STEP steps / damping``
        times the noise of the mean gradient.
        """
        shrink = 1 + self.mean_noise / SMALL_NOISE
        return FIRST_STEP * self.steps * self.mean_noise / most * shrink

    @property
    def damping(self) -> float:
        """What is added to the second moments before they are inverted."""
        d = self.n_features
        damping = max(self._held_back(SCORE_NOISE / math.sqrt(d)), SMALLEST_DAMPING)
        if not self.has_moments:
            return damping
        noise = self.released(self.shares.moments).noise_scale / self.n_rows
        return max(damping, MOMENT_FLOOR * noise * math.sqrt(2 * d))

    @property
    def intercept_damping(self) -> float:
        """What is added to the squared constant feature for the intercept's step."""
        caution = INTERCEPT_DAMPING * self.constant**2
        noise = self._held_back(INTERCEPT_NOISE / max(self.constant, 1e-12))
        return max(caution, noise)

    @property
    def has_moments(self) -> bool:
        """Whether the second moments are measured."""
        return self.shares.moments > 0


Stage = Literal["norm", "center", "moments"]


@dataclass(frozen=True, kw_only=True)
class AutoState:
    """Released values: the frame, the point in it, and the model of the rows.

    ``values`` and ``vectors`` are the spectrum of the second moments, flat; ``total``
    is the sum of the points of the second half.
    """

    w: Tensor
    batches: int = 0
    norm: float = 0.0
    center: Tensor | None = None
    radius: float = 1.0
    values: Tensor | None = None
    vectors: Tensor | None = None
    point: Tensor | None = None
    total: Tensor | None = None
    step_size: float = FIRST_STEP


def center_of(state: AutoState) -> FloatArray:
    """Return the released center."""
    if state.center is None:
        raise ValueError("Expected a state whose center was released, got none.")
    return state.center.numpy()


def prepared(
    stage: Stage,
    batch: PrivateBatch,
    state: AutoState,
    used: tuple[Gaussian, ...],
    objective: LinearObjective,
    batch_size: float,
) -> AutoState:
    """Make one of the releases before the first step."""
    if stage == "norm":
        return replace(state, norm=released_norm(batch, used[0], objective))
    if stage == "center":
        center, distance = released_center(
            batch, used, state.norm, objective, batch_size
        )
        return replace(state, center=torch.from_numpy(center), radius=distance)
    query = second_moments(center_of(state), state.radius, objective.labelled)
    noisy_sum = batch.noisy_sum(query, used[0])
    values, vectors = spectrum(noisy_sum, batch_size)
    return replace(
        state,
        values=torch.from_numpy(values),
        vectors=torch.from_numpy(vectors.reshape(-1)),
    )


def released_norm(
    batch: PrivateBatch, mechanism: Gaussian, objective: LinearObjective
) -> float:
    """Release a norm that most rows do not exceed and many come near."""
    query = norm_histogram(objective.n_features, objective.labelled)
    counts = batch.noisy_sum(query, mechanism)
    return chosen_norm(counts, mechanism.noise_scale, objective.n_features)


def released_center(
    batch: PrivateBatch,
    mechanisms: tuple[Gaussian, ...],
    norm: float,
    objective: LinearObjective,
    batch_size: float,
) -> tuple[FloatArray, float]:
    """Release center and radius; with one mechanism the center is zero."""
    scale = mechanisms[0].noise_scale / batch_size
    squares = square_sum(norm, objective.labelled)
    square = float(batch.noisy_sum(squares, mechanisms[0])[0]) / batch_size
    center = np.zeros(objective.n_features)
    if len(mechanisms) == 2:
        query = row_sum(norm, objective.labelled)
        mean = batch.noisy_sum(query, mechanisms[1]) * (norm / batch_size)
        center = shrunk_mean(mean, scale * norm)
    return center, radius(square * norm**2, center, norm, scale)


@dataclass(frozen=True, kw_only=True)
class Auto(Method[AutoState]):
    """Preparation in up to three batches, then steps with a three-point search.

    No setting has to be given.

    Attributes
    ----------
    data_norm : float or None
        Public bound on the norm of a row.  None pays ``norm_share`` for an estimate.
        It sets the noise of the mean only: no row is clipped in the model.
    steps : int
        Number of steps.
    norm_share, center_share, moment_share, search_share : float
        Parts of the budget (of ``1/sigma^2``) for the scale of the rows, their mean,
        their second moments and all searches; the gradients get the rest.  Without a
        share for them there are no second moments, and no searches.  The scale gets
        more, up to a quarter of the rest, where fewer rows would drown in noise.
    first_step : float
        Where the searches begin, from 1 to 32; the step itself where there are none.
    average_iterates : bool
        Whether the model is the mean of the second half, or else the last iterate.
    noise_multiplier, problem : float or None, Problem or None
        Noise of the whole run, and what it was calibrated for.
    """

    data_norm: float | None = None
    steps: int = 30
    norm_share: float = 0.01
    center_share: float = 0.02
    moment_share: float = 0.03
    search_share: float = 0.05
    first_step: float = FIRST_STEP
    average_iterates: bool = True
    noise_multiplier: float | None = solved()
    problem: Problem | None = solved()

    def __post_init__(self) -> None:
        _validate.at_least(1, steps=self.steps)
        if self.data_norm is not None:
            _validate.positive(data_norm=self.data_norm)
        shares = {
            name: getattr(self, name)
            for name in ("norm_share", "center_share", "moment_share", "search_share")
        }
        _validate.positive(
            norm_share=self.norm_share,
            center_share=self.center_share,
            first_step=self.first_step,
        )
        _validate.non_negative(**shares)
        self._check_first_step()
        if not isinstance(self.average_iterates, bool):
            raise ValueError(
                f"Expected average_iterates True or False, got {self.average_iterates}."
            )
        if sum(shares.values()) >= 1:
            raise ValueError(
                f"Expected shares that leave something for the gradients, got {shares},"
                " which add up to one or more."
            )

    def _check_first_step(self) -> None:
        """Refuse a step that the first search could not keep."""
        inside = SMALLEST_STEP <= self.first_step <= LARGEST_STEP
        if self.search_share and not inside:
            raise ValueError(
                f"Expected {SMALLEST_STEP:g} <= first_step <= {LARGEST_STEP:g}, got "
                f"{self.first_step!r}; without searches (search_share=0) it may be "
                "any positive number."
            )

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget."""
        noise = noise_for_plan(budget, lambda z: self.with_noise(z, problem).schedule())
        method = self.with_noise(noise, problem)
        for plan in method.plans():
            refuse_unsampleable(plan)
        return method

    def with_noise(self, noise: float, problem: Problem) -> Self:
        """Return the method with a given noise multiplier of the whole run."""
        return replace(self, noise_multiplier=noise, problem=problem)

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        if self.problem is None:
            raise ValueError("Expected a calibrated method; call calibrate first.")
        return self.problem.linear

    @cached_property
    def rules(self) -> AutoRules:
        """What follows from noise and sizes."""
        objective, n_rows = self.objective, self.problem.n_rows if self.problem else 1
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        few = objective.n_features <= MOST_FEATURES
        return AutoRules(
            noise=noise,
            n_rows=n_rows,
            n_features=objective.n_features,
            steps=self.steps,
            shares=Shares(
                norm=self._norm_share(noise, n_rows),
                center=self.center_share,
                moments=self.moment_share if few else 0.0,
                search=self.search_share,
            ),
            fit_intercept=objective.fit_intercept,
        )

    def _norm_share(self, noise: float, n_rows: int) -> float:
        """Return what the scale of the rows gets: more where noise hides few rows.

        All releases are one Gaussian whatever the split, so it may follow the noise.
        """
        if self.data_norm is not None:
            return 0.0
        readable = (TARGET_SNR * noise / n_rows) ** 2
        rest = 1.0 - (self.center_share + self.moment_share + self.search_share)
        return max(self.norm_share, min(readable, MAX_NORM_SHARE * rest))

    def init(self, w: Tensor) -> AutoState:
        """Return the first state."""
        return AutoState(w=w, norm=self.data_norm or 0.0, step_size=self.first_step)

    @property
    def _stages(self) -> tuple[Stage, ...]:
        """Name the batches before the first step."""
        norm: tuple[Stage, ...] = () if self.data_norm else ("norm",)
        moments: tuple[Stage, ...] = ("moments",) if self.rules.has_moments else ()
        return (*norm, "center", *moments)

    def _mechanisms(self, batch: int) -> tuple[Gaussian, ...]:
        """Return the releases of one batch."""
        rules, stages = self.rules, self._stages
        if batch >= len(stages):
            if not rules.shares.search:
                return (rules.gradient,)
            search = rules.search(batch - len(stages), len(FACTORS))
            return rules.gradient, search
        stage = stages[batch]
        if stage == "center" and self.objective.fit_intercept:
            half = rules.released(0.5 * rules.shares.center)
            return half, half
        return (rules.released(getattr(rules.shares, stage)),)

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        batches = (plan.mechanism for plan in self.plans())
        return tuple((kind, len(list(run))) for kind, run in groupby(batches))

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plans of all batches in their order."""
        count = len(self._stages) + self.rules.steps
        return (self._batch(i) for i in range(count))

    def plan(self, state: AutoState) -> BatchPlan:
        """Name the releases of the next batch; past the end, one that is refused."""
        last = len(self._stages) + self.rules.steps - 1
        return self._batch(min(state.batches, last))

    def _batch(self, batch: int) -> BatchPlan:
        return BatchPlan(mechanisms=self._mechanisms(batch))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: AutoState,
        batch_size: float,
    ) -> tuple[AutoState, StepRecord]:
        """Prepare, or make a step."""
        stages, used = self._stages, self._mechanisms(state.batches)
        if state.batches < len(stages):
            new = prepared(
                stages[state.batches],
                batch,
                state,
                used,
                self.objective,
                batch_size,
            )
            record = StepRecord(update=0, gradients=0)
        else:
            new, record = self._moved(batch, state, used, batch_size)
        return replace(new, batches=state.batches + 1), record

    def _frame(self, state: AutoState) -> Standardization:
        """Return the coordinates that were released."""
        return Standardization(
            objective=self.objective,
            center=center_of(state),
            radius=state.radius,
            constant=self.rules.constant,
            clip=self.rules.clip,
        )

    def _curvature(self, state: AutoState) -> Curvature:
        """Return the released second moments, or equal ones of trace one."""
        d, constant = self.objective.n_features, self.rules.constant
        if state.values is None or state.vectors is None:
            return Curvature(values=np.full(d, 1 / d), vectors=None, constant=constant)
        vectors = state.vectors.numpy().reshape(d, d)
        return Curvature(
            values=state.values.numpy(), vectors=vectors, constant=constant
        )

    def _moved(
        self,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> tuple[AutoState, StepRecord]:
        """Release a gradient and three drops, and move by the step they choose."""
        frame, curvature = self._frame(state), self._curvature(state)
        point = torch.zeros_like(state.w) if state.point is None else state.point
        w = frame.model(point)
        noisy_sum = batch.noisy_sum(frame.gradient_sum(w), used[0])
        g = torch.from_numpy(noisy_sum * (frame.clip / batch_size))
        g = (g + frame.penalty_gradient(point)).reshape(self.objective.outputs, -1)
        # A step of eight must not overshoot the penalty's own minimum.
        damping = self.rules.damping + 4 * frame.curvature
        blocks = curvature.direction(g, damping, self.rules.intercept_damping)
        points = ThreePoints(
            frame=frame,
            sizes=tuple(factor * state.step_size for factor in FACTORS),
            rms_score=curvature.rms_score(blocks),
        )
        direction, step_size = blocks.reshape(-1), state.step_size
        for search in used[1:]:
            drops = batch.noisy_sum(points.query(w, frame.model(direction)), search)
            falls = points.penalty_falls(point, direction)
            step_size = points.chosen(drops, search.noise_scale, batch_size, falls)
            step_size = min(max(step_size, SMALLEST_STEP), LARGEST_STEP)
        new = self._averaged(state, frame, point - step_size * direction)
        record = StepRecord(
            update=state.batches - len(self._stages),
            step_size=step_size,
            tries=(len(FACTORS) + 1) * len(used[1:]),
            direction_norm=float(direction.norm()),
            gradient_rho=used[0].rho,
            max_grad_norm=frame.clip,
        )
        return replace(new, step_size=step_size), record

    def _averaged(
        self, state: AutoState, frame: Standardization, point: Tensor
    ) -> AutoState:
        """Return the state at a new point, its model averaged over the second half."""
        done = state.batches - len(self._stages) + 1
        first = self.rules.steps // 2
        if done <= first or not self.average_iterates:
            return replace(state, point=point, w=frame.model(point))
        total = point if state.total is None else state.total + point
        mean = total / (done - first)
        return replace(state, point=point, total=total, w=frame.model(mean))
