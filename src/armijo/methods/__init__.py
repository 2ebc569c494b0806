# SPDX-License-Identifier: Apache-2.0
"""Methods and the one training loop."""

from armijo.methods.base import Method, State, StepRecord, minimize
from armijo.methods.blgd import BLGD
from armijo.methods.blsgd import BLSGD
from armijo.methods.line_search import LineSearchSettings, line_search_method
from armijo.methods.problem import MethodSettings, Problem

__all__ = [
    "BLGD",
    "BLSGD",
    "LineSearchSettings",
    "Method",
    "MethodSettings",
    "Problem",
    "State",
    "StepRecord",
    "line_search_method",
    "minimize",
]
