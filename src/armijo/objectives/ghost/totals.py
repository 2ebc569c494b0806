# SPDX-License-Identifier: Apache-2.0
"""From the record of a batch to norms over all parameters and to a flat sum."""

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.capture import Record
from armijo.objectives.ghost.parameters import views
from armijo.objectives.ghost.shared import merged
from armijo.objectives.ghost.uses import Use

Uses = dict[nn.Parameter, Use]


def merged_uses(record: Record) -> Uses:
    """Return one use for each parameter that was used."""
    return {p: merged(found) for p, found in record.uses.items()}


def squared_norms(uses: Uses, like: Tensor) -> Tensor:
    """Return each example's squared gradient norm over all parameters, in float64."""
    if not uses:
        return torch.zeros_like(like, dtype=torch.float64)
    parts = torch.stack([use.norms_squared() for use in uses.values()])
    return parts.sum(0, dtype=torch.float64)


def weighted_total(
    uses: Uses, parameters: list[nn.Parameter], weights: Tensor
) -> Tensor:
    """Write the weighted sum of every parameter into its place of a flat vector.

    Examples of weight zero are left out, whatever numbers they have.
    """
    if not weights.all():
        bad = weights == 0
        uses = {p: use.without(bad) for p, use in uses.items()}
    total = weights.new_empty(sum(p.numel() for p in parameters))
    for p, out in zip(parameters, views(parameters, total), strict=True):
        if p in uses:
            uses[p].weighted_sum(weights, out)
        else:
            out.zero_()
    return total
