# SPDX-License-Identifier: Apache-2.0
"""Output and objective perturbation: one release on rows within a public norm.

A row is scaled down to ``data_norm`` R, the constant feature is appended, and all is
divided by ``sqrt(R^2 + 1)`` and multiplied by its label: what a method sees are vectors
z of norm one at most, and losses ``l(w.z)`` of slope one at most.  It is a map of each
row on its own, so neighbors stay neighbors: rows come on their lattices, in CSR with no
entry stored twice (:mod:`armijo.data.lattice`), so what is measured is what is scaled.
A method is a whole computation on these rows, released once; how many iterations it
took depends on the rows and is not released.

**Outpert-GD** is plain gradient descent on all rows with noise on the last iterate
(Zhang, Zheng, Mou and Wang 2017).  How far one row can move it follows from unrolling
the recursion of :mod:`armijo.accounting.perturbation`.  ``variant``:

* ``"improved"`` (default): the exact recursion, any step size, calibrated noise;
* ``"replica"``: the published ``3 L T eta / n`` and ``sqrt(2 log(2/delta))/epsilon``,
  or the noise that the budget needs where that is more.

The sum is divided by the number of rows, which is public under both relations that the
method knows; rows that are missing from the declared number count as zero rows.

**Outpert-RSGD** is permuted minibatch descent with noise on the average of its iterates
(Chen, Lee and Kifer 2019).  Rows are permuted once, in secret, and cut into batches of
one size; the few rows that are left over are not used (a row that is in no batch moves
nothing, so every batch holds it with probability 1/m at most).  How far a row moves the
average depends on the batch it is in.  ``variant``:

* ``"mixture"`` (default): the secret batch averages the profiles of (epsilon, delta);
* ``"renyi"``: the published mixture of Renyi curves, which asks for more noise;
* ``"worst-case"``: the row is in the worst batch; does not rest on the secret.

**Objective perturbation** minimizes ``sum of losses + ridge/2 |w|^2 + b.w`` (the scale
is that of the sum) for a random b, until the gradient has at most half the norm
``tolerance`` that the noise on the answer was computed for; the other half is room for
the rounding of sums.  The gradient is checked, and no run ends with an error that tells
of its rows: see :func:`~armijo.baselines.empirical_risk.certified`.  What differs
between methods is how much noise and strong convexity the proof asks for:

=================  ==========================================  ====================
method             analysis                                    neighbors
=================  ==========================================  ====================
``objpert``        Redberg, Koskela and Wang (2023)            one row more or less
``objpert-kst``    Kifer, Smith and Thakurta (2012)            one row more or less
``objpert-pure``   Chaudhuri, Monteleoni and Sarwate (2011)    one row exchanged
``amp``            Iyengar et al. (2019)                       one row exchanged
=================  ==========================================  ====================

For the first three, one percent of the budget pays for the error of the solver; AMP
has its own split.  What the proofs do not model is in docs/methods.md.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from scipy import sparse
from torch import Tensor

from armijo import _validate
from armijo._noise.vectors import (
    gaussian_vector,
    radial_vector,
    random_order,
    with_gaussian,
)
from armijo._validate import Count, Positive, Share
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import noise_multiplier_for, reachable
from armijo.accounting.mechanisms import Gaussian, PureDP
from armijo.accounting.perturbation import (
    OUTPUT_SHARE,
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    PermutedMixture,
    WithOutputNoise,
    calibrate_objective,
    gd_sensitivity,
    mixture_noise,
    output_noise,
    rsgd_sensitivities,
    rsgd_step_size,
    with_output_share,
)
from armijo.baselines.empirical_risk import EmpiricalRisk, certified
from armijo.data.gate import PrivateBatch
from armijo.data.query import Matrix, Rows
from armijo.methods.base import OneShot, Problem, StepRecord, calibrated, solved
from armijo.objectives.linear import LinearObjective
from armijo.objectives.losses import known_labels
from armijo.randomness import Randomness

LONGEST_STEP = 1.98
"""Step size times smoothness: almost the longest step that still contracts."""

_LEAST = 1e-12  # stands for no penalty at all where a formula divides by it
_FINEST = 1e-14  # gradient norm of a mean that floats can still reach


@dataclass(frozen=True, kw_only=True)
class BoundedRows:
    """The map from private rows to vectors in the unit ball, and back for weights.

    >>> BoundedRows(data_norm=1.0, fit_intercept=False).radius
    1.0
    """

    data_norm: float
    fit_intercept: bool

    @property
    def radius(self) -> float:
        """The norm that a row with its constant feature may have."""
        if not self.fit_intercept:
            return self.data_norm
        return math.hypot(self.data_norm, 1.0)

    def signed(self, rows: Rows) -> Matrix:
        """Return the vectors ``y (x, 1) / radius``, dense or CSR, in float64.

        A row with a non-finite value, or a label that is no class, becomes zero: its
        loss is a constant and its gradient nothing.
        """
        norms = rows.lengths()
        labels = known_labels(rows.y, (-1, 1)).numpy()
        # For the float error of the norm of so many numbers.
        room = 1 - 1e-12 - rows.X.shape[1] * 2.0**-52
        kept = np.isfinite(norms) & (np.abs(labels) == 1)
        sign = np.where(kept, labels, 0.0) * (room / self.radius)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factor = np.where(kept, np.minimum(self.data_norm / norms, 1.0), 0.0)
        factor *= sign
        constant = sign[:, None] if self.fit_intercept else np.empty((rows.size, 0))
        if not sparse.issparse(rows.X):
            # Zero first: zero times infinity is NaN.
            signed = np.where(kept[:, None], rows.X, 0.0)
            signed *= factor[:, None]
            return np.column_stack([signed, constant])
        X = sparse.csr_matrix(rows.X, dtype=np.float64, copy=True)
        length = np.diff(X.indptr)
        X.data = np.where(np.repeat(kept, length), X.data, 0.0)
        X.data *= np.repeat(factor, length)
        return sparse.csr_matrix(sparse.hstack([X, sparse.csr_matrix(constant)]))

    def unscaled(self, w: FloatArray) -> FloatArray:
        """Return weights for rows clipped to ``data_norm`` with a constant one."""
        return np.asarray(w / self.radius)


def loss_smoothness(objective: LinearObjective) -> float:
    """Return the bound on the second derivative of the loss.

    >>> loss_smoothness(LinearObjective(loss="logistic", n_features=3))
    0.25
    """
    if objective.outputs > 1 or not objective.smooth:
        raise ValueError(
            f"Expected a smooth loss of one margin, as logistic or huber, got "
            f"{objective.loss!r}; the proof needs it. Nothing was spent."
        )
    return objective.margin_loss.smoothness


@dataclass(frozen=True, kw_only=True)
class BoundedRelease(OneShot):
    """The methods whose proof needs a bound on the norm of a row.

    Attributes
    ----------
    data_norm : float
        Public bound on the norm of a row without its constant feature; longer rows are
        scaled down to it.  There is no default, and it is never read from the data.
    """

    multi_class: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    method: ClassVar[str] = ""

    data_norm: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_norm is None:
            raise ValueError(
                f"Method {self.method!r} asks for data_norm, a public bound on the "
                "norm of a row (longer rows are scaled down to it); it is never read "
                "from the data. Give one, such as 1.0. Nothing was spent."
            )

    @property
    def prediction_norm(self) -> float | None:
        """The norm to which rows are clipped in training, hence also to predict."""
        return self.data_norm

    @property
    def rows(self) -> BoundedRows:
        """The map of the rows into the unit ball."""
        return BoundedRows(
            data_norm=calibrated(data_norm=self.data_norm),
            fit_intercept=self.objective.fit_intercept,
        )


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
        published = self.variant == "replica"
        usual = 1.0 if published else longest_step(problem)
        step_size = self.step_size or usual
        sensitivity = gd_sensitivity(
            step_size=step_size,
            steps=self.steps,
            n_rows=problem.n_rows,
            l2=problem.linear.l2,
            smoothness=loss_smoothness(problem.linear),
            relation=self.relation,
            published=published,
        )
        noise = single_release_noise(budget)
        if published:
            # Dwork and Roth (2014), Theorem 3.22 with 2 for 1.25: below epsilon 1.
            classical = math.sqrt(2 * math.log(2 / budget.delta)) / budget.epsilon
            noise = max(classical, noise)
        mechanism = Gaussian(noise_scale=noise * sensitivity, sensitivity=sensitivity)
        return replace(self, problem=problem, mechanism=mechanism, step_size=step_size)

    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Descend behind the gate, a pass a step, and release the noisy end."""
        noisy = batch.noisy_output(self.descended, self.mechanism)
        return self.rows.unscaled(noisy), StepRecord(update=0, gradients=self.steps)

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
        if self.variant == "worst-case":
            worst, noise = max(sensitivities), single_release_noise(budget)
            release = Gaussian(noise_scale=noise * worst, sensitivity=worst)
            return replace(method, mechanism=release)
        profile = self.variant == "mixture"
        noise = mixture_noise(reachable(budget), sensitivities, profile=profile)
        mixture = PermutedMixture(sensitivities=sensitivities, noise_scale=noise)
        return replace(method, mechanism=mixture)

    @property
    def n_batches(self) -> int:
        """How many batches the rows are cut into."""
        return max(self.n_rows // self.batch_size, 1)

    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Descend behind the gate and release the noisy average."""
        noisy = batch.release(self._noisy_average, self.mechanism)
        passes = self.epochs * self.n_batches
        return noisy, StepRecord(update=0, gradients=passes)

    def _noisy_average(self, rows: Rows, randomness: Randomness) -> FloatArray:
        bits = randomness.stream("perturbation")
        order = random_order(max(self.n_rows, rows.size), bits)
        noisy = with_gaussian(
            self.averaged(rows, order),
            sensitivity=self.mechanism.sensitivity,
            noise_scale=self.mechanism.noise_scale,
            bits=bits,
        )
        return self.rows.unscaled(noisy)

    def averaged(self, rows: Rows, order: np.ndarray) -> FloatArray:
        """Return the average iterate in a given order: not private."""
        size = len(order) // self.n_batches
        signed = self.rows.signed(rows)
        batches = (order[k * size :][:size] for k in range(self.n_batches))
        risks = [  # rows that are not there count as zero rows
            EmpiricalRisk.of_signed(
                signed[batch[batch < signed.shape[0]]],
                self.objective,
                ridge=size * self.objective.l2,
            )
            for batch in batches
        ]
        w, total = np.zeros(self.objective.size), np.zeros(self.objective.size)
        first = calibrated(step_size=self.step_size)
        for epoch in range(self.epochs):
            step = rsgd_step_size(first, epoch, self.n_batches)
            for risk in risks:
                w = w - step / size * risk.gradient(w)
                total += w
        return total / (self.epochs * self.n_batches)


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(BoundedRelease):
    """Minimize with a random linear term and add noise for the error of the solver.

    Attributes
    ----------
    radial : bool
        Distribution of the linear term and of the noise on the answer: a Gamma norm
        with a uniform direction (pure privacy), else normal coordinates.
    ridge : float
        Strong convexity of the objective.
    noise_scale, output_noise_scale : float
        Scales of the linear term and of the noise on the answer.
    tolerance : float
        Norm of the gradient that the noise on the answer allows for.
    """

    radial: ClassVar[bool] = False

    ridge: float = solved()
    noise_scale: float = solved()
    output_noise_scale: float = solved()
    tolerance: float = solved()

    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Minimize behind the gate; the number of passes depends on the rows."""
        noisy = batch.release(self._noisy_minimum, self.mechanism)
        return noisy, StepRecord(update=0, gradients=None)

    def _noisy_minimum(self, rows: Rows, randomness: Randomness) -> FloatArray:
        """Draw the linear term, minimize, and hide the error of the solver."""
        bits = randomness.stream("perturbation")
        draw = radial_vector if self.radial else gaussian_vector
        linear = draw(self.noise_scale, self.objective.size, bits)
        answer = self.minimum(rows, linear)
        if self.radial:
            noise = radial_vector(self.output_noise_scale, answer.size, bits)
            return self.rows.unscaled(answer + noise)
        noisy = with_gaussian(
            answer,
            sensitivity=2 * self.tolerance / self.ridge,
            noise_scale=self.output_noise_scale,
            bits=bits,
        )
        return self.rows.unscaled(noisy)

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


def solver_tolerance(ridge: float, n_rows: int) -> float:
    """Return a public norm of the gradient: tiny, but above the rounding of sums."""
    return 1e-8 * ridge + 1e-12 * n_rows


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
            l2_sum=max(problem.linear.l2 * problem.n_rows, _LEAST),
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
        ridge = max(problem.linear.l2 * problem.n_rows, exact.strong_convexity)
        return self._with_gaussians(budget, problem, exact, ridge)


@dataclass(frozen=True, kw_only=True)
class ObjPertPure(ObjPert):
    """The pure form (Chaudhuri et al. 2011): delta is not used.

    The noise on the answer has a Gamma norm as well, so that the whole stays pure.
    """

    method: ClassVar[str] = "objpert-pure"
    radial: ClassVar[bool] = True

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
