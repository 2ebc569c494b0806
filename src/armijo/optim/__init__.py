# SPDX-License-Identifier: Apache-2.0
"""Methods and the one training loop."""

from armijo.optim.blgd import BLGD
from armijo.optim.blsgd import BLSGD
from armijo.optim.loop import Method, State, StepRecord, minimize
from armijo.optim.methods import METHODS, LineSearchSettings, line_search_method

__all__ = [
    "BLGD",
    "BLSGD",
    "METHODS",
    "LineSearchSettings",
    "Method",
    "State",
    "StepRecord",
    "line_search_method",
    "minimize",
]
