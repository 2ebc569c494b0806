# SPDX-License-Identifier: Apache-2.0
"""The frame in which the automatic method works: centered rows of norm about one.

A row x becomes ``z = ((x - center) / radius, constant)``; a weight vector of the frame
is a linear model of x.  Slopes of the loss are limited to ``clip / ||z||``, so that no
gradient is longer than ``clip``; the loss with limited slopes is convex again and is
what the search compares.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from armijo.data.centered_rows import CenteredRows
from armijo.data.query import BoundedQuery, OuterProduct, Rows
from armijo.objectives.elementwise import log
from armijo.objectives.linear import LinearObjective
from armijo.privacy.budget import FloatArray

Limits = tuple[Tensor, Tensor]
"""The largest slope of each row, and the margin below which its loss is steeper."""

_MOST_SLOPE = 0.999  # a logistic slope of one is reached nowhere


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
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
        return slope, self._kink(slope)

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
        if self.objective.loss == "softmax":
            return self.objective.losses(scores, y)
        (slope, kink), margins = limits, scores * y
        bent = torch.maximum(margins, kink)
        return self.objective.margin_losses(bent).add_((bent - margins) * slope)

    def _kink(self, slope: Tensor) -> Tensor:
        """Return the margin below which the loss is steeper than ``slope``."""
        if self.objective.loss == "logistic":
            return torch.from_numpy(log((1 / slope - 1).numpy()))
        if self.objective.loss == "huber":
            width = self.objective.huber_width
            return 1 + width - 2 * width * slope
        return torch.ones_like(slope)

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
