# SPDX-License-Identifier: Apache-2.0
"""The generated census: its shape, its difficulty, and that it encodes as it says."""

import io

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from armijo.tables import Schema, encode
from armijo_reproduction.datasets import (
    available,
    folds,
    generated_census,
    generated_census_frame,
    generated_census_schema,
    load,
)


@pytest.fixture(scope="module")
def census():
    return load("generated-census")


def test_it_is_named_for_what_it_is(census):
    assert census.name == "generated-census" and "enerated" in census.citation
    assert available("generated-census")


def test_shape_and_range(census):
    assert census.X.shape == (48_842, 123) and census.n_rows_public == 48_842
    assert census.X.dtype == np.float64 and census.y.dtype == np.int64
    assert census.X.min() == 0 and census.X.max() == 1
    assert set(census.y) == {0, 1} and census.classes == ("low", "high")


def test_majority_and_accuracy_are_those_of_a_census(census):
    train, test = folds(len(census.y))[0]
    model = LogisticRegression(tol=1e-3, max_iter=200)
    model.fit(census.X[train], census.y[train])
    accuracy = model.score(census.X[test], census.y[test])
    assert 0.75 < census.majority_rate < 0.775
    assert 0.82 < accuracy < 0.86


def test_categories_are_one_hot_groups_that_all_occur(census):
    groups = [name.split("=")[0] for name in census.feature_names]
    for name in {group for group in groups if groups.count(group) > 1}:
        block = census.X[:, [group == name for group in groups]]
        assert (block.sum(axis=1) == 1).all() and (block.sum(axis=0) > 0).all()
    assert [g for g in groups if groups.count(g) == 1] == [
        "age",
        "hours_per_week",
        "weeks_per_year",
    ]


@pytest.mark.parametrize("through_csv", [False, True])
def test_the_schema_encodes_the_frame_to_the_same_rows(through_csv):
    frame = generated_census_frame(500, seed=3)
    if through_csv:
        frame = pd.read_csv(io.StringIO(frame.to_csv(index=False)))
    schema = Schema.from_dict(generated_census_schema(500))
    X, y = encode(frame, schema)
    census = generated_census(500, seed=3)
    assert np.array_equal(X, census.X) and np.array_equal(y, census.y)
    assert schema.feature_names == census.feature_names
    assert schema.classes == census.classes and schema.n_rows == 500


def test_the_seed_decides():
    first, again, other = (generated_census_frame(50, seed=s) for s in (1, 1, 2))
    assert first.equals(again) and not first.equals(other)


def test_rows_do_not_change_from_release_to_release():
    frame = generated_census_frame(4)
    assert frame["age"].tolist() == [48, 53, 36, 23]
    assert frame["birthplace"].tolist() == [f"place 0{i}" for i in (1, 2, 1, 1)]


@pytest.mark.parametrize("arguments", [{"n_rows": 0}, {"seed": -1}, {"n_rows": 1.5}])
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        generated_census_frame(**arguments)
