# SPDX-License-Identifier: Apache-2.0
"""The generated census: its shape, its difficulty, and that it encodes as it says."""

import io

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from armijo.cli._census import (
    generated_census,
    generated_census_frame,
    generated_census_schema,
)
from armijo.tables import encode


@pytest.fixture(scope="module")
def census():
    return generated_census()


def test_shape_and_range(census):
    assert census.X.shape == (48_842, 123)
    assert census.X.dtype == np.float64 and census.y.dtype == np.int64
    assert census.X.min() == 0 and census.X.max() == 1
    assert set(census.y) == {0, 1}


def test_majority_and_accuracy_are_those_of_a_census(census):
    train, test = slice(0, -4_884), slice(-4_884, None)
    model = LogisticRegression(tol=1e-3, max_iter=200)
    model.fit(census.X[train], census.y[train])
    accuracy = model.score(census.X[test], census.y[test])
    assert 0.75 < 1 - census.y.mean() < 0.775
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
    schema = generated_census_schema(500)
    X, y = encode(frame, schema)
    census = generated_census(500, seed=3)
    assert np.array_equal(X, census.X) and np.array_equal(y, census.y)
    assert schema.feature_names == census.feature_names
    assert schema.classes == ("low", "high") and schema.n_rows == 500


def test_numbers_are_scaled_by_their_bounds_and_levels_have_indicators():
    frame, census = generated_census_frame(500), generated_census(500)
    columns = dict(zip(census.feature_names, census.X.T, strict=True))
    assert np.array_equal(columns["age"], (frame["age"] - 17) / (90 - 17))
    assert np.array_equal(columns["sex=female"], frame["sex"] == "female")
    assert np.array_equal(census.y, frame["income"] == "high")


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
