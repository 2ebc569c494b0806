# SPDX-License-Identifier: Apache-2.0
"""AMP: approximate minima perturbation, Iyengar et al. (2019).

The same algorithm as other objective perturbations; the split of the budget and the
noise are theirs, for neighbors that exchange one row.  The gradient norm is enforced
before noise is drawn for it, where their code believes its optimizer.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from armijo import _validate
from armijo.optim.bounded_rows import BoundedRowsSettings, loss_smoothness
from armijo.optim.perturbed_objective import PerturbedObjective, solver_tolerance
from armijo.optim.problem import Problem
from armijo.privacy.budget import Neighboring
from armijo.privacy.objective_perturbation import ApproximateMinima
from armijo.privacy.output_perturbation import OUTPUT_SHARE
from armijo.privacy.planned import reachable

_FINEST = 1e-14  # gradient norm of a mean that floats can still reach


@dataclass(frozen=True, kw_only=True)
class AMPSettings(BoundedRowsSettings):
    """Public settings of approximate minima perturbation.

    Attributes
    ----------
    gradient_tolerance : float or None
        Norm of the gradient of the *mean* loss to stop at; None is ``1 / n_rows^2`` as
        published, or less where that would call for visible noise on the answer.
    output_share : float
        Share of epsilon and delta for the noise on the answer.
    noise_share : float or None
        Share of the rest of epsilon for the linear term; None is the authors' rule.
    """

    method: ClassVar[str] = "amp"

    gradient_tolerance: float | None = None
    output_share: float = OUTPUT_SHARE
    noise_share: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _validate.open_unit(output_share=self.output_share)
        if self.gradient_tolerance is not None:
            _validate.positive(gradient_tolerance=self.gradient_tolerance)
            if self.gradient_tolerance < _FINEST:
                raise ValueError(
                    f"Expected gradient_tolerance >= {_FINEST:g}, got "
                    f"{self.gradient_tolerance!r}; no solver in double precision "
                    "reaches less. Nothing was spent."
                )
        if self.noise_share is not None:
            _validate.open_unit(noise_share=self.noise_share)

    @property
    def relation(self) -> Neighboring:
        """The relation of the proof."""
        return ApproximateMinima.relation

    def build(self, problem: Problem) -> PerturbedObjective:
        """Return the algorithm with its noise."""
        n, budget = problem.n_rows, reachable(problem.budget)
        mechanism = ApproximateMinima(
            epsilon=budget.epsilon,
            delta=budget.delta,
            n_rows=n,
            gradient_tolerance=self.gradient_tolerance or 1 / n**2,
            smoothness=loss_smoothness(problem.objective),
            output_share=self.output_share,
            noise_share=self.noise_share,
        )
        if self.gradient_tolerance is None:
            fine = solver_tolerance(mechanism.strong_convexity, n) / n
            tolerance = min(mechanism.gradient_tolerance, fine)
            mechanism = replace(mechanism, gradient_tolerance=tolerance)
        # From the scale of the mean to that of the sum; a larger ridge only helps.
        ridge = max(mechanism.strong_convexity, n * problem.objective.l2)
        return PerturbedObjective(
            objective=problem.objective,
            rows=self.bounded(problem),
            mechanism=mechanism,
            ridge=ridge,
            noise_scale=n * mechanism.noise_scale,
            output_noise_scale=mechanism.output_noise_scale,
            tolerance=n * mechanism.gradient_tolerance,
        )
