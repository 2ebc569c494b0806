# SPDX-License-Identifier: Apache-2.0
"""From the norm of an example's gradient to the weight of the example in the sum."""

from typing import Literal

import torch
from torch import Tensor

Clipping = Literal["norm", "automatic"]
"""Scale down to the clip where needed, or bring every gradient near the clip."""

AUTOMATIC_SHIFT = 0.01
"""The constant that keeps small gradients small (Bu et al. 2022, AUTO-S)."""

# Norms and sums are rounded; so many units in the last place stay unused, so that the
# vectors that are added, and not only their computed norms, keep to the clip.
_SLACK_ULPS = 16


def example_weights(
    norms: Tensor,
    clip: float,
    clipping: Clipping,
    stability: float = AUTOMATIC_SHIFT,
) -> Tensor:
    r"""Return the factor of each example: its scaled gradient has norm at most clip.

    .. math:: \min(1, C / \|g\|) \quad\text{or}\quad C / (\|g\| + 0.01),

    the second being the automatic clipping of Bu, Wang, Zha & Karypis (2022), AUTO-S.
    A norm that is not finite gives 0: the example is left out.

    Examples
    --------
    >>> example_weights(torch.tensor([0.5, 4.0, torch.nan]), 2.0, "norm")
    tensor([1.0000, 0.5000, 0.0000])
    """
    room = clip * (1 - _SLACK_ULPS * torch.finfo(norms.dtype).eps)
    if clipping == "automatic":
        weights = (norms + stability).reciprocal_().mul_(room)
    else:
        weights = norms.reciprocal().mul_(room).clamp_(max=1.0)
    return weights.nan_to_num_(nan=0.0)
