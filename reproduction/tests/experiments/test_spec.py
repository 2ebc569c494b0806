# SPDX-License-Identifier: Apache-2.0
"""Experiments as data: every file is read, every run has its own name and seed."""

from dataclasses import astuple

import pytest

from armijo.errors import ArmijoError
from armijo.registry import METHODS
from armijo_reproduction import datasets, experiment, experiment_names, spec
from armijo_reproduction.spec import RunKey, _built

BOTH = [(name, fast) for name in experiment_names() for fast in (False, True)]
A_RUN = RunKey(
    dataset="adult",
    model="logistic",
    line="DP-SGD",
    epsilon=0.1,
    setting="-",
    fold=0,
    repeat=0,
)


def test_names_are_unique_and_bases_are_no_experiments():
    assert len(set(experiment_names())) == len(experiment_names()) == 29
    assert not set(spec.DOCUMENT["base"]) & set(experiment_names())


@pytest.mark.parametrize(("name", "fast"), BOTH)
def test_every_experiment_is_read_and_names_what_exists(name, fast):
    wanted = experiment(name, fast=fast)
    assert wanted.name == name and wanted.title and wanted.group
    assert set(wanted.published()) <= set(datasets.DATASETS)
    for line in wanted.series:
        assert line.method in METHODS or wanted.kind == "networks"
        assert line.best_of is None or line.best_of in experiment_names()
    assert (wanted.steps > 0) == (wanted.kind == "networks")


@pytest.mark.parametrize(("name", "fast"), BOTH)
def test_keys_are_unique_and_so_are_their_seeds(name, fast):
    keys = list(experiment(name, fast=fast).run_keys())
    assert keys
    assert len({astuple(key) for key in keys}) == len(keys)
    # 31 bits: among 13,000 keys a few equal seeds are chance, many are a defect.
    assert len({key.seed() for key in keys}) >= 0.999 * len(keys)


@pytest.mark.parametrize("name", experiment_names())
def test_the_fast_version_is_a_smaller_experiment(name):
    whole, quick = experiment(name), experiment(name, fast=True)
    assert len(list(quick.run_keys())) <= len(list(whole.run_keys()))
    assert quick.rows is not None and whole.rows is None
    assert quick.series == whole.series


@pytest.mark.parametrize("name", experiment_names())
def test_settings_are_read_back_as_the_values_they_name(name):
    wanted = experiment(name)
    for setting in wanted.settings():
        options = wanted.options_of(setting)
        assert set(options) == set(wanted.vary)
        assert all(value in wanted.vary[key] for key, value in options.items())


@pytest.mark.parametrize(
    ("changed", "seed"),
    [
        ({}, 481400013),
        ({"repeat": 1}, 355390380),
        ({"line": "DP-BLSGD", "epsilon": 0.05}, 423947939),
        ({"setting": "slope=0.5", "fold": 9}, 1303202441),
        ({"setting": "sampling_prob=0.1"}, 934518107),
        ({"setting": "max_grad_norm=0.3 steps=50 step_size=1.0 l2=1e-05"}, 1774389602),
    ],
)
def test_seeds_are_what_they_were(changed, seed):
    """Result files go on growing over versions: these numbers must not change."""
    assert RunKey(**{**vars(A_RUN), **changed}).seed() == seed


def test_lines_without_noise_are_run_once_for_all_budgets():
    keys = [
        key
        for key in experiment("logistic-adult").run_keys()
        if key.line == "non-private"
    ]
    assert {key.fold for key in keys} == set(range(10)) and len(keys) == 10


def test_an_unknown_experiment_is_refused_by_name():
    with pytest.raises(ArmijoError, match=r"no experiment 'adult'.* list"):
        experiment("adult")


def test_an_unknown_kind_is_refused():
    document, _ = spec._with_base(spec.DOCUMENT["experiment"]["armijo-slope"])
    with pytest.raises(ValueError, match="kind"):
        _built("armijo-slope", {**document, "kind": "trees"})
