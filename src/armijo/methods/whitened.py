# SPDX-License-Identifier: Apache-2.0
"""The automatic method for many features: whitened unit rows, equal pulls.

Rows come with norm one on one public lattice (:mod:`armijo.data.feature_rows`).  Their
mean and second moments are released; every row is centered, multiplied by the inverse
root of the noisy second moments and scaled to norm one again.  In these coordinates
steps need no preconditioner.  The clip is so small that nearly every gradient has its
length: all rows that are not yet fitted pull equally.

=====================  ==================  =========================================
release                share of 1/sigma^2  L2 sensitivity
=====================  ==================  =========================================
sum of the rows        0.02                1
second moments         0.10                1 in Frobenius norm
gradients              the rest            clip, each
loss drops             0.02                root 3, each, after clipping
=====================  ==================  =========================================

The first step follows from the noise that all steps together may leave in a score; the
search lowers it where the loss bends before that, and never goes beyond it: what it
sees is the drop of one step, in which the noise of later ones does not show.

It is :mod:`armijo.methods.auto` with other coordinates and constants: plan and noise
are those of :class:`armijo.methods.base.Planned`, steps and search those of
:mod:`armijo.methods.descent`.  All constants follow from the noise and the public
numbers of rows and features.

**Exactness.**  The whitening is made of released values, so it may be rounded: whole
numbers of ``2**-WHITENING_BITS``, scaled so that no row grows.  Then the product of a
row with it is a sum of integers whose absolute values add up to less than ``2**53``
(Cauchy and Schwarz), the same in any order, and everything else is done number by
number or is a sum of integers: a whitened row is a function of that row alone, bit for
bit.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from armijo._validate import Count, NonNegative, Positive
from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.data.integer_rows import FEATURE_BITS, IntegerRows, product_sum
from armijo.data.query import BoundedQuery, Contributions, Rows
from armijo.methods.base import (
    Batch,
    Planned,
    StepRecord,
    calibrated,
    mean_iterate,
)
from armijo.methods.descent import (
    FIRST_STEP,
    MOMENT_FLOOR,
    Curvature,
    Descent,
    IntegerSpace,
    spectrum,
    take_step,
)
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective

WHITENING_BITS = 24
"""Entries of the whitening are whole numbers of ``2**-WHITENING_BITS``."""

CLIP = 0.03  # of a gradient, where a row has norm one
SCORE_NOISE = 1.5  # SD of noise that all steps together may leave in a score
_SHIFT = WHITENING_BITS + FEATURE_BITS - 17  # products are rounded to 17 bits


def centered_rows(rows: IntegerRows, center: FloatArray) -> IntegerRows:
    """Return rows minus a public center, scaled to norm one.

    Differences of whole numbers, exact squares, then number by number.
    """
    steps = np.rint(center * 2.0**FEATURE_BITS)

    def fill(part: slice, out: FloatArray) -> None:
        np.subtract(rows.block(part), steps, out=out)
        _scaled_to_one(out)

    return IntegerRows.filled(
        rows.n_features, fill, rows.weight, whole=rows.whole, memory=0
    )


def whitened_rows(rows: IntegerRows, whitening: FloatArray) -> IntegerRows:
    """Return rows times whole numbers ``whitening``, scaled to norm one."""

    def fill(part: slice, out: FloatArray) -> None:
        np.matmul(rows.block(part), whitening, out=out)
        out *= 2.0**-_SHIFT
        np.rint(out, out=out)
        _scaled_to_one(out)

    return IntegerRows.filled(whitening.shape[1], fill, rows.weight, whole=rows.whole)


def _scaled_to_one(block: FloatArray) -> None:
    """Divide rows of whole numbers by their norms; a row of zeros stays."""
    squares = np.einsum("ij,ij->i", block, block)  # whole numbers below 2**53
    block /= np.sqrt(np.maximum(squares, 1.0))[:, None]


def whitening_of(values: FloatArray, vectors: FloatArray, edge: float) -> FloatArray:
    """Return the inverse root of noisy second moments as whole numbers.

    ``V (max(e, 0) + MOMENT_FLOOR edge)^-1/2 V'`` with ``edge`` the spectral norm of
    the noise, divided by its own spectral norm: no row grows by it.
    """
    damped = np.maximum(values, 0.0) + max(MOMENT_FLOOR * edge, 1e-12)
    scale = np.sqrt(damped.min() / damped) * (1 - 1e-6)
    root = (vectors * scale) @ vectors.T
    return np.asarray(np.rint((root + root.T) * 2.0 ** (WHITENING_BITS - 1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class WhitenedSpace(IntegerSpace):
    """Coordinates in which rows are centered, and whitened once it is known how."""

    whitening: FloatArray | None
    digest: str

    def view(self, rows: Rows) -> Rows:
        """Return the rows in these coordinates, computed once in a run."""

        def made() -> IntegerRows:
            centered = centered_rows(rows.X, self.center)
            if self.whitening is None:
                return centered
            return whitened_rows(centered, self.whitening)

        def seen() -> Rows:
            X = rows.cached_for_run(("whitened", self.digest), made)
            return rows.seen_as(X, rows.y)

        return rows.cached("view", seen, self)

    def model(self, point: Tensor) -> Tensor:
        """Return the weights of these coordinates: scores are of rows in them."""
        blocks = point.reshape(self.objective.outputs, -1).clone()
        blocks[:, self.objective.n_features :] *= self.constant
        return blocks.reshape(-1)


def row_sum() -> BoundedQuery:
    """Ask for the sum of the rows, clipped to norm one."""
    return BoundedQuery(contributions=_unit_sum, bound=1.0)


def _unit_sum(rows: Rows) -> Contributions:
    return product_sum(lambda _, block: np.ones((len(block), 1)), 1, rows.X, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class WhitenedState:
    """Released values: mean, whitening, the point and the model in its coordinates."""

    w: Tensor
    batches: int = 0
    center: Tensor | None = None
    whitening: Tensor | None = None
    point: Tensor | None = None
    total: Tensor | None = None
    step_size: float = FIRST_STEP

    # Vectors that are not as long as the parameters.
    free_shapes = ("center", "whitening", "point", "total")


@dataclass(frozen=True, kw_only=True)
class Whitened(Planned[WhitenedState]):
    """Mean, second moments, then steps on whitened unit rows.

    No setting has to be given.

    Attributes
    ----------
    steps : int
        Number of steps.
    center_share, moment_share, search_share : float
        Parts of the budget (of ``1/sigma^2``) for the mean, the second moments and all
        searches; the gradients get the rest.
    clip : float
        The most that a row adds to a gradient.
    constant : float
        The constant feature of the intercept.
    """

    networks = False

    steps: Count = 50
    center_share: Positive = 0.02
    moment_share: Positive = 0.10
    search_share: NonNegative = 0.02
    clip: Positive = CLIP
    constant: NonNegative = 0.03

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        return calibrated(problem=self.problem).linear

    @cached_property
    def descent(self) -> Descent:
        """Noise of the releases."""
        before = self.center_share + self.moment_share + self.search_share
        return Descent(
            noise=self._noise,
            n_rows=self._n_rows,
            n_features=self.objective.n_features,
            steps=self.steps,
            gradients=1.0 - before,
            moments=self.moment_share,
            searches=self.search_share,
        )

    @property
    def step_length(self) -> float:
        """What a mean gradient is multiplied by at first.

        Steps of ``a`` leave noise of SD ``a T C sigma_g / (n T)`` in each weight, with
        ``sigma_g / sqrt(share)`` the noise of all gradients together: a score of a row
        of norm one shall have ``SCORE_NOISE``.
        """
        noise = self.descent.noise / math.sqrt(self.descent.gradients)
        rows = self.descent.n_rows
        return SCORE_NOISE * rows / max(noise * self.steps * self.clip, 1e-6 * rows)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """What all batches are for, in their order."""
        steps = (Batch("step", 0, update) for update in range(self.steps))
        return (Batch("center"), Batch("moments"), *steps)

    def _mechanisms(self, batch: Batch) -> tuple[Gaussian, ...]:
        if batch.kind == "step":
            return self.descent.releases(batch.update)
        center = batch.kind == "center"
        share = self.center_share if center else self.moment_share
        return (self.descent.released(share),)

    def init(self, w: Tensor) -> WhitenedState:
        """Return the first state."""
        return WhitenedState(w=w)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: WhitenedState
    ) -> tuple[WhitenedState, StepRecord]:
        """Prepare, or make a step."""
        what, record = self.batches[state.batches], StepRecord(update=0, gradients=0)
        used = self._mechanisms(what)
        if what.kind == "center":
            noisy = batch.noisy_sum(row_sum(), used[0]) / batch.expected_size
            state = replace(state, center=torch.from_numpy(noisy))
        elif what.kind == "moments":
            noisy = batch.noisy_sum(self._space(state).second_moments(), used[0])
            values, vectors = spectrum(noisy, batch.expected_size)
            edge = used[0].noise_scale * math.sqrt(2 * len(values))
            found = whitening_of(values, vectors, edge / batch.expected_size)
            state = replace(state, whitening=torch.from_numpy(found.reshape(-1)))
        else:
            state, record = self._moved(batch, state, what.update, used)
        return replace(state, batches=state.batches + 1), record

    def _space(self, state: WhitenedState) -> WhitenedSpace:
        """Return the coordinates, the same object as long as they are the same."""
        last = state.center if state.whitening is None else state.whitening
        return self._following("space", last, lambda: self._new_space(state))

    def _new_space(self, state: WhitenedState) -> WhitenedSpace:
        d = self.objective.n_features
        whitening, digest = None, hashlib.sha256()
        center = calibrated(center=state.center).numpy()
        digest.update(center.tobytes())
        if state.whitening is not None:
            whitening = state.whitening.numpy().reshape(d, d)
            digest.update(whitening.tobytes())
        return WhitenedSpace(
            objective=self.objective,
            center=center,
            radius=1.0,
            constant=self.constant if self.objective.fit_intercept else 0.0,
            clip=self.clip,
            whitening=whitening,
            digest=digest.hexdigest(),
        )

    def _moved(
        self,
        batch: PrivateBatch,
        state: WhitenedState,
        update: int,
        used: tuple[Gaussian, ...],
    ) -> tuple[WhitenedState, StepRecord]:
        """Make a step, and average the second half."""
        space, d = self._space(state), self.objective.n_features
        curvature = Curvature(
            values=np.full(d, 1 / d), vectors=None, constant=space.constant
        )
        # Directions are gradients times a public number: rows are white already.
        whole = FIRST_STEP / self.step_length
        taken = take_step(
            batch,
            space,
            curvature,
            torch.zeros_like(state.w) if state.point is None else state.point,
            state.step_size,
            used,
            (whole - 1 / d, whole - space.constant**2),
            largest=FIRST_STEP,
        )
        counted = update + 1 - self.steps // 2
        total, mean = mean_iterate(state.total, taken.point, counted)
        new = replace(
            state,
            point=taken.point,
            total=total,
            step_size=taken.step_size,
            w=space.model(mean),
        )
        return new, taken.record(update, used, self.clip)
