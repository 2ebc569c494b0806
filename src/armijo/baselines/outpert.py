# SPDX-License-Identifier: Apache-2.0
"""Output perturbation: descent without noise, and noise on what it ends with.

Outpert-GD is plain gradient descent on all rows with noise on the last iterate (Zhang,
Zheng, Mou and Wang 2017).  How far one row can move it follows from unrolling the
recursion of :mod:`armijo.accounting.output_perturbation`.  ``variant``:

* ``"improved"`` (default): the exact recursion, any step size, calibrated noise;
* ``"replica"``: the published ``3 L T eta / n`` and ``sqrt(2 log(2/delta))/epsilon``,
  or the noise that the budget needs where that is more.

The sum is divided by the number of rows, which is public under both relations that the
method knows; rows that are missing from the declared number count as zero rows.

Outpert-RSGD is permuted minibatch descent with noise on the average of its iterates
(Chen, Lee and Kifer 2019).  Rows are permuted once, in secret, and cut into batches of
one size; the few rows that are left over are not used (a row that is in no batch moves
nothing, so every batch holds it with probability 1/m at most).  How far a row moves the
average depends on the batch it is in.  ``variant``:

* ``"mixture"`` (default): the secret batch averages the profiles of (epsilon, delta);
* ``"renyi"``: the published mixture of Renyi curves, which asks for more noise;
* ``"worst-case"``: the row is in the worst batch; does not rest on the secret.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np

from armijo import _validate
from armijo._validate import Count, Positive
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import noise_multiplier_for
from armijo.accounting.mechanisms import Gaussian
from armijo.accounting.output_perturbation import (
    PermutedMixture,
    gd_sensitivity,
    mixture_noise,
    rsgd_sensitivities,
    rsgd_step_size,
    zhang_sensitivity,
)
from armijo.accounting.planned import reachable
from armijo.baselines.bounded_rows import (
    BoundedRelease,
    loss_smoothness,
)
from armijo.baselines.empirical_risk import EmpiricalRisk
from armijo.data.private import PrivateBatch
from armijo.data.query import Matrix, Rows
from armijo.methods.base import Problem, calibrated
from armijo.noise import Randomness
from armijo.noise.vectors import random_order, with_gaussian

LONGEST_STEP = 1.98
"""Step size times smoothness: almost the longest step that still contracts."""


@dataclass(frozen=True, kw_only=True)
class OutpertGD(BoundedRelease):
    """Full-batch descent from zero, released with Gaussian noise.

    Attributes
    ----------
    steps : int
        Number of steps T.
    step_size : float or None
        For rows scaled into the unit ball; None is 1 for the replica and else 1.98
        over the smoothness.
    variant : {"improved", "replica"}
        See the module.
    relation : {"replace-one", "zero-out"}
        What neighbors differ by; zero-out has half the sensitivity and is for the
        improved variant only.
    """

    method: ClassVar[str] = "outpert-gd"

    steps: Count = 50
    step_size: Positive | None = None
    variant: Literal["improved", "replica"] = "improved"
    relation: Neighboring = Neighboring.REPLACE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        relations = (Neighboring.REPLACE_ONE, Neighboring.ZERO_OUT)
        _validate.choice(relations, relation=self.relation)
        object.__setattr__(self, "relation", Neighboring(self.relation))
        if self.variant == "replica" and self.relation is Neighboring.ZERO_OUT:
            raise ValueError(
                "Expected relation='replace-one' with variant='replica', got "
                "'zero-out'; the published sensitivity is for an exchanged row. "
                "Nothing was spent."
            )

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise on the last iterate."""
        step_size = self._step_size(problem)
        sensitivity = self._sensitivity(problem, step_size)
        noise = self._noise_multiplier(budget)
        mechanism = Gaussian(noise_scale=noise * sensitivity, sensitivity=sensitivity)
        return replace(self, problem=problem, mechanism=mechanism, step_size=step_size)

    def _step_size(self, problem: Problem) -> float:
        """Return the step size, given or the variant's own."""
        if self.step_size is not None:
            return self.step_size
        if self.variant == "replica":
            return 1.0
        return longest_step(problem)

    def _sensitivity(self, problem: Problem, step_size: float) -> float:
        """Return how far one row may move the end."""
        smoothness = loss_smoothness(problem.linear)
        if self.variant == "replica":
            return zhang_sensitivity(
                step_size=step_size,
                steps=self.steps,
                n_rows=problem.n_rows,
                l2=problem.linear.l2,
                smoothness=smoothness,
            )
        return gd_sensitivity(
            step_size=step_size,
            steps=self.steps,
            n_rows=problem.n_rows,
            l2=problem.linear.l2,
            smoothness=smoothness,
            relation=self.relation,
        )

    def _noise_multiplier(self, budget: Budget) -> float:
        """Return noise over sensitivity."""
        needed = single_release_noise(budget)
        if self.variant == "improved":
            return needed
        # Dwork and Roth (2014), Theorem 3.22 with 2 for 1.25; proved below epsilon 1.
        return max(math.sqrt(2 * math.log(2 / budget.delta)) / budget.epsilon, needed)

    @property
    def gradients(self) -> int:
        """Each step is a pass over all rows."""
        return self.steps

    def released(self, batch: PrivateBatch) -> FloatArray:
        """Descend behind the gate and release the noisy end."""
        return self.rows.unscaled(batch.noisy_output(self.descended, self.mechanism))

    def descended(self, rows: Rows) -> FloatArray:
        """Return the last iterate for rows in the unit ball: not private."""
        n = max(self.n_rows, rows.size)
        ridge = n * self.objective.l2
        risk = EmpiricalRisk.of_signed(
            self.rows.signed(rows), self.objective, ridge=ridge
        )
        w, size = np.zeros(self.objective.size), calibrated(step_size=self.step_size)
        for _ in range(self.steps):
            w = w - size / n * risk.gradient(w)
        return w


