# SPDX-License-Identifier: Apache-2.0
"""Methods and the one training loop."""

from armijo.methods.armijo_search import ArmijoSearch
from armijo.methods.auto import Auto
from armijo.methods.auto_network import AutoNetwork
from armijo.methods.base import (
    Method,
    OneShot,
    Problem,
    SampledBatches,
    State,
    StepRecord,
    minimize,
)
from armijo.methods.line_search import BLGD, BLSGD
from armijo.methods.searched_sgd import SearchedSGD
from armijo.methods.sgd import DPSGD, DPAdam

__all__ = [
    "BLGD",
    "BLSGD",
    "DPSGD",
    "ArmijoSearch",
    "Auto",
    "AutoNetwork",
    "DPAdam",
    "Method",
    "OneShot",
    "Problem",
    "SampledBatches",
    "SearchedSGD",
    "State",
    "StepRecord",
    "minimize",
]
