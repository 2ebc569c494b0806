# SPDX-License-Identifier: Apache-2.0
"""Outpert-GD: plain gradient descent on all rows, noise on the last iterate.

Zhang, Zheng, Mou and Wang (2017).  How far one row can move the last iterate follows
from unrolling the recursion of :mod:`armijo.privacy.output_perturbation`.  ``variant``:

* ``"improved"`` (default): the exact recursion, any step size, calibrated noise;
* ``"replica"``: the published ``3 L T eta / n`` and ``sqrt(2 log(2/delta))/epsilon``,
  or the noise that the budget needs where that is more.

The sum is divided by the number of rows, which is public under both relations that the
method knows; rows that are missing from the declared number count as zero rows.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from armijo import _validate
from armijo.data.private import PrivateBatch
from armijo.data.query import Rows
from armijo.optim.bounded_rows import (
    BoundedRows,
    BoundedRowsSettings,
    loss_smoothness,
)
from armijo.optim.empirical_risk import EmpiricalRisk
from armijo.optim.one_shot import OneShot
from armijo.optim.problem import Problem
from armijo.privacy.budget import Budget, FloatArray, Neighboring
from armijo.privacy.calibration import noise_multiplier_for
from armijo.privacy.mechanisms import Gaussian
from armijo.privacy.output_perturbation import gd_sensitivity, zhang_sensitivity

LONGEST_STEP = 1.98
"""Step size times smoothness: almost the longest step that still contracts."""


@dataclass(frozen=True, kw_only=True)
class OutpertGD(OneShot):
    """Full-batch descent from zero, released with Gaussian noise."""

    mechanism: Gaussian
    rows: BoundedRows
    n_rows: int
    steps: int
    step_size: float

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
        w = np.zeros(self.objective.size)
        for _ in range(self.steps):
            w = w - self.step_size / n * risk.gradient(w)
        return w


@dataclass(frozen=True, kw_only=True)
class OutpertGDSettings(BoundedRowsSettings):
    """Public settings of Outpert-GD.

    Attributes
    ----------
    steps : int
        Number of steps T.
    step_size : float or None
        For rows scaled into the unit ball; None is 1 for the replica and else 1.98
        over the smoothness.
    variant : {"improved", "replica"}
        See the module.
    exchange : bool
        Whether neighbors exchange one row (replace-one); False promises zero-out, with
        half the sensitivity, for the improved variant only.
    """

    method: ClassVar[str] = "outpert-gd"

    steps: int = 50
    step_size: float | None = None
    variant: Literal["improved", "replica"] = "improved"
    exchange: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _validate.at_least(1, steps=self.steps)
        _validate.choice(("improved", "replica"), variant=self.variant)
        if self.step_size is not None:
            _validate.positive(step_size=self.step_size)
        if self.variant == "replica" and not self.exchange:
            raise ValueError(
                "Expected exchange=True with variant='replica', got False; the "
                "published sensitivity is for an exchanged row. Nothing was spent."
            )

    @property
    def relation(self) -> Neighboring:
        """Replace-one as published, or zero-out."""
        return Neighboring.REPLACE_ONE if self.exchange else Neighboring.ZERO_OUT

    def build(self, problem: Problem) -> OutpertGD:
        """Return the descent with its noise."""
        step_size = self._step_size(problem)
        sensitivity = self._sensitivity(problem, step_size)
        noise = self._noise_multiplier(problem.budget)
        return OutpertGD(
            objective=problem.objective,
            mechanism=Gaussian(
                noise_scale=noise * sensitivity, sensitivity=sensitivity
            ),
            rows=self.bounded(problem),
            n_rows=problem.n_rows,
            steps=self.steps,
            step_size=step_size,
        )

    def _step_size(self, problem: Problem) -> float:
        """Return the step size, given or the variant's own."""
        if self.step_size is not None:
            return self.step_size
        if self.variant == "replica":
            return 1.0
        return longest_step(problem)

    def _sensitivity(self, problem: Problem, step_size: float) -> float:
        """Return how far one row may move the end."""
        smoothness = loss_smoothness(problem.objective)
        if self.variant == "replica":
            return zhang_sensitivity(
                step_size=step_size,
                steps=self.steps,
                n_rows=problem.n_rows,
                l2=problem.objective.l2,
                smoothness=smoothness,
            )
        return gd_sensitivity(
            step_size=step_size,
            steps=self.steps,
            n_rows=problem.n_rows,
            l2=problem.objective.l2,
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


@lru_cache
def single_release_noise(budget: Budget) -> float:
    """Return noise over sensitivity of one Gaussian release, as it is accounted."""
    return noise_multiplier_for(budget, rate=1.0, steps=1)


def longest_step(problem: Problem) -> float:
    """Return 1.98 over the smoothness of the mean loss with its penalty."""
    return LONGEST_STEP / (loss_smoothness(problem.objective) + problem.objective.l2)
