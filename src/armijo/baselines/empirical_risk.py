# SPDX-License-Identifier: Apache-2.0
"""The exact empirical risk in double precision, and its minimizer with a proof of it.

Whether the minimum was found is judged by the norm of the gradient at the answer, never
by what an optimizer says of itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, sparse
from torch import Tensor

from armijo.accounting.budget import FloatArray
from armijo.data.query import Matrix
from armijo.errors import ArmijoError
from armijo.objectives.linear import LinearObjective

_MEMORY = 20  # pairs of L-BFGS
_MOST_ITERATIONS = 5000
_NEWTON_STEPS = 100
_HALVINGS = 30


@dataclass(frozen=True, kw_only=True, repr=False)
class EmpiricalRisk:
    """``sum of losses + ridge/2 |w|^2 + linear.w`` on given rows.

    Attributes
    ----------
    X : array or CSR matrix
        Rows with their constant feature, in float64.
    y : Tensor
        Labels as the objective takes them; ones where the rows have their signs.
    objective : LinearObjective
        The loss; its own penalty is not used.
    ridge : float
        Coefficient of the penalty, on the scale of the sum.
    linear : array or None
        A linear term.
    """

    X: Matrix
    y: Tensor
    objective: LinearObjective
    ridge: float = 0.0
    linear: FloatArray | None = None

    @classmethod
    def of_signed(
        cls,
        signed: Matrix,
        objective: LinearObjective,
        *,
        ridge: float = 0.0,
        linear: FloatArray | None = None,
    ) -> "EmpiricalRisk":
        """Return the risk of rows that were multiplied by their labels."""
        ones = torch.ones(signed.shape[0], dtype=torch.float64)
        return cls(X=signed, y=ones, objective=objective, ridge=ridge, linear=linear)

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.objective.outputs * int(self.X.shape[1])

    def _scores(self, w: FloatArray) -> Tensor:
        product = np.asarray(self.X @ w.reshape(self.objective.outputs, -1).T)
        scores = torch.from_numpy(product)
        return scores[:, 0] if self.objective.outputs == 1 else scores

    def _adjoint(self, coefficients: NDArray[np.float64]) -> FloatArray:
        """Return the sum of ``outer(coefficients_i, X_i)`` as a flat vector."""
        return np.asarray((self.X.T @ coefficients).T, dtype=float).ravel()

    def value_and_gradient(self, w: FloatArray) -> tuple[float, FloatArray]:
        """Return the risk and its gradient."""
        scores = self._scores(w)
        value = float(self.objective.losses(scores, self.y).sum())
        value += 0.5 * self.ridge * float(w @ w)
        slopes = self.objective.score_gradients(scores, self.y).numpy()
        gradient = self._adjoint(slopes) + self.ridge * w
        if self.linear is not None:
            value, gradient = value + float(self.linear @ w), gradient + self.linear
        return value, gradient

    def gradient(self, w: FloatArray) -> FloatArray:
        """Return the gradient."""
        slopes = self.objective.score_gradients(self._scores(w), self.y).numpy()
        gradient = self._adjoint(slopes) + self.ridge * w
        return gradient if self.linear is None else gradient + self.linear

    def hessian_product(self, w: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return ``v -> H v`` at ``w``; at a kink of the slope one of the two sides."""
        curve = self._curvature(self._scores(w))

        def times(v: FloatArray) -> FloatArray:
            curved = curve(self._scores(v)).numpy().reshape(self.X.shape[0], -1)
            return self._adjoint(curved) + self.ridge * v

        return times

    def _curvature(self, scores: Tensor) -> Callable[[Tensor], Tensor]:
        """Return how slopes follow a change of the scores."""
        if self.objective.outputs > 1:
            probabilities = torch.softmax(scores, dim=1)
            return lambda s: (
                probabilities * (s - (probabilities * s).sum(dim=1, keepdim=True))
            )
        second = self.objective.margin_loss.curvature(scores * self.y) * self.y**2
        return lambda s: second * s


def minimized(risk: EmpiricalRisk, tolerance: float) -> FloatArray:
    """Return parameters at which the gradient has norm ``tolerance`` at most.

    For runs without privacy: that a solver gives up tells of the rows.

    Raises
    ------
    ArmijoError
        If the norm is not reached.
    """
    w = _approached(risk, tolerance)
    if _reached(risk, w, tolerance):
        return w
    raise ArmijoError(
        f"Expected a minimum with a gradient of norm {tolerance:g}, which the solver "
        "did not reach. Raise l2, or scale features to comparable ranges."
    )


