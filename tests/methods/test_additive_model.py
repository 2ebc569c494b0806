# SPDX-License-Identifier: Apache-2.0
"""Fitted additive models: plain values and back, shapes, declared directions."""

import copy
import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from armijo.data.coded import CodedTable
from armijo.methods.additive_model import AdditiveModel
from tests.objectives.table_doubles import (
    COLUMNS,
    LOSSES,
    objective_of,
    released,
    table_of,
)

CALLABLE = ("logistic", "squared")


@cache
def model_of(loss="logistic", monotone=0, pairs=True, **settings):
    columns = (replace(COLUMNS[0], monotone=monotone), *COLUMNS[1:])
    table, y = table_of(700, loss)
    table = CodedTable(columns, table.cells)
    objective = objective_of(loss, columns, **settings)
    method, state, _ = released(table, y, objective, pairs=pairs)
    return method.model(state)


def document_of(model):
    return json.loads(json.dumps(model.to_dict(), allow_nan=False))


class TestPlainValues:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("pairs", [True, False])
    def test_there_and_back(self, loss, pairs):
        model = model_of(loss, pairs=pairs)
        again = AdditiveModel.from_dict(document_of(model))
        table, _ = table_of(300, loss, seed=8)
        assert (again.scores(table) == model.scores(table)).all()
        assert document_of(again) == document_of(model)
        assert again.pairs() == model.pairs()
        assert again.better_than_prior == model.better_than_prior

    def test_class_weights_come_back(self):
        for weight in ("balanced", (0.5, 1.0)):
            model = model_of(class_weight=weight)
            again = AdditiveModel.from_dict(document_of(model))
            assert again.objective == model.objective

    def test_every_value_that_is_missing_or_of_another_kind_is_refused(self):
        document = document_of(model_of())
        for name in document:
            changed = {key: document[key] for key in document if key != name}
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict(changed)
            for value in ("text", {}, math.nan, [[]], 10**400):
                with pytest.raises(ValueError, match="changed after training"):
                    AdditiveModel.from_dict({**document, name: value})

    @pytest.mark.parametrize(
        "name", ["scales", "counts", "chosen", "calibration", "weights"]
    )
    def test_vectors_have_to_be_as_long_as_they_were(self, name):
        document = document_of(model_of())
        for values in (document[name][:-1], [*document[name], 0.0], [], None):
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict({**document, name: values})
        spoiled = copy.deepcopy(document)
        spoiled[name][0] = None
        with pytest.raises(ValueError, match="changed after training"):
            AdditiveModel.from_dict(spoiled)

    def test_columns_are_checked(self):
        document = document_of(model_of())
        for change in ({"low": 100.0}, {"monotone": 7}, {"name": "x", "other": 1}):
            spoiled = copy.deepcopy(document)
            spoiled["objective"]["columns"][0].update(change)
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict(spoiled)


class TestShapes:
    @pytest.mark.parametrize("loss", LOSSES)
    def test_they_add_up_to_the_score_of_single_columns(self, loss):
        """At a level, and at the middle of a cell, where a shape is drawn."""
        model = model_of(loss, pairs=False)
        shapes = model.shapes()
        assert [shape.name for shape in shapes] == [c.name for c in COLUMNS]
        for shape in shapes:
            assert shape.y.shape == (model.objective.outputs, len(shape.x))
            assert len(shape.density) == len(shape.x)
            assert shape.density.min() >= 0
        sex = shapes[3]
        table, _ = table_of(2, loss)
        cells = [column[[0, 0]].astype(float) for column in table.cells]
        cells[3] = np.array([0.0, 1.0])
        features = model.features.rows(CodedTable(COLUMNS, tuple(cells)), np.ones(2))
        raw = features.product(model.weights[:, :-1].T)
        gap = sex.y[:, 1] - sex.y[:, 0]
        assert raw[1] - raw[0] == pytest.approx(
            gap, abs=1e-3 + 1e-3 * np.abs(gap).max()
        )

    @pytest.mark.parametrize("loss", CALLABLE)
    @pytest.mark.parametrize("way", [1, -1])
    def test_a_declared_direction_holds_for_any_row(self, loss, way):
        model = model_of(loss, monotone=way)
        rng = np.random.default_rng(0)
        ages = np.sort(np.concatenate([rng.uniform(-50, 200, 3000), [-1e308, 1e308]]))
        table, _ = table_of(5, loss, seed=3)
        for k in range(5):
            cells = [np.full(len(ages), float(column[k])) for column in table.cells]
            cells[0] = ages
            scores = model.scores(CodedTable(model.objective.columns, tuple(cells)))
            room = 1e-9 * max(np.abs(scores).max(), 1.0)
            assert (way * np.diff(scores) >= -room).all()
        shape = model.shapes()[0]
        assert (way * np.diff(shape.y[0]) >= 0).all()
        assert all("age" not in pair for pair in model.pairs())

    def test_a_missing_cell_keeps_what_was_fitted(self):
        free, held = (
            model_of(monotone=0, pairs=False),
            model_of(monotone=1, pairs=False),
        )
        cells = [column.astype(float) for column in table_of(4)[0].cells]
        cells[0] = np.full(4, math.nan)
        scores = [
            model.scores(CodedTable(model.objective.columns, tuple(cells)))
            for model in (free, held)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_what_is_told_of_the_table():
    model = model_of()
    assert model.n_rows_estimate == pytest.approx(700, abs=5 * model.n_rows_noise)
    assert model.prior.sum() == pytest.approx(1.0)
    assert np.isfinite(model.scores(table_of(50)[0])).all()
