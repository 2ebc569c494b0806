# SPDX-License-Identifier: Apache-2.0
"""Methods and the one training loop."""

from armijo.methods.base import (
    Method,
    MethodSettings,
    Problem,
    State,
    StepRecord,
    minimize,
)
from armijo.methods.line_search import (
    BLGD,
    BLSGD,
    LineSearchSettings,
    line_search_method,
)

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
