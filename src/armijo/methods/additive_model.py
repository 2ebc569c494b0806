# SPDX-License-Identifier: Apache-2.0
"""A fitted additive model: released values, what they predict, and what they look like.

A model is kept as the releases it follows from; features and shapes are computed from
them again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

from armijo.accounting.budget import FloatArray
from armijo.data.coded import CategoryColumn, CodedTable, NumericColumn
from armijo.methods.additive import Additive, AdditiveState, Columns
from armijo.methods.base import Problem
from armijo.objectives.additive import AdditiveObjective, Features, NumericFeatures

CLEAR_EVIDENCE = 3.0  # standard deviations by which columns must tell of the target

_TENSORS = ("ranges", "counts", "chosen", "calibration")


@dataclass(frozen=True, eq=False)
class Shape:
    """What a column adds to the score.

    Attributes
    ----------
    name : str
        Name of the column.
    kind : {"numeric", "category"}
        Its kind.
    x : array
        Points, or numbers of levels (missing cells last).
    y : array of shape (scores, points)
        The contribution there.
    density : array
        The released share of rows there.
    """

    name: str
    kind: Literal["numeric", "category"]
    x: FloatArray
    y: FloatArray
    density: FloatArray


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A model of a coded table.

    Attributes
    ----------
    method : Additive
        The calibrated method.
    state : AdditiveState
        What it released.
    """

    method: Additive
    state: AdditiveState

    @property
    def objective(self) -> AdditiveObjective:
        """What is public of the table."""
        return self.method.objective

    @cached_property
    def columns(self) -> Columns:
        """What released counts tell of the columns and the target."""
        return self.method.columns(self.state)

    @cached_property
    def features(self) -> Features:
        """The features that weights belong to."""
        return self.method.features(self.state, len(self.method.phases) - 1)

    @cached_property
    def weights(self) -> FloatArray:
        """Weights and, last, intercept: one row for each score."""
        return self.method.weights_of(self.state, len(self.method.phases) - 1)

    def scores(self, table: CodedTable) -> FloatArray:
        """Return logits, (rows,) or (rows, classes); or predictions of a number."""
        rows = self.features.rows(table, np.ones(len(table)))
        weights = self.weights[:, :-1].copy()
        for place in self._monotone:  # whose shape takes the place of its features
            weights[:, self.features.slices[place]] = 0.0
        raw = rows.product(weights.T) + self.weights[:, -1]
        for place, line in self._monotone.items():
            raw[:, 0] += line.effects(table.cells[place])
        if self.objective.regression:
            low, high, mean, deviation = self.columns.target_scale
            return np.clip(mean + deviation * raw[:, 0], low, high)
        if self.state.calibration is not None:
            known = self.state.calibration.numpy()
            raw = self.method.recalibration.logits(known, raw)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def coefficients(self) -> tuple[FloatArray, FloatArray]:
        """Return coefficients of the features and intercepts, as recalibrated.

        Scores beyond the recalibration's range, three root mean squares of the score,
        grow more slowly than by these.
        """
        weights, offsets = self.weights[:, :-1], self.weights[:, -1]
        if self.state.calibration is None:
            return weights, offsets
        known = self.state.calibration.numpy()
        scale, first, now = self.method.recalibration.parameters(known)
        factor = now[0] / scale
        return weights * factor, now[1:] + (offsets - first) * factor

    def feature_names(self, levels: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the names of the features of a model of lines.

        ``levels`` has the names of the levels of each category.
        """
        found: list[str] = []
        for column, features in zip(
            self.objective.columns, self.features.columns, strict=True
        ):
            if isinstance(features, NumericFeatures):
                found += [column.name, f"{column.name} missing"][: features.size]
                continue
            for place in range(features.size):
                own = np.flatnonzero(features.levels.merged[:-1] == place)
                names = levels[column.name]
                level = names[own[0]] if len(own) == 1 else "rare levels"
                found.append(f"{column.name}={level}")
        return tuple(found)

    @cached_property
    def _monotone(self) -> dict[int, "MonotoneShape"]:
        """The columns whose shape has a declared direction, with their corrections."""
        return {
            place: MonotoneShape.of(features, self._of_column(place)[0], way)
            for place, column in enumerate(self.objective.columns)
            if (way := getattr(column, "monotone", 0))
            and isinstance(features := self.features.columns[place], NumericFeatures)
        }

    def _of_column(self, place: int) -> FloatArray:
        return self.weights[:, self.features.slices[place]]

    def shapes(self) -> tuple[Shape, ...]:
        """Return what each column adds to the score, before recalibration."""
        found = []
        for place, column in enumerate(self.objective.columns):
            features = self.features.columns[place]
            curves = [features.shape(weights) for weights in self._of_column(place)]
            x, _, density = curves[0]
            y = np.stack([curve[1] for curve in curves])
            if place in self._monotone:
                y = self._monotone[place].values[None, :]
            numeric = isinstance(column, NumericColumn)
            kind: Literal["numeric", "category"] = "numeric" if numeric else "category"
            found.append(Shape(column.name, kind, x, y, density))
        return tuple(found)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of columns that interact, strongest first."""
        names = [column.name for column in self.objective.columns]
        both = [(names[one.first], names[one.second]) for one in self.features.products]
        return tuple(dict.fromkeys(both))

    @property
    def n_rows_estimate(self) -> float:
        """The number of rows, as the counts of the target tell it."""
        return float(self.columns.counts[-1][:-1].sum())

    @property
    def n_rows_noise(self) -> float:
        """The standard deviation of it."""
        return self.columns.noise * math.sqrt(len(self.columns.counts[-1]) - 1)

    @property
    def prior(self) -> FloatArray:
        """The released shares of the classes."""
        return self.columns.class_shares

    @property
    def better_than_prior(self) -> bool:
        """Whether the first gradient, at the prior, stands out from its noise."""
        return self.state.evidence > CLEAR_EVIDENCE

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain values, which :meth:`from_dict` takes."""
        found: dict[str, Any] = {
            "objective": {
                **asdict(self.objective),
                "columns": [asdict(column) for column in self.objective.columns],
            },
            "basis": self.method.basis,
            "pairs": self.method.pairs,
            "n_rows": self.columns.n_rows,
            "noise_multiplier": self.method.noise_multiplier,
            "weights": self.weights.tolist(),
            "evidence": self.state.evidence,
        }
        for name in _TENSORS:
            tensor = getattr(self.state, name)
            found[name] = None if tensor is None else tensor.tolist()
        return found

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Build a model from plain values, trusting none of them.

        Raises
        ------
        ValueError
            If a value is missing, of another type, not finite or of another length.
        """
        try:
            given = dict(document["objective"])
            given["columns"] = tuple(map(_column, given["columns"]))
            given["target_bounds"] = tuple(given["target_bounds"])
            if isinstance(given.get("class_weight"), list):
                given["class_weight"] = tuple(given["class_weight"])
            method = Additive(
                basis=document["basis"],
                pairs=document["pairs"],
                noise_multiplier=_number(document["noise_multiplier"]),
                problem=Problem(
                    objective=AdditiveObjective(**given),
                    n_rows=int(_number(document["n_rows"])),
                ),
            )
            tensors: dict[str, Any] = {n: _tensor(document[n]) for n in _TENSORS}
            state = AdditiveState(
                w=method.objective.start(),
                evidence=_number(document["evidence"]),
                **tensors,
            )
            _refuse_lengths(method, state)
            model = cls(method, state)
            weights = _array(document["weights"])
            expected = (method.objective.outputs, model.features.size + 1)
            _refuse_shape("weights", weights, expected)
            padded = method.padded(torch.from_numpy(weights), model.features.size)
            return cls(method, replace(state, w=padded))
        except _CHANGED as error:
            raise ValueError(
                f"Expected the values of an additive model, got {error!r}; the file "
                "was changed after training."
            ) from None


_CHANGED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


def _refuse_lengths(method: Additive, state: AdditiveState) -> None:
    """Refuse releases that are not as long as the method makes them."""
    size = method.objective.outputs
    known = 2 + size + 4 * (size + 1) if method.shares["recalibration"] else None
    ends = len(method._scale_layout.parts) or None  # two of each column without bounds
    _refuse_shape("calibration", state.calibration, known)
    _refuse_shape("ranges", state.ranges, ends)
    if state.ranges is not None:
        low, high = state.ranges.reshape(-1, 2).T
        if not bool((low < high).all() and (high - low).isfinite().all()):
            raise ValueError("ranges that end before they begin")
    _refuse_shape("counts", state.counts, method._layout(state).size)
    features = method.features(state, 0).size if len(method.phases) == 2 else None
    _refuse_shape("chosen", state.chosen, features)


def _refuse_shape(
    name: str, values: Any, expected: int | tuple[int, int] | None
) -> None:
    shape = None if values is None else tuple(values.shape)
    wanted = (expected,) if isinstance(expected, int) else expected
    if shape != wanted:
        raise ValueError(f"{name} of shape {shape}, not {wanted}")


def _column(given: Mapping[str, Any]) -> NumericColumn | CategoryColumn:
    return CategoryColumn(**given) if "n_levels" in given else NumericColumn(**given)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r}")
    return float(value)


def _array(values: Any) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError("numbers that are not finite")
    return array


def _tensor(values: Any) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(_array(values))


@dataclass(frozen=True, eq=False)
class MonotoneShape:
    """The nearest shape of a declared direction, under the released distribution."""

    features: NumericFeatures
    weights: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, features: NumericFeatures, weights: FloatArray, way: int) -> Self:
        """Project a fitted shape by isotonic regression over the cells."""
        _, fitted, shares = features.shape(weights)
        values = isotonic_regression(
            fitted, sample_weight=shares + 1e-9, increasing=way > 0
        )
        return cls(features, weights, values)

    def effects(self, numbers: FloatArray) -> FloatArray:
        """Return what is added to a score; what was fitted where a cell is missing."""
        read = self.features.read(numbers, self.features.places(numbers), orders=0)
        known = np.interp(read.units, self.features.marginal.centers, self.values)
        fitted = self.weights @ self.features.features(read)
        return np.where(read.absent, fitted, known)
