# SPDX-License-Identifier: Apache-2.0
"""The automatic method for tables as they come: learn the columns, then the model.

One release counts the cells of all columns together (two where numbers have no bounds:
the first finds their scales).  From the noisy counts follow ranks, scales, levels and
all features (:mod:`armijo.objectives.additive`); the steps are those of
:mod:`armijo.methods.descent` on these features.  Where rows are many for the noise, a
first model of single columns chooses products of two columns, and a second one is
fitted with them.  Last, scores are recalibrated, since clipped slopes make
probabilities timid.

==========================  =====================  =================================
release                     share of 1/sigma^2     L2 sensitivity
==========================  =====================  =================================
scales, if bounds lack      0.0125 to 0.06         root of 5/4 columns without bounds
counts of cells             0.05                   root of the columns and the target
second moments              0.03; 0.015 and 0.03   1
gradients                   the rest               clip, each
loss drops                  0.05                   root 3, each, after clipping
recalibration               0.03 to 0.06           1, then root 2, twice
==========================  =====================  =================================

All are sums over rows of vectors with a public bound on their norm, on all rows, and
their noise is fixed beforehand: together they are one Gaussian (:mod:`descent
<armijo.methods.descent>`).  Everything else is post-processing.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.data.coded import CodedTable, NumericColumn
from armijo.data.gate import PrivateBatch
from armijo.data.integer_rows import IntegerRows, count_sum
from armijo.data.query import BoundedQuery, Contributions, Rows
from armijo.methods.base import (
    Batch,
    Planned,
    Problem,
    StepRecord,
    calibrated,
    mean_iterate,
)
from armijo.methods.descent import (
    FIRST_STEP,
    SMALLEST_DAMPING,
    Curvature,
    Descent,
    IntegerSpace,
    spectrum,
    take_step,
)
from armijo.methods.recalibration import Recalibration, first_factor
from armijo.objectives.additive import (
    COSINES,
    RARE,
    AdditiveObjective,
    Basis,
    Features,
    additive_features,
)
from armijo.objectives.base import Objective
from armijo.objectives.cells import (
    EQUAL_CELLS,
    FINE_PARTS,
    FINE_WEIGHT,
    Cells,
    Layout,
    LevelCells,
    Marginal,
    NumericCells,
    OctaveCells,
    column_cells,
    declared_ranges,
    learned_range,
    marginals,
    narrowed_range,
    nearest_shares,
    unbounded,
)
from armijo.objectives.linear import SOFTMAX, LinearObjective, ResidualObjective

if TYPE_CHECKING:
    from armijo.methods.additive_model import AdditiveModel

SCALE_SHARES = (0.0125, 0.06)  # the least, and the most where rows are few
SCALE_ROOM = 32.0  # rows over the noise of one count of scales that are aimed at
COUNT_SHARE = 0.05
CALIBRATION_SHARES = (0.03, 0.06)  # the least, and the most where rows are few
CALIBRATION_ROWS = 1000.0  # rows over noise from which the least is enough
MOMENT_SHARES = {1: (0.03,), 2: (0.015, 0.03)}
SEARCH_SHARE = 0.05
FIRST_PHASE = 0.35  # of what is left, for the model that chooses products
PAIRS_FROM = 3000.0  # rows over noise from which products are worth their noise
ONE_PHASE, TWO_PHASES = (30,), (12, 24)  # steps
AVERAGED = {1: (0.5,), 2: (0.25, 0.5)}  # of the steps, whose iterates are averaged
CAUTION = {1: 1.0, 2: 1.5}  # of the damping
# Least damping of the regression that chooses products: columns that say nearly the
# same share their effect, where a smaller one would give them large opposite ones.
CHOICE_DAMPING = 0.01
MOST_MOMENTS = 2048  # features beyond which second moments are not measured
FEW_FEATURES = 1024  # that cosines of numeric columns may lead to
MOST_NOISE = 1.3  # in a score, where there are no products
MOST_HELD = 3.0  # most that a rare class raises the damping
RESIDUAL_SLOPE = 0.3  # of r^2/8, a quarter of a residual, in those of logistic losses
LARGEST_START = 4.0  # of the intercept
TARGET_ENDS = (0.001, 0.999)  # quantiles to which a numeric target is cut
TARGET_REACH = 4.0  # most that these are off the ranks that noise cannot make
RANK_NOISE, WORST_RANK = 3.0, 0.25  # such ranks, in noise of half of the cells


@dataclass(frozen=True, kw_only=True)
class AdditiveState:
    """Released values: counts, the point in the present coordinates, and the model.

    ``w`` holds weights of the features and intercepts, one row for each score; features
    that released counts did not lead to have none.  ``evidence`` is that of the first
    gradient, at a model that knows the shares of the classes only.  ``path`` and
    ``path_square`` are sums of step sizes and of their squares, each times its part in
    the mean of the iterates.
    """

    w: Tensor
    batches: int = 0
    ranges: Tensor | None = None
    counts: Tensor | None = None
    chosen: Tensor | None = None
    values: Tensor | None = None
    vectors: Tensor | None = None
    point: Tensor | None = None
    total: Tensor | None = None
    step_size: float = FIRST_STEP
    path: float = 0.0
    path_square: float = 0.0
    evidence: float = 0.0
    calibration: Tensor | None = None

    # Vectors that are not as long as the parameters.
    free_shapes = (
        "ranges",
        "counts",
        "chosen",
        "values",
        "vectors",
        "point",
        "total",
        "calibration",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSpace(IntegerSpace):
    """Coordinates in which rows are features of a table, already centered."""

    features: Features
    columns: "Columns"
    phase: int
    base: "FeatureSpace | None" = None

    def view(self, rows: Rows) -> Rows:
        """Return the features of all rows, computed once in a run."""

        def expanded() -> tuple[IntegerRows, FloatArray]:
            y = self.columns.targets(rows.y)
            weight = weights(rows) * self.columns.class_weights(y)
            objective = self.columns.objective
            whole = rows.X.weight is None and objective.class_weight is None
            before = None if self.base is None else self.base.view(rows).X
            found = self.features.rows(
                rows.X, weight, whole=whole, before=before, memory=rows.memory
            )
            return found, y

        def seen() -> Rows:
            X, y = rows.cached_for_run(("features", self.phase), expanded)
            return rows.seen_as(X, y)

        return rows.cached("view", seen, self.features)


@dataclass(frozen=True, eq=False)
class Columns:
    """What released counts tell of the columns and of the target.

    Attributes
    ----------
    objective : AdditiveObjective
        What is public.
    cells : tuple
        The cells of the columns, then those of the target.
    counts : list of arrays
        Their noisy counts.
    n_rows, noise : float
        Public number of rows, and standard deviation of each count.
    """

    objective: AdditiveObjective
    cells: tuple[Cells, ...]
    counts: list[FloatArray]
    n_rows: float
    noise: float

    def features(self, orders: int) -> Features:
        """Return the features of single columns, with so many cosines of a rank."""
        cells, counts = self.cells[:-1], self.counts[:-1]
        return additive_features(cells, counts, self.n_rows, self.noise, orders=orders)

    @cached_property
    def target(self) -> Marginal:
        """The distribution of a numeric target."""
        (cells,) = (part for part in self.cells[-1:] if isinstance(part, NumericCells))
        return marginals([cells], [self.counts[-1]], self.n_rows, self.noise)[0]

    @property
    def _target_ends(self) -> tuple[float, float]:
        """Where a numeric target is cut, in units of its range.

        In a range that is much too wide, a percent of the rows that noise puts far out
        would be nearly all of a mean and a standard deviation: ends are not further
        from the ranks that noise cannot make than a few times their distance.
        """
        low, high = (self.target.quantile(rank) for rank in TARGET_ENDS)
        noise = self.noise * math.sqrt(EQUAL_CELLS) / 2 / self.n_rows
        sure = min(max(RANK_NOISE * noise, TARGET_ENDS[0]), WORST_RANK)
        below, above = self.target.quantile(sure), self.target.quantile(1 - sure)
        reach = TARGET_REACH * (above - below)
        if reach * EQUAL_CELLS < 1e-3:  # one value has nearly all rows
            return low, high
        return max(low, below - reach), min(high, above + reach)

    @cached_property
    def target_scale(self) -> tuple[float, float, float, float]:
        """Ends, mean and standard deviation of a numeric target."""
        cells, width = self.target.cells, self.target.cells.high - self.target.cells.low
        low, high = self._target_ends
        values = np.clip(self.target.centers, low, high)
        mean = float(self.target.mean(values))
        deviation = math.sqrt(max(float(self.target.mean((values - mean) ** 2)), 1e-18))
        ends = [cells.low + end * width for end in (low, high)]
        known = self.objective.target_bounds
        ends = [
            end if own is None else own for end, own in zip(ends, known, strict=True)
        ]
        return ends[0], ends[1], cells.low + mean * width, deviation * width

    def targets(self, y: NDArray[Any]) -> FloatArray:
        """Return labels, or standardized targets; NaN makes a row blank."""
        y = self.objective.known(y)
        if not self.objective.regression:
            return y
        low, high, mean, deviation = self.target_scale
        return (np.clip(y, low, high) - mean) / deviation

    @cached_property
    def class_shares(self) -> FloatArray:
        """The released shares of the classes, none of them zero."""
        counts = self.counts[-1][:-1]
        size = len(counts)
        shares = nearest_shares(counts / self.n_rows)
        trust = self.n_rows**2 / (self.n_rows**2 + 4 * self.noise**2 * size)
        least = 0.5 / max(self.n_rows, 1.0)
        shares = np.maximum(trust * shares + (1 - trust) / size, least)
        return np.asarray(shares / shares.sum())

    @cached_property
    def weight_of_class(self) -> FloatArray:
        """What multiplies the rows of each class: at most one."""
        given = self.objective.class_weight
        if given is None:
            return np.ones(self.objective.n_classes)
        raw = 1 / self.class_shares if given == "balanced" else np.array(given)
        return np.asarray(raw / raw.max())

    def class_weights(self, y: FloatArray) -> FloatArray:
        """Return the weight of each row's class, zero for a blank."""
        if self.objective.regression:
            return np.where(np.isnan(y), 0.0, 1.0)
        places = y if self.objective.loss == SOFTMAX else (y + 1) / 2
        places = np.nan_to_num(places, nan=-1.0).astype(np.int64)
        return np.append(self.weight_of_class, 0.0)[places]

    @cached_property
    def weighted_shares(self) -> FloatArray:
        """The shares of the classes after weighting."""
        shares = self.class_shares * self.weight_of_class
        return np.asarray(shares / shares.sum())

    @property
    def balance(self) -> float:
        """``4 p (1 - p)`` of the commonest class, one for a numeric target."""
        if self.objective.regression:
            return 1.0
        p = float(self.weighted_shares.max())
        return max(4 * p * (1 - p), 1e-3) if self.objective.n_classes == 2 else 1.0

    @property
    def intercepts(self) -> FloatArray:
        """Where the intercepts begin."""
        if self.objective.regression:
            return np.zeros(1)
        logs = np.log(np.maximum(self.weighted_shares, 1e-12))  # a weight may be zero
        start = (
            logs[1:] - logs[0] if self.objective.outputs == 1 else logs - logs.mean()
        )
        return np.clip(start, -LARGEST_START, LARGEST_START)


