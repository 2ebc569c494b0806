# SPDX-License-Identifier: Apache-2.0
"""DP-SGD whose step and clip are tried out, the trials paid for.

Settings are drawn at random, a whole run of DP-SGD and a noisy count of the rows it
gets right follow, and after each a Bernoulli draw decides whether to stop.  The best
run by the noisy count is released, never how many there were: Papernot and Steinke
(2022, Theorem 2) bound what that costs, and it is charged before the first run.  (The
time it takes tells about the number of runs; like all running times it is not
protected.)
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, TypeVar

import numpy as np
from torch import Tensor

from armijo import _validate
from armijo._noise import MAX_SCALE, exponential_choice, poisson_sample
from armijo._validate import AboveOne, Count, SamplingProb, Share
from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import (
    Composed,
    Gaussian,
    RepeatAndSelect,
    Repeated,
    Subsampled,
)
from armijo.data.fixed_point import STEPS
from armijo.data.gate import BatchPlan, PrivateBatch, PrivateDataset
from armijo.data.query import Rows
from armijo.data.sources import ArrayRows
from armijo.methods.base import (
    Method,
    Problem,
    Schedule,
    StepRecord,
    calibrated,
    minimize,
    solved,
    with_solved_noise,
)
from armijo.methods.sgd import DPSGD
from armijo.objectives.base import Objective
from armijo.objectives.linear import as_linear
from armijo.randomness import BitSource, Randomness

Result = TypeVar("Result")


def stopping_probability(mechanism: RepeatAndSelect) -> float:
    """Return the probability to stop after each run: a geometric number of them.

    Rounded up, so that neither the mean nor ``-log`` of it exceeds what was charged.

    >>> from armijo.accounting.mechanisms import Gaussian
    >>> mechanism = RepeatAndSelect(Gaussian(noise_scale=9.0), mean=4.0)
    >>> round(stopping_probability(mechanism), 12)
    0.25
    """
    probability = max(mechanism.stop_probability, 1 / mechanism.mean)
    return float(np.nextafter(probability, 1.0))


def best_run(
    run: Callable[[], tuple[float, Result]], mechanism: RepeatAndSelect, bits: BitSource
) -> Result:
    """Call ``run`` until a draw says stop, and return the result of the highest score.

    Of equal scores the first is kept: as good as a random one, since the runs are
    alike.  How often ``run`` was called is not told.
    """
    stop = stopping_probability(mechanism)
    highest, best = run()
    while not poisson_sample(1, stop, bits).size:
        score, result = run()
        if score > highest:
            highest, best = score, result
    return best


@dataclass(frozen=True, kw_only=True)
class TunedState:
    """The released run: parameters, settings and noisy count of right rows."""

    w: Tensor
    step_size: float | None = None
    max_grad_norm: float | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class TunedSGD(Method[TunedState]):
    """The best of a random number of DP-SGD runs with random settings.

    Attributes
    ----------
    sampling_prob, steps : float, int
        Sampling probability and batches of each run.
    step_sizes, max_grad_norms : sequence of float
        What is tried, all pairs equally likely.
    repetitions : float
        How many runs are made in the mean.
    score_share : float
        Share of a run's budget that its score gets, before amplification is counted
        exactly.
    noise_multiplier, budget : float or None, Budget or None
        Noise of each gradient sum over the clip, and the budget of the whole, within
        which each run stays all the more; both from calibration.
    """

    networks: ClassVar[bool] = False

    sampling_prob: SamplingProb = 0.1
    steps: Count = 50
    step_sizes: Sequence[float] = (0.1, 0.3, 1.0, 3.0)
    max_grad_norms: Sequence[float] = (0.3, 1.0, 3.0)
    repetitions: AboveOne = 10.0
    score_share: Share = 0.1
    noise_multiplier: float | None = solved()
    budget: Budget = solved()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("step_sizes", "max_grad_norms"):
            values = getattr(self, name)
            if not isinstance(values, Collection) or not len(values):
                raise ValueError(f"Expected {name} to be numbers, got {values!r}.")
            for place, value in enumerate(values):
                _validate.positive(**{f"{name}[{place}]": value})
            object.__setattr__(self, name, tuple(values))

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise of the whole search for the budget."""
        as_linear(problem.objective)  # scores are counts of right classes
        method = with_solved_noise(replace(self, budget=budget), budget)
        noise = calibrated(noise_multiplier=method.noise_multiplier)
        if max(noise, method.score.noise_scale) * STEPS > MAX_SCALE:
            raise ValueError(
                f"Epsilon {budget.epsilon:g} is too small: its noise cannot be "
                "drawn exactly. Raise epsilon; nothing was spent."
            )
        return method

    @cached_property
    def score(self) -> Gaussian:
        """The release of the number of rows that a run gets right.

        One batch is worth about ``(sampling_prob / noise)^2 / 2``, exactly so
        for batches of all rows.
        """
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        one_run = math.sqrt(self.steps) * self.sampling_prob / noise
        shares = (1 - self.score_share) / self.score_share
        return Gaussian(noise_scale=math.sqrt(shares) / one_run)

    @property
    def mechanism(self) -> RepeatAndSelect:
        """What the whole search is charged as."""
        noise = calibrated(noise_multiplier=self.noise_multiplier)
        batch = Subsampled(Gaussian(noise_scale=noise), self.sampling_prob)
        run = Composed((Repeated(batch, self.steps), self.score))
        return RepeatAndSelect(run, mean=float(self.repetitions))

    def init(self, w: Tensor) -> TunedState:
        """Return the first state."""
        return TunedState(w=w)

    def schedule(self) -> Schedule:
        """Return the one charge."""
        return ((BatchPlan(mechanisms=(self.mechanism,)).mechanism, 1),)

    def plan(self, state: TunedState) -> BatchPlan:
        """Name the whole search, on all rows."""
        return BatchPlan(mechanisms=(self.mechanism,))

    def step(
        self, batch: PrivateBatch, objective: Objective, state: TunedState
    ) -> tuple[TunedState, StepRecord]:
        """Release the best run."""

        def search(rows: Rows, randomness: Randomness) -> TunedState:
            n_rows = round(batch.expected_size)  # the batch is all rows
            task = (rows, randomness, objective, state.w, n_rows)
            bits = randomness.stream("perturbation")
            return best_run(lambda: self._run(*task), self.mechanism, bits)

        best = batch.release(search, self.mechanism)
        record = StepRecord(
            update=0,
            step_size=best.step_size,
            gradients=None,
            gradient_rho=0.5 / calibrated(noise_multiplier=self.noise_multiplier) ** 2,
            max_grad_norm=best.max_grad_norm,
        )
        return best, record

    def _run(
        self,
        rows: Rows,
        randomness: Randomness,
        objective: Objective,
        start: Tensor,
        n_rows: int,
    ) -> tuple[float, TunedState]:
        """Train with drawn settings behind an accountant of one run, and score it."""
        sgd = self._drawn(randomness.stream("perturbation"))
        scoring = BatchPlan(mechanisms=(self.score,))
        schedule = (*sgd.schedule(), (scoring.mechanism, 1))
        accountant = PlannedAccountant(
            self.budget, schedule, insecure_deterministic=randomness.deterministic
        )
        source = rows.cached(
            "source", lambda: ArrayRows(rows.X, rows.y, on_lattice=rows.rounded)
        )
        data = PrivateDataset(
            source, n_rows=n_rows, accountant=accountant, randomness=randomness
        )
        first = sgd.init(start)
        run = minimize(objective, data, sgd, first, max_batches=self.steps)
        w = [state.w for state, _ in run][-1]
        batch = data.open(scoring, label="score")
        correct = as_linear(objective).correct_sum(w)
        score = float(batch.noisy_sum(correct, self.score)[0])
        return score, TunedState(
            w=w, step_size=sgd.step_size, max_grad_norm=sgd.max_grad_norm, score=score
        )

    def _drawn(self, bits: BitSource) -> DPSGD:
        step_size = self.step_sizes[_uniform(len(self.step_sizes), bits)]
        clip = self.max_grad_norms[_uniform(len(self.max_grad_norms), bits)]
        return DPSGD(
            sampling_prob=self.sampling_prob,
            steps=self.steps,
            step_size=step_size,
            max_grad_norm=clip,
            noise_multiplier=self.noise_multiplier,
        )


def _uniform(count: int, bits: BitSource) -> int:
    """Draw one of ``count`` numbers: an exponential choice between equals."""
    return exponential_choice([0] * count, 1, bits)
