# SPDX-License-Identifier: Apache-2.0
"""The automatic method: a private line search with nothing left to set.

Before the first step it pays for the scale, the mean and the second moments of the
features.  They make the coordinates in which it works: a row x becomes
``z = ((x - center) / radius, constant)`` of norm about one, and a weight vector there
is a linear model of x.  Slopes of the loss are limited to ``clip / ||z||``, so that no
gradient is longer than ``clip``; the slope-clipped loss is convex again and is what the
search compares.

Each step then pays for a gradient and for a search along the preconditioned direction.
For a linear model the Hessian is the mean of ``l'' z z^T``; with ``l''`` taken as a
constant, the second moments precondition all steps and are paid once.  The search
releases three noisy loss drops as one Gaussian: at half, one and two times the last
step each example gives its drop of loss, in units of a public scale that grows with the
step; the three numbers are clipped jointly.  The step changes only when another one
wins by twice the noise of the difference.  The model is the mean of the second half of
the iterates.

All releases are Gaussian, on all rows and known beforehand, so that together they are
one Gaussian of noise multiplier sigma: a release with the share f of ``1/sigma^2`` has
the multiplier ``sigma / sqrt(f)``.  Every other constant is a function of sigma, of the
public number of rows and features, and of nothing else.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from armijo._validate import Count, NonNegative, Positive
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.fixed_point import STEPS
from armijo.data.gate import BatchPlan, PrivateBatch, refuse_unsampleable
from armijo.data.lattice import CenteredRows
from armijo.data.query import BoundedQuery, LatticeSum, OuterProduct, Rows, row_norms
from armijo.methods.base import (
    Method,
    Problem,
    Schedule,
    StepRecord,
    calibrated,
    schedule_of,
    solved,
    with_solved_noise,
)
from armijo.objectives.base import Objective
from armijo.objectives.elementwise import moved
from armijo.objectives.linear import LinearObjective

OCTAVES = 20  # norms are sought within so many doublings of root d, either way
TAIL_PENALTY = 0.5  # SDs a norm must win by for each doubling away from root d
MIN_SNR = 3.5  # SDs by which some count must stand out; else no scale is known
TARGET_SNR = 8.0  # SDs of noise that the count of all rows shall be
MAX_NORM_SHARE = 0.25  # most that norms may take of what the other releases leave
RADIUS_SLACK_SD = 2.0  # SDs of noise that are added to the squared radius
MOST_FEATURES = 1024  # beyond so many the matrix of second moments is not measured
GRID = 1 << 12  # rows are rounded to multiples of 1/GRID for the second moments
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
LARGEST_CLIP = 1e3  # where the clip ends as noise vanishes; it clips nothing there

_PER_OCTAVE = 2
_MIDDLE = OCTAVES * _PER_OCTAVE
_BINS = 2 * _MIDDLE + 1
_BLOCK = 1 << 18  # numbers in a block of rows
_MOST_SLOPE = 0.999  # a logistic slope of one is reached nowhere
_LAST = FACTORS.index(1.0)

Stage = Literal["norm", "center", "moments"]
"""What is released before the first step."""

SlopeLimits = tuple[Tensor, Tensor]
"""The largest slope of each row, and the margin below which its loss is steeper."""


def norm_histogram(objective: LinearObjective) -> BoundedQuery:
    """Ask how many rows have which norm, in half octaves around the root of d.

    A row adds one to one bin, or nothing: neighbors differ by at most one.  The sum
    counts, so it is exact in floating point.
    """
    octaves = (np.arange(_BINS) - _MIDDLE) / _PER_OCTAVE
    ends = math.sqrt(objective.n_features) * np.exp2(octaves)

    def contributions(rows: Rows) -> LatticeSum:
        norms = objective.labelled(rows).lengths()
        norms = norms[np.isfinite(norms) & (norms > 0)]
        places = np.minimum(np.searchsorted(ends, norms), _BINS - 1)
        return LatticeSum(np.bincount(places, minlength=_BINS) * STEPS)

    return BoundedQuery(contributions=contributions, bound=1.0)


def chosen_norm(counts: FloatArray, noise: float, n_features: int) -> float:
    """Return the upper end of the octave that holds most rows, by noisy counts.

    Bins far from root d, where rows of features within one lie at most, must win by
    more than noise would.  Where no count stands out the scale is not known, and the
    answer is the largest of all: in its units rows are nothing, and what is learned is
    the intercept.  A norm too small would drown the intercept instead.
    """
    windows = counts[1:] + counts[:-1]
    ends = np.arange(1, _BINS) - _MIDDLE
    gains = windows - TAIL_PENALTY * noise * (np.abs(ends) / _PER_OCTAVE)
    best = int(np.argmax(gains))
    if gains[best] < MIN_SNR * noise:
        return math.sqrt(n_features) * 2.0**OCTAVES
    return math.sqrt(n_features) * 2.0 ** (float(ends[best]) / _PER_OCTAVE)


def row_sum(objective: LinearObjective, norm: float) -> BoundedQuery:
    """Ask for the sum of the rows, in units of ``norm``; the gate clips longer ones."""

    def contributions(rows: Rows) -> OuterProduct:
        return OuterProduct(
            np.full((rows.size, 1), 1 / norm), objective.labelled(rows).X
        )

    return BoundedQuery(contributions=contributions, bound=1.0)


def square_sum(objective: LinearObjective, norm: float) -> BoundedQuery:
    """Ask for the sum of squared norms, in units of ``norm`` squared."""

    def contributions(rows: Rows) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = objective.labelled(rows).lengths() / norm
            squares = np.where(lengths > 1, 1.0, np.square(lengths))
        squares[~np.isfinite(lengths)] = np.nan  # such a row counts nowhere
        return squares[:, None]

    return BoundedQuery(contributions=contributions, bound=1.0)


def shrunk_mean(noisy_mean: FloatArray, noise: float) -> FloatArray:
    """Return the mean with the noise's part of its length taken away.

    ``noise`` is the standard deviation of each coordinate (James and Stein 1961).
    """
    square = float(noisy_mean @ noisy_mean)
    excess = noisy_mean.size * noise**2
    return noisy_mean * max(0.0, 1 - excess / max(square, 1e-300))


def radius(mean_square: float, center: FloatArray, norm: float, noise: float) -> float:
    """Return the root mean square distance from the center, within [norm/10, norm].

    ``E |x - m|^2 = E |x|^2 - |m|^2`` for the mean m.  ``noise`` is the standard
    deviation of ``mean_square`` in units of ``norm`` squared and of each coordinate of
    the mean in units of ``norm``.  Underestimating the scale leaves standardized rows
    with norm above one, which is worse than the reverse: ``RADIUS_SLACK_SD`` standard
    deviations are added.
    """
    length = float(center @ center)
    spread = noise * norm * math.sqrt(norm**2 + 4 * length)
    square = mean_square - length + RADIUS_SLACK_SD * spread
    return math.sqrt(min(max(square, 0.01 * norm**2), norm**2))


def second_moments(
    objective: LinearObjective, center: FloatArray, radius: float
) -> BoundedQuery:
    """Ask for the sum of ``u u^T`` over centered rows u, clipped to norm one.

    ``||u u^T||_F = ||u||^2 <= 1`` is the sensitivity of the flat matrix.  Coordinates
    are integers over ``GRID``: products and their sums are exact in float64 for up to
    2**28 rows, whatever the order, and a row whose rounded norm exceeds one by float
    error is left out, so the bound holds exactly.
    """
    d = center.size
    # Rounding moves a row by at most sqrt(d)/2 steps of the grid.
    room = max(1 - 0.5 * math.sqrt(d) / GRID, 0.0) * (1 - 1e-12)

    def contributions(rows: Rows) -> LatticeSum:
        rows = objective.labelled(rows)
        view = CenteredRows(rows.X, center)
        norms = rows.cached_for_run(
            ("norms", center.tobytes()), partial(row_norms, view)
        )
        total = np.zeros((d, d))
        height = max(1, _BLOCK // d)
        for start in range(0, rows.size, height):
            part = slice(start, start + height)
            block = _on_grid(view[part], norms[part], room / radius, room)
            total += block.T @ block
        return LatticeSum(total.ravel().astype(np.int64))

    return BoundedQuery(contributions=contributions, bound=1.0)


def _on_grid(
    centered: FloatArray, norms: FloatArray, most: float, room: float
) -> FloatArray:
    """Return clipped rows as integers whose squares add up to GRID^2 at most."""
    with np.errstate(all="ignore"):  # no warning tells of a row
        factor = np.minimum(room / norms, most) * GRID
        steps = np.rint(centered * factor[:, None])
        squares = np.einsum("ij,ij->i", steps, steps)
    steps[~(squares <= float(GRID) ** 2)] = 0.0  # also where it is NaN
    return np.asarray(steps)


def spectrum(noisy_sum: FloatArray, n_rows: float) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and eigenvectors of the noisy mean second moments.

    The matrix is made symmetric, and eigenvalues below zero are noise: both are free.
    """
    d = math.isqrt(noisy_sum.size)
    square = noisy_sum.reshape(d, d) / n_rows
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    return np.maximum(values, 0.0), np.asarray(vectors)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    """Eigenvalues and eigenvectors of the second moments, and the constant feature.

    Attributes
    ----------
    values : array of shape (features,)
        Eigenvalues, none negative.
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
        scaled = self._rotate(weights) / (self.values + damping)
        weights = scaled if self.vectors is None else scaled @ self.vectors.T
        intercepts = intercepts / (self.constant**2 + intercept_damping)
        return torch.from_numpy(np.column_stack([weights, intercepts]))

    def rms_score(self, direction: Tensor) -> float:
        """Return the root mean square of ``z.direction`` over the rows, never zero."""
        weights, intercepts = self._parts(direction)
        square = float((self.values * self._rotate(weights) ** 2).sum())
        square += self.constant**2 * float((intercepts**2).sum())
        return math.sqrt(max(square, 1e-24))

    def _parts(self, blocks: Tensor) -> tuple[FloatArray, FloatArray]:
        """Return weights and intercepts (perhaps none) of each class."""
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

    def gradient_sum(self, w: Tensor) -> BoundedQuery:
        """Ask for the gradient sum of the slope-clipped losses, in units of ``clip``.

        A contribution is ``slope z / clip``, which the gate clips to norm one: that is
        the same as a slope of at most ``clip / ||z||``.
        """

        def contributions(rows: Rows) -> OuterProduct:
            scores, y = self.objective.scores_at(rows, w), self.objective.labels(rows)
            slopes = self.objective.score_gradients(scores, y).numpy()
            slopes = slopes / (self.clip * self.radius)
            view = CenteredRows(rows.X, self.center)
            return OuterProduct(slopes, view, self.constant * self.radius)

        return BoundedQuery(contributions=contributions, bound=1.0)

    def slope_limits(self, rows: Rows) -> SlopeLimits:
        """Return the largest slope of each row, and where its loss reaches it."""

        def compute() -> SlopeLimits:
            slope = torch.from_numpy(np.minimum(self.max_slopes(rows), _MOST_SLOPE))
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
        (slope, clip_margin), margins = limits, scores * y
        clipped = torch.maximum(margins, clip_margin)
        values = self.objective.margin_loss.value(clipped)
        return values.add_((clipped - margins) * slope)

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
        """Return the point with its intercepts set to zero."""
        blocks = point.reshape(self.objective.outputs, -1).clone()
        blocks[:, self.objective.n_features :] = 0.0
        return blocks


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
        frame, scales = self.frame, self.scales

        def contributions(rows: Rows) -> FloatArray:
            y, limits = frame.objective.labels(rows), frame.slope_limits(rows)
            scores = frame.objective.scores_at(rows, w)
            along = frame.objective.scores_of(rows, step)
            before = frame.losses(scores, y, limits)
            after = [
                frame.losses(moved(scores, along, size), y, limits)
                for size in self.sizes
            ]
            drops = torch.stack([before - loss for loss in after], dim=1).numpy()
            return np.asarray(drops / scales)

        return BoundedQuery(contributions=contributions, bound=math.sqrt(len(scales)))

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
class AutoState:
    """Released values: the coordinates, the point in them, and the model of the rows.

    ``values`` and ``vectors`` are the spectrum of the second moments, flat; ``total``
    is the sum of the points of the second half.
    """

    w: Tensor
    batches: int = 0
    norm: float = 0.0
    center: Tensor | None = None
    radius: float = 1.0
    values: Tensor | None = None
    vectors: Tensor | None = None
    point: Tensor | None = None
    total: Tensor | None = None
    step_size: float = FIRST_STEP

    # Vectors that are not as long as the parameters.
    free_shapes = ("center", "values", "vectors", "point", "total")


@dataclass(frozen=True, kw_only=True)
class Auto(Method[AutoState]):
    """Preparation in up to three batches, then steps with a three-point search.

    No setting has to be given.

    Attributes
    ----------
    data_norm : float or None
        Public bound on the norm of a row.  None pays ``norm_share`` for an estimate.
        It sets the noise of the mean only: no row is clipped in the model.
    steps : int
        Number of steps.
    norm_share, center_share, moment_share, search_share : float
        Parts of the budget (of ``1/sigma^2``) for the scale of the rows, their mean,
        their second moments and all searches; the gradients get the rest.  Without a
        share for them there are no second moments, and no searches.  The scale gets
        more, up to a quarter of the rest, where fewer rows would drown in noise.
    first_step : float
        Where the searches begin, from 1 to 32; the step itself where there are none.
    average_iterates : bool
        Whether the model is the mean of the second half, or else the last iterate.
    noise_multiplier, problem : float or None, Problem or None
        Noise of the whole run, and what it was calibrated for.

    Examples
    --------
    >>> objective = LinearObjective(loss="logistic", n_features=100)
    >>> problem = Problem(objective=objective, n_rows=40000)
    >>> method = Auto(noise_multiplier=10.0, problem=problem)
    >>> round(method.clip, 3), round(method.constant, 3)
    (0.849, 0.3)
    """

    data_norm: Positive | None = None
    steps: Count = 30
    norm_share: Positive = 0.01
    center_share: Positive = 0.02
    moment_share: NonNegative = 0.03
    search_share: NonNegative = 0.05
    first_step: Positive = FIRST_STEP
    average_iterates: bool = True
    noise_multiplier: float | None = solved()
    problem: Problem | None = solved()

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = SMALLEST_STEP <= self.first_step <= LARGEST_STEP
        if self.search_share and not inside:
            raise ValueError(
                f"Expected {SMALLEST_STEP:g} <= first_step <= {LARGEST_STEP:g}, got "
                f"{self.first_step!r}; without searches (search_share=0) it may be "
                "any positive number."
            )
        names = ("norm_share", "center_share", "moment_share", "search_share")
        shares = {name: getattr(self, name) for name in names}
        if sum(shares.values()) >= 1:
            raise ValueError(
                f"Expected shares that leave something for the gradients, got {shares},"
                " which add up to one or more."
            )

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget."""
        method = with_solved_noise(replace(self, problem=problem), budget)
        for plan in method.plans():
            refuse_unsampleable(plan)
        return method

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        return calibrated(problem=self.problem).linear

    @property
    def _noise(self) -> float:
        return calibrated(noise_multiplier=self.noise_multiplier)

    @property
    def _n_rows(self) -> int:
        return calibrated(problem=self.problem).n_rows

    @cached_property
    def shares(self) -> dict[str, float]:
        """How ``1/sigma^2`` is split; the gradients get what the others leave.

        All releases are one Gaussian whatever the split, so it may follow the noise:
        the scale of the rows gets more where noise hides few rows.
        """
        norm = 0.0
        if self.data_norm is None:
            readable = (TARGET_SNR * self._noise / self._n_rows) ** 2
            rest = 1.0 - (self.center_share + self.moment_share + self.search_share)
            norm = max(self.norm_share, min(readable, MAX_NORM_SHARE * rest))
        few = self.objective.n_features <= MOST_FEATURES
        moments = self.moment_share if few else 0.0
        return {
            "norm": norm,
            "center": self.center_share,
            "moments": moments,
            "search": self.search_share,
            "gradients": 1.0 - (norm + self.center_share + moments + self.search_share),
        }

    def _released(self, share: float) -> Gaussian:
        """Return the mechanism of a sum of sensitivity one with this share."""
        return Gaussian(noise_scale=self._noise / math.sqrt(share))

    @property
    def _gradient(self) -> Gaussian:
        return self._released(self.shares["gradients"] / self.steps)

    def _search(self, update: int) -> Gaussian:
        """Return the search of one step, of three drops in units of their clip.

        Every doubling of the number of steps gets the same share: the first searches
        find the step, the later ones follow it.
        """
        octave = int(math.log2(update + 1))
        octaves = int(math.log2(self.steps)) + 1
        length = min(2**octave, self.steps + 1 - 2**octave)
        share = self.search_share / (octaves * length)
        root = math.sqrt(len(FACTORS))
        return Gaussian(
            noise_scale=root * self._noise / math.sqrt(share), sensitivity=root
        )

    @cached_property
    def clip(self) -> float:
        """The clip of a standardized gradient, where an average row has norm one.

        A small clip has little noise and more bias: fourth root of rows over noise.
        """
        if self._noise == 0:
            return LARGEST_CLIP
        root = (1e-3 * self._n_rows / self._noise) ** 0.25
        return min(max(0.6 * root, 0.5), LARGEST_CLIP)

    @cached_property
    def constant(self) -> float:
        """The constant feature: larger under noise, when the intercept is worth more.

        Zero without an intercept.
        """
        if not self.objective.fit_intercept:
            return 0.0
        return min(max(30 * self._noise * self.clip / self._n_rows, 0.3), 1.0)

    def _held_back(self, most: float) -> float:
        """Return the damping under which noise moves a weight by at most ``most``.

        Steps of size ``FIRST_STEP / damping`` add up to ``FIRST_STEP steps / damping``
        times the noise that is left in the mean of the gradients of all steps.
        """
        root = math.sqrt(self.shares["gradients"])
        mean_noise = self._noise * self.clip / (self._n_rows * root)
        shrink = 1 + mean_noise / SMALL_NOISE
        return FIRST_STEP * self.steps * mean_noise / most * shrink

    @cached_property
    def damping(self) -> float:
        """What is added to the second moments before they are inverted."""
        d = self.objective.n_features
        damping = max(self._held_back(SCORE_NOISE / math.sqrt(d)), SMALLEST_DAMPING)
        if not self.shares["moments"]:
            return damping
        noise = self._released(self.shares["moments"]).noise_scale / self._n_rows
        return max(damping, MOMENT_FLOOR * noise * math.sqrt(2 * d))

    @cached_property
    def intercept_damping(self) -> float:
        """What is added to the squared constant feature for the intercept's step."""
        noise = self._held_back(INTERCEPT_NOISE / max(self.constant, 1e-12))
        return max(INTERCEPT_DAMPING * self.constant**2, noise)

    def init(self, w: Tensor) -> AutoState:
        """Return the first state."""
        return AutoState(w=w, norm=self.data_norm or 0.0, step_size=self.first_step)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        norm: tuple[Stage, ...] = () if self.data_norm else ("norm",)
        moments: tuple[Stage, ...] = ("moments",) if self.shares["moments"] else ()
        return (*norm, "center", *moments)

    def _mechanisms(self, batch: int) -> tuple[Gaussian, ...]:
        if batch >= len(self._stages):
            if not self.search_share:
                return (self._gradient,)
            return self._gradient, self._search(batch - len(self._stages))
        stage = self._stages[batch]
        if stage == "center" and self.objective.fit_intercept:
            half = self._released(0.5 * self.center_share)
            return half, half
        return (self._released(self.shares[stage]),)

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        return schedule_of(self.plans())

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plans of all batches in their order."""
        count = len(self._stages) + self.steps
        return (BatchPlan(mechanisms=self._mechanisms(i)) for i in range(count))

    def plan(self, state: AutoState) -> BatchPlan:
        """Name the releases of the next batch; past the end, one that is refused."""
        last = len(self._stages) + self.steps - 1
        return BatchPlan(mechanisms=self._mechanisms(min(state.batches, last)))

    def step(
        self, batch: PrivateBatch, objective: Objective, state: AutoState
    ) -> tuple[AutoState, StepRecord]:
        """Prepare, or make a step."""
        used = self._mechanisms(state.batches)
        if state.batches < len(self._stages):
            stage = self._stages[state.batches]
            new = self._prepared(stage, batch, state, used, batch.expected_size)
            record = StepRecord(update=0, gradients=0)
        else:
            new, record = self._moved(batch, state, used, batch.expected_size)
        return replace(new, batches=state.batches + 1), record

    def _prepared(
        self,
        stage: Stage,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> AutoState:
        objective = self.objective
        if stage == "norm":
            counts = batch.noisy_sum(norm_histogram(objective), used[0])
            noise = used[0].noise_scale
            norm = chosen_norm(counts, noise, objective.n_features)
            return replace(state, norm=norm)
        if stage == "center":
            return self._centered(batch, state, used, batch_size)
        center = calibrated(center=state.center).numpy()
        query = second_moments(objective, center, state.radius)
        values, vectors = spectrum(batch.noisy_sum(query, used[0]), batch_size)
        return replace(
            state,
            values=torch.from_numpy(values),
            vectors=torch.from_numpy(vectors.reshape(-1)),
        )

    def _centered(
        self,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> AutoState:
        """Release center and radius; without an intercept the center is zero."""
        norm, scale = state.norm, used[0].noise_scale / batch_size
        squares = batch.noisy_sum(square_sum(self.objective, norm), used[0])
        square = float(squares[0]) / batch_size
        center = np.zeros(self.objective.n_features)
        if len(used) == 2:
            noisy_sum = batch.noisy_sum(row_sum(self.objective, norm), used[1])
            center = shrunk_mean(noisy_sum * (norm / batch_size), scale * norm)
        distance = radius(square * norm**2, center, norm, scale)
        return replace(state, center=torch.from_numpy(center), radius=distance)

    def _curvature(self, state: AutoState) -> Curvature:
        """Return the released second moments, or equal ones of trace one."""
        d = self.objective.n_features
        values, vectors = np.full(d, 1 / d), None
        if state.values is not None and state.vectors is not None:
            values = state.values.numpy()
            vectors = state.vectors.numpy().reshape(d, d)
        return Curvature(values=values, vectors=vectors, constant=self.constant)

    def _moved(
        self,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> tuple[AutoState, StepRecord]:
        """Release a gradient and three drops, and move by the step they choose."""
        frame = Standardization(
            objective=self.objective,
            center=calibrated(center=state.center).numpy(),
            radius=state.radius,
            constant=self.constant,
            clip=self.clip,
        )
        curvature = self._curvature(state)
        point = torch.zeros_like(state.w) if state.point is None else state.point
        w = frame.model(point)
        noisy_sum = batch.noisy_sum(frame.gradient_sum(w), used[0])
        g = torch.from_numpy(noisy_sum * (frame.clip / batch_size))
        g = (g + frame.penalty_gradient(point)).reshape(self.objective.outputs, -1)
        # A step of eight must not overshoot the penalty's own minimum.
        damping = self.damping + 4 * frame.curvature
        blocks = curvature.direction(g, damping, self.intercept_damping)
        points = ThreePoints(
            frame=frame,
            sizes=tuple(factor * state.step_size for factor in FACTORS),
            rms_score=curvature.rms_score(blocks),
        )
        direction, step_size = blocks.reshape(-1), state.step_size
        for search in used[1:]:
            drops = batch.noisy_sum(points.query(w, frame.model(direction)), search)
            falls = points.penalty_falls(point, direction)
            step_size = points.chosen(drops, search.noise_scale, batch_size, falls)
            step_size = min(max(step_size, SMALLEST_STEP), LARGEST_STEP)
        new = self._averaged(state, frame, point - step_size * direction)
        record = StepRecord(
            update=state.batches - len(self._stages),
            step_size=step_size,
            tries=(len(FACTORS) + 1) * len(used[1:]),
            direction_norm=float(direction.norm()),
            gradient_rho=used[0].rho,
            max_grad_norm=frame.clip,
        )
        return replace(new, step_size=step_size), record

    def _averaged(
        self, state: AutoState, frame: Standardization, point: Tensor
    ) -> AutoState:
        """Return the state at a new point, its model averaged over the second half."""
        done = state.batches - len(self._stages) + 1
        first = self.steps // 2
        if done <= first or not self.average_iterates:
            return replace(state, point=point, w=frame.model(point))
        total = point if state.total is None else state.total + point
        mean = total / (done - first)
        return replace(state, point=point, total=total, w=frame.model(mean))
