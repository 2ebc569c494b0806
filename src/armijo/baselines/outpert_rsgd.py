# SPDX-License-Identifier: Apache-2.0
"""Outpert-RSGD: permuted minibatch descent, noise on the average of its iterates.

Chen, Lee and Kifer (2019).  Rows are permuted once, in secret, and cut into batches of
one size; the few rows that are left over are not used (a row that is in no batch moves
nothing, so every batch holds it with probability 1/m at most).  How far a row moves the
average depends on the batch it is in.  ``variant``:

* ``"mixture"`` (default): the secret batch averages the profiles of (epsilon, delta);
* ``"renyi"``: the published mixture of Renyi curves, which asks for more noise;
* ``"worst-case"``: the row is in the worst batch; does not rest on the secret.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from armijo import _validate
from armijo.baselines.bounded_rows import (
    BoundedRows,
    BoundedRowsSettings,
    loss_smoothness,
)
from armijo.baselines.empirical_risk import EmpiricalRisk
from armijo.baselines.one_shot import OneShot
from armijo.baselines.outpert_gd import longest_step, single_release_noise
from armijo.data.private import PrivateBatch
from armijo.data.query import Matrix, Rows
from armijo.methods.problem import Problem
from armijo.noise import Randomness
from armijo.noise.vectors import random_order, with_gaussian
from armijo.privacy.budget import Budget, FloatArray, Neighboring
from armijo.privacy.mechanisms import Gaussian
from armijo.privacy.output_perturbation import (
    PermutedMixture,
    mixture_noise,
    rsgd_sensitivities,
    rsgd_step_size,
)
from armijo.privacy.planned import reachable


@dataclass(frozen=True, kw_only=True)
class OutpertRSGD(OneShot):
    """Permuted minibatch descent from zero, its average released with noise."""

    mechanism: PermutedMixture | Gaussian
    rows: BoundedRows
    n_rows: int
    n_batches: int
    epochs: int
    step_size: float

    @property
    def gradients(self) -> int:
        """Passes over a batch."""
        return self.epochs * self.n_batches

    def released(self, batch: PrivateBatch) -> FloatArray:
        """Descend behind the gate and release the noisy average."""
        return batch.release(self._noisy_average, self.mechanism)

    def _noisy_average(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Draw the order, descend, and add noise."""
        bits = randomness.stream("perturbation")
        order = random_order(max(self.n_rows, rows.size), bits)
        mechanism = self.mechanism
        # Rounding adds the same to every batch's sensitivity: most to the least.
        least = (
            min(mechanism.sensitivities)
            if isinstance(mechanism, PermutedMixture)
            else mechanism.sensitivity
        )
        noisy = with_gaussian(
            self.averaged(rows, order),
            sensitivity=least,
            noise_scale=mechanism.noise_scale,
            bits=bits,
        )
        return self.rows.unscaled(noisy)

    def averaged(self, rows: Rows, order: np.ndarray) -> FloatArray:
        """Return the average iterate in a given order: not private."""
        size = len(order) // self.n_batches
        signed = self.rows.signed(rows)
        risks = [
            self._risk(signed, order[start : start + size], size)
            for start in range(0, size * self.n_batches, size)
        ]
        w, total = np.zeros(self.objective.size), np.zeros(self.objective.size)
        for epoch in range(self.epochs):
            step = rsgd_step_size(self.step_size, epoch, self.n_batches)
            for risk in risks:
                w = w - step / size * risk.gradient(w)
                total += w
        return total / (self.epochs * self.n_batches)

    def _risk(self, signed: Matrix, chosen: np.ndarray, size: int) -> EmpiricalRisk:
        """Return the risk of one batch; rows that are not there count as zero rows."""
        there = chosen[chosen < signed.shape[0]]
        ridge = size * self.objective.l2
        return EmpiricalRisk.of_signed(signed[there], self.objective, ridge=ridge)


@dataclass(frozen=True, kw_only=True)
class OutpertRSGDSettings(BoundedRowsSettings):
    """Public settings of Outpert-RSGD.

    Attributes
    ----------
    epochs : int
        How often each batch is used.
    batch_size : int
        At least so many rows in a batch; all of them if there are fewer than that.
    step_size : float or None
        Of the first epoch, for rows scaled into the unit ball; None is 1.98 over the
        smoothness.
    variant : {"mixture", "renyi", "worst-case"}
        See the module.
    """

    method: ClassVar[str] = "outpert-rsgd"

    epochs: int = 5
    batch_size: int = 4000
    step_size: float | None = None
    variant: Literal["mixture", "renyi", "worst-case"] = "mixture"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _validate.at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        _validate.choice(("mixture", "renyi", "worst-case"), variant=self.variant)
        if self.step_size is not None:
            _validate.positive(step_size=self.step_size)

    @property
    def relation(self) -> Neighboring:
        """Replace-one: the number of rows decides how they are cut into batches."""
        return Neighboring.REPLACE_ONE

    def build(self, problem: Problem) -> OutpertRSGD:
        """Return the descent with its noise."""
        step_size = self.step_size or longest_step(problem)
        n_batches = max(problem.n_rows // self.batch_size, 1)
        sensitivities = rsgd_sensitivities(
            step_size=step_size,
            epochs=self.epochs,
            n_batches=n_batches,
            batch_size=problem.n_rows // n_batches,
            l2=problem.objective.l2,
            smoothness=loss_smoothness(problem.objective),
        )
        return OutpertRSGD(
            objective=problem.objective,
            mechanism=self._mechanism(problem.budget, sensitivities),
            rows=self.bounded(problem),
            n_rows=problem.n_rows,
            n_batches=n_batches,
            epochs=self.epochs,
            step_size=step_size,
        )

    def _mechanism(
        self, budget: Budget, sensitivities: tuple[float, ...]
    ) -> PermutedMixture | Gaussian:
        """Return the release with the smallest noise that the budget allows."""
        if self.variant == "worst-case":
            worst = max(sensitivities)
            noise = single_release_noise(budget)
            return Gaussian(noise_scale=noise * worst, sensitivity=worst)
        profile = self.variant == "mixture"
        noise = mixture_noise(reachable(budget), sensitivities, profile=profile)
        return PermutedMixture(sensitivities=sensitivities, noise_scale=noise)
