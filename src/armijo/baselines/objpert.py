# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: a random linear term, and a minimum with a proof of it.

``sum of losses + ridge/2 |w|^2 + b.w`` on rows in the unit ball (the scale is that of
the sum) is minimized until its gradient has at most half the norm ``tolerance`` that
the noise on the answer was computed for; the other half is room for the rounding of
sums.  The gradient is checked, and no run ends with an error that tells of its rows:
see :func:`~armijo.baselines.empirical_risk.certified`.  What differs between methods is
how much noise and strong convexity the proof asks for:

=================  ==========================================  ===================
method             analysis                                    neighbors
=================  ==========================================  ===================
``objpert``        Redberg, Koskela and Wang (2023)            one row more or less
``objpert-kst``    Kifer, Smith and Thakurta (2012)            one row more or less
``objpert-pure``   Chaudhuri, Monteleoni and Sarwate (2011)    one row exchanged
``amp``            Iyengar et al. (2019)                       one row exchanged
=================  ==========================================  ===================

For the first three, one percent of the budget pays for the error of the solver.  AMP
has its own split of the budget; the gradient norm is enforced before noise is drawn for
it, where the authors' code believes its optimizer.

Not covered: ``b`` is drawn from exact integers, but the minimum is computed in floating
point, which the proofs do not model.  The Huberized hinge has jumps in its second
derivative, which the proofs treat as a null set (Chaudhuri et al. 2011).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from armijo._validate import Positive, Share
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.mechanisms import Gaussian, PureDP
from armijo.accounting.objective_perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    calibrate_objective,
)
from armijo.accounting.output_perturbation import (
    OUTPUT_SHARE,
    WithOutputNoise,
    output_noise,
    with_output_share,
)
from armijo.accounting.planned import reachable
from armijo.baselines.bounded_rows import BoundedRelease, loss_smoothness
from armijo.baselines.empirical_risk import EmpiricalRisk, certified
from armijo.data.private import PrivateBatch
from armijo.data.query import Rows
from armijo.methods.base import Problem, solved
from armijo.noise import BitSource, Randomness
from armijo.noise.vectors import gaussian_vector, radial_vector, with_gaussian

