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
printed with certainty: here it is the mutated start.  Crossover and mutation protect
nothing, so their randomness is public: a seed and the number of the generation.

The simplified form of Lee and Kifer (2018) has no crossover and one survivor: it
selects one of ``w + s e_j`` and ``w - s e_j`` for all coordinates j, with s falling by
a constant factor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.mechanisms import ExponentialMechanism
from armijo.baselines.selection import (
    SELECTION_RULES,
    SelectionRule,
    affordable_epsilon,
    concentrated_rho,
    selection_epsilon,
)
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.data.query import BoundedQuery
from armijo.methods.base import Method, Problem, Schedule, StepRecord, solved
from armijo.objectives.base import Objective
from armijo.objectives.linear import as_linear


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """Minus the summed loss, minus ``penalty/2 ||w||^2`` without the intercept.

    The penalty is shared out evenly among the public number of rows, and counted in
    the spread.
    """

    penalty: float
    n_rows: int
    fit_intercept: bool

    def query(
        self,
        objective: Objective,
        points: Tensor,
        kept: Sequence[int],
        *,
        loss_spread: float,
    ) -> BoundedQuery:
        """Ask for the best of the ``kept`` rows of ``points``; no score exceeds one.

        ``loss_spread`` bounds how far apart the losses of one row may lie.  Rows that
        break it, whose features leave [0, 1], are clipped by the gate: the guarantee
        does not depend on them.
        """
        shares = self._shares(points)
        spread = loss_spread + float(np.ptp(shares))
        return as_linear(objective).point_scores(
            points, kept, spread=spread, penalties=shares
        )

    def moves(self, objective: Objective, w: Tensor, size: float) -> BoundedQuery:
        """Ask for the best move of ``size`` along one coordinate, up or down."""
        steps = size * torch.eye(w.numel(), dtype=w.dtype)
        shares = self._shares(torch.cat([w + steps, w - steps]))
        # Both ways along one coordinate are 2 s apart, other pairs s.
        spread = 2 * size + float(np.ptp(shares))
        return as_linear(objective).coordinate_scores(
            w, size, spread=spread, penalties=shares
        )

    def _shares(self, points: Tensor) -> FloatArray:
        """Return each point's penalty, divided among the rows."""
        weights = points[:, :-1] if self.fit_intercept else points
        whole = weights.square().sum(dim=1).numpy() * (0.5 * self.penalty)
        return np.asarray(whole / self.n_rows)


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
    """The model and how often it was improved."""

    w: Tensor
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivGeneSimplified(Method[PrivGeneState]):
    """Private coordinate moves, in the simplified form.

    Attributes
    ----------
    steps : int
        Number of selections.
    step_size, step_decay : float
        The first move and the factor by which moves shrink.
    selection : ExponentialMechanism
        Each selection, on scores within one; its sensitivity is one, or two where rows
        are exchanged: weights ``exp(epsilon f / (2 s))`` or ``exp(epsilon f / (4 s))``.
    fitness : Fitness
        What is selected by.
    """

    steps: int
    step_size: float
    step_decay: float
    selection: ExponentialMechanism
    fitness: Fitness

    def init(self, w: Tensor) -> PrivGeneState:
        """Return the first state."""
        return PrivGeneState(w=w)

    def schedule(self) -> Schedule:
        """Return ``steps`` equal selections."""
        return ((self._batch().mechanism, self.steps),)

    def plan(self, state: PrivGeneState) -> BatchPlan:
        """Name one selection."""
        return self._batch()

    def _batch(self) -> BatchPlan:
        return BatchPlan(mechanisms=(self.selection,))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: PrivGeneState,
        batch_size: float,
    ) -> tuple[PrivGeneState, StepRecord]:
        """Select one coordinate and the way to go."""
        size = self.step_size * self.step_decay**state.updates
        query = self.fitness.moves(objective, state.w, size)
        chosen = batch.noisy_argmax(query, self.selection)
        record = StepRecord(
            update=state.updates,
            step_size=size,
            tries=2 * state.w.numel(),
            gradients=0,
            search_epsilon=self.selection.epsilon,
        )
        w = state.w.clone()
        up, coordinate = chosen < w.numel(), chosen % w.numel()
        w[coordinate] += size if up else -size
        return replace(state, w=w, updates=state.updates + 1), record


