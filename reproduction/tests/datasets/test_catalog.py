# SPDX-License-Identifier: Apache-2.0
"""Datasets in memory, and what the catalog says of them."""

import dataclasses

import numpy as np
import pytest

from armijo_reproduction.datasets import DATASETS, Dataset

X = np.array([[0.0, 0.25], [1.0, 0.5], [0.0, 1.0]])


def _dataset(**changes):
    values = {
        "name": "small",
        "X": X,
        "y": np.array([0, 1, 0]),
        "classes": ("-1", "1"),
        "feature_names": ("flag", "share"),
    }
    return Dataset(**(values | changes))


def test_a_dataset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _dataset().name = "other"


def test_the_publishers_split():
    train, test = _dataset(n_train=2).published_split()
    assert np.array_equal(train.X, X[:2]) and train.y.tolist() == [0, 1]
    assert np.array_equal(test.X, X[2:]) and test.y.tolist() == [0]
    assert train.name == test.name == "small"
    assert np.shares_memory(train.X, X) and np.shares_memory(test.X, X)
    with pytest.raises(ValueError, match="published in two parts, got small"):
        train.published_split()


def test_every_entry_is_complete():
    assert {"adult", "bank", "ipums-br", "ipums-us", "acs-national"} <= set(DATASETS)
    assert {"mnist", "fashion-mnist", "cifar-10", "cifar-10-subset"} <= set(DATASETS)
    for name, entry in DATASETS.items():
        assert entry.name == name and entry.citation and entry.terms
        assert entry.n_train is None or 0 < entry.n_train < entry.n_rows
        for file in entry.files:
            assert file.urls or entry.how_to_obtain or entry.cut_from
            for url in file.urls:
                assert url.startswith("https://")
                saved_as = url.format(name=file.name).rpartition("/")[2]
                assert saved_as in file.disk_names
