# SPDX-License-Identifier: Apache-2.0
"""PrivGene: a model is improved by selecting among random or neighboring ones.

Zhang, Xiao, Yang, Zhang and Winslett (2013); no gradient is needed.  Their enhanced
exponential mechanism picks a candidate with weight ``exp(epsilon f / Gamma)``.  Gamma
bounds how much the *difference* of two candidates' scores may move, which is far less
than a score may: for features in [0, 1] and a loss whose slope is at most one it is
known from the candidates alone.  Features are meant to lie in [0, 1]; the guarantee
holds without that, since the gate clips scores.

In the original form a few parents are drawn one after the other without replacement in
each generation; their children are made without looking at a row.  The last generation
selects a single vector with its whole share.  How the first population is made is not
published with certainty: here it is the mutated start.  Crossover and mutation protect
nothing, so their randomness is public: a seed and the number of the generation.

The simplified form of Lee and Kifer (2018) has no crossover and one survivor: it
selects one of ``w + s e_j`` and ``w - s e_j`` for all coordinates j, with s falling by
a constant factor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import Count, NonNegative, Positive, SamplingProb
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import (
    SelectionRule,
    affordable_epsilon,
    concentrated_rho,
    selection_epsilon,
)
from armijo.accounting.mechanisms import ExponentialMechanism
from armijo.data.gate import BatchPlan, PrivateBatch
from armijo.methods.base import (
    Method,
    Problem,
    Schedule,
    StepRecord,
    calibrated,
    schedule_of,
    solved,
)
from armijo.objectives.base import Objective
from armijo.objectives.linear import as_linear

ROWS_PER_GENERATION = 800
"""Lee and Kifer's script makes ``n epsilon / 800`` generations."""

_AT_LEAST_TWO = Annotated[int, partial(_validate.at_least, 2)]
_SEED = Annotated[int, partial(_validate.at_least, 0)]


def largest_spread(points: Tensor) -> float:
    """Return how far the losses of one row at two points may lie apart.

    ``max over pairs of sum(max(v - w, 0))``: scores differ by ``x.(v - w)``, which is
    largest where x is one for the positive differences and zero for the others, and
    the slope of the loss is at most one.

    >>> import torch
    >>> largest_spread(torch.tensor([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]]))
    1.0
    """
    largest = max(
        float((point - points).clamp(min=0).sum(dim=1).max()) for point in points
    )
    return largest or 1.0  # all points equal: any unit will do


