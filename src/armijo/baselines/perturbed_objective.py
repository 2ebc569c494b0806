# SPDX-License-Identifier: Apache-2.0
"""The algorithm of every objective perturbation: a random linear term, a minimum.

``sum of losses + ridge/2 |w|^2 + b.w`` on rows in the unit ball (the scale is that of
the sum) is minimized until its gradient has at most half the norm ``tolerance`` that
the noise on the answer was computed for; the other half is room for the rounding of
sums.  The gradient is checked, and no run ends with an error that tells of its rows:
see :func:`~armijo.baselines.empirical_risk.certified`.

Not covered: ``b`` is drawn from exact integers, but the minimum is computed in floating
point, which the proofs do not model.  The Huberized hinge has jumps in its second
derivative, which the proofs treat as a null set (Chaudhuri et al. 2011).
"""

from dataclasses import dataclass
from typing import Literal

from armijo.baselines.bounded_rows import BoundedRows, loss_smoothness
from armijo.baselines.empirical_risk import EmpiricalRisk, certified
from armijo.baselines.one_shot import OneShot
from armijo.data.private import PrivateBatch
from armijo.data.query import Rows
from armijo.noise import BitSource, Randomness
from armijo.noise.vectors import gaussian_vector, radial_vector, with_gaussian
from armijo.privacy.budget import FloatArray

NoiseLaw = Literal["gaussian", "radial"]


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(OneShot):
    """Minimize with a random linear term and add noise for the error of the solver.

    Attributes
    ----------
    rows : BoundedRows
        The map of the rows into the unit ball.
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

    rows: BoundedRows
    law: NoiseLaw = "gaussian"
    ridge: float
    noise_scale: float
    output_noise_scale: float
    tolerance: float

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
