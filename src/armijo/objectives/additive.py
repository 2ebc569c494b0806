# SPDX-License-Identifier: Apache-2.0
"""Additive features of a coded table, and products of them, from released counts.

A numeric column becomes cosines of its rank and a standardized line, a category one
feature a level.  Features are centered by the released distributions, which also give
the root mean square norm of a row: no mean and no norm is bought.  Each row's features
are a function of that row and of released values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data.coded import (
    CategoryColumn,
    CodedTable,
    ColumnInfo,
    NumericColumn,
    refuse_bounds,
)
from armijo.data.integer_rows import IntegerRows
from armijo.objectives.base import Objective
from armijo.objectives.cells import (
    Cells,
    LevelCells,
    Levels,
    Marginal,
    NumericCells,
    kept_levels,
    marginals,
)

COSINES = 8  # of the rank of a numeric column
LINE = 0.7  # weight of the line beside the cosines
LINE_ENDS = (0.005, 0.995)  # ranks beyond which the line is flat
LINE_CLIP = 3.0  # standard deviations
LEVEL_WEIGHT = 1.2  # of the features of a category
PAIRS = 300  # products of two columns
PAIR_ORDER, RARE_PAIR_ORDER = 8, 4  # highest product of two orders
RARE = 0.5  # 4 p (1 - p) below which a class is rare
PAIR_VARIANCE = 0.7  # of products together, in variances of the additive features
PAIR_POWER = 0.3  # of a product's energy in its weight
LEAST_IMPORTANCE = 0.05  # of a column, in those of the most important one
EFFECT_ORDERS = 3  # orthogonal polynomials of a category's fitted effect
EFFECT_CLIP = 3.0
_SMALL_VARIANCE = 0.02  # below which a cosine is not scaled up further
# Of all features: where no level of any category stands out they are all zero, and the
# constant feature, in units of the radius, must not be rounded to zero with them.
_LEAST_VARIANCE = 1e-4

Basis = Literal["additive", "line"]


def cosines(ranks: FloatArray, orders: int) -> FloatArray:
    """Return ``cos(pi k rank)`` for k from 1, one after the other.

    By a polynomial (Taylor's, at rank one half: the error is below 1e-12) and
    ``cos((k + 1) t) = 2 cos t cos(k t) - cos((k - 1) t)``: sums and products only, so
    that each value is a function of its rank.
    """
    t = (ranks - 0.5) * math.pi
    square = t * t
    sine = np.full(ranks.shape, _SINE[-1])
    for factor in _SINE[-2::-1]:
        sine *= square
        sine += factor
    first = -(sine * t)
    found = np.empty((orders, len(ranks)))
    before, now, twice = np.ones(len(ranks)), first, 2.0 * first
    for k in range(orders):
        found[k] = now
        before, now = found[k], twice * now - before
    return found


_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)]


class Read(NamedTuple):
    """Numbers in units of their range, which of them are missing, and cosines."""

    units: FloatArray
    absent: NDArray[np.bool_]
    waves: FloatArray


@dataclass(frozen=True, eq=False)
class NumericFeatures:
    """Cosines, a line, and perhaps an indicator of missing cells."""

    marginal: Marginal
    orders: int
    line: bool

    @cached_property
    def _line(self) -> tuple[float, float, float, float]:
        """Lowest and highest value of the line, mean and scale, in units of range."""
        low, high = (self.marginal.quantile(rank) for rank in LINE_ENDS)
        values = np.clip(self.marginal.centers, low, high)
        mean = float(self.marginal.mean(values))
        variance = float(self.marginal.mean((values - mean) ** 2))
        return low, high, mean, math.sqrt(max(variance, 1e-18))

    def _raw(self, units: FloatArray, waves: FloatArray) -> FloatArray:
        """Return features before centering, one after the other."""
        found = np.empty((self.orders + self.line, len(units)))
        order = np.arange(1, self.orders + 1)
        factors = math.sqrt(2) / order
        total = float((1.0 / order**2).sum())
        weight = LINE if self.orders else 1.0
        if self.line:
            total += weight**2
            low, high, mean, scale = self._line
            line = np.clip(units, low, high, out=found[-1])
            line -= mean
            line /= scale
            np.clip(line, -LINE_CLIP, LINE_CLIP, out=line)
            line *= weight / math.sqrt(total)
        factors /= math.sqrt(total)
        np.multiply(waves[: self.orders], factors[:, None], out=found[: self.orders])
        return found

    @cached_property
    def _on_cells(self) -> FloatArray:
        waves = cosines(self.marginal.middles, self.orders)
        return self._raw(self.marginal.centers, waves).T

    @cached_property
    def _means(self) -> FloatArray:
        return self.marginal.mean(self._on_cells)

    @cached_property
    def covariance(self) -> FloatArray:
        """The covariance of the features under the released distribution."""
        centered = self._on_cells - self._means
        inner = (centered * self.marginal.shares[:, None]).T @ centered
        missing = self.marginal.missing
        inner *= 1 - missing
        if not missing:
            return inner
        found = np.zeros((len(inner) + 1,) * 2)
        found[:-1, :-1] = inner
        found[-1, -1] = LEVEL_WEIGHT**2 * missing * (1 - missing)
        return found

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.covariance)

    def places(self, numbers: FloatArray) -> NDArray[np.intp]:
        """Return the cell of each number."""
        return self.marginal.places(self.marginal.cells.units(numbers))

    def read(
        self, numbers: FloatArray, places: NDArray[np.intp], *, orders: int
    ) -> "Read":
        """Return what features and factors share, with so many cosines.

        ``places`` is what :meth:`places` returned.
        """
        units = self.marginal.cells.units(numbers)
        ranks, absent = self.marginal.unit_ranks(units, places), np.isnan(units)
        ranks[absent], units[absent] = 0.5, 0.0
        return Read(units, absent, cosines(ranks, max(orders, self.orders)))

    def features(self, read: "Read") -> FloatArray:
        """Return centered features; those of a missing cell are their means.

        They come one after the other, (features, rows).
        """
        found = self._raw(read.units, read.waves)
        found -= self._means[:, None]
        found[:, read.absent] = 0.0
        if not self.marginal.missing:
            return found
        indicator = LEVEL_WEIGHT * (read.absent - self.marginal.missing)
        return np.vstack([found, indicator])

    @cached_property
    def _pair_scale(self) -> tuple[FloatArray, FloatArray]:
        values = cosines(self.marginal.middles, PAIR_ORDER).T
        mean = self.marginal.mean(values)
        variance = self.marginal.mean(values**2) - mean**2
        return mean, np.sqrt(np.maximum(variance, _SMALL_VARIANCE))

    def factors(self, read: "Read", effects: FloatArray) -> FloatArray:
        """Return cosines of variance one for products, zero where missing.

        They come one after the other, (functions, rows).
        """
        mean, scale = self._pair_scale
        found = read.waves[:PAIR_ORDER] - mean[:, None]
        found /= scale[:, None]
        found[:, read.absent] = 0.0
        return found

    def effects(self, weights: FloatArray) -> FloatArray:
        """Return what factors need of the fitted weights: nothing."""
        return np.empty((0, PAIR_ORDER))

    def shape(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return points, fitted contributions and the shares of the cells."""
        cells = self.marginal.cells
        points = cells.low + self.marginal.centers * (cells.high - cells.low)
        inner = (self._on_cells - self._means) @ weights[: self._on_cells.shape[1]]
        if self.marginal.missing:  # of a row that is not missing
            inner = inner - LEVEL_WEIGHT * self.marginal.missing * weights[-1]
        return points, inner, self.marginal.shares


@dataclass(frozen=True, eq=False)
class LevelFeatures:
    """One centered feature for each kept level of a category."""

    cells: LevelCells
    levels: Levels

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.levels.shares)

    @cached_property
    def covariance(self) -> FloatArray:
        """The covariance of the features under the released distribution."""
        shares = self.levels.shares
        return LEVEL_WEIGHT**2 * (np.diag(shares) - np.outer(shares, shares))

    def places(self, codes: NDArray[Any]) -> NDArray[np.intp]:
        """Return the kept level of each code; the last one is none."""
        return self.levels.merged[self.cells.places(codes)]

    def read(
        self, codes: NDArray[Any], places: NDArray[np.intp], *, orders: int
    ) -> NDArray[np.intp]:
        """Return what features and factors share: what :meth:`places` returned."""
        return places

    def features(self, kept: NDArray[np.intp]) -> FloatArray:
        """Return centered features; a cell without a kept level has their means.

        They come one after the other, (features, rows).
        """
        means = LEVEL_WEIGHT * self.levels.shares
        found = np.empty((self.size, len(kept)))
        found[:] = (0.0 - means)[:, None]
        rows = np.flatnonzero(kept < self.size)
        found[kept[rows], rows] = (LEVEL_WEIGHT - means)[kept[rows]]
        return found

    def effects(self, weights: FloatArray) -> FloatArray:
        """Return orthogonal polynomials of the fitted effect, (levels, orders)."""
        shares = (self.levels.shares + 1e-6) / (self.levels.shares + 1e-6).sum()
        if self.size == 1:  # no level stands out, and all are one
            raw = np.empty((1, 0))
        elif self.size == 2:
            raw = np.array([[1.0], [0.0]])
        else:
            top = max(float(np.abs(weights).max()), 1e-9)
            orders = range(1, min(self.size - 1, EFFECT_ORDERS) + 1)
            raw = np.stack([(weights / top) ** k for k in orders], axis=1)
        basis = [np.ones(self.size)]
        for column in raw.T:
            for _ in range(2):  # Gram and Schmidt, twice for rounding
                for known in basis:
                    column = column - (shares * column * known).sum() * known
            scale = math.sqrt(float((shares * column * column).sum()))
            if scale > 1e-3:
                basis.append(column / scale)
        found = np.array(basis[1:]).T.reshape(self.size, len(basis) - 1)
        return np.clip(found, -EFFECT_CLIP, EFFECT_CLIP)

    def factors(self, kept: NDArray[np.intp], effects: FloatArray) -> FloatArray:
        """Return polynomials of the fitted effect of each row's level.

        They come one after the other, (functions, rows).
        """
        padded = np.vstack([effects, np.zeros(effects.shape[1])])
        return padded.T[:, np.minimum(kept, self.size)]

    def shape(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return levels, fitted contributions and shares, missing cells last."""
        effects = LEVEL_WEIGHT * np.append(weights, 0.0)
        effects -= LEVEL_WEIGHT * float(self.levels.shares @ weights)
        kept = self.levels.merged
        counts = np.bincount(kept, minlength=self.size + 1)
        shares = np.append(self.levels.shares, 0.0)[kept] / counts[kept]
        return np.arange(len(kept), dtype=float), effects[kept], shares


ColumnFeatures = NumericFeatures | LevelFeatures


@dataclass(frozen=True)
class Product:
    """A product of function ``k`` of one column with function ``l`` of another."""

    first: int
    k: int
    second: int
    l: int  # noqa: E741 (as in the formula)
    energy: float


@dataclass(frozen=True, eq=False)
class Features:
    """All features of a table: those of each column, then products of columns.

    Attributes
    ----------
    columns : tuple
        The features of each column.
    products : tuple of Product
        The chosen products.
    effects : array
        The coefficients of the columns' features by which products were chosen.
    """

    columns: tuple[ColumnFeatures, ...]
    products: tuple[Product, ...] = ()
    effects: FloatArray | None = None

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where the features of each column stand."""
        ends = np.cumsum([0, *(column.size for column in self.columns)])
        return tuple(slice(a, b) for a, b in pairwise(ends.tolist()))

    @property
    def n_additive(self) -> int:
        """The number of features of single columns."""
        return sum(column.size for column in self.columns)

    @property
    def size(self) -> int:
        """The number of features."""
        return self.n_additive + len(self.products)

    @property
    def variances(self) -> FloatArray:
        """The variances of the features of single columns."""
        return np.concatenate([np.diag(column.covariance) for column in self.columns])

    @cached_property
    def variance(self) -> float:
        """The mean squared norm of a row's features under released distributions."""
        total = sum(float(np.trace(column.covariance)) for column in self.columns)
        total = max(total, _LEAST_VARIANCE)
        return total * (1 + PAIR_VARIANCE) if self.products else total

    def score_variance(self, weights: FloatArray) -> FloatArray:
        """Return the variance of scores if columns were independent.

        ``weights`` are of shape (features, scores).
        """
        found = np.zeros(weights.shape[1])
        for column, place in zip(self.columns, self.slices, strict=True):
            own = weights[place]
            found += (own * (column.covariance @ own)).sum(axis=0)
        if self.products:
            products = weights[self.n_additive :] * self._weights[:, None]
            found += (products**2).sum(axis=0)
        return np.maximum(found, 0.0)

    @property
    def radius(self) -> float:
        """The root of the mean squared norm."""
        return math.sqrt(self.variance)

    @cached_property
    def _weights(self) -> FloatArray:
        """The weight of each product."""
        energy = np.array([product.energy for product in self.products])
        weights = np.maximum(energy, 1e-300) ** PAIR_POWER
        extra = self.variance * PAIR_VARIANCE / (1 + PAIR_VARIANCE)
        return weights * math.sqrt(extra / float((weights**2).sum()))

    def rows(
        self,
        table: CodedTable,
        weight: FloatArray,
        *,
        whole: bool = False,
        before: IntegerRows | None = None,
        memory: int | None = None,
    ) -> IntegerRows:
        """Return the features of all rows, on their lattice, with their weights.

        ``before`` are the rows with the features of single columns only, ``memory``
        the bytes that may be held.
        """
        places, orders = _Places(self.columns, table), PAIR_ORDER * bool(self.products)
        if before is not None and before.held is None:
            before = None  # both are computed at every pass, and share cosines

        def fill(part: slice, out: FloatArray) -> None:
            read: dict[int, Any] = {  # what its own column makes of cells
                number: self.columns[number].read(
                    table.cells[number][part], places(number, part), orders=orders
                )
                for number in (self._used if before else range(len(self.columns)))
            }
            if before is None:
                for number, place in enumerate(self.slices):
                    out.T[place] = self.columns[number].features(read[number])
            if self.products:
                self._fill_products(read, out[:, -len(self.products) :])

        return IntegerRows.filled(
            self.size, fill, weight, whole=whole, before=before, memory=memory
        )

    def _fill_products(self, read: Mapping[int, Any], out: FloatArray) -> None:
        factors = {
            number: self.columns[number].factors(read[number], effects)
            for number, effects in self._used_effects.items()
        }
        weights = self._weights.tolist()
        for column, one, weight in zip(out.T, self.products, weights, strict=True):
            left, right = factors[one.first][one.k - 1], factors[one.second][one.l - 1]
            np.multiply(left, right, out=column)
            column *= weight

    @cached_property
    def _used(self) -> list[int]:
        """The columns that take part in products."""
        return sorted({place for product in self.products for place in _both(product)})

    @cached_property
    def _used_effects(self) -> dict[int, FloatArray]:
        """What their factors need of the coefficients, for columns in products."""
        known = np.zeros(self.n_additive) if self.effects is None else self.effects
        return {
            number: self.columns[number].effects(known[self.slices[number]])
            for number in self._used
        }

    def with_products(
        self, effects: FloatArray, *, rare: bool, free: Sequence[bool]
    ) -> "Features":
        """Choose products by fitted coefficients of the columns' features.

        A product of orders k and l has the energy ``I J / (k l)``, where I and J are
        the standard deviations of the two columns' fitted contributions.  ``rare``
        says that a class is rare, ``free`` which columns may take part.
        """
        spread = [
            math.sqrt(max(float(w @ column.covariance @ w), 0.0))
            for column, place in zip(self.columns, self.slices, strict=True)
            for w in [effects[place]]
        ]
        importance = np.maximum(spread, LEAST_IMPORTANCE * max(spread))
        most = RARE_PAIR_ORDER if rare else PAIR_ORDER
        orders = [
            column.effects(effects[place]).shape[1] if allowed else 0
            for column, place, allowed in zip(
                self.columns, self.slices, free, strict=True
            )
        ]
        found = [
            Product(i, k, j, l, float(importance[i] * importance[j]) / (k * l))
            for i in range(len(orders))
            for j in range(i)
            for k in range(1, orders[i] + 1)
            for l in range(1, min(orders[j], most // k) + 1)  # noqa: E741
        ]
        found.sort(key=lambda product: -product.energy)
        return replace(self, products=tuple(found[:PAIRS]), effects=effects)


class _Places:
    """The cells that numbers and codes of a table lie in, found at the first pass.

    Four bytes for a cell of the table: features that take too much memory are computed
    again at every pass, and to search their cells would be most of it.
    """

    def __init__(self, columns: tuple[ColumnFeatures, ...], table: CodedTable) -> None:
        self._columns, self._table = columns, table
        self._held: dict[int, NDArray[np.int32]] = {}

    def __call__(self, column: int, part: slice) -> NDArray[np.intp]:
        """Return the cells of some rows of a column."""
        held = self._held.get(column)
        if held is None:
            held = self._held[column] = np.full(len(self._table), -1, dtype=np.int32)
        found = held[part]
        if len(found) and found[0] < 0:  # a place is never below zero
            cells = self._table.cells[column][part]
            found[:] = self._columns[column].places(cells)
        return found.astype(np.intp)


def _both(product: Product) -> tuple[int, int]:
    return product.first, product.second


def additive_features(
    cells: Sequence[Cells],
    counts: Sequence[FloatArray],
    n_rows: float,
    noise: float,
    *,
    orders: int = COSINES,
) -> Features:
    """Return the features of columns from noisy counts of their cells.

    ``orders`` is the number of cosines of a numeric column; zero leaves the line.
    """
    numeric = [k for k, part in enumerate(cells) if isinstance(part, NumericCells)]
    found = marginals(
        [part for part in cells if isinstance(part, NumericCells)],
        [counts[k] for k in numeric],
        n_rows,
        noise,
    )
    columns: dict[int, ColumnFeatures] = {
        place: NumericFeatures(marginal, orders, True)
        for place, marginal in zip(numeric, found, strict=True)
    }
    for place, part in enumerate(cells):
        if isinstance(part, LevelCells):
            levels = kept_levels(counts[place], n_rows, noise)
            columns[place] = LevelFeatures(part, levels)
    return Features(tuple(columns[place] for place in range(len(cells))))


LossName = Literal[
    "logistic", "softmax", "hinge", "huberized-hinge", "squared", "huber"
]


@dataclass(frozen=True, kw_only=True)
class AdditiveObjective(Objective):
    """A model of a coded table, whose features are learned by releases.

    Attributes
    ----------
    columns : tuple of NumericColumn or CategoryColumn
        What is public of the columns.
    loss : str
        One of ``LossName``.  The last two are for numeric targets; scores of a hinge
        are no log-odds.
    n_classes : int
        Public number of classes.
    l2 : float
        Penalty.
    target_bounds : pair of float or None
        Public bounds of a numeric target; either may be None.
    class_weight : tuple of float, "balanced" or None
        Weights of the classes, which are divided by the largest; "balanced" has the
        reciprocals of the released shares.
    """

    columns: tuple[ColumnInfo, ...]
    loss: LossName = "logistic"
    n_classes: int = 2
    l2: float = 1e-3
    target_bounds: tuple[float | None, float | None] = (None, None)
    class_weight: tuple[float, ...] | Literal["balanced"] | None = None

    def __post_init__(self) -> None:
        _validate.choice(get_args(LossName), loss=self.loss)
        _validate.at_least(1, columns=len(self.columns))
        _validate.at_least(2, n_classes=self.n_classes)
        _validate.non_negative(l2=self.l2)
        refuse_bounds(*self.target_bounds, "target_bounds")
        if self.loss != "softmax" and self.n_classes != 2:
            raise ValueError(
                f"Expected two classes for the {self.loss} loss, got {self.n_classes}; "
                "use a logistic model. Nothing was spent."
            )
        if self.loss == "softmax" and any(_directed(c) for c in self.columns):
            raise ValueError(
                "Expected two classes or a numeric target for a column with a "
                "direction, got several classes; leave monotone out. Nothing was spent."
            )
        if self.class_weight is not None and self.class_weight != "balanced":
            self._refuse_weights(self.class_weight)

    def _refuse_weights(self, weights: tuple[float, ...]) -> None:
        """Refuse weights that dividing by the largest would not bring to [0, 1]."""
        given = isinstance(weights, tuple) and len(weights) == self.n_classes
        for weight in weights if given else ():
            _validate.non_negative(class_weight=weight)
        if not given or max(weights) == 0:
            raise ValueError(
                f"Expected class_weight to be None, 'balanced' or a weight for each of "
                f"{self.n_classes} classes, one of them above zero, got {weights!r}. "
                "Nothing was spent."
            )

    @property
    def outputs(self) -> int:
        """Scores for each row: one, or one for each class."""
        return self.n_classes if self.loss == "softmax" else 1

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return self.loss in ("squared", "huber")

    @property
    def score_loss(self) -> str:
        """The name of the loss among those of margins, or of residuals."""
        return "huber" if self.loss == "huberized-hinge" else self.loss

    @property
    def log_odds(self) -> bool:
        """Whether scores are log-odds, which can be recalibrated."""
        return self.loss in ("logistic", "softmax")

    def known(self, y: NDArray[Any]) -> FloatArray:
        """Return labels or targets as floats, NaN where one is no class or number."""
        values = np.asarray(y, dtype=np.float64)
        if self.regression:
            return np.where(np.isfinite(values), values, np.nan)
        several = self.loss == "softmax"
        classes = np.arange(self.n_classes) if several else np.array([-1.0, 1.0])
        return np.where(np.isin(values, classes), values, np.nan)

    @property
    def most_features(self) -> int:
        """The most features that releases can lead to."""
        total = PAIRS
        for column in self.columns:
            numeric = isinstance(column, NumericColumn)
            total += COSINES + 2 if numeric else _levels(column) + 2
        return total

    @property
    def size(self) -> int:
        """The number of parameters, of which released counts may leave some unused."""
        return self.outputs * (self.most_features + 1)

    def start(self) -> Tensor:
        """Return zeros."""
        return torch.zeros(self.size, dtype=torch.float64)

    def _refused(self, *args: Any, **named: Any) -> NoReturn:
        raise ValueError(
            "Expected a linear model or a network, got a coded table, which only the "
            "additive method trains. Nothing was spent."
        )

    gradient_sum = loss_drop_sum = step_scores = _refused
    normalized_gradient_sum = losses_along = _refused


def _directed(column: ColumnInfo) -> bool:
    return isinstance(column, NumericColumn) and column.monotone != 0


def _levels(column: ColumnInfo) -> int:
    return column.n_levels if isinstance(column, CategoryColumn) else 0
