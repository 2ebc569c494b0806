# SPDX-License-Identifier: Apache-2.0
"""Datasets in memory, and as tables with a schema."""

import dataclasses
import io

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from armijo.tables import Schema, encode
from armijo_reproduction.datasets import Dataset, to_frame, to_schema
from armijo_reproduction.datasets.base import dense

X = np.array([[0.0, 0.25], [1.0, 0.5], [0.0, 1.0]])


def _dataset(**changes):
    values = {
        "name": "small",
        "X": X,
        "y": np.array([0, 1, 0]),
        "classes": ("-1", "1"),
        "feature_names": ("flag", "share"),
        "n_rows_public": 3,
        "citation": "nobody",
        "terms": "none",
    }
    return Dataset(**(values | changes))


def test_majority_rate():
    assert _dataset().majority_rate == 2 / 3


def test_a_dataset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _dataset().name = "other"


@pytest.mark.parametrize("rows", [X, csr_array(X)])
def test_the_publishers_split(rows):
    train, test = _dataset(X=rows, n_train=2).published_split()
    assert np.array_equal(dense(train.X), X[:2]) and train.y.tolist() == [0, 1]
    assert np.array_equal(dense(test.X), X[2:]) and test.y.tolist() == [0]
    assert (train.n_rows_public, test.n_rows_public) == (2, 1)
    assert train.name == test.name == "small"
    with pytest.raises(ValueError, match="published in two parts, got small"):
        train.published_split()


def test_the_publishers_split_copies_no_rows():
    data = _dataset(n_train=2)
    assert all(np.shares_memory(part.X, data.X) for part in data.published_split())


@pytest.mark.parametrize("rows", [X, csr_array(X)])
def test_a_table_has_whole_numbers_where_it_can(rows):
    frame = to_frame(_dataset(X=rows))
    assert list(frame.columns) == ["flag", "share", "label"]
    assert frame.to_csv(index=False, lineterminator="\n") == (
        "flag,share,label\n0,0.25,-1\n1,0.5,1\n0,1.0,-1\n"
    )


def test_table_and_schema_give_the_dataset_back():
    dataset = _dataset()
    frame = pd.read_csv(io.StringIO(to_frame(dataset).to_csv(index=False)))
    schema = Schema.from_dict(to_schema(dataset))
    features, labels = encode(frame, schema)
    assert np.array_equal(features, dataset.X)
    assert np.array_equal(labels, dataset.y)
    assert schema.classes == dataset.classes and schema.n_rows == 3


def test_images_have_no_columns_but_are_datasets():
    images = _dataset(X=np.zeros((3, 4, 4)), feature_names=())
    assert images.majority_rate == 2 / 3
    for function in (to_frame, to_schema):
        with pytest.raises(ValueError, match="named features, got small"):
            function(images)


@pytest.mark.parametrize(
    "changes",
    [
        {"y": np.array([0, 1])},
        {"feature_names": ("flag",)},
        {"X": np.zeros((3, 2, 2))},
        {"n_rows_public": 0},
        {"n_train": 0},
        {"n_train": 3},
    ],
)
def test_parts_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        _dataset(**changes)
