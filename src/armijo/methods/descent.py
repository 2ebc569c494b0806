# SPDX-License-Identifier: Apache-2.0
"""Preconditioned steps with a three-point search, in standardized coordinates.

A row x becomes ``z = ((x - center) / radius, constant)`` of norm about one, and a
weight vector there is a linear model of x.  Slopes of the loss are limited to
``clip / ||z||``, so that no gradient is longer than ``clip``; the slope-clipped loss is
convex again and is what the search compares.

Each step pays for a gradient and for a search along the preconditioned direction.  For
a linear model the Hessian is the mean of ``l'' z z^T``; with ``l''`` taken as a
constant, the second moments precondition all steps and are paid once.  The search
releases three noisy loss drops as one Gaussian: at half, one and two times the last
step each example gives its drop of loss, in units of a public scale that grows with the
step; the three numbers are clipped jointly.  The step changes only when another one
wins by twice the noise of the difference.

All releases are Gaussian, on all rows and known beforehand, so that together they are
one Gaussian of noise multiplier sigma: a release with the share f of ``1/sigma^2`` has
the multiplier ``sigma / sqrt(f)`` (Dong, Roth and Su 2022: the squared reciprocals
add).
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.data.integer_rows import (
    moment_sum,
    multiplier,
    product_sum,
    vector_sum,
)
from armijo.data.lattice import CenteredRows
from armijo.data.query import (
    BoundedQuery,
    CertifiedSum,
    Contributions,
    OuterProduct,
    Rows,
)
from armijo.methods.base import StepRecord
from armijo.objectives.elementwise import moved
from armijo.objectives.linear import LinearObjective

FIRST_STEP = 8.0  # along the preconditioned direction: twice Newton's at zero weights
SMALLEST_STEP, LARGEST_STEP = FIRST_STEP / 8, FIRST_STEP * 4  # where the search stops
FACTORS = (0.5, 1.0, 2.0)  # candidates, in units of the last step
DROP_ROOM = 2.0  # scale of a drop: so many times what an average row's can be
SIGNIFICANCE = 2.0  # SDs by which another step must win
SCORE_NOISE = 16.0  # noise all steps together may leave in a weight, times root d
INTERCEPT_NOISE = 4.0  # the same for the intercept
# Damping of the intercept's step, in squares of the constant feature.  A hinge whose
# features say little has all its kinks in one place, where full steps of the intercept
# jump back and forth.
INTERCEPT_DAMPING = 2.0
SMALL_NOISE = 0.004  # of the mean gradient; beyond it weights are held back further
MOMENT_FLOOR = 0.5  # least damping, in spectral norms of the noise in the moments
SMALLEST_DAMPING = 1e-6  # least damping of all, where there is no noise
MOST_EVIDENCE = 1e9  # where there is no noise
LARGEST_CLIP = 1e3  # where the clip ends as noise vanishes; it clips nothing there

_LAST = FACTORS.index(1.0)

SlopeLimits = tuple[Tensor, Tensor]
"""The largest slope of each row, and the margin below which its loss is steeper."""


def spectrum(noisy_sum: FloatArray, n_rows: float) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and eigenvectors of the noisy mean second moments.

    The matrix is made symmetric, which is free; eigenvalues below zero are noise.
    """
    d = math.isqrt(noisy_sum.size)
    square = noisy_sum.reshape(d, d) / n_rows
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    return np.asarray(values), np.asarray(vectors)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    """Eigenvalues and eigenvectors of the second moments, and the constant feature.

    Attributes
    ----------
    values : array of shape (features,)
        Eigenvalues, as released.
    vectors : array of shape (features, features) or None
        Eigenvectors in columns; None is the identity.
    constant : float
        The constant feature, whose second moment is its square.
    """

    values: FloatArray
    vectors: FloatArray | None
    constant: float

    def direction(self, g: Tensor, damping: float, intercept_damping: float) -> Tensor:
        """Return ``(A + damping I)^-1 g`` for the weights of each class.

        The intercept is divided by its own second moment and damping.
        """
        weights, intercepts = self._parts(g)
        scaled = self._rotate(weights) / (self._curvatures + damping)
        weights = scaled if self.vectors is None else scaled @ self.vectors.T
        intercepts = intercepts / (self.constant**2 + intercept_damping)
        return torch.from_numpy(np.column_stack([weights, intercepts]))

    def rms_score(self, direction: Tensor) -> float:
        """Return the root mean square of ``z.direction`` over the rows, never zero."""
        weights, intercepts = self._parts(direction)
        square = float((self._curvatures * self._rotate(weights) ** 2).sum())
        square += self.constant**2 * float((intercepts**2).sum())
        return math.sqrt(max(square, 1e-24))

    def evidence(self, g: Tensor, noise: float) -> float:
        """Compare squares of a released gradient with what noise alone would give.

        Squares along the eigenvectors, in units of the noise, are weighted by the
        eigenvalues: signal lies where features vary.  Under noise alone each has mean
        one and variance two.
        """
        if noise == 0:
            return MOST_EVIDENCE
        squares = (self._rotate(self._parts(g)[0]) / noise) ** 2
        values = np.maximum(self._curvatures, 1e-12)
        spread = math.sqrt(2 * len(squares) * float((values**2).sum()))
        return min(float((values * (squares - 1)).sum()) / spread, MOST_EVIDENCE)

    @property
    def _curvatures(self) -> FloatArray:
        """The eigenvalues without those below zero, which are noise."""
        return np.maximum(self.values, 0.0)

    def _parts(self, blocks: Tensor) -> tuple[FloatArray, FloatArray]:
        table, d = blocks.numpy(), self.values.size
        return table[:, :d], table[:, d:]

    def _rotate(self, weights: FloatArray) -> FloatArray:
        return weights if self.vectors is None else np.asarray(weights @ self.vectors)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardization:
    """Public coordinates, from released values only.

    Attributes
    ----------
    objective : LinearObjective
        The losses.
    center : array of shape (features,)
        The released mean, zero without an intercept.
    radius : float
        The released root mean square distance from it.
    constant, clip : float
        Constant feature (zero without an intercept) and clip of a gradient.
    """

    objective: LinearObjective
    center: FloatArray
    radius: float
    constant: float
    clip: float

    def model(self, point: Tensor) -> Tensor:
        """Return standardized weights as weights (and intercept) of the rows.

        ``v.(x - m)/r + c v0 = (v/r).x + (c v0 - m.v/r)``.
        """
        d = self.objective.n_features
        blocks = point.reshape(self.objective.outputs, -1)
        weights = blocks[:, :d] / self.radius
        if not self.objective.fit_intercept:
            return weights.reshape(-1)
        center = torch.from_numpy(np.asarray(self.center))
        intercept = self.constant * blocks[:, d] - weights @ center
        return torch.cat([weights, intercept[:, None]], dim=1).reshape(-1)

    def view(self, rows: Rows) -> Rows:
        """Return the rows that queries see."""
        return rows

    def weighted(self, rows: Rows, vectors: FloatArray, bound: float) -> Contributions:
        """Return a vector for each row, for the gate to clip to the bound."""
        return vectors

    def gradient_sum(self, w: Tensor) -> BoundedQuery:
        """Ask for the gradient sum of the slope-clipped losses, in units of ``clip``.

        A contribution is ``slope z / clip``, which the gate clips to norm one: that is
        the same as a slope of at most ``clip / ||z||``.
        """
        return BoundedQuery(contributions=partial(self._gradients, w), bound=1.0)

    def _gradients(self, w: Tensor, rows: Rows) -> Contributions:
        """Return each row's gradient in units of ``clip``."""
        rows = self.view(rows)
        scores, y = self.objective.scores_at(rows, w), self.objective.labels(rows)
        slopes = self.objective.score_gradients(scores, y).numpy()
        view = CenteredRows(rows.X, self.center)
        slopes = slopes / (self.clip * self.radius)
        return OuterProduct(slopes, view, self.constant * self.radius)

    def slope_limits(self, rows: Rows) -> SlopeLimits:
        """Return the largest slope of each row, and where its loss reaches it."""

        def compute() -> SlopeLimits:
            most = self.objective.most_slope
            slope = torch.from_numpy(np.minimum(self.max_slopes(rows), most))
            if self.objective.outputs > 1:  # softmax has no margin, and no limit
                return slope, torch.ones_like(slope)
            return slope, self.objective.margin_loss.margin_at(slope)

        scales = (self.radius, self.constant, self.clip)
        return rows.cached_for_run(("limits", *scales, self.center.tobytes()), compute)

    def max_slopes(self, rows: Rows) -> FloatArray:
        """Return the largest slope that each row may have, ``clip / ||z||``.

        By ``|x - m|^2 = |x|^2 - 2 x.m + |m|^2``, without a pass over centered rows;
        rounding may shift a slope, which no bound depends on.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            product = rows.product(self.center[:, None])[:, 0]
            squares = np.square(rows.lengths()) - 2.0 * product
            squares += float(self.center @ self.center)
            squares = np.maximum(squares, 0.0) / self.radius**2
            slopes = self.clip / np.sqrt(squares + self.constant**2)
        return np.asarray(slopes, dtype=np.float64)

    def losses(self, scores: Tensor, y: Tensor, limits: SlopeLimits) -> Tensor:
        """Return losses, continued by a line where the slope reaches its limit.

        With more than two classes losses are as they are.
        """
        if self.objective.outputs > 1:
            return self.objective.losses(scores, y)
        return self.objective.continued(scores, y, *limits)

    def penalty(self, point: Tensor) -> float:
        """Return ``l2/2`` times the squared weights of features of variance one.

        Features are taken as scaled to mean variance one, the same for all: whatever
        the unit of the table, the penalty is the same.  The intercept has none.
        """
        weights = self._weights(point)
        return 0.5 * self.curvature * float((weights * weights).sum())

    def penalty_gradient(self, point: Tensor) -> Tensor:
        """Return the gradient of the penalty in these coordinates."""
        return self.curvature * self._weights(point).reshape(-1)

    @property
    def curvature(self) -> float:
        """The penalty's second derivative: variance one is radius root d."""
        return self.objective.l2 / self.objective.n_features

    def _weights(self, point: Tensor) -> Tensor:
        blocks = point.reshape(self.objective.outputs, -1).clone()
        blocks[:, self.objective.n_features :] = 0.0
        return blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerSpace(Standardization):
    """Coordinates in which rows are centered features on one public lattice.

    ``view`` makes :class:`armijo.data.integer_rows.IntegerRows` of the rows.
    """

    def weighted(self, rows: Rows, vectors: FloatArray, bound: float) -> CertifiedSum:
        """Return the sum of vectors, clipped and multiplied by the rows' weights."""
        return vector_sum(vectors, rows.X.weight, bound)

    def _gradients(self, w: Tensor, rows: Rows) -> Contributions:
        """Return each row's gradient in units of ``clip``, by one pass.

        Scores are kept for the search.
        """
        rows, objective = self.view(rows), self.objective
        y, scores_of = objective.labels(rows), objective.scorer(w, multiplier)
        # A column for each output; one output has a vector.
        scores = torch.empty(len(y), objective.outputs, dtype=torch.float64).squeeze(1)

        def slopes(part: slice, block: FloatArray) -> FloatArray:
            scores[part] = scores_of(block)
            if part.stop >= len(y):  # the last part: all are known now
                rows.cached("scores", lambda: scores, w)
            found = objective.score_gradients(scores[part], y[part]).numpy()
            return np.asarray(found / (self.clip * self.radius))

        constant = self.constant * self.radius
        return product_sum(slopes, objective.outputs, rows.X, constant, 1.0)

    def max_slopes(self, rows: Rows) -> FloatArray:
        """Return the largest slope that each row may have, ``clip / ||z||``."""
        lengths = rows.X.lengths(self.constant * self.radius)
        with np.errstate(divide="ignore"):
            return np.asarray(self.clip * self.radius / lengths)

    def second_moments(self) -> BoundedQuery:
        """Ask for the sum of ``u u^T`` over rows u, clipped to norm one."""
        return BoundedQuery(contributions=self._moments, bound=1.0)

    def _moments(self, rows: Rows) -> Contributions:
        return moment_sum(self.view(rows).X, self.radius)


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreePoints:
    """One search along ``-direction`` from a standardized point.

    Attributes
    ----------
    frame : Standardization
        Coordinates and losses.
    sizes : tuple of float
        The candidate steps.
    rms_score : float
        Released estimate of the root mean square change of a score for step one.
    """

    frame: Standardization
    sizes: tuple[float, ...]
    rms_score: float

    @property
    def scales(self) -> FloatArray:
        """What each drop is divided by: step times score change times slope."""
        slope = min(self.frame.clip / math.hypot(1.0, self.frame.constant), 1.0)
        return DROP_ROOM * slope * self.rms_score * np.array(self.sizes)

    def query(self, w: Tensor, step: Tensor) -> BoundedQuery:
        """Ask for the scaled drops at ``w - size step``, models of the rows.

        One example gives a vector of as many drops as candidates, which the gate
        clips to norm ``sqrt(candidates)``: that is the sensitivity.
        """
        drops = partial(self._drops, w, step)
        return BoundedQuery(contributions=drops, bound=math.sqrt(len(self.sizes)))

    def _drops(self, w: Tensor, step: Tensor, rows: Rows) -> Contributions:
        """Return each row's drops, in units of their scales."""
        frame, scales = self.frame, self.scales
        rows = frame.view(rows)
        y, limits = frame.objective.labels(rows), frame.slope_limits(rows)
        scores = frame.objective.scores_at(rows, w)
        along = frame.objective.scores_of(rows, step)
        before = frame.losses(scores, y, limits)
        after = [
            frame.losses(moved(scores, along, size), y, limits) for size in self.sizes
        ]
        drops = torch.stack([before - loss for loss in after], dim=1).numpy()
        bound = math.sqrt(len(scales))
        return frame.weighted(rows, np.asarray(drops / scales), bound)

    def penalty_falls(self, point: Tensor, direction: Tensor) -> FloatArray:
        """Return by how much each candidate lowers the penalty, which is public."""
        after = [self.frame.penalty(point - size * direction) for size in self.sizes]
        return self.frame.penalty(point) - np.array(after)

    def chosen(
        self,
        noisy_sum: FloatArray,
        noise: float,
        batch_size: float,
        penalty: FloatArray,
    ) -> float:
        """Return the step: the last one unless another wins clearly.

        ``noise`` is the standard deviation of each released sum, ``penalty`` what the
        penalty falls by for each candidate.
        """
        drops = noisy_sum * self.scales / batch_size + penalty
        spread = noise * self.scales / batch_size
        best = _LAST
        for k in range(len(drops)):
            gain = drops[k] - drops[_LAST]
            clear = gain > SIGNIFICANCE * math.hypot(spread[k], spread[_LAST])
            if k != _LAST and clear and drops[k] > drops[best]:
                best = k
        return self.sizes[best]


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Noise of the steps, and the public numbers that follow from it.

    Attributes
    ----------
    noise : float
        Noise multiplier of the whole run.
    n_rows, n_features : int
        Public sizes.
    steps : int
        Number of steps.
    gradients, moments, searches : float
        Shares of ``1/sigma^2`` for all gradients, the second moments, all searches.
    intercept : bool
        Whether there is a constant feature.
    caution : float
        What the damping is multiplied by.
    most_noise : float
        The most noise that all steps together may leave in the score of a row.
    least_damping : float
        The least damping, however small the noise.
    slope : float
        Size of the loss's usual slopes, in those of a logistic loss.
    """

    noise: float
    n_rows: int
    n_features: int
    steps: int
    gradients: float
    moments: float
    searches: float
    intercept: bool = True
    caution: float = 1.0
    most_noise: float = math.inf
    least_damping: float = SMALLEST_DAMPING
    slope: float = 1.0

    def released(self, share: float, sensitivity: float = 1.0) -> Gaussian:
        """Return the mechanism of a sum with this share."""
        return Gaussian(
            noise_scale=sensitivity * self.noise / math.sqrt(share),
            sensitivity=sensitivity,
        )

    @property
    def gradient(self) -> Gaussian:
        """The release of one gradient, in units of the clip."""
        return self.released(self.gradients / self.steps)

    def search(self, update: int) -> Gaussian:
        """Return the search of one step, of three drops in units of their clip.

        Every doubling of the number of steps gets the same share: the first searches
        find the step, the later ones follow it.
        """
        octave = int(math.log2(update + 1))
        octaves = int(math.log2(self.steps)) + 1
        length = min(2**octave, self.steps + 1 - 2**octave)
        share = self.searches / (octaves * length)
        return self.released(share, math.sqrt(len(FACTORS)))

    def releases(self, update: int) -> tuple[Gaussian, ...]:
        """Return the releases of one step."""
        if not self.searches:
            return (self.gradient,)
        return self.gradient, self.search(update)

    @cached_property
    def clip(self) -> float:
        """The clip of a standardized gradient, where an average row has norm one.

        A small clip has little noise and more bias: fourth root of rows over noise.
        """
        if self.noise == 0:
            return LARGEST_CLIP
        root = (1e-3 * self.n_rows / self.noise) ** 0.25
        return min(self.slope * max(0.6 * root, 0.5), LARGEST_CLIP)

    @cached_property
    def constant(self) -> float:
        """The constant feature: larger under noise, when the intercept is worth more.

        Zero without an intercept.
        """
        if not self.intercept:
            return 0.0
        return min(max(30 * self.noise * self.clip / self.n_rows, 0.3), 1.0)

    def _held_back(self, most: float) -> float:
        """Return the damping under which noise moves a weight by at most ``most``.

        Steps of size ``FIRST_STEP / damping`` add up to ``FIRST_STEP steps / damping``
        times the noise that is left in the mean of the gradients of all steps.
        """
        root = math.sqrt(self.gradients)
        mean_noise = self.noise * self.clip / (self.n_rows * root)
        shrink = 1 + mean_noise / SMALL_NOISE
        return FIRST_STEP * self.steps * mean_noise / most * shrink

    @cached_property
    def damping(self) -> float:
        """What is added to the second moments before they are inverted."""
        d = self.n_features
        most = min(SCORE_NOISE / math.sqrt(d), self.most_noise)
        damping = max(self._held_back(most) * self.caution, self.least_damping)
        if not self.moments:
            return damping
        noise = self.released(self.moments).noise_scale / self.n_rows
        return max(damping, MOMENT_FLOOR * noise * math.sqrt(2 * d))

    @cached_property
    def intercept_damping(self) -> float:
        """What is added to the squared constant feature for the intercept's step."""
        noise = self._held_back(INTERCEPT_NOISE / max(self.constant, 1e-12))
        return max(INTERCEPT_DAMPING * self.constant**2, noise)


