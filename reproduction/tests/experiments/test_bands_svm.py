# SPDX-License-Identifier: Apache-2.0
"""Fast versions against stored bands: support vector machines."""

import pytest

from armijo_reproduction import experiment, experiment_names
from reproduction.tests.experiments.bands import outside, run_fast, stored

NAMES = [name for name in experiment_names() if experiment(name).group == "svm"]


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_version_stays_in_its_bands(name, tmp_path):
    assert outside(run_fast(name, tmp_path), stored()[name]) == []
