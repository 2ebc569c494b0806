# SPDX-License-Identifier: Apache-2.0
"""Splits cover every row once and never change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.cli._census import generated_census
from armijo_reproduction.datasets import folds


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
