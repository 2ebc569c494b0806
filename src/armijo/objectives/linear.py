# SPDX-License-Identifier: Apache-2.0
"""Linear models in closed form: no per-example gradient is ever formed.

The gradient of one example is ``l'(m) y x``, so its norm is ``|l'(m)|`` times the row
norm.  Along a direction d the margins are ``y (Xw - eta Xd)``: all candidates of a
search cost one more product together.

What a row contributes to any query is a function of that row alone, bit for bit: rows
and products are those of :mod:`armijo.data.lattice`, all else is done number by number.
A blank row, or one whose label is no class, has NaN for its losses and slopes, which
the gate leaves out of every sum.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product, starmap
from typing import ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data import lattice
from armijo.data.lattice import row_norms
from armijo.data.query import BoundedQuery, Columns, Matrix, OuterProduct, Rows
from armijo.objectives.base import Objective, QueryForm
from armijo.objectives.elementwise import moved
from armijo.objectives.losses import (
    FAR,
    LOSSES,
    RESIDUAL_LOSSES,
    Drops,
    Loss,
    known_labels,
    softmax_losses,
    softmax_slopes,
)

SOFTMAX = "softmax"
"""The only loss of several scores: all others are losses of a margin."""

Times = Callable[[FloatArray], FloatArray]
Scorer = Callable[[FloatArray], Tensor]
"""Multiplies rows by weights of shape (features, columns), exactly."""

_POINTS = 16  # whose scores are formed together


@dataclass(frozen=True, kw_only=True)
class LinearObjective(Objective):
    """Linear classifier: mean loss plus ``l2/2 ||w||^2`` (the intercept included).

    Attributes
    ----------
    loss : str or Loss
        "softmax", which takes class indices, or a loss of a margin, which takes labels
        -1 and +1: an object or a name in :data:`armijo.objectives.losses.LOSSES`.
    n_features : int
        Public number of columns.
    n_classes : int
        Public number of classes, for softmax.
    fit_intercept : bool
        Whether a constant feature 1 is added, without copying the rows.
    l2 : float
        Penalty, outside the clipping and of every sensitivity.
    """

    loss: str | Loss
    n_features: int
    n_classes: int = 2
    fit_intercept: bool = True
    l2: float = 1e-3

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            _validate.choice((*LOSSES, SOFTMAX), loss=self.loss)
        _validate.at_least(1, n_features=self.n_features)
        _validate.at_least(2, n_classes=self.n_classes)
        _validate.non_negative(l2=self.l2)
        _validate.boolean(fit_intercept=self.fit_intercept)

    @property
    def outputs(self) -> int:
        """Scores for each row: one, or one for each class."""
        return self.n_classes if self.loss == SOFTMAX else 1

    @property
    def margin_loss(self) -> Loss:
        """The loss of a margin, for all but softmax."""
        if isinstance(self.loss, Loss):
            return self.loss
        if self.loss == SOFTMAX:
            raise ValueError(
                "Expected a loss of one margin, got softmax; this asks for two "
                "classes. Nothing was spent."
            )
        return LOSSES[self.loss]

    @property
    def smooth(self) -> bool:
        """Whether the loss has a bounded second derivative."""
        return self.outputs > 1 or math.isfinite(self.margin_loss.smoothness)

    def smoothed(self) -> "LinearObjective":
        """Return the objective with a smooth loss in the place of one with a kink."""
        if self.smooth or self.margin_loss.smooth_version is None:
            return self
        return replace(self, loss=self.margin_loss.smooth_version)

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.outputs * (self.n_features + self.fit_intercept)

    def start(self) -> Tensor:
        """Return zeros."""
        return torch.zeros(self.size, dtype=torch.float64)

    def scores(self, w: Tensor, X: Matrix) -> Tensor:
        """Return X w plus intercept: (rows,) for one output, else (rows, outputs)."""
        return self._scores(w, partial(lattice.product, lattice.rounded(X)))

    def scores_of(self, rows: Rows, w: Tensor) -> Tensor:
        """Return the scores of a batch; those of blanks are NaN."""
        return self._scores(w, rows.product)

    def _scores(self, w: Tensor, times: Times) -> Tensor:
        weights = w.numpy().reshape(self.outputs, -1)
        return self._by_output(self._with_intercept(times, weights))

    def scorer(self, w: Tensor, multiplier: Callable[[FloatArray], Times]) -> Scorer:
        """Return a function from rows to their scores at ``w``.

        ``multiplier`` makes of weights (features, outputs) what multiplies rows.
        """
        weights = w.numpy().reshape(self.outputs, -1)
        times = multiplier(weights[:, : self.n_features].T)

        def scores(block: FloatArray) -> Tensor:
            return self._by_output(
                self._with_intercept(lambda _: times(block), weights)
            )

        return scores

    def _by_output(self, scores: FloatArray) -> Tensor:
        found = torch.from_numpy(scores)
        return found[:, 0] if self.outputs == 1 else found

    def _with_intercept(self, times: Times, weights: FloatArray) -> FloatArray:
        product = times(weights[:, : self.n_features].T)
        return product + weights[:, -1] if self.fit_intercept else product

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return one loss for each row."""
        return self._losses_of(self._signed(scores, y), y)

    def _signed(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return margins for a margin loss, the scores themselves for softmax."""
        return scores if self.outputs > 1 else scores * y

    def _losses_of(self, signed: Tensor, y: Tensor) -> Tensor:
        if self.outputs > 1:
            return torch.from_numpy(softmax_losses(signed.numpy(), y.numpy()))
        return self.margin_loss.value(signed)

    def score_gradients(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of each loss in its scores, (rows, outputs)."""
        if self.outputs > 1:
            return torch.from_numpy(softmax_slopes(scores.numpy(), y.numpy()))
        return (self.margin_loss.slope(scores * y) * y)[:, None]

    most_slope: ClassVar[float] = 0.999
    """A logistic slope of one is reached nowhere."""

    def continued(self, scores: Tensor, y: Tensor, slope: Tensor, at: Tensor) -> Tensor:
        """Return losses of margins, continued by a line of this slope below ``at``."""
        margins = scores * y
        clipped = torch.maximum(margins, at)
        values = self.margin_loss.value(clipped)
        return values.add_((clipped - margins) * slope)

    def gradient_sum(self, w: Tensor, *, clip: float) -> BoundedQuery:
        """Ask for the clipped gradient sum."""

        def contributions(rows: Rows) -> OuterProduct:
            scores = self.scores_at(rows, w)
            coefficients = self.score_gradients(scores, self.labels(rows))
            constant = float(self.fit_intercept)
            return OuterProduct(coefficients.numpy(), rows.X, constant)

        return BoundedQuery(contributions=contributions, bound=clip)

    def normalized_gradient_sum(self, w: Tensor, *, stability: float) -> BoundedQuery:
        """Ask for the sum of ``g / (||g|| + stability)``, each shorter than one.

        Automatic clipping (Bu, Wang, Zha and Karypis 2023): no clip is left to choose.
        """

        def contributions(rows: Rows) -> OuterProduct:
            scores = self.scores_at(rows, w)
            raw = self.score_gradients(scores, self.labels(rows)).numpy()
            constant = float(self.fit_intercept)
            with np.errstate(over="ignore", invalid="ignore"):
                features = np.sqrt(np.square(rows.lengths()) + constant)
                norms = row_norms(raw) * features
                coefficients = raw / (norms + stability)[:, None]
            return OuterProduct(coefficients, rows.X, constant)

        return BoundedQuery(contributions=contributions, bound=1.0)

    def losses_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask for the summed losses at ``w - size step``, one sum for each size.

        Each loss is clipped to [0, clip] and divided by ``clip``, so that one example
        moves the vector of sums by at most the root of their number.
        """

        def contributions(rows: Rows) -> FloatArray:
            losses = list(self._clipped_along(rows, w, step, sizes, clip))
            return (torch.stack(losses, dim=1) / clip).numpy()

        return BoundedQuery(contributions=contributions, bound=math.sqrt(len(sizes)))

    def _clipped_along(
        self, rows: Rows, w: Tensor, step: Tensor, sizes: Sequence[float], clip: float
    ) -> Iterator[Tensor]:
        """Yield the losses at ``w - size step`` for each size, within [0, clip]."""
        y, along = self.labels(rows), self._change(rows, step)
        here, _ = self._here(rows, w)
        for size in sizes:
            yield self._losses_of(moved(here, along, size), y).clamp(0, clip)

    def correct_sum(self, w: Tensor) -> BoundedQuery:
        """Ask for the number of rows whose class is predicted, as a vector of one."""

        def contributions(rows: Rows) -> FloatArray:
            scores, y = self.scores_at(rows, w), self.labels(rows)
            if self.outputs > 1:
                right = scores.numpy().argmax(axis=1) == y.numpy()
            else:
                right = torch.where(scores >= 0, y, -y).gt(0).numpy()
            # The scores of a blank are NaN, which a comparison takes for a class.
            right &= ~rows.blanks()
            return np.asarray(right, dtype=np.float64)[:, None]

        return BoundedQuery(contributions=contributions, bound=1.0)

    def loss_drop_sum(
        self, w: Tensor, step: Tensor, step_size: float, *, form: QueryForm, clip: float
    ) -> BoundedQuery:
        """Ask for the sum of loss drops along ``-step``.

        Form ``"loss"`` clips both losses to [0, clip] before the difference (Chen and
        Lee 2020, after Theorem 1), ``"difference"`` leaves it to the gate to clip the
        difference.  One example moves either sum by at most ``clip``.
        """

        def contributions(rows: Rows) -> FloatArray:
            if form == "difference" and self.outputs == 1 and clip <= FAR:
                drops = self._drops(rows, w, step)
                if drops is not None:
                    return drops(step_size)
            y, along = self.labels(rows), self._change(rows, step)
            here, before = self._here(rows, w)
            after = self._losses_of(moved(here, along, step_size), y)
            if form == "loss":
                before, after = before.clamp(0, clip), after.clamp(0, clip)
            return (before - after).numpy()

        return BoundedQuery(contributions=contributions, bound=clip)

    def step_scores(
        self, w: Tensor, step: Tensor, step_sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask which step along ``-step`` has the least loss.

        A row scores a step by ``clip/2 - min(loss, clip)``, at most ``clip/2`` either
        way: the constant does not change the choice.
        """

        def contributions(rows: Rows) -> FloatArray:
            losses = self._clipped_along(rows, w, step, step_sizes, clip)
            scores = np.empty((len(step_sizes), rows.size))
            for column, values in zip(scores, losses, strict=True):
                np.subtract(0.5 * clip, values.numpy(), out=column)
            return scores.T

        return BoundedQuery(contributions=contributions, bound=0.5 * clip)

    def point_scores(
        self,
        points: Tensor,
        kept: Sequence[int],
        *,
        spread: float,
        penalties: FloatArray,
    ) -> BoundedQuery:
        """Ask which of the ``kept`` rows of ``points`` has the least loss plus penalty.

        A row scores a point by ``(c - loss - penalty) 2/spread`` with its own c, the
        middle of its values, which does not change the choice.  Where no two values of
        a row are further apart than the public ``spread``, scores stay within one.
        For margin losses.
        """

        def contributions(rows: Rows) -> FloatArray:
            scores = rows.cached(
                "points",
                lambda: _centered(self._values(points, penalties, rows), spread),
                points,
            )
            return scores if len(kept) == len(points) else scores[:, list(kept)]

        return BoundedQuery(contributions=contributions, bound=1.0)

    def coordinate_scores(
        self, w: Tensor, size: float, *, spread: float, penalties: FloatArray
    ) -> BoundedQuery:
        """Ask which of ``w + size e_j``, then ``w - size e_j``, has the least value.

        A row scores a move by ``(loss(w) - loss - penalty) 2/spread``, the penalties
        about their middle.  Where ``spread`` is at least ``2 size`` plus their range
        and features lie in [0, 1], scores stay within one.  For margin losses.
        """
        middle = 0.5 * (penalties.min() + penalties.max())

        unmoved = (middle - penalties) * (2 / spread)
        ways = (size, -size)

        def moves(rows: Rows) -> Iterator[FloatArray]:
            y, (here, before) = self.labels(rows), self._here(rows, w)
            nothing = before - before  # NaN for rows that are left out
            for k, (way, (where, x)) in enumerate(product(ways, self._columns(rows))):
                after = self._losses_of(moved(here.take(where), x, -way), y)
                drops = before.take(where).sub_(after).mul_(2 / spread)
                scores = nothing + float(unmoved[k])
                yield scores.put_(where, drops, accumulate=True).numpy()

        def contributions(rows: Rows) -> Columns:
            return Columns(moves(rows))

        return BoundedQuery(contributions=contributions, bound=1.0)

    def _columns(self, rows: Rows) -> list[tuple[Tensor, Tensor]]:
        """Return each feature: in which rows it is not zero, and its values times y."""

        def compute() -> list[tuple[Tensor, Tensor]]:
            X = rows.X if sparse.issparse(rows.X) else np.asarray(rows.X)
            table, y = sparse.csc_array(X), self.labels(rows)
            where = torch.from_numpy(table.indices.astype(np.int64))
            entries = torch.from_numpy(table.data.astype(np.float64)) * y[where]
            parts = starmap(slice, pairwise(table.indptr))
            columns = [(where[part], entries[part]) for part in parts]
            return columns + [(torch.arange(rows.size), y)] * self.fit_intercept

        return rows.cached_for_run(("columns", self.fit_intercept), compute)

    def _values(self, points: Tensor, penalties: FloatArray, rows: Rows) -> FloatArray:
        """Return loss plus penalty of each row at each point."""
        y, weights = self.labels(rows), points.numpy()
        values = np.empty((rows.size, len(points)), order="F")
        for start in range(0, len(points), _POINTS):
            part = slice(start, start + _POINTS)
            scores = self._with_intercept(rows.product, weights[part])
            losses = self._losses_of(torch.from_numpy(scores) * y[:, None], y)
            values[:, part] = losses.numpy() + penalties[part]
        return values

    def _here(self, rows: Rows, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return margins or scores of the batch at ``w`` and their losses."""

        def compute() -> tuple[Tensor, Tensor]:
            y = self.labels(rows)
            here = self._signed(self.scores_at(rows, w), y)
            return here, self._losses_of(here, y)

        return rows.cached("here", compute, w)

    def _change(self, rows: Rows, step: Tensor) -> Tensor:
        """Return by how much margins or scores fall for each unit along ``-step``."""
        return rows.cached(
            "change",
            lambda: self._signed(self.scores_of(rows, step), self.labels(rows)),
            step,
        )

    def _drops(self, rows: Rows, w: Tensor, step: Tensor) -> Drops | None:
        """Return the drops of all rows by the loss's own formula, if it has one."""
        return rows.cached(
            "drops",
            lambda: self.margin_loss.drops(
                self._signed(self.scores_at(rows, w), self.labels(rows)),
                self._change(rows, step),
            ),
            w,
            step,
        )

    def labels(self, rows: Rows) -> Tensor:
        """Return the labels of a batch as floats, NaN where one is no class."""
        classes = range(self.n_classes) if self.outputs > 1 else (-1, 1)
        return rows.cached("labels", lambda: known_labels(rows.y, classes))

    def labelled(self, rows: Rows) -> Rows:
        """Return rows for queries about features, those of no class as blanks."""
        if rows.y is None:
            return rows
        unknown = np.isnan(self.labels(rows).numpy())
        if not unknown.any():
            return rows
        return rows.cached("labelled", lambda: rows.without(unknown))

    def scores_at(self, rows: Rows, w: Tensor) -> Tensor:
        """Return the scores of the batch at ``w``, computed once."""
        return rows.cached("scores", lambda: self.scores_of(rows, w), w)


@dataclass(frozen=True, kw_only=True)
class ResidualObjective(LinearObjective):
    """Linear regression: a loss of the residual ``score - y``.

    Attributes
    ----------
    loss : str
        A name in :data:`armijo.objectives.losses.RESIDUAL_LOSSES`.
    """

    most_slope: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        _validate.choice(tuple(RESIDUAL_LOSSES), loss=self.loss)

    @property
    def margin_loss(self) -> Loss:
        """The loss of a residual."""
        return RESIDUAL_LOSSES[str(self.loss)]

    def _signed(self, scores: Tensor, y: Tensor) -> Tensor:
        return scores - y

    def score_gradients(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of each loss in its score."""
        return self.margin_loss.slope(scores - y)[:, None]

    def continued(self, scores: Tensor, y: Tensor, slope: Tensor, at: Tensor) -> Tensor:
        """Return losses, continued by lines of this slope where residuals are large."""
        residuals = scores - y
        near = torch.maximum(torch.minimum(residuals, at), -at)
        return self.margin_loss.value(near).add_((residuals - near).abs() * slope)

    def labels(self, rows: Rows) -> Tensor:
        """Return the targets of a batch, NaN where one is no number."""
        return torch.from_numpy(np.where(np.isfinite(rows.y), rows.y, np.nan))


def as_linear(objective: Objective | None) -> LinearObjective:
    """Return the objective of a linear model, refusing any other."""
    if not isinstance(objective, LinearObjective):
        raise ValueError(
            "Expected a linear model, got a network; this method asks what only a "
            "linear model answers. Nothing was spent."
        )
    return objective


def _centered(values: FloatArray, spread: float) -> FloatArray:
    """Return how far values lie below the middle of their row, in half spreads."""
    with np.errstate(over="ignore", invalid="ignore"):
        middle = 0.5 * values.min(axis=1) + 0.5 * values.max(axis=1)
        values -= middle[:, None]
        values *= -2.0 / spread
    return values
