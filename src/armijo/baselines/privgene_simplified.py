# SPDX-License-Identifier: Apache-2.0
"""PrivGene reduced to private coordinate moves: no crossover, one survivor.

Lee and Kifer (2018) select one of ``w + s e_j`` and ``w - s e_j`` for all coordinates
j, with s falling by a constant factor.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from armijo.baselines.fitness import Fitness
from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.base import Schedule, StepRecord
from armijo.objectives.base import Objective
from armijo.privacy.mechanisms import NoisyMax


@dataclass(frozen=True, kw_only=True)
class PrivGeneState:
    """The model and how often it was improved."""

    w: Tensor
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivGeneSimplified:
    """Private coordinate moves, in the simplified form.

    Attributes
    ----------
    steps : int
        Number of selections.
    step_size, step_decay : float
        The first move and the factor by which moves shrink.
    selection : NoisyMax
        Each selection, on scores within one; its sensitivity is one, or two where rows
        are exchanged: weights ``exp(epsilon f / (2 s))`` or ``exp(epsilon f / (4 s))``.
    fitness : Fitness
        What is selected by.
    """

    steps: int
    step_size: float
    step_decay: float
    selection: NoisyMax
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
        """Return the plan of every batch."""
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
