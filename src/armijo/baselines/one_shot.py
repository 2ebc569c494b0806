# SPDX-License-Identifier: Apache-2.0
"""Methods with one access: a whole computation on the rows, released once.

How many iterations the computation took depends on the rows and is not released.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from armijo.data.private import BatchPlan, PrivateBatch
from armijo.methods.base import Schedule, StepRecord
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective
from armijo.privacy.budget import FloatArray
from armijo.privacy.mechanisms import Mechanism


@dataclass(frozen=True, kw_only=True)
class OneShotState:
    """The released parameters."""

    w: Tensor


@dataclass(frozen=True, kw_only=True)
class OneShot(ABC):
    """A method that is one release.

    Attributes
    ----------
    objective : LinearObjective
        What the noise was computed for; no other objective is taken.
    mechanism : Mechanism
        What the release is charged as.
    """

    objective: LinearObjective
    mechanism: Mechanism

    @property
    def gradients(self) -> int | None:
        """Passes over rows; None where their number depends on the rows."""
        return None

    def init(self, w: Tensor) -> OneShotState:
        """Return the first state."""
        return OneShotState(w=w)

    def schedule(self) -> Schedule:
        """Return the one charge."""
        return ((self._batch().mechanism, 1),)

    def plan(self, state: OneShotState) -> BatchPlan:
        """Name the release."""
        return self._batch()

    def _batch(self) -> BatchPlan:
        """Return the plan of the only batch, which is all rows."""
        return BatchPlan(mechanisms=(self.mechanism,))

    def step(
        self,
        batch: PrivateBatch,
        objective: Objective,
        state: OneShotState,
        batch_size: float,
    ) -> tuple[OneShotState, StepRecord]:
        """Make the release."""
        if objective != self.objective:
            raise ValueError(
                f"Expected the objective {self.objective!r}, for which the noise was "
                f"computed, got {objective!r}; build the method for the objective."
            )
        w = torch.from_numpy(self.released(batch))
        return OneShotState(w=w), StepRecord(update=0, gradients=self.gradients)

    @abstractmethod
    def released(self, batch: PrivateBatch) -> FloatArray:
        """Return the parameters, through the gate."""
