# SPDX-License-Identifier: Apache-2.0
"""Losses of a margin ``m = y w.x`` with their derivatives (Chen and Lee 2020, models).

=========  =================================================  ======================
loss       value                                              derivative
=========  =================================================  ======================
logistic   log(1 + e^{-m})                                    -1 / (1 + e^m)
hinge      max(0, 1 - m)                                      -1 if m < 1 else 0
huber      1 - m, (1 + h - m)^2 / (4h) if |1 - m| <= h, or 0  -1, -(1+h-m)/(2h), or 0
=========  =================================================  ======================
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class MarginLoss:
    """A loss of the margin and its derivative."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def _logistic(m: Tensor) -> Tensor:
    """Return log(1 + e^{-m}), without overflow or cancellation."""
    return -torch.nn.functional.logsigmoid(m)


def _hinge(m: Tensor) -> Tensor:
    """Return max(0, 1 - m)."""
    return torch.relu(1 - m)


@lru_cache
def margin_loss(name: str, huber_width: float = 0.5) -> MarginLoss:
    """Return one of the losses ``logistic``, ``hinge`` and ``huber``.

    >>> float(margin_loss("huber").value(torch.tensor([1.0]))[0])
    0.125
    """
    if name == "logistic":
        return MarginLoss(_logistic, lambda m: -torch.sigmoid(-m))
    if name == "hinge":
        return MarginLoss(_hinge, lambda m: -(m < 1).to(m.dtype))
    h = huber_width

    def huber(m: Tensor) -> Tensor:
        gap = torch.clamp(1 + h - m, min=0)
        return torch.where(m < 1 - h, 1 - m, gap**2 / (4 * h))

    def huber_derivative(m: Tensor) -> Tensor:
        return -torch.clamp((1 + h - m) / (2 * h), 0, 1)

    return MarginLoss(huber, huber_derivative)


def clipped_losses(losses: Tensor, clip: float) -> Tensor:
    """Clip losses to [0, clip]; what is not a number counts as the largest loss."""
    return torch.clamp(torch.nan_to_num(losses, nan=clip, posinf=clip), 0, clip)