def certified(
    risk: EmpiricalRisk, tolerance: float, *, smoothness: float
) -> FloatArray:
    """Return the same for private runs, which no row may stop.

    Where the fast solver gives up, accelerated gradients go on from zero.  For rows in
    the unit ball and losses of the given ``smoothness`` they reach the norm in a number
    of steps that is known beforehand (Nesterov 2004, Theorem 2.2.3), whatever the rows
    are.  So the answer has the certified norm for every table and every linear term,
    which is all that the proof asks of it, and which solver found it is not told.

    That is a theorem about real numbers.  Should the rounding of sums keep the norm
    above a tolerance that is set too low, the answer is zero, the public start: no
    error and no message tell of it.
    """
    w = _approached(risk, tolerance)
    if _reached(risk, w, tolerance):
        return w
    w = _polished(risk, _accelerated(risk, tolerance, smoothness), tolerance)
    return w if _reached(risk, w, tolerance) else np.zeros(risk.size)


def _reached(risk: EmpiricalRisk, w: FloatArray, tolerance: float) -> bool:
    return float(np.linalg.norm(risk.gradient(w))) <= tolerance


def _accelerated(
    risk: EmpiricalRisk, tolerance: float, smoothness: float
) -> FloatArray:
    """Return the end of accelerated gradient descent with constant momentum.

    After k steps ``f - min f <= 2 (f_0 - min f) exp(-k / sqrt(kappa))``, where the gap
    at the start is at most ``|g_0|^2 / (2 ridge)``, and ``|g|^2 <= 2 most (f - min f)``
    with ``most`` the largest curvature.
    """
    most = risk.X.shape[0] * smoothness + risk.ridge
    kappa, w = most / risk.ridge, np.zeros(risk.size)
    first = float(np.linalg.norm(risk.gradient(w)))
    needed = math.log(2 * kappa) + 2 * math.log1p(first / tolerance)
    steps = math.sqrt(kappa) * needed
    momentum = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    ahead = w
    for _ in range(math.ceil(steps)):
        gradient = risk.gradient(ahead)
        if float(np.linalg.norm(gradient)) <= tolerance:
            return ahead
        before, w = w, ahead - gradient / most
        ahead = w + momentum * (w - before)
    return w


def _approached(risk: EmpiricalRisk, tolerance: float) -> FloatArray:
    """Return where the fast solver ends.

    L-BFGS first.  Its line search compares values and stalls at about half the digits
    of a float; Newton steps that compare gradient norms finish where it did.
    """
    result = optimize.minimize(
        risk.value_and_gradient,
        np.zeros(risk.size),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxcor": _MEMORY,
            "maxiter": _MOST_ITERATIONS,
            "maxfun": 2 * _MOST_ITERATIONS,
            "ftol": 0.0,
            "gtol": tolerance / math.sqrt(max(risk.size, 1)),
        },
    )
    return _polished(risk, np.asarray(result.x, dtype=float), tolerance)


def _polished(risk: EmpiricalRisk, w: FloatArray, tolerance: float) -> FloatArray:
    """Take Newton steps by conjugate gradients while the gradient norm falls."""
    gradient = risk.gradient(w)
    for _ in range(_NEWTON_STEPS):
        norm = float(np.linalg.norm(gradient))
        if norm <= tolerance:
            break
        step = _newton_step(risk, w, gradient)
        share = 1.0
        for _ in range(_HALVINGS):
            moved = risk.gradient(w + share * step)
            if float(np.linalg.norm(moved)) < (1 - 1e-4 * share) * norm:
                break
            share /= 2
        else:
            break
        w, gradient = w + share * step, moved
    return w


def _newton_step(
    risk: EmpiricalRisk, w: FloatArray, gradient: FloatArray
) -> FloatArray:
    """Solve ``H step = -gradient`` to a thousandth."""
    times = risk.hessian_product(w)
    operator = sparse.linalg.LinearOperator(
        (risk.size, risk.size), matvec=times, dtype=np.float64
    )
    step, _ = sparse.linalg.cg(operator, -gradient, rtol=1e-3, maxiter=500)
    return np.asarray(step)