@dataclass(frozen=True, kw_only=True)
class Additive(Planned[AdditiveState]):
    """Private encoder, additive features, products of columns, recalibration.

    No setting has to be given.

    Attributes
    ----------
    basis : {"additive", "line"}
        Features of numeric columns: cosines of the rank and a line, or the line alone.
    pairs : bool or None
        Whether products of two columns are added; None adds them where the public
        number of rows is at least ``PAIRS_FROM`` times the noise.
    """

    basis: Basis = "additive"
    pairs: bool | None = None

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget."""
        if not isinstance(problem.objective, AdditiveObjective):
            raise ValueError(
                "Expected a coded table, got a linear model or a network; the additive "
                "method learns the columns of a table. Nothing was spent."
            )
        return super().calibrate(budget, problem)

    @property
    def objective(self) -> AdditiveObjective:
        """The table that it was calibrated for."""
        found = calibrated(problem=self.problem).objective
        assert isinstance(found, AdditiveObjective)
        return found

    @cached_property
    def _free(self) -> list[bool]:
        """Which columns may take part in products."""
        return [
            getattr(column, "monotone", 0) == 0 for column in self.objective.columns
        ]

    @cached_property
    def orders(self) -> int:
        """How many cosines a numeric column has: fewer where columns are many."""
        numeric = sum(isinstance(c, NumericColumn) for c in self.objective.columns)
        room = FEW_FEATURES // max(numeric, 1) - 2
        return 0 if self.basis == "line" else min(max(room, 0), COSINES)

    @cached_property
    def _measured(self) -> bool:
        """Whether second moments are measured: public sizes decide."""
        unused = COSINES - self.orders
        numeric = sum(isinstance(c, NumericColumn) for c in self.objective.columns)
        return self.objective.most_features - numeric * unused <= MOST_MOMENTS

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """Steps of each phase."""
        if not self._measured or not self.orders or sum(self._free) < 2:
            return ONE_PHASE
        if self.pairs is False:
            return ONE_PHASE
        enough = self._n_rows >= PAIRS_FROM * self._noise
        return TWO_PHASES if enough or self.pairs else ONE_PHASE

    @cached_property
    def _targets(self) -> tuple[NumericColumn, ...]:
        """The target as a column of numbers, if it is one."""
        if not self.objective.regression:
            return ()
        low, high = self.objective.target_bounds
        return (NumericColumn(name="target", low=low, high=high),)

    @cached_property
    def _columns(self) -> tuple[Any, ...]:
        return (*self.objective.columns, *self._targets)

    @cached_property
    def shares(self) -> dict[str, float]:
        """How ``1/sigma^2`` is split; the phases get what the others leave."""
        bound = self._scale_layout.bound
        wanted = (bound * SCALE_ROOM * self._noise / self._n_rows) ** 2
        scales = float(np.clip(wanted, *SCALE_SHARES)) if bound else 0.0
        few = math.sqrt(CALIBRATION_ROWS * self._noise / self._n_rows)
        calibration = float(np.clip(CALIBRATION_SHARES[0] * few, *CALIBRATION_SHARES))
        calibration *= self.objective.log_odds
        rest = 1.0 - scales - COUNT_SHARE - calibration
        return {
            "scales": scales,
            "counts": COUNT_SHARE,
            "recalibration": calibration,
            "phases": rest,
        }

    def _descent(self, phase: int, n_features: int = 1) -> Descent:
        """Return noise and constants of the steps of a phase."""
        count, rest = len(self.phases), self.shares["phases"]
        part = 1.0 if count == 1 else (FIRST_PHASE, 1 - FIRST_PHASE)[phase]
        moments = MOMENT_SHARES[count][phase] if self._measured else 0.0
        searches = SEARCH_SHARE * part
        chooses = self.objective.regression and count == 2 and phase == 0
        return Descent(
            noise=self._noise,
            n_rows=self._n_rows,
            n_features=n_features,
            steps=self.phases[phase],
            gradients=rest * part - moments - searches,
            moments=moments,
            searches=searches,
            caution=CAUTION[count],
            most_noise=MOST_NOISE if count == 1 else math.inf,
            least_damping=CHOICE_DAMPING if chooses else SMALLEST_DAMPING,
            slope=RESIDUAL_SLOPE if self.objective.regression else 1.0,
        )

    @cached_property
    def recalibration(self) -> Recalibration:
        """The last releases."""
        return Recalibration(
            noise=self._noise,
            share=self.shares["recalibration"],
            clip=self._descent(0).clip,
            n_rows=self._n_rows,
            outputs=self.objective.outputs,
        )

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """What all batches are for, in their order."""
        found: list[Batch] = [Batch("scales")] if self.shares["scales"] else []
        found.append(Batch("counts"))
        for phase, steps in enumerate(self.phases):
            found += [Batch("moments", phase)] * self._measured
            found += [Batch("step", phase, update) for update in range(steps)]
        if self.shares["recalibration"]:
            found += [Batch("recalibration", 0, k) for k in range(3)]
        return tuple(found)

    def _mechanisms(self, batch: Batch) -> tuple[Gaussian, ...]:
        descent = self._descent(batch.phase)
        if batch.kind == "step":
            return descent.releases(batch.update)
        if batch.kind == "moments":
            return (descent.released(descent.moments),)
        if batch.kind == "recalibration":
            return (self.recalibration.mechanism(batch.update),)
        layout = self._scale_layout if batch.kind == "scales" else None
        bound = math.sqrt(len(self.objective.columns) + 1)
        share = self.shares[batch.kind]
        return (descent.released(share, layout.bound if layout else bound),)

    def init(self, w: Tensor) -> AdditiveState:
        """Return the first state."""
        return AdditiveState(w=w)

    def step(
        self, batch: PrivateBatch, objective: Objective, state: AdditiveState
    ) -> tuple[AdditiveState, StepRecord]:
        """Make the next release, and what follows from it."""
        what = self.batches[state.batches]
        used = self._mechanisms(what)
        record = StepRecord(update=0, gradients=0)
        if what.kind == "scales":
            state = replace(state, ranges=self._released_ranges(batch, used[0]))
        elif what.kind == "counts":
            state = replace(state, counts=self._released_counts(batch, state, used[0]))
        elif what.kind == "moments":
            state = self._prepared(batch, state, what.phase, used[0])
        elif what.kind == "step":
            state, record = self._moved(batch, state, what, used)
        else:
            state = self._recalibrated(batch, state, what.update, used[0])
        return replace(state, batches=state.batches + 1), record

    @cached_property
    def _scale_layout(self) -> Layout:
        """Octaves of each column without bounds, then parts of octaves of each."""
        count = len(unbounded(self._columns))
        return Layout(
            (OctaveCells(),) * count + (OctaveCells(FINE_PARTS),) * count,
            factors=(1.0,) * count + (FINE_WEIGHT,) * count,
        )

    def _released_ranges(self, batch: PrivateBatch, mechanism: Gaussian) -> Tensor:
        """Release counts of octaves, and return the ends of columns that follow."""
        places, layout = unbounded(self._columns), self._scale_layout
        counts = CellCounts(self.objective, layout, places * 2)
        query = BoundedQuery(contributions=counts, bound=layout.bound)
        noise = mechanism.noise_scale
        parts = layout.split(batch.noisy_sum(query, mechanism))
        found = []
        for place, octaves, fine in zip(
            places, parts[: len(places)], parts[len(places) :], strict=True
        ):
            column = self._columns[place]
            ends = learned_range(octaves, noise, column.low, column.high)
            if column.low is None and column.high is None:
                present = self._n_rows - max(octaves[-1] - 2 * noise, 0.0)
                ends = narrowed_range(
                    ends, fine / FINE_WEIGHT, noise / FINE_WEIGHT, present
                )
            found.append(ends)
        return torch.tensor(found, dtype=torch.float64).reshape(-1)

    def _layout(self, state: AdditiveState) -> Layout:
        """Return the cells of all columns and of the target."""
        ranges = declared_ranges(self._columns)
        if places := unbounded(self._columns):
            ends = calibrated(ranges=state.ranges).reshape(-1, 2).tolist()
            ranges |= {
                place: (low, high)
                for place, (low, high) in zip(places, ends, strict=True)
            }
        cells = column_cells(self._columns, ranges)
        if not self.objective.regression:
            cells.append(LevelCells(self.objective.n_classes))
        return Layout(tuple(cells))

    def _released_counts(
        self, batch: PrivateBatch, state: AdditiveState, mechanism: Gaussian
    ) -> Tensor:
        counts = CellCounts(self.objective, self._layout(state))
        query = BoundedQuery(contributions=counts, bound=counts.layout.bound)
        return torch.from_numpy(batch.noisy_sum(query, mechanism))

    def columns(self, state: AdditiveState) -> Columns:
        """Return what released counts tell of the columns."""

        def compute() -> Columns:
            layout = self._layout(state)
            counts = layout.split(calibrated(counts=state.counts).numpy())
            noise = self._mechanisms(Batch("counts"))[0].noise_scale
            return Columns(
                self.objective, layout.parts, counts, float(self._n_rows), noise
            )

        return self._following("columns", state.counts, compute)

    def features(self, state: AdditiveState, phase: int) -> Features:
        """Return the features of a phase: the last one's have products, if any."""

        def compute() -> Features:
            columns = self.columns(state)
            features = columns.features(self.orders)
            if phase == 0:
                return features
            effects = calibrated(chosen=state.chosen).numpy()
            rare = columns.balance < RARE
            return features.with_products(effects, rare=rare, free=self._free)

        last = state.chosen if phase else state.counts
        return self._following(f"features {phase}", last, compute)

    def _space(self, state: AdditiveState, phase: int) -> FeatureSpace:
        """Return the coordinates of a phase."""
        last = state.chosen if phase else state.counts
        return self._following(
            f"space {phase}", last, lambda: self._new_space(state, phase)
        )

    def _new_space(self, state: AdditiveState, phase: int) -> FeatureSpace:
        features = self.features(state, phase)
        descent = self._descent(phase, features.size)
        common: dict[str, Any] = {
            "n_features": features.size,
            "n_classes": self.objective.n_classes,
            "l2": self.objective.l2,
            "loss": self.objective.score_loss,
        }
        kind = ResidualObjective if self.objective.regression else LinearObjective
        return FeatureSpace(
            objective=kind(**common),
            center=np.zeros(features.size),
            radius=features.radius,
            constant=descent.constant,
            clip=descent.clip,
            features=features,
            columns=self.columns(state),
            phase=phase,
            base=self._space(state, 0) if phase == 1 else None,
        )

    def _prepared(
        self, batch: PrivateBatch, state: AdditiveState, phase: int, used: Gaussian
    ) -> AdditiveState:
        """Begin a phase with the release of second moments."""
        state = self._begun(state, phase)
        query = self._space(state, phase).second_moments()
        values, vectors = spectrum(batch.noisy_sum(query, used), batch.expected_size)
        return replace(
            state,
            values=torch.from_numpy(values),
            vectors=torch.from_numpy(vectors.reshape(-1)),
        )

    def _begun(self, state: AdditiveState, phase: int) -> AdditiveState:
        """Choose products by the model so far, and place the first point."""
        if phase == 1:
            state = replace(state, chosen=self._effects(state))
        space = self._space(state, phase)
        blocks = np.zeros((self.objective.outputs, space.features.size + 1))
        if phase == 1:
            before = self.weights_of(state, 0)
            blocks[:, : before.shape[1] - 1] = before[:, :-1] * space.radius
            blocks[:, -1] = before[:, -1] / space.constant
        else:
            blocks[:, -1] = self.columns(state).intercepts / space.constant
        point = torch.from_numpy(blocks.reshape(-1))
        return replace(
            state,
            point=point,
            total=None,
            step_size=FIRST_STEP,
            path=0.0,
            path_square=0.0,
        )

    def weights_of(self, state: AdditiveState, phase: int) -> FloatArray:
        """Return weights and intercepts, one row for each score."""
        size = self.features(state, phase).size
        table = state.w.numpy().reshape(self.objective.outputs, -1)
        return np.column_stack([table[:, :size], table[:, -1]])

    def _effects(self, state: AdditiveState) -> Tensor:
        """Return one coefficient for each feature: with classes, of the first axis."""
        weights = self.weights_of(state, 0)[:, :-1]
        if len(weights) == 1:
            return torch.from_numpy(weights[0].copy())
        _, _, axes = np.linalg.svd(weights - weights.mean(axis=0))
        return torch.from_numpy(axes[0] * np.linalg.norm(weights))

    def _curvature(self, state: AdditiveState, constant: float) -> Curvature:
        """Return the released second moments, or equal ones of trace one."""
        values, vectors = self._spectrum(state)
        return Curvature(values=values, vectors=vectors, constant=constant)

    def _spectrum(self, state: AdditiveState) -> tuple[FloatArray, FloatArray | None]:
        if state.values is None or state.vectors is None:
            size = self.features(state, 0).size
            return np.full(size, 1 / size), None
        size = len(state.values)
        return state.values.numpy(), state.vectors.numpy().reshape(size, size)

    def _moved(
        self,
        batch: PrivateBatch,
        state: AdditiveState,
        what: Batch,
        used: tuple[Gaussian, ...],
    ) -> tuple[AdditiveState, StepRecord]:
        """Make a step, and average the last ones of the phase."""
        if not self._measured and what.update == 0:
            state = self._begun(state, what.phase)
        space = self._space(state, what.phase)
        descent = self._descent(what.phase, space.features.size)
        taken = take_step(
            batch,
            space,
            self._curvature(state, space.constant),
            calibrated(point=state.point),
            state.step_size,
            used,
            (self._damping(state, descent), descent.intercept_damping),
        )
        count = max(int(descent.steps * AVERAGED[len(self.phases)][what.phase]), 1)
        counted = what.update + 1 - (descent.steps - count)
        total, mean = mean_iterate(state.total, taken.point, counted)
        first = what.phase == what.update == 0
        moved = taken.step_size * min((descent.steps - what.update) / count, 1.0)
        new = replace(
            state,
            point=taken.point,
            total=total,
            step_size=taken.step_size,
            path=state.path + moved,
            path_square=state.path_square + moved**2,
            evidence=taken.evidence if first else state.evidence,
            w=self.padded(space.model(mean), space.features.size),
        )
        return new, taken.record(what.update, used, space.clip)

    def _damping(self, state: AdditiveState, descent: Descent) -> float:
        """Return the damping of weights: more for a rare class, which curves less."""
        return descent.damping * min(1 / self.columns(state).balance, MOST_HELD)

    def padded(self, model: Tensor, size: int) -> Tensor:
        """Return a model in the place of all parameters."""
        blocks = model.reshape(self.objective.outputs, size + 1)
        w = torch.zeros(self.objective.outputs, self.objective.most_features + 1)
        w = w.to(torch.float64)
        w[:, :size], w[:, -1] = blocks[:, :-1], blocks[:, -1]
        return w.reshape(-1)

    def model(self, state: AdditiveState) -> "AdditiveModel":
        """Return the model of released values."""
        from armijo.methods.additive_model import AdditiveModel

        return AdditiveModel(self, state)

    def rms_score(self, state: AdditiveState) -> float:
        """Return the root mean square of scores without intercept, as released.

        From the released moments, as far as they stand out from their noise; else as
        if columns were independent.
        """
        phase = len(self.phases) - 1
        features = self.features(state, phase)
        plain = self.weights_of(state, phase)[:, :-1]
        square = float(features.score_variance(plain.T).sum())
        descent = self._descent(phase)
        if descent.moments:
            weights = plain * features.radius
            values, vectors = self._spectrum(state)
            rotated = weights if vectors is None else weights @ vectors
            noise = descent.released(descent.moments).noise_scale / self._n_rows
            noise *= float((weights**2).sum())
            trust = square**2 / (square**2 + noise**2 + 1e-300)
            found = square + trust * (float((values * rotated**2).sum()) - square)
            square = max(found, square / 4)
        return math.sqrt(square / self.objective.outputs + 1e-12)

    def first_factor(self, state: AdditiveState) -> float:
        """Return what scores are multiplied by before they are recalibrated.

        Their noise is known: step sizes and damping are released, clipped slopes hardly
        curve where scores are small, and columns are taken as independent.
        """
        if len(self.phases) > 1:  # rows are so many that scores need none
            return 1.0
        space, (values, vectors) = self._space(state, 0), self._spectrum(state)
        features, outputs = space.features, self.objective.outputs
        descent = self._descent(0, features.size)
        if vectors is None:  # features are too many for a matrix of them
            variances = features.variances / features.variance
        else:
            variances = features.score_variance(vectors / space.radius)
        damped = np.maximum(values, 0.0) + self._damping(state, descent)
        damped += 4 * space.curvature
        curvature = max(outputs - 1, 1) / max(outputs, 2) ** 2  # of equal probabilities
        ways = state.path / damped * variances * curvature
        error = descent.clip * descent.gradient.noise_scale / self._n_rows / damped
        noises = outputs * variances * state.path_square * error**2 / (1 + ways)
        plain = self.weights_of(state, 0)[:, :-1]
        found = float(features.score_variance(plain.T).sum())
        gains = (variances / damped) ** 2  # zero where no level stands out
        way = float((gains * ways).sum() / max(gains.sum(), 1e-300))
        return first_factor(found, noises, way)

    def _recalibrated(
        self, batch: PrivateBatch, state: AdditiveState, update: int, used: Gaussian
    ) -> AdditiveState:
        """Release how far probabilities are off, and correct scale and offsets."""
        phase = len(self.phases) - 1
        space = self._space(state, phase)
        weights = self.weights_of(state, phase)
        held = None if state.calibration is None else state.calibration.numpy()
        known = held
        if known is None:
            known = self.recalibration.begin(
                self.rms_score(state), weights[:, -1], self.first_factor(state)
            )
        flat = torch.from_numpy(weights.reshape(-1).copy())
        gradients = partial(
            _calibration_gradients,
            (space, flat, self.recalibration, known),
            update,
            used.sensitivity,
        )
        query = BoundedQuery(contributions=gradients, bound=used.sensitivity)
        noisy = batch.noisy_sum(query, used) / batch.expected_size
        shares = self.columns(state).weighted_shares
        new = self.recalibration.corrected(known, noisy, update, shares)
        return replace(state, calibration=torch.from_numpy(new))


