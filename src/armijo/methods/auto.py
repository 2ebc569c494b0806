# SPDX-License-Identifier: Apache-2.0
"""The automatic method: a private line search with nothing left to set.

Before the first step it pays for the scale, the mean and the second moments of the
features.  They make the coordinates in which the steps of :mod:`armijo.methods.descent`
are made; the model is the mean of the second half of the iterates.  Every constant is a
function of the noise, of the public number of rows and features, and of nothing else.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from armijo._validate import Count, NonNegative, Positive
from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.fixed_point import STEPS
from armijo.data.gate import PrivateBatch
from armijo.data.lattice import CenteredRows
from armijo.data.query import BoundedQuery, LatticeSum, OuterProduct, Rows, row_norms
from armijo.methods.base import (
    Batch,
    Planned,
    StepRecord,
    calibrated,
    mean_iterate,
)
from armijo.methods.descent import (
    FIRST_STEP,
    LARGEST_STEP,
    SMALLEST_STEP,
    Curvature,
    Descent,
    Standardization,
    spectrum,
    take_step,
)
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective

OCTAVES = 20  # norms are sought within so many doublings of root d, either way
TAIL_PENALTY = 0.5  # SDs a norm must win by for each doubling away from root d
MIN_SNR = 3.5  # SDs by which some count must stand out; else no scale is known
TARGET_SNR = 8.0  # SDs of noise that the count of all rows shall be
MAX_NORM_SHARE = 0.25  # most that norms may take of what the other releases leave
RADIUS_SLACK_SD = 2.0  # SDs of noise that are added to the squared radius
MOST_FEATURES = 1024  # beyond so many the matrix of second moments is not measured
GRID = 1 << 12  # rows are rounded to multiples of 1/GRID for the second moments

_PER_OCTAVE = 2
_MIDDLE = OCTAVES * _PER_OCTAVE
_BINS = 2 * _MIDDLE + 1
_BLOCK = 1 << 18  # numbers in a block of rows


def norm_histogram(objective: LinearObjective) -> BoundedQuery:
    """Ask how many rows have which norm, in half octaves around the root of d.

    A row adds one to one bin, or nothing: neighbors differ by at most one.  The sum
    counts, so it is exact in floating point.
    """
    return BoundedQuery(contributions=partial(_norm_counts, objective), bound=1.0)


def _norm_counts(objective: LinearObjective, rows: Rows) -> LatticeSum:
    octaves = (np.arange(_BINS) - _MIDDLE) / _PER_OCTAVE
    ends = math.sqrt(objective.n_features) * np.exp2(octaves)
    norms = objective.labelled(rows).lengths()
    norms = norms[np.isfinite(norms) & (norms > 0)]
    places = np.minimum(np.searchsorted(ends, norms), _BINS - 1)
    return LatticeSum(np.bincount(places, minlength=_BINS) * STEPS)


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
    return BoundedQuery(contributions=partial(_scaled, objective, norm), bound=1.0)


def _scaled(objective: LinearObjective, norm: float, rows: Rows) -> OuterProduct:
    return OuterProduct(np.full((rows.size, 1), 1 / norm), objective.labelled(rows).X)


def square_sum(objective: LinearObjective, norm: float) -> BoundedQuery:
    """Ask for the sum of squared norms, in units of ``norm`` squared."""
    return BoundedQuery(contributions=partial(_squares, objective, norm), bound=1.0)


def _squares(objective: LinearObjective, norm: float, rows: Rows) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = objective.labelled(rows).lengths() / norm
        squares = np.where(lengths > 1, 1.0, np.square(lengths))
    squares[~np.isfinite(lengths)] = np.nan  # such a row counts nowhere
    return np.asarray(squares[:, None])


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
    moments = partial(_moments, objective, center, radius)
    return BoundedQuery(contributions=moments, bound=1.0)


def _moments(
    objective: LinearObjective, center: FloatArray, radius: float, rows: Rows
) -> LatticeSum:
    d = center.size
    # Rounding moves a row by at most sqrt(d)/2 steps of the grid.
    room = max(1 - 0.5 * math.sqrt(d) / GRID, 0.0) * (1 - 1e-12)
    rows = objective.labelled(rows)
    view = CenteredRows(rows.X, center)
    norms = rows.cached_for_run(("norms", center.tobytes()), partial(row_norms, view))
    total = np.zeros((d, d))
    height = max(1, _BLOCK // d)
    for start in range(0, rows.size, height):
        part = slice(start, start + height)
        block = _on_grid(view[part], norms[part], room / radius, room)
        total += block.T @ block
    return LatticeSum(total.ravel().astype(np.int64))


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
class Auto(Planned[AutoState]):
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

    Examples
    --------
    >>> from armijo.methods.base import Problem
    >>> objective = LinearObjective(loss="logistic", n_features=100)
    >>> problem = Problem(objective=objective, n_rows=40000)
    >>> method = Auto(noise_multiplier=10.0, problem=problem)
    >>> round(method.descent.clip, 3), round(method.descent.constant, 3)
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

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        return calibrated(problem=self.problem).linear

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

    @cached_property
    def descent(self) -> Descent:
        """Noise and constants of the steps."""
        return Descent(
            noise=self._noise,
            n_rows=self._n_rows,
            n_features=self.objective.n_features,
            steps=self.steps,
            gradients=self.shares["gradients"],
            moments=self.shares["moments"],
            searches=self.search_share,
            intercept=self.objective.fit_intercept,
        )

    def init(self, w: Tensor) -> AutoState:
        """Return the first state."""
        return AutoState(w=w, norm=self.data_norm or 0.0, step_size=self.first_step)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """What all batches are for, in their order."""
        found = [] if self.data_norm else [Batch("norm")]
        found.append(Batch("center"))
        found += [Batch("moments")] * bool(self.shares["moments"])
        found += [Batch("step", 0, update) for update in range(self.steps)]
        return tuple(found)

    def _mechanisms(self, batch: Batch) -> tuple[Gaussian, ...]:
        if batch.kind == "step":
            return self.descent.releases(batch.update)
        if batch.kind == "center" and self.objective.fit_intercept:
            half = self.descent.released(0.5 * self.center_share)
            return half, half
        return (self.descent.released(self.shares[batch.kind]),)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: AutoState
    ) -> tuple[AutoState, StepRecord]:
        """Prepare, or make a step."""
        what, record = self.batches[state.batches], StepRecord(update=0, gradients=0)
        used = self._mechanisms(what)
        if what.kind == "step":
            state, record = self._moved(batch, state, what.update, used)
        else:
            state = self._prepared(what.kind, batch, state, used, batch.expected_size)
        return replace(state, batches=state.batches + 1), record

    def _prepared(
        self,
        kind: str,
        batch: PrivateBatch,
        state: AutoState,
        used: tuple[Gaussian, ...],
        batch_size: float,
    ) -> AutoState:
        objective = self.objective
        if kind == "norm":
            counts = batch.noisy_sum(norm_histogram(objective), used[0])
            noise = used[0].noise_scale
            norm = chosen_norm(counts, noise, objective.n_features)
            return replace(state, norm=norm)
        if kind == "center":
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
        return Curvature(values=values, vectors=vectors, constant=self.descent.constant)

    def _moved(
        self,
        batch: PrivateBatch,
        state: AutoState,
        update: int,
        used: tuple[Gaussian, ...],
    ) -> tuple[AutoState, StepRecord]:
        """Make a step, and average."""
        descent = self.descent
        frame = Standardization(
            objective=self.objective,
            center=calibrated(center=state.center).numpy(),
            radius=state.radius,
            constant=descent.constant,
            clip=descent.clip,
        )
        taken = take_step(
            batch,
            frame,
            self._curvature(state),
            torch.zeros_like(state.w) if state.point is None else state.point,
            state.step_size,
            used,
            (descent.damping, descent.intercept_damping),
        )
        counted = update + 1 - self.steps // 2 if self.average_iterates else 0
        total, mean = mean_iterate(state.total, taken.point, counted)
        new = replace(
            state,
            point=taken.point,
            total=total,
            step_size=taken.step_size,
            w=frame.model(mean),
        )
        return new, taken.record(update, used, frame.clip)
