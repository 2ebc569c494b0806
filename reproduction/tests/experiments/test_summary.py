# SPDX-License-Identifier: Apache-2.0
"""Means, standard errors and paired differences against a separate computation."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.errors import ArmijoError
from armijo_reproduction.results import (
    difference,
    in_group,
    load_parts,
    mean_of,
    summarized,
)

ACCURACY = st.floats(0.0, 1.0, allow_nan=False)


def rows(values):
    """Return a table of folds by repeats."""
    return pd.DataFrame(
        [
            {"fold": fold, "repeat": repeat, "accuracy": value}
            for fold, repeats in enumerate(values)
            for repeat, value in enumerate(repeats)
        ]
    )


@given(st.lists(st.lists(ACCURACY, min_size=2, max_size=2), min_size=2, max_size=6))
def test_the_standard_error_is_that_of_the_fold_means(values):
    found = mean_of(rows(values), "accuracy")
    means = np.mean(values, axis=1)
    assert found.value == pytest.approx(means.mean())
    assert found.error == pytest.approx(means.std(ddof=1) / math.sqrt(len(means)))
    assert found.runs == 2 * len(values)


@given(st.lists(ACCURACY, min_size=2, max_size=6))
def test_one_fold_has_the_error_of_its_repeats(values):
    found = mean_of(rows([values]), "accuracy")
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert found.error == pytest.approx(expected)


def test_one_run_has_no_error_and_shows_none():
    found = mean_of(rows([[0.8]]), "accuracy")
    assert found.value == 0.8 and math.isnan(found.error)
    assert str(found) == "0.8000"


def test_groups_are_kept_apart():
    table = pd.concat([rows([[0.1], [0.3]]).assign(line="a"), rows([[0.9]])])
    found = summarized(table.fillna({"line": "b"}), "accuracy", ["line"])
    assert found["line"].tolist() == ["a", "b"]
    assert found["value"].tolist() == pytest.approx([0.2, 0.9])


@given(
    st.lists(st.tuples(ACCURACY, ACCURACY), min_size=2, max_size=8),
    st.floats(-0.5, 0.5),
)
def test_differences_are_paired_by_fold(pairs, shift):
    """What a fold adds to both sides is not noise of the difference."""
    first, second = ([[pair[side]] for pair in pairs] for side in (0, 1))
    plain = difference(rows(first), rows(second), "accuracy")
    moved = [
        [[values[0] + shift * fold] for fold, values in enumerate(side)]
        for side in (first, second)
    ]
    shifted = difference(rows(moved[0]), rows(moved[1]), "accuracy")
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert shifted.error == pytest.approx(plain.error, abs=1e-9)
    gaps = [pair[0] - pair[1] for pair in pairs]
    expected = np.std(gaps, ddof=1) / math.sqrt(len(gaps))
    assert plain.error == pytest.approx(expected, abs=1e-12)


def test_folds_that_only_one_side_has_run_do_not_count():
    found = difference(rows([[0.5], [0.6], [0.9]]), rows([[0.4], [0.4]]), "accuracy")
    assert found.runs == 2 and found.value == pytest.approx(0.15)
    nothing = difference(rows([[0.5]]), rows([[0.4]]).iloc[:0], "accuracy")
    assert nothing.runs == 0 and math.isnan(nothing.value)


def test_parts_come_in_the_order_of_the_paper(fakes):
    parts = load_parts(fakes, fast=True)
    names = [part.experiment.name for part in parts]
    assert names[:2] == ["armijo-slope", "step-shrink"]
    assert len(in_group(parts, "hyper-parameters")) == 6


def test_no_results_yet(tmp_path):
    with pytest.raises(ArmijoError, match=r"no results in .* run NAME"):
        load_parts(tmp_path)


def test_a_curve_counts_its_time_once(parts):
    network = in_group(parts, "networks")[0]
    # The synthetic curves end after ten seconds; there are four lines.
    assert 3600 * network.run_counts()[2] == pytest.approx(40.0)
    convex = in_group(parts, "evaluations")[0]
    assert 3600 * convex.run_counts()[2] == pytest.approx(0.5 * len(convex.table))
