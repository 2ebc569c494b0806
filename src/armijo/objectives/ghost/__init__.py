# SPDX-License-Identifier: Apache-2.0
"""Clipped gradient sums of any torch module, without per-example gradients.

========================  ==========================================================
:mod:`~.engine`           the clipped sum of a batch; losses at other parameters
:mod:`~.line`             losses along a line, the first products formed once
:mod:`~.capture`          one forward and one backward pass that are written down
:mod:`~.rules`            what a layer's input and output gradient mean for it
:mod:`~.uses`             norms and weighted sums from such factors
:mod:`~.convolution`      the same for convolutions
:mod:`~.shared`           parameters that are used more than once
:mod:`~.one_by_one`       any other module, through torch.func in chunks
:mod:`~.plan`             which of the two ways a module goes, after a trial
:mod:`~.loss_trial`       whether the loss of one example feels the others
:mod:`~.sparing`          examples that raise are left out of a batch
:mod:`~.buffers`          a module's buffers, which no pass may change
:mod:`~.parameters`       a module's parameters as one flat vector, and back
========================  ==========================================================
"""

from armijo.objectives.ghost.checks import Batch
from armijo.objectives.ghost.clipping import AUTOMATIC_SHIFT, Clipping
from armijo.objectives.ghost.engine import (
    ClippedSum,
    clipped_gradient_sum,
    losses_at,
)
from armijo.objectives.ghost.one_by_one import Loss
from armijo.objectives.ghost.parameters import (
    flat_parameters,
    flat_size,
    load_parameters,
    parameters_at,
)
from armijo.objectives.ghost.rules import Rule, rule

__all__ = [
    "AUTOMATIC_SHIFT",
    "Batch",
    "ClippedSum",
    "Clipping",
    "Loss",
    "Rule",
    "clipped_gradient_sum",
    "flat_parameters",
    "flat_size",
    "load_parameters",
    "losses_at",
    "parameters_at",
    "rule",
]
