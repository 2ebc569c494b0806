# SPDX-License-Identifier: Apache-2.0
"""What the automatic method asks about the rows, and how it reads the answers.

Before the first step: how long rows are, their mean and mean square norm, and the
second moments of the centered rows.  Each contributes at most one to the norm of its
sum.

The frame in which it works has centered rows of norm about one.  A row x becomes
``z = ((x - center) / radius, constant)``; a weight vector of the frame is a linear
model of x.  Slopes of the loss are limited to ``clip / ||z||``, so that no gradient is
longer than ``clip``; the loss with limited slopes is convex again and is what the
search compares.

For a linear model the Hessian is the mean of ``l'' z z^T``; with ``l''`` taken as a
constant, the second moments precondition all steps and are paid once.

The search releases three noisy loss drops as one Gaussian.  At half, one and two times
the last step each example gives its drop of loss, in units of a public scale that grows
with the step; the three numbers are clipped jointly.  The step changes only when
another one wins by twice the noise of the difference.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from armijo.accounting.budget import FloatArray
from armijo.data.centered_rows import CenteredRows
from armijo.data.fixed_point import STEPS
from armijo.data.query import BoundedQuery, LatticeSum, OuterProduct, Rows, row_norms
from armijo.objectives.elementwise import moved
from armijo.objectives.linear import LinearObjective

OCTAVES = 20
"""Norms are sought within so many doublings of the root of d, either way."""

_PER_OCTAVE = 2
_MIDDLE = OCTAVES * _PER_OCTAVE
_BINS = 2 * _MIDDLE + 1
TAIL_PENALTY = 0.5
"""Standard deviations a norm must win by for each doubling away from root d."""

MIN_SNR = 3.5
"""Standard deviations by which some count must stand out; else no scale is known."""

RADIUS_SLACK_SD = 2.0
"""Standard deviations of noise that are added to the squared radius."""

GRID = 1 << 12
"""Rows are rounded to multiples of 1/GRID for the second moments."""

_BLOCK = 1 << 18  # numbers in a block of rows

Sight = Callable[[Rows], Rows]
"""How the objective sees the rows of a batch: which of them it leaves out."""


def _as_they_are(rows: Rows) -> Rows:
    return rows


def norm_histogram(n_features: int, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask how many rows have which norm, in half octaves around the root of d.

    A row adds one to one bin, or nothing: neighbors differ by at most one.  The sum
    counts, so it is exact in floating point.
    """
    octaves = (np.arange(_BINS) - _MIDDLE) / _PER_OCTAVE
    ends = math.sqrt(n_features) * np.exp2(octaves)

    def contributions(rows: Rows) -> LatticeSum:
        norms = sight(rows).lengths()
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
    far = np.abs(ends) / _PER_OCTAVE
    gains = windows - TAIL_PENALTY * noise * far
    best = int(np.argmax(gains))
    if gains[best] < MIN_SNR * noise:
        return math.sqrt(n_features) * 2.0**OCTAVES
    return math.sqrt(n_features) * 2.0 ** (float(ends[best]) / _PER_OCTAVE)