@dataclass(frozen=True, kw_only=True)
class PopulationState:
    """The candidates of the next generation; ``w`` is the first parent drawn last."""

    w: Tensor
    population: tuple[Tensor, ...]
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivGeneOriginal(Method[PopulationState]):
    """The genetic algorithm.

    Attributes
    ----------
    steps : int
        Number of generations, the last of which selects one vector.
    step_size, step_decay : float
        Bound of the first mutations and the factor by which it shrinks.
    draw, selection : ExponentialMechanism
        The draw of one parent, and the last selection.
    fitness : Fitness
        What is selected by.
    parents, population_size, population_seed : int
        How many are drawn, of how many, and the public seed of their children.
    """

    steps: int
    step_size: float
    step_decay: float
    draw: ExponentialMechanism
    selection: ExponentialMechanism
    fitness: Fitness
    parents: int
    population_size: int
    population_seed: int

    def init(self, w: Tensor) -> PopulationState:
        """Return mutated copies of the start."""
        return PopulationState(w=w, population=self._children([w], 0))

    def schedule(self) -> Schedule:
        """Return the generations and the last selection."""
        last = BatchPlan(mechanisms=(self.selection,)).mechanism
        if self.steps == 1:
            return ((last, 1),)
        first = BatchPlan(mechanisms=self._draws(0)).mechanism
        return (first, self.steps - 1), (last, 1)

    def plan(self, state: PopulationState) -> BatchPlan:
        """Name the draws of a generation."""
        return BatchPlan(mechanisms=self._draws(state.updates))

    def _draws(self, generation: int) -> tuple[ExponentialMechanism, ...]:
        """Return the draws of a generation; the last one has a single draw."""
        if generation >= self.steps - 1:
            return (self.selection,)
        return (self.draw,) * self.parents

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: PopulationState,
        batch_size: float,
    ) -> tuple[PopulationState, StepRecord]:
        """Draw parents without replacement and make their children."""
        draws = self._draws(state.updates)
        points = torch.stack(state.population)
        spread = largest_spread(points)
        kept, parents = list(range(len(points))), []
        for draw in draws:
            query = self.fitness.query(objective, points, kept, loss_spread=spread)
            place = batch.noisy_argmax(query, draw)
            parents.append(points[kept.pop(place)].clone())
        record = StepRecord(
            update=state.updates,
            step_size=self._mutation(state.updates),
            tries=len(points) * len(draws),
            gradients=0,
            search_epsilon=draws[0].epsilon,
        )
        done = state.updates + 1
        children = self._children(parents, done)
        return PopulationState(w=parents[0], population=children, updates=done), record

    def _mutation(self, generation: int) -> float:
        return self.step_size * self.step_decay**generation

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
        bits = np.random.PCG64([self.population_seed, generation])
        pairs = (self.population_size + 1) // 2
        raw = bits.random_raw((pairs, 7))
        return np.asarray(raw >> np.uint64(11), dtype=np.float64) * 2.0**-53


ROWS_PER_GENERATION = 800
"""Lee and Kifer's script makes ``n epsilon / 800`` generations."""