@dataclass(frozen=True)
class StepTaken:
    """A step that was made, in released values.

    ``evidence`` says by how many standard deviations the released gradient exceeds
    noise alone.
    """

    point: Tensor
    step_size: float
    direction_norm: float
    evidence: float

    def record(
        self, update: int, mechanisms: tuple[Gaussian, ...], clip: float
    ) -> StepRecord:
        """Return the released values of the batch."""
        return StepRecord(
            update=update,
            step_size=self.step_size,
            tries=(len(FACTORS) + 1) * len(mechanisms[1:]),
            direction_norm=self.direction_norm,
            gradient_rho=mechanisms[0].rho,
            max_grad_norm=clip,
        )


def take_step(
    batch: PrivateBatch,
    frame: Standardization,
    curvature: Curvature,
    point: Tensor,
    step_size: float,
    mechanisms: tuple[Gaussian, ...],
    damping: tuple[float, float],
    largest: float = LARGEST_STEP,
) -> StepTaken:
    """Release a gradient and three drops, and move by the step they choose.

    ``damping`` is that of the weights and that of the intercept, ``largest`` the
    largest step.
    """
    size = batch.expected_size
    w = frame.model(point)
    noisy_sum = batch.noisy_sum(frame.gradient_sum(w), mechanisms[0])
    g = torch.from_numpy(noisy_sum * (frame.clip / size))
    g = (g + frame.penalty_gradient(point)).reshape(frame.objective.outputs, -1)
    # A step of eight must not overshoot the penalty's own minimum.
    blocks = curvature.direction(g, damping[0] + 4 * frame.curvature, damping[1])
    points = ThreePoints(
        frame=frame,
        sizes=tuple(factor * step_size for factor in FACTORS),
        rms_score=curvature.rms_score(blocks),
    )
    direction = blocks.reshape(-1)
    for search in mechanisms[1:]:
        drops = batch.noisy_sum(points.query(w, frame.model(direction)), search)
        falls = points.penalty_falls(point, direction)
        step_size = points.chosen(drops, search.noise_scale, size, falls)
        step_size = min(max(step_size, SMALLEST_STEP), largest)
    new = point - step_size * direction
    blocks = torch.from_numpy(noisy_sum).reshape(frame.objective.outputs, -1)
    evidence = curvature.evidence(blocks, mechanisms[0].noise_scale)
    return StepTaken(new, step_size, float(direction.norm()), evidence)