def row_sum(norm: float, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask for the sum of the rows, in units of ``norm``; the gate clips longer ones."""

    def contributions(rows: Rows) -> OuterProduct:
        return OuterProduct(np.full((rows.size, 1), 1 / norm), sight(rows).X)

    return BoundedQuery(contributions=contributions, bound=1.0)


def square_sum(norm: float, sight: Sight = _as_they_are) -> BoundedQuery:
    """Ask for the sum of squared norms, in units of ``norm`` squared."""

    def contributions(rows: Rows) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = sight(rows).lengths() / norm
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
    the mean in units of ``norm``.  A frame that is too small is worse than one that is
    too large, since rows are long in it: ``RADIUS_SLACK_SD`` standard deviations
    are added.
    """
    length = float(center @ center)
    spread = noise * norm * math.sqrt(norm**2 + 4 * length)
    square = mean_square - length + RADIUS_SLACK_SD * spread
    return math.sqrt(min(max(square, 0.01 * norm**2), norm**2))


def second_moments(
    center: FloatArray, radius: float, sight: Sight = _as_they_are
) -> BoundedQuery:
    """Ask for the sum of ``u u^T`` over centered rows u, clipped to norm one.

    ``||u u^T||_F = ||u||^2 <= 1`` is the sensitivity of the flat matrix.  Coordinates
    are integers over ``GRID``: products and their sums are exact in float64 for up to
    2**28 rows, whatever the order, and a row whose rounded norm exceeds one by float
    error is left out, so the bound holds exactly.
    """
    # Rounding moves a row by at most sqrt(d)/2 steps of the grid.
    room = max(1 - 0.5 * math.sqrt(center.size) / GRID, 0.0) * (1 - 1e-12)

    def contributions(rows: Rows) -> LatticeSum:
        rows = sight(rows)
        view = CenteredRows(rows.X, center)
        norms = rows.keep(("norms", center.tobytes()), partial(row_norms, view))
        d = center.size
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
    bad = ~(squares <= float(GRID) ** 2)  # also where it is no number
    steps[bad] = 0.0
    return np.asarray(steps)


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
        turned = self._turned(weights) / (self.values + damping)
        weights = turned if self.vectors is None else turned @ self.vectors.T
        intercepts = intercepts / (self.constant**2 + intercept_damping)
        return torch.from_numpy(np.column_stack([weights, intercepts]))

    def rms_score(self, direction: Tensor) -> float:
        """Return the root mean square of ``z.direction`` over the rows, never zero."""
        weights, intercepts = self._parts(direction)
        square = float((self.values * self._turned(weights) ** 2).sum())
        square += self.constant**2 * float((intercepts**2).sum())
        return math.sqrt(max(square, 1e-24))

    def _parts(self, blocks: Tensor) -> tuple[FloatArray, FloatArray]:
        """Return weights and intercepts (perhaps none) of each class."""
        table, d = blocks.numpy(), self.values.size
        return table[:, :d], table[:, d:]

    def _turned(self, weights: FloatArray) -> FloatArray:
        return weights if self.vectors is None else np.asarray(weights @ self.vectors)


def spectrum(noisy_sum: FloatArray, n_rows: float) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and eigenvectors of the noisy mean second moments.

    The matrix is made symmetric, and eigenvalues below zero are noise: both are free.
    """
    d = math.isqrt(noisy_sum.size)
    square = noisy_sum.reshape(d, d) / n_rows
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    return np.maximum(values, 0.0), np.asarray(vectors)


Limits = tuple[Tensor, Tensor]
"""The largest slope of each row, and the margin below which its loss is steeper."""

_MOST_SLOPE = 0.999  # a logistic slope of one is reached nowhere


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
        """Return weights of the frame as weights (and intercept) of the rows.

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
        """Ask for the gradient sum of the limited losses, in units of ``clip``.

        A contribution is ``slope z / clip``, which the gate clips to norm one: that is
        the same as a slope of at most ``clip / ||z||``.
        """

        def contributions(rows: Rows) -> OuterProduct:
            scores, y = self.here(rows, w)
            slopes = self.objective.score_gradients(scores, y).numpy()
            slopes = slopes / (self.clip * self.radius)
            view = CenteredRows(rows.X, self.center)
            return OuterProduct(slopes, view, self.constant * self.radius)

        return BoundedQuery(contributions=contributions, bound=1.0)

    def here(self, rows: Rows, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and labels, once for each batch and point."""
        held = rows.cache.get("auto")
        if held is None or held[0] is not w:
            scores = self.objective.scores_of(rows, w)
            held = (w, scores, self.objective.labels(rows))
            rows.cache["auto"] = held
        return held[1], held[2]

    def limits(self, rows: Rows) -> Limits:
        """Return the largest slope of each row, and where its loss reaches it."""
        scales = (self.radius, self.constant, self.clip)
        name = ("limits", *scales, self.center.tobytes())
        return rows.keep(name, lambda: self._bend(self.slopes(rows)))

    def _bend(self, slopes: FloatArray) -> Limits:
        """Return slopes that a loss reaches, and the margins at which it does."""
        slope = torch.from_numpy(np.minimum(slopes, _MOST_SLOPE))
        return slope, self._margin_at(slope)

    def slopes(self, rows: Rows) -> FloatArray:
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

    def losses(self, scores: Tensor, y: Tensor, limits: Limits) -> Tensor:
        """Return losses, continued by a line where the slope reaches its limit.

        With more than two classes losses are as they are.
        """
        if self.objective.outputs > 1:
            return self.objective.losses(scores, y)
        (slope, kink), margins = limits, scores * y
        bent = torch.maximum(margins, kink)
        return self.objective.margin_loss.value(bent).add_((bent - margins) * slope)

    def _margin_at(self, slope: Tensor) -> Tensor:
        """Return the margin below which the loss is steeper than ``slope``."""
        if self.objective.outputs > 1:
            return torch.ones_like(slope)  # softmax has no margin, and no limit
        return self.objective.margin_loss.margin_at(slope)

    def penalty(self, point: Tensor) -> float:
        """Return ``l2/2`` times the squared weights of features of variance one.

        Features are taken as scaled to mean variance one, the same for all: whatever
        the unit of the table, the penalty is the same.  The intercept has none.
        """
        weights = self._weights(point)
        return 0.5 * self.curvature * float((weights * weights).sum())

    def penalty_gradient(self, point: Tensor) -> Tensor:
        """Return the gradient of the penalty in the frame."""
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


FACTORS = (0.5, 1.0, 2.0)
"""Candidates, in units of the last step."""

DROP_ROOM = 2.0
"""Scale of a drop: so many times what an average row's can be."""

SIGNIFICANCE = 2.0
"""Standard deviations by which another step must win."""

_LAST = FACTORS.index(1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreePoints:
    """One search along ``-direction`` from a point of the frame.

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
        slope = self.frame.clip / math.hypot(1.0, self.frame.constant)
        slope = min(slope, 1.0)
        return DROP_ROOM * slope * self.rms_score * np.array(self.sizes)

    def query(self, w: Tensor, step: Tensor) -> BoundedQuery:
        """Ask for the scaled drops at ``w - size step``, models of the rows.

        One example gives a vector of as many drops as candidates, which the gate
        clips to norm ``sqrt(candidates)``: that is the sensitivity.
        """
        frame, scales = self.frame, self.scales

        def contributions(rows: Rows) -> FloatArray:
            scores, y = frame.here(rows, w)
            limits = frame.limits(rows)
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
        here = self.frame.penalty(point)
        there = [self.frame.penalty(point - size * direction) for size in self.sizes]
        return here - np.array(there)

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