NoiseLaw = Literal["gaussian", "radial"]


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(BoundedRelease):
    """Minimize with a random linear term and add noise for the error of the solver.

    Attributes
    ----------
    law : {"gaussian", "radial"}
        Law of the linear term and of the noise on the answer: normal coordinates, or a
        Gamma norm with a uniform direction (pure privacy).
    ridge : float
        Strong convexity of the objective.
    noise_scale, output_noise_scale : float
        Scales of the linear term and of the noise on the answer.
    tolerance : float
        Norm of the gradient that the noise on the answer allows for.
    """

    law: ClassVar[NoiseLaw] = "gaussian"

    ridge: float = solved()
    noise_scale: float = solved()
    output_noise_scale: float = solved()
    tolerance: float = solved()

    def released(self, batch: PrivateBatch) -> FloatArray:
        """Minimize behind the gate."""
        return batch.release(self._noisy_minimum, self.mechanism)

    def _noisy_minimum(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Draw the linear term, minimize, and hide the error of the solver."""
        bits = randomness.stream("perturbation")
        draw = radial_vector if self.law == "radial" else gaussian_vector
        linear = draw(self.noise_scale, self.objective.size, bits)
        return self.rows.unscaled(self._hidden(self.minimum(rows, linear), bits))

    def risk(self, rows: Rows, linear: FloatArray) -> EmpiricalRisk:
        """Return the perturbed objective."""
        return EmpiricalRisk.of_signed(
            self.rows.signed(rows), self.objective, ridge=self.ridge, linear=linear
        )

    def minimum(self, rows: Rows, linear: FloatArray) -> FloatArray:
        """Return the minimum for rows in the unit ball, before noise on the answer."""
        return certified(
            self.risk(rows, linear),
            self.tolerance / 2,
            smoothness=loss_smoothness(self.objective),
        )

    def _hidden(self, answer: FloatArray, bits: BitSource) -> FloatArray:
        """Add the noise on the answer."""
        if self.law == "radial":
            noise = radial_vector(self.output_noise_scale, answer.size, bits)
            return answer + noise
        return with_gaussian(
            answer,
            sensitivity=2 * self.tolerance / self.ridge,
            noise_scale=self.output_noise_scale,
            bits=bits,
        )


def solver_tolerance(ridge: float, n_rows: int) -> float:
    """Return a public norm of the gradient: tiny, but above the rounding of sums."""
    return 1e-8 * ridge + 1e-12 * n_rows


_LEAST = 1e-12  # stands for no penalty at all where a formula divides by it


@dataclass(frozen=True, kw_only=True)
class ObjPert(PerturbedObjective):
    """Objective perturbation with the tight analysis (Redberg et al. 2023).

    Strong convexity is ``l2 n_rows``, or more where that spares noise.
    """

    method: ClassVar[str] = "objpert"

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve noise and strong convexity for the budget."""
        first, _ = with_output_share(budget)
        exact = calibrate_objective(
            first,
            l2_sum=max(_penalty_sum(problem), _LEAST),
            smoothness=loss_smoothness(problem.linear),
        )
        return self._with_gaussians(budget, problem, exact, exact.strong_convexity)

    def _with_gaussians(
        self,
        budget: Budget,
        problem: Problem,
        exact: ObjectivePerturbation | KiferObjective,
        ridge: float,
    ) -> Self:
        """Return the algorithm whose linear term and output noise are Gaussian."""
        _, second = with_output_share(budget)
        tolerance = solver_tolerance(ridge, problem.n_rows)
        output = Gaussian(
            noise_scale=output_noise(tolerance, ridge, second),
            sensitivity=2 * tolerance / ridge,
        )
        mechanism = WithOutputNoise(
            first=exact, second=output, second_epsilon=second.epsilon
        )
        return replace(
            self,
            problem=problem,
            mechanism=mechanism,
            ridge=ridge,
            noise_scale=exact.noise_scale,
            output_noise_scale=output.noise_scale,
            tolerance=tolerance,
        )


@dataclass(frozen=True, kw_only=True)
class ObjPertKST(ObjPert):
    """The replica: Kifer, Smith and Thakurta (2012)."""

    method: ClassVar[str] = "objpert-kst"

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve noise and strong convexity for the budget."""
        first, _ = with_output_share(budget)
        exact = KiferObjective(
            epsilon=first.epsilon,
            delta=first.delta,
            smoothness=loss_smoothness(problem.linear),
        )
        # A penalty that is there already counts towards the curvature of the proof.
        ridge = max(_penalty_sum(problem), exact.strong_convexity)
        return self._with_gaussians(budget, problem, exact, ridge)


@dataclass(frozen=True, kw_only=True)
class ObjPertPure(ObjPert):
    """The pure form (Chaudhuri et al. 2011): delta is not used.

    The noise on the answer has the Gamma law as well, so that the whole stays pure.
    """

    method: ClassVar[str] = "objpert-pure"
    law: ClassVar[NoiseLaw] = "radial"

    @property
    def relation(self) -> Neighboring:
        """The relation of the proof."""
        return ChaudhuriObjective.relation

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve noise and strong convexity for the budget."""
        first, second = with_output_share(budget)
        exact = ChaudhuriObjective(
            epsilon=first.epsilon,
            l2=max(problem.linear.l2, _LEAST),
            n_rows=problem.n_rows,
            smoothness=loss_smoothness(problem.linear),
        )
        # From the scale of the mean to that of the sum.
        ridge = problem.n_rows * (exact.l2 + exact.extra_convexity)
        tolerance = solver_tolerance(ridge, problem.n_rows)
        mechanism = WithOutputNoise(
            first=exact, second=PureDP(second.epsilon), second_epsilon=second.epsilon
        )
        return replace(
            self,
            problem=problem,
            mechanism=mechanism,
            ridge=ridge,
            noise_scale=exact.norm_scale,
            output_noise_scale=2 * tolerance / ridge / second.epsilon,
            tolerance=tolerance,
        )


def _penalty_sum(problem: Problem) -> float:
    """Return the penalty's coefficient on the scale of the sum, from public numbers."""
    return problem.linear.l2 * problem.n_rows


_FINEST = 1e-14  # gradient norm of a mean that floats can still reach


@dataclass(frozen=True, kw_only=True)
class AMP(PerturbedObjective):
    """Approximate minima perturbation (Iyengar et al. 2019).

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

    gradient_tolerance: Positive | None = None
    output_share: Share = OUTPUT_SHARE
    noise_share: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradient_tolerance and self.gradient_tolerance < _FINEST:
            raise ValueError(
                f"Expected gradient_tolerance >= {_FINEST:g}, got "
                f"{self.gradient_tolerance!r}; no solver in double precision "
                "reaches less. Nothing was spent."
            )

    @property
    def relation(self) -> Neighboring:
        """The relation of the proof."""
        return ApproximateMinima.relation

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve noise and strong convexity for the budget."""
        n, budget = problem.n_rows, reachable(budget)
        mechanism = ApproximateMinima(
            epsilon=budget.epsilon,
            delta=budget.delta,
            n_rows=n,
            gradient_tolerance=self.gradient_tolerance or 1 / n**2,
            smoothness=loss_smoothness(problem.linear),
            output_share=self.output_share,
            noise_share=self.noise_share,
        )
        if self.gradient_tolerance is None:
            fine = solver_tolerance(mechanism.strong_convexity, n) / n
            tolerance = min(mechanism.gradient_tolerance, fine)
            mechanism = replace(mechanism, gradient_tolerance=tolerance)
        # From the scale of the mean to that of the sum; a larger ridge only helps.
        ridge = max(mechanism.strong_convexity, n * problem.linear.l2)
        return replace(
            self,
            problem=problem,
            mechanism=mechanism,
            ridge=ridge,
            noise_scale=n * mechanism.noise_scale,
            output_noise_scale=mechanism.output_noise_scale,
            tolerance=n * mechanism.gradient_tolerance,
        )
