# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation by three analyses: tight, Kifer-Smith-Thakurta, and pure.

The algorithm is :class:`~armijo.optim.perturbed_objective.PerturbedObjective`; what
differs is how much noise and strong convexity the proof asks for.  One percent of the
budget pays for the error of the solver.

=================  ==========================================  ===================
method             analysis                                    neighbors
=================  ==========================================  ===================
``objpert``        Redberg, Koskela and Wang (2023)            one row more or less
``objpert-kst``    Kifer, Smith and Thakurta (2012)            one row more or less
``objpert-pure``   Chaudhuri, Monteleoni and Sarwate (2011)    one row exchanged
=================  ==========================================  ===================
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from armijo.optim.bounded_rows import BoundedRowsSettings, loss_smoothness
from armijo.optim.perturbed_objective import PerturbedObjective, solver_tolerance
from armijo.optim.problem import Problem
from armijo.privacy.budget import Neighboring
from armijo.privacy.mechanisms import Gaussian, PureDP
from armijo.privacy.objective_perturbation import (
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    calibrate_objective,
)
from armijo.privacy.output_perturbation import (
    WithOutputNoise,
    output_noise,
    with_output_share,
)

_LEAST = 1e-12  # stands for no penalty at all where a formula divides by it


@dataclass(frozen=True, kw_only=True)
class ObjPertSettings(BoundedRowsSettings):
    """Public settings of objective perturbation with the tight analysis.

    Strong convexity is ``l2 n_rows``, or more where that spares noise.
    """

    method: ClassVar[str] = "objpert"

    def build(self, problem: Problem) -> PerturbedObjective:
        """Return the algorithm with its noise."""
        first, _ = with_output_share(problem.budget)
        exact = calibrate_objective(
            first,
            l2_sum=max(_penalty_sum(problem), _LEAST),
            smoothness=loss_smoothness(problem.objective),
        )
        return self._with_gaussians(problem, exact, exact.strong_convexity)

    def _with_gaussians(
        self,
        problem: Problem,
        exact: ObjectivePerturbation | KiferObjective,
        ridge: float,
    ) -> PerturbedObjective:
        """Return the algorithm whose linear term and output noise are Gaussian."""
        _, second = with_output_share(problem.budget)
        tolerance = solver_tolerance(ridge, problem.n_rows)
        output = Gaussian(
            noise_scale=output_noise(tolerance, ridge, second),
            sensitivity=2 * tolerance / ridge,
        )
        mechanism = WithOutputNoise(
            first=exact, second=output, second_epsilon=second.epsilon
        )
        return PerturbedObjective(
            **self._common(problem),
            mechanism=mechanism,
            ridge=ridge,
            noise_scale=exact.noise_scale,
            output_noise_scale=output.noise_scale,
            tolerance=tolerance,
        )

    def _common(self, problem: Problem) -> dict[str, Any]:
        """Return what does not depend on the analysis."""
        return {"objective": problem.objective, "rows": self.bounded(problem)}


@dataclass(frozen=True, kw_only=True)
class KSTSettings(ObjPertSettings):
    """Public settings of the replica: Kifer, Smith and Thakurta (2012)."""

    method: ClassVar[str] = "objpert-kst"

    def build(self, problem: Problem) -> PerturbedObjective:
        """Return the algorithm with its noise."""
        first, _ = with_output_share(problem.budget)
        exact = KiferObjective(
            epsilon=first.epsilon,
            delta=first.delta,
            smoothness=loss_smoothness(problem.objective),
        )
        # A penalty that is there already counts towards the curvature of the proof.
        ridge = max(_penalty_sum(problem), exact.strong_convexity)
        return self._with_gaussians(problem, exact, ridge)


@dataclass(frozen=True, kw_only=True)
class PureObjPertSettings(ObjPertSettings):
    """Public settings of the pure form: delta is not used.

    The noise on the answer has the Gamma law as well, so that the whole stays pure.
    """

    method: ClassVar[str] = "objpert-pure"

    @property
    def relation(self) -> Neighboring:
        """The relation of the proof."""
        return ChaudhuriObjective.relation

    def build(self, problem: Problem) -> PerturbedObjective:
        """Return the algorithm with its noise."""
        first, second = with_output_share(problem.budget)
        exact = ChaudhuriObjective(
            epsilon=first.epsilon,
            l2=max(problem.objective.l2, _LEAST),
            n_rows=problem.n_rows,
            smoothness=loss_smoothness(problem.objective),
        )
        # From the scale of the mean to that of the sum.
        ridge = problem.n_rows * (exact.l2 + exact.extra_convexity)
        tolerance = solver_tolerance(ridge, problem.n_rows)
        mechanism = WithOutputNoise(
            first=exact, second=PureDP(second.epsilon), second_epsilon=second.epsilon
        )
        return PerturbedObjective(
            **self._common(problem),
            mechanism=mechanism,
            law="radial",
            ridge=ridge,
            noise_scale=exact.norm_scale,
            output_noise_scale=2 * tolerance / ridge / second.epsilon,
            tolerance=tolerance,
        )


def _penalty_sum(problem: Problem) -> float:
    """Return the penalty's coefficient on the scale of the sum, from public numbers."""
    return problem.objective.l2 * problem.n_rows