@dataclass(frozen=True, kw_only=True)
class PrivGeneState:
    """The model, how often it was improved, and the candidates of the original form.

    There ``w`` is the first parent drawn last.
    """

    w: Tensor
    population: tuple[Tensor, ...] = ()
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivGene(Method[PrivGeneState]):
    """PrivGene in either form.

    Attributes
    ----------
    variant : {"simplified", "original"}
        Coordinate moves, or a population with crossover and mutation.
    steps : int or None
        Number of generations; None is ``n_rows epsilon / 800``, at least one.
    step_size, step_decay : float
        Size of the first mutation and the factor by which it shrinks.
    relation : {"replace-one"} or None
        Take one exchanged row as the difference between neighbors, as Lee and Kifer
        do: twice the Gamma.  None is one row more or less.
    selection : {"bounded", "pure"}
        Solve the epsilon of a selection for the whole budget by its bounded range, or
        take the published ``sqrt(2 rho / steps)`` of pure DP.  Charged is the bounded
        range either way, so that "pure" uses less than half of the budget.
    penalty : float or None
        Weight of ``||w||^2 / 2`` (without the intercept) beside the *summed* loss;
        None is 0 for the logistic loss and 1/10 for a hinge (or another flat loss), the
        published ``10 sum(hinge) + ||w||^2 / 2``.  The objective's ``l2`` is not
        selected by.
    population_size, parents, population_seed : int or None
        Of the original form only: candidates, how many of them are selected in a
        generation, and the seed of crossover and mutation, which protect nothing and
        are therefore public; None is 200, 10 and 0.
    epsilon, problem : float or None, Problem or None
        Epsilon of the last draw, and what it was calibrated for.
    """

    multi_class: ClassVar[bool] = False
    networks: ClassVar[bool] = False

    variant: Literal["simplified", "original"] = "simplified"
    steps: Count | None = None
    step_size: Positive = 0.5
    step_decay: SamplingProb = 0.95
    relation: Neighboring | None = None
    selection: SelectionRule = "bounded"
    penalty: NonNegative | None = None
    population_size: _AT_LEAST_TWO | None = None
    parents: Count | None = None
    population_seed: _SEED | None = None
    epsilon: float | None = solved()
    problem: Problem | None = solved()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation is not None:
            _validate.choice((Neighboring.REPLACE_ONE,), relation=self.relation)
            object.__setattr__(self, "relation", Neighboring(self.relation))
        names = ("population_size", "parents", "population_seed")
        given = [name for name in names if getattr(self, name) is not None]
        if given and self.variant == "simplified":
            raise ValueError(
                f"Expected variant='original' with {', '.join(given)}, got "
                "'simplified', which has no population; leave them out."
            )
        size, parents = self.population_size or 200, self.parents or 10
        if parents > size:
            raise ValueError(
                f"Expected parents <= population_size, got {parents} of {size}; select "
                "fewer."
            )

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the epsilon of the selections."""
        expected = problem.n_rows * budget.epsilon / ROWS_PER_GENERATION
        steps = self.steps or max(1, round(expected))
        objective, penalty = problem.linear, self.penalty
        if penalty is None:
            penalty = 0.1 if objective.margin_loss.flat else 0.0
        method = replace(self, steps=steps, penalty=penalty, problem=problem)
        if self.variant == "original":
            method = replace(
                method,
                population_size=self.population_size or 200,
                parents=self.parents or 10,
                population_seed=self.population_seed or 0,
            )
        epsilon = selection_epsilon(concentrated_rho(budget) / steps, self.selection)
        if self.selection == "bounded":
            epsilon = affordable_epsilon(budget, method._all_draws, epsilon)
        return replace(method, epsilon=epsilon)

    def _all_draws(self, epsilon: float) -> Schedule:
        """Return all draws of a run, whatever batches they are made on."""
        steps, last = calibrated(steps=self.steps), ExponentialMechanism(epsilon)
        if self.parents is None:
            return ((last, steps),)
        shared = ExponentialMechanism(epsilon / math.sqrt(self.parents))
        first = ((shared, (steps - 1) * self.parents),) if steps > 1 else ()
        return (*first, (last, 1))

    @property
    def last_draw(self) -> ExponentialMechanism:
        """A whole selection on scores within one: ``exp(epsilon f / (2 s))``.

        Where rows are exchanged the sensitivity doubles: ``exp(epsilon f / (4 s))``.
        """
        sensitivity = 2.0 if self.relation else 1.0
        return ExponentialMechanism(calibrated(epsilon=self.epsilon), sensitivity)

    @property
    def parent_draw(self) -> ExponentialMechanism:
        """The draw of one parent: rho of a generation is shared evenly."""
        share = math.sqrt(calibrated(parents=self.parents))
        return replace(self.last_draw, epsilon=self.last_draw.epsilon / share)

    def init(self, w: Tensor) -> PrivGeneState:
        """Return the start, in the original form with mutated copies of it."""
        if self.variant == "simplified":
            return PrivGeneState(w=w)
        return PrivGeneState(w=w, population=self._children([w], 0))

    def schedule(self) -> Schedule:
        """Return the selections of all generations."""
        generations = range(calibrated(steps=self.steps))
        return schedule_of(BatchPlan(mechanisms=self._draws(t)) for t in generations)

    def plan(self, state: PrivGeneState) -> BatchPlan:
        """Name the draws of a generation."""
        return BatchPlan(mechanisms=self._draws(state.updates))

    def _draws(self, generation: int) -> tuple[ExponentialMechanism, ...]:
        """Return the draws of a generation; the last one has a single draw."""
        if self.parents is None or generation >= calibrated(steps=self.steps) - 1:
            return (self.last_draw,)
        return (self.parent_draw,) * self.parents

    def step(
        self, batch: PrivateBatch, objective: Objective, state: PrivGeneState
    ) -> tuple[PrivGeneState, StepRecord]:
        """Select, and make the next candidates."""
        size, draws = self._mutation(state.updates), self._draws(state.updates)
        done = state.updates + 1
        if self.variant == "simplified":
            candidates = 2 * state.w.numel()
            w = self._best_move(batch, objective, state.w, size)
            new = PrivGeneState(w=w, updates=done)
        else:
            candidates = len(state.population)
            parents = self._drawn(batch, objective, state.population, draws)
            new = PrivGeneState(
                w=parents[0], population=self._children(parents, done), updates=done
            )
        record = StepRecord(
            update=state.updates,
            step_size=size,
            tries=candidates * len(draws),
            gradients=0,
            search_epsilon=draws[0].epsilon,
        )
        return new, record

    def _mutation(self, generation: int) -> float:
        return self.step_size * self.step_decay**generation

    def _penalty_shares(self, points: Tensor) -> FloatArray:
        """Return each point's penalty, divided among the public number of rows."""
        problem = calibrated(problem=self.problem)
        weights = points[:, :-1] if problem.linear.fit_intercept else points
        half = 0.5 * calibrated(penalty=self.penalty)
        whole = weights.square().sum(dim=1).numpy() * half
        return np.asarray(whole / problem.n_rows)

    def _best_move(
        self, batch: PrivateBatch, objective: Objective, w: Tensor, size: float
    ) -> Tensor:
        """Select one coordinate and the way to go."""
        steps = size * torch.eye(w.numel(), dtype=w.dtype)
        shares = self._penalty_shares(torch.cat([w + steps, w - steps]))
        # Both ways along one coordinate are 2 s apart, other pairs s.
        spread = 2 * size + float(np.ptp(shares))
        query = as_linear(objective).coordinate_scores(
            w, size, spread=spread, penalties=shares
        )
        chosen = batch.noisy_argmax(query, self.last_draw)
        w = w.clone()
        w[chosen % w.numel()] += size if chosen < w.numel() else -size
        return w

    def _drawn(
        self,
        batch: PrivateBatch,
        objective: Objective,
        population: Sequence[Tensor],
        draws: Sequence[ExponentialMechanism],
    ) -> list[Tensor]:
        """Draw parents without replacement.

        Rows whose features leave [0, 1] may break the spread; the gate clips their
        scores, so the guarantee does not depend on them.
        """
        points = torch.stack(list(population))
        shares = self._penalty_shares(points)
        spread = largest_spread(points) + float(np.ptp(shares))
        left, parents = list(range(len(points))), []
        for draw in draws:
            query = as_linear(objective).point_scores(
                points, left, spread=spread, penalties=shares
            )
            parents.append(points[left.pop(batch.noisy_argmax(query, draw))].clone())
        return parents

    def _children(self, parents: list[Tensor], generation: int) -> tuple[Tensor, ...]:
        """Cross random pairs of parents and move one coordinate of each child."""
        size, bound = parents[0].numel(), self._mutation(generation)
        children: list[Tensor] = []
        for u in self._uniforms(generation):
            first, second = (parents[int(v * len(parents))] for v in u[:2])
            cut = 1 + int(u[2] * (size - 1)) if size > 1 else 0
            pairs = ((first, second), (second, first))
            for (head, tail), place, move in zip(pairs, u[3:5], u[5:7], strict=True):
                child = torch.cat([head[:cut], tail[cut:]])
                child[int(place * size)] += bound * (2 * move - 1)
                children.append(child)
        return tuple(children[: self.population_size])

    def _uniforms(self, generation: int) -> FloatArray:
        """Return seven numbers in [0, 1) for each pair of children."""
        # Raw bits, since NumPy promises that their stream never changes (NEP 19).
        bits = np.random.PCG64([calibrated(seed=self.population_seed), generation])
        pairs = (calibrated(population_size=self.population_size) + 1) // 2
        raw = bits.random_raw((pairs, 7))
        return np.asarray(raw >> np.uint64(11), dtype=np.float64) * 2.0**-53
