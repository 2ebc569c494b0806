# SPDX-License-Identifier: Apache-2.0
"""What people need who write a method, a mechanism, a loss or a layer of their own.

The gate and its plans, queries and objectives, the base class of methods, mechanisms
with their calibration, and the rules of layers; ``docs/extending.md`` has examples.
"""

from armijo.accounting import Gaussian, Mechanism, Subsampled, noise_multiplier_for
from armijo.data.gate import BatchPlan, PrivateBatch, PrivateDataset
from armijo.data.query import BoundedQuery
from armijo.methods.base import Method, Problem, StepRecord, noisy_gradient
from armijo.objectives.base import Objective
from armijo.objectives.ghost.layers import register_layer
from armijo.objectives.linear import LinearObjective
from armijo.objectives.losses import Loss
from armijo.objectives.module import ModuleObjective

__all__ = [
    "BatchPlan",
    "BoundedQuery",
    "Gaussian",
    "LinearObjective",
    "Loss",
    "Mechanism",
    "Method",
    "ModuleObjective",
    "Objective",
    "PrivateBatch",
    "PrivateDataset",
    "Problem",
    "StepRecord",
    "Subsampled",
    "noise_multiplier_for",
    "noisy_gradient",
    "register_layer",
]
