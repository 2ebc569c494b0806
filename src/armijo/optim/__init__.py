# SPDX-License-Identifier: Apache-2.0
"""Methods and the one training loop."""

from armijo.optim.blgd import BLGD
from armijo.optim.blsgd import BLSGD
from armijo.optim.linesearch import LineSearchSettings, line_search_method
from armijo.optim.loop import Method, State, StepRecord, minimize
from armijo.optim.methods import METHODS, method_settings, parameters_of
from armijo.optim.problem import MethodSettings, Problem

__all__ = [
    "BLGD",
    "BLSGD",
    "METHODS",
    "LineSearchSettings",
    "Method",
    "MethodSettings",
    "Problem",
    "State",
    "StepRecord",
    "line_search_method",
    "method_settings",
    "minimize",
    "parameters_of",
]
