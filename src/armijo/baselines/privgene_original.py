# SPDX-License-Identifier: Apache-2.0
"""PrivGene with a population: private selection, then crossover and mutation.

Zhang, Xiao, Yang, Zhang and Winslett (2013).  In each generation a few parents are
drawn one after the other without replacement; their children are made without looking
at a row.  The last generation selects a single vector with its whole share.

How the first population is made is not printed with certainty: here it is the mutated
start.  Crossover and mutation protect nothing, so their randomness is public: a seed
and the number of the generation.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from armijo.baselines.fitness import Fitness, largest_spread
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.base import Schedule, StepRecord
from armijo.objectives.base import Objective
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import NoisyMax


@dataclass(frozen=True, kw_only=True)
class PopulationState:
    """The candidates of the next generation; ``w`` is the first parent drawn last."""

    w: Tensor
    population: tuple[Tensor, ...]
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivGeneOriginal:
    """The genetic algorithm.

    Attributes
    ----------
    steps : int
        Number of generations, the last of which selects one vector.
    step_size, step_decay : float
        Bound of the first mutations and the factor by which it shrinks.
    draw, selection : NoisyMax
        The draw of one parent, and the last selection.
    fitness : Fitness
        What is selected by.
    parents, population_size, population_seed : int
        How many are drawn, of how many, and the public seed of their children.
    """

    steps: int
    step_size: float
    step_decay: float
    draw: NoisyMax
    selection: NoisyMax
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

    def _draws(self, generation: int) -> tuple[NoisyMax, ...]:
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
        """Return how far a coordinate may be moved."""
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
