# SPDX-License-Identifier: Apache-2.0
"""Runs in this process, and result files with synthetic numbers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from armijo_reproduction import experiment, experiment_names, runner
from armijo_reproduction.page import CHOSEN
from armijo_reproduction.results import load_parts
from reproduction.tests.experiments.fakes import curve, point, write_fakes


@pytest.fixture
def in_process(monkeypatch):
    """Let the runner compute in this process, which spares the start of others."""
    monkeypatch.setattr(runner, "_pool", lambda jobs: ThreadPoolExecutor(1))


@pytest.fixture
def synthetic_runs(monkeypatch, in_process):
    """Let every run take no time and give synthetic numbers; return the runs made."""
    made = []

    def run(wanted, key, options, synthetic):
        made.append((key, dict(options)))
        return (curve if wanted.kind == "networks" else point)(wanted, key)

    monkeypatch.setattr(runner, "run_one", run)
    return made


@pytest.fixture(scope="session")
def fakes(tmp_path_factory):
    """A folder with synthetic results of all fast versions; tests only read it."""
    folder = tmp_path_factory.mktemp("fakes")
    write_fakes(folder)
    return folder


@pytest.fixture(scope="session")
def full_fakes(tmp_path_factory):
    """Synthetic results of three folds, without large grids; tests only read it."""
    folder = tmp_path_factory.mktemp("full-fakes")
    large = {each for each in CHOSEN if experiment(each).kind == "convex"}
    names = [each for each in experiment_names() if each not in large]
    write_fakes(folder, fast=False, folds=(0, 1, 2), names=names)
    return folder


@pytest.fixture(scope="session")
def parts(full_fakes):
    return load_parts(full_fakes)
