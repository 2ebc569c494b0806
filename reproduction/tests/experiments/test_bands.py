# SPDX-License-Identifier: Apache-2.0
"""Fast versions against stored bands."""

import math

import pytest

from armijo_reproduction import experiment, experiment_names
from armijo_reproduction.runner import run_one
from reproduction.tests.experiments.bands import (
    KEYS,
    TOO_SHORT,
    bands_of,
    outside,
    run_fast,
    stored,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bands")


@pytest.mark.slow
@pytest.mark.parametrize("name", experiment_names())
def test_the_fast_version_stays_in_its_bands(name, folder):
    assert outside(run_fast(name, folder), stored()[name]) == []


def test_every_line_and_setting_has_a_band_and_no_other():
    bands = stored()
    assert list(bands) == list(experiment_names())
    for name in experiment_names():
        keys = experiment(name, fast=True).run_keys()
        wanted = {"|".join(str(getattr(key, name)) for name in KEYS) for key in keys}
        assert set(bands[name]) == wanted


@pytest.mark.parametrize("name", experiment_names())
def test_bands_are_narrower_than_learning_nothing(name):
    """All weights zero have the objective log 2 (hinge: 1), a network log 10."""
    wanted = experiment(name)
    start = math.log(2.0) if wanted.kind == "convex" else math.log(10.0)
    start = 1.0 if wanted.models[0] == "svm" else start
    for key, bands in stored()[name].items():
        if not any(slow in key for slow in TOO_SHORT):
            assert bands["objective"][1] < start, key


@pytest.mark.parametrize("name", experiment_names())
def test_networks_spend_their_budget_and_no_more(name):
    epsilon = experiment(name, fast=True).epsilons[0]
    for key, bands in stored()[name].items():
        low, high = bands.get("spent", (epsilon, epsilon))
        assert epsilon - 0.05 <= low and high <= epsilon + 0.025, key


@pytest.mark.slow
def test_a_method_that_does_not_move_leaves_its_bands(folder):
    wanted = experiment("logistic-adult", fast=True)
    key = next(key for key in wanted.run_keys() if key.line == "DP-SGD")
    options = {**wanted.series_named("DP-SGD").options, "step_size": 1e-6}
    (row,) = run_one(wanted, key, options, True)
    bands = stored()["logistic-adult"]["adult|logistic|DP-SGD|-"]
    low, high = bands["objective"]
    assert not low <= row["objective"] <= high


@pytest.mark.slow
def test_bands_hold_the_runs_that_they_come_from(folder):
    rows = run_fast("armijo-slope", folder)
    bands = bands_of(rows, "convex")
    assert outside(rows, bands) == []
    moved = rows.assign(accuracy=rows["accuracy"] - 0.031)
    assert len(outside(moved, bands)) == len(rows)
    assert outside(rows, {}) == [
        f"adult|logistic|{line}|{setting} has no band"
        for line, setting in zip(rows["line"], rows["setting"], strict=True)
    ]
