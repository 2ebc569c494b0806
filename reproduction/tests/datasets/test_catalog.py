# SPDX-License-Identifier: Apache-2.0
"""Datasets in memory, their splits, and what the catalog says of them."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.cli._census import generated_census
from armijo_reproduction.datasets import DATASETS, Dataset, check, files, folds
from reproduction.tests.datasets.conftest import loaded

# Of the unpacked files, as recorded by the publishers and their users.
CONTENT_MD5 = {
    "adult": ("fb3596510d780aaf76a06dc721d49662", "f0bb16cf1ee3e80ff560e9d132ee647e"),
    "bank": ("e6b0ca77f3f200ec5428e04dd104da53",),
    "ipums-br": ("011bd6117d25ca55022f7664454ae855",),
    "acs-national": (
        "07fd89f65ed5f0cc6c5fefa339c0f45b",
        "f4a13535fc99cc5ac80b9246c5f768a8",
    ),
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "cifar-10": (
        "5dd7e06a14cb22eb9f671a540d1b7c25",
        "5ea93a67294ea407fff1d09f752e9692",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
        "53f37980c15c3d472c316c40844f3f0d",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    ),
    "cifar-10-subset": (
        "43226d03f542cd99c2e2823c8d422caa",
        "3b83ad0bd2145a0010536635902653b9",
    ),
}

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


@pytest.mark.parametrize("name", CONTENT_MD5)
def test_contents_have_the_recorded_md5(name):
    loaded(name)
    for file, digest in zip(DATASETS[name].files, CONTENT_MD5[name], strict=True):
        content = files.read(file, files.locate(file))
        assert hashlib.md5(content).hexdigest() == digest
    assert {status.state for status in check(name)} == {"verified"}


@settings(deadline=None)
@given(st.data())
def test_every_row_is_tested_once(data):
    n = data.draw(st.integers(2, 200))
    k = data.draw(st.integers(2, n))
    split = folds(n, k, seed=data.draw(st.integers(0, 2**40)))
    tests = np.concatenate([test for _, test in split])
    assert len(split) == k and sorted(tests) == list(range(n))
    sizes = [len(test) for _, test in split]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    for train, test in split:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
        assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()


def test_the_split_of_stored_results_never_changes():
    assert folds(12, 3, seed=5)[0][1].tolist() == [0, 3, 4, 9]


def test_the_seed_decides():
    first, again, other = (folds(1000, seed=seed)[0][1] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_split_ignores_rows_generated_from_the_same_seed():
    data = generated_census(5_000, seed=0)
    rates = [data.y[test].mean() for _, test in folds(5_000, k=5, seed=0)]
    # One standard error of a rate of 0.24 on 1,000 rows is 0.0135.
    assert max(rates) - min(rates) < 0.08


@pytest.mark.parametrize(
    "arguments", [{"n": 1}, {"n": 5, "k": 1}, {"n": 5, "k": 6}, {"n": 20, "seed": -1}]
)
def test_impossible_splits_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        folds(**arguments)