@dataclass(frozen=True, kw_only=True)
class PrivGene(Method[Any]):
    """PrivGene in either form.

    Attributes
    ----------
    variant : {"simplified", "original"}
        Coordinate moves, or a population with crossover and mutation.
    steps : int or None
        Number of generations; None is ``n_rows epsilon / 800``, at least one.
    step_size, step_decay : float
        Size of the first mutation and the factor by which it shrinks.
    exchange : bool
        Take one exchanged row as the difference between neighbors, as Lee and Kifer
        do: twice the Gamma, and the replace-one relation.
    selection : {"bounded", "pure"}
        Solve the epsilon of a selection for the whole budget by its bounded range, or
        take the printed ``sqrt(2 rho / steps)`` of pure DP.  Charged is the bounded
        range either way, so that "pure" uses less than half of the budget.
    penalty : float or None
        Weight of ``||w||^2 / 2`` (without the intercept) beside the *summed* loss;
        None is 0 for the logistic loss and 1/10 for a hinge (or another flat loss), the
        printed
        ``10 sum(hinge) + ||w||^2 / 2``.  The objective's ``l2`` is not selected by.
    population_size, parents, population_seed : int or None
        Of the original form only: candidates, how many of them are selected in a
        generation, and the seed of crossover and mutation, which protect nothing and
        are therefore public; None is 200, 10 and 0.
    form : PrivGeneSimplified, PrivGeneOriginal or None
        The algorithm of the variant, from calibration.
    """

    multi_class: ClassVar[bool] = False

    variant: Literal["simplified", "original"] = "simplified"
    steps: int | None = None
    step_size: float = 0.5
    step_decay: float = 0.95
    exchange: bool = False
    selection: SelectionRule = "bounded"
    penalty: float | None = None
    population_size: int | None = None
    parents: int | None = None
    population_seed: int | None = None
    form: PrivGeneSimplified | PrivGeneOriginal = solved()

    def __post_init__(self) -> None:
        _validate.choice(("simplified", "original"), variant=self.variant)
        _validate.choice(SELECTION_RULES, selection=self.selection)
        _validate.positive(step_size=self.step_size)
        _validate.sampling_prob(step_decay=self.step_decay)
        if not isinstance(self.exchange, bool):
            raise ValueError(
                f"Expected exchange to be True or False, got {self.exchange!r}."
            )
        if self.steps is not None:
            _validate.at_least(1, steps=self.steps)
        if self.penalty is not None:
            _validate.non_negative(penalty=self.penalty)
        self._check_population()

    def _check_population(self) -> None:
        """Check what only the original form takes."""
        least = {"population_size": 2, "parents": 1, "population_seed": 0}
        given = {n: getattr(self, n) for n in least if getattr(self, n) is not None}
        if given and self.variant == "simplified":
            raise ValueError(
                f"Expected variant='original' with {', '.join(given)}, got "
                "'simplified', which has no population; leave them out."
            )
        for name, value in given.items():
            _validate.at_least(least[name], **{name: value})
        if self._parents > self._population_size:
            raise ValueError(
                f"Expected parents <= population_size, got {self._parents} of "
                f"{self._population_size}; select fewer."
            )

    @property
    def _parents(self) -> int:
        """How many are selected in a generation of the original form."""
        return 10 if self.parents is None else self.parents

    @property
    def _population_size(self) -> int:
        return 200 if self.population_size is None else self.population_size

    @property
    def relation(self) -> Neighboring | None:
        """Replace-one where rows are exchanged, else the run's own."""
        return Neighboring.REPLACE_ONE if self.exchange else None

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the epsilon of the selections."""
        expected = problem.n_rows * budget.epsilon / ROWS_PER_GENERATION
        steps = max(1, round(expected)) if self.steps is None else self.steps
        rho = concentrated_rho(budget) / steps
        epsilon = selection_epsilon(rho, self.selection)
        if self.selection == "bounded":
            epsilon = affordable_epsilon(
                budget, lambda trial: self._draws(steps, trial), epsilon
            )
        return replace(self, steps=steps, form=self._made(problem, steps, epsilon))

    def init(self, w: Tensor) -> Any:
        """Return the first state."""
        return self.form.init(w)

    def schedule(self) -> Schedule:
        """Return all selections."""
        return self.form.schedule()

    def plan(self, state: Any) -> BatchPlan:
        """Name the selections of a generation."""
        return self.form.plan(state)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: Any, batch_size: float
    ) -> tuple[Any, StepRecord]:
        """Select, and make the next candidates."""
        return self.form.step(batch, objective, state, batch_size)

    def _draws(self, steps: int, epsilon: float) -> Schedule:
        """Return all draws of a run, whatever batches they are made on."""
        last = ExponentialMechanism(epsilon)
        if self.variant == "simplified":
            return ((last, steps),)
        shared = ExponentialMechanism(self._share(epsilon))
        first = ((shared, (steps - 1) * self._parents),) if steps > 1 else ()
        return (*first, (last, 1))

    def _share(self, epsilon: float) -> float:
        """Return what one parent's draw gets of a generation: rho is shared evenly."""
        return epsilon / math.sqrt(self._parents)

    def _made(
        self, problem: Problem, steps: int, epsilon: float
    ) -> PrivGeneSimplified | PrivGeneOriginal:
        """Return the algorithm whose last selection has the given epsilon."""
        objective = problem.linear
        penalty = self.penalty
        if penalty is None:
            penalty = 0.1 if objective.margin_loss.flat else 0.0
        sensitivity = 2.0 if self.exchange else 1.0
        shared: dict[str, Any] = {
            "steps": steps,
            "step_size": self.step_size,
            "step_decay": self.step_decay,
            "selection": ExponentialMechanism(epsilon, sensitivity),
            "fitness": Fitness(
                penalty=penalty,
                n_rows=problem.n_rows,
                fit_intercept=objective.fit_intercept,
            ),
        }
        if self.variant == "simplified":
            return PrivGeneSimplified(**shared)
        return PrivGeneOriginal(
            **shared,
            draw=ExponentialMechanism(self._share(epsilon), sensitivity),
            parents=self._parents,
            population_size=self._population_size,
            population_seed=self.population_seed or 0,
        )