@lru_cache
def single_release_noise(budget: Budget) -> float:
    """Return noise over sensitivity of one Gaussian release, as it is accounted."""
    return noise_multiplier_for(budget, sampling_prob=1.0, steps=1)


def longest_step(problem: Problem) -> float:
    """Return 1.98 over the smoothness of the mean loss with its penalty."""
    return LONGEST_STEP / (loss_smoothness(problem.linear) + problem.linear.l2)


@dataclass(frozen=True, kw_only=True)
class OutpertRSGD(BoundedRelease):
    """Permuted minibatch descent from zero, its average released with noise.

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

    epochs: Count = 5
    batch_size: Count = 4000
    step_size: Positive | None = None
    variant: Literal["mixture", "renyi", "worst-case"] = "mixture"

    @property
    def relation(self) -> Neighboring:
        """Replace-one: the number of rows decides how they are cut into batches."""
        return Neighboring.REPLACE_ONE

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise on the average."""
        step_size = self.step_size or longest_step(problem)
        method = replace(self, problem=problem, step_size=step_size)
        sensitivities = rsgd_sensitivities(
            step_size=step_size,
            epochs=self.epochs,
            n_batches=method.n_batches,
            batch_size=problem.n_rows // method.n_batches,
            l2=problem.linear.l2,
            smoothness=loss_smoothness(problem.linear),
        )
        return replace(method, mechanism=self._mechanism(budget, sensitivities))

    @property
    def n_batches(self) -> int:
        """How many batches the rows are cut into."""
        return max(self.n_rows // self.batch_size, 1)

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
        first = calibrated(step_size=self.step_size)
        for epoch in range(self.epochs):
            step = rsgd_step_size(first, epoch, self.n_batches)
            for risk in risks:
                w = w - step / size * risk.gradient(w)
                total += w
        return total / (self.epochs * self.n_batches)

    def _risk(self, signed: Matrix, chosen: np.ndarray, size: int) -> EmpiricalRisk:
        """Return the risk of one batch; rows that are not there count as zero rows."""
        there = chosen[chosen < signed.shape[0]]
        ridge = size * self.objective.l2
        return EmpiricalRisk.of_signed(signed[there], self.objective, ridge=ridge)
