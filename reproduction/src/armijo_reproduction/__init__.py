# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments as data, one runner for all of them, and their figures."""

from armijo_reproduction.results import Results
from armijo_reproduction.runner import reproduce
from armijo_reproduction.spec import Experiment, Series, experiment, experiment_names

__all__ = [
    "Experiment",
    "Results",
    "Series",
    "experiment",
    "experiment_names",
    "reproduce",
]