@dataclass(frozen=True)
class CellCounts:
    """Counts the cells of some columns, or of all and the target, block by block.

    Attributes
    ----------
    objective : AdditiveObjective
        What is public.
    layout : Layout
        The cells.
    places : tuple of int or None
        The column of each part of the layout, the target after the last one; None is
        all of them.
    """

    objective: AdditiveObjective
    layout: Layout
    places: tuple[int, ...] | None = None

    def __call__(self, rows: Rows) -> Contributions:
        """Return the weighted counts; a row without a known label weighs nothing."""
        unknown = np.isnan(self.objective.known(rows.y))
        weight = np.where(unknown, 0.0, weights(rows))
        layout, cells = self.layout, self._cells(rows)
        return count_sum(
            lambda: layout.places(cells),
            layout.size,
            weight,
            layout.bound,
            layout.factors,
        )

    def _cells(self, rows: Rows) -> list[NDArray[Any]]:
        table: CodedTable = rows.X
        y = np.asarray(rows.y, dtype=np.float64)
        if self.places is not None:
            return [y if k == len(table.cells) else table.cells[k] for k in self.places]
        if self.objective.outputs == 1 and not self.objective.regression:
            y = (y + 1) / 2  # -1 and 1 are the classes 0 and 1
        return [*table.cells, y]


def _calibration_gradients(
    model: tuple[FeatureSpace, Tensor, Recalibration, FloatArray],
    update: int,
    bound: float,
    rows: Rows,
) -> Contributions:
    """Return each row's gradient in scale and offsets of its scores."""
    space, weights, recalibration, known = model
    rows = space.view(rows)
    scores = space.objective.scores_at(rows, weights).numpy()
    y = space.objective.labels(rows).numpy()
    scores = scores.reshape(len(y), space.objective.outputs)
    values = recalibration.gradients(known, scores, y, update)
    return space.weighted(rows, values, bound)


def weights(rows: Rows) -> FloatArray:
    """Return the weights of the rows of a coded table."""
    return np.ones(rows.size) if rows.X.weight is None else np.asarray(rows.X.weight)
