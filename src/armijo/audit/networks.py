# SPDX-License-Identifier: Apache-2.0
"""Games for the sums of networks: rows that are made to break their arithmetic.

The row in question is chosen against one step of the computation: a norm that is
estimated by products which round alike, terms that cancel in the row and swallow what
others add, contents that a kernel or a branch might let reach other rows.  The attacker
knows all other rows, so both exact sums, and looks where they differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import noise_for_plan
from armijo.accounting.mechanisms import Gaussian
from armijo.accounting.planned import PlannedAccountant
from armijo.audit.games import Claim
from armijo.data.private import BatchPlan, PrivateDataset, leaky_answer
from armijo.data.query import CertifiedSum
from armijo.data.sources import TensorRows
from armijo.noise import Randomness
from armijo.objectives.ghost.checks import Batch, Loss, blanked
from armijo.objectives.module import ModuleObjective

CLIP = 1.0


class Attack(NamedTuple):
    """A module, its loss, and rows of which the last is the one in question."""

    module: nn.Module
    loss: Loss
    inputs: Tensor
    targets: Tensor


def _dot(output: Tensor, target: Tensor) -> Tensor:
    """Let targets be the output gradients: an attacker's choice."""
    return (output * target).flatten(1).sum(1)


def alike_rounding() -> Attack:
    """Let products of places round alike: a norm made of them is far too small."""
    places, width = 128, 384
    signs = torch.where(torch.arange(width) % 2 == 0, 1.0, -1.0)
    row = (1.7e-4 * signs).repeat(places, 1)
    row[:, ::192] = signs[:places, None]  # cancels over places; the rest adds up
    inputs = torch.stack([torch.zeros_like(row), row])
    module = nn.Linear(width, 8, bias=False)
    return Attack(module, _dot, inputs, torch.full((2, places, 8), 100.0))


def cancelling_terms() -> Attack:
    """Let two terms of a row cancel: a sum of raw terms forgets the other rows."""
    inputs, targets = torch.zeros(65, 3).long(), torch.ones(65, 3, 2)
    inputs[-1, 2] = 1
    targets[-1] = torch.tensor([2.0**40, -(2.0**40), 10.0])[:, None]
    return Attack(nn.Embedding(3, 2), _dot, inputs, targets)


def huge_contents() -> Attack:
    """Put a row of 1e30 beside small ones, which must not notice it."""
    torch.manual_seed(0)
    inputs = torch.rand(65, 20)
    inputs[-1] = 1e30
    module = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    return Attack(module, _dot, inputs, torch.randn(65, 4))


ATTACKS: dict[str, Callable[[], Attack]] = {
    "network-norms": alike_rounding,
    "network-cancelling": cancelling_terms,
    "network-contents": huge_contents,
}


@dataclass(frozen=True, eq=False)
class NetworkGame:
    """The noisy gradient sum of a module, with the row or with a blank in its place.

    Attributes
    ----------
    name : str
        One of :data:`ATTACKS`.
    budget : Budget
        The promise; the noise is solved for it.
    """

    name: str
    budget: Budget

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given; one Gaussian sum is released."""
        return Claim(self.budget.epsilon, self.budget.delta, gaussian=True)

    @cached_property
    def _attack(self) -> Attack:
        """The rows of the game."""
        return ATTACKS[self.name]()

    @cached_property
    def _objective(self) -> ModuleObjective:
        """The module's objective, checked once."""
        objective = ModuleObjective(self._attack.module, self._attack.loss)
        zeros = self._batch(False)
        objective.check(zeros.inputs[:2], zeros.targets[:2])
        return objective

    @cached_property
    def _mechanism(self) -> Gaussian:
        """The sum: the whole budget."""

        def plan(noise: float) -> BatchPlan:
            return BatchPlan(mechanisms=(Gaussian(noise_scale=noise),))

        noise = noise_for_plan(self.budget, lambda z: [(plan(z).mechanism, 1)])
        return Gaussian(noise_scale=noise, sensitivity=CLIP)

    @cached_property
    def _unused(self) -> PlannedAccountant:
        """An accountant that nothing was charged to, the model of others."""
        plan = BatchPlan(mechanisms=(self._mechanism,))
        return PlannedAccountant(
            self.budget, [(plan.mechanism, 1)], relation=Neighboring.ZERO_OUT
        )

    def _batch(self, present: bool) -> Batch:
        """Return all rows, the last one a blank unless it is present."""
        batch = Batch(self._attack.inputs, self._attack.targets)
        blank = torch.zeros(len(batch.inputs), dtype=torch.bool)
        blank[-1] = not present
        return blanked(batch, blank)

    def _query_sum(self, present: bool) -> FloatArray:
        """Return the exact sum, as the machine computes it."""
        query = self._objective.gradient_sum(self._objective.start(), clip=CLIP)
        found = leaky_answer(TensorRows(*self._batch(present)), query.contributions)
        if not isinstance(found, CertifiedSum):
            raise TypeError(f"Expected a CertifiedSum, got {type(found).__name__}.")
        return found.integers(24).double().numpy() * (CLIP * 2.0**-24)

    def direction(self) -> FloatArray:
        """Return where the two exact sums differ, as a unit vector."""
        gap = self._query_sum(True) - self._query_sum(False)
        return gap / max(float(np.linalg.norm(gap)), 1e-300)

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once; told is how far the sum lies along the known difference."""
        data = PrivateDataset(
            TensorRows(*self._batch(present)),
            n_rows=len(self._attack.inputs),
            accountant=self._unused.unused(),
            randomness=randomness,
        )
        batch = data.open(BatchPlan(mechanisms=(self._mechanism,)), label="sum")
        query = self._objective.gradient_sum(self._objective.start(), clip=CLIP)
        noisy = batch.noisy_vector(query, self._mechanism).double().numpy()
        return np.array([float(noisy @ self.direction())])
