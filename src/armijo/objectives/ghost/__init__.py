# SPDX-License-Identifier: Apache-2.0
"""Clipped gradient sums of any torch module, on integers that are certified.

========================  ==========================================================
:mod:`~.engine`           the clipped sum of a batch; losses at other parameters
:mod:`~.strategy`         which way a module goes, after a try; the size of parts
:mod:`~.layers`           two passes that are captured; what they mean for a layer
:mod:`~.grads`            norms and integers from such factors
:mod:`~.int8`             exact products of integer factors
:mod:`~.probe`            whether an example's numbers depend on the others
:mod:`~.guards`           batches, refusals, buffers, masks, examples that raise
:mod:`~.params`           a module's parameters as one flat vector, and back
========================  ==========================================================
"""

from armijo.objectives.ghost.engine import (
    AUTOMATIC_SHIFT,
    Clip,
    Clipping,
    add_clipped,
    clipped_gradient_sum,
    losses_at,
)
from armijo.objectives.ghost.guards import Batch, Loss
from armijo.objectives.ghost.layers import Rule, register_layer
from armijo.objectives.ghost.params import (
    flat_parameters,
    flat_size,
    load_parameters,
    parameters_at,
)

__all__ = [
    "AUTOMATIC_SHIFT",
    "Batch",
    "Clip",
    "Clipping",
    "Loss",
    "Rule",
    "add_clipped",
    "clipped_gradient_sum",
    "flat_parameters",
    "flat_size",
    "load_parameters",
    "losses_at",
    "parameters_at",
    "register_layer",
]
