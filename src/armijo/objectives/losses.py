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
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from armijo.objectives.base import QueryForm
from armijo.privacy.budget import FloatArray


@dataclass(frozen=True)
class MarginLoss:
    """A loss of the margin and its derivative."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def _logistic(m: Tensor) -> Tensor:
    """Return log(1 + e^{-m}), without overflow or cancellation."""
    return torch.nn.functional.logsigmoid(m).neg_()


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


FAR = 500.0
"""A clip of differences up to which :func:`logistic_drops` may stand for them."""


@cache
def _exponential() -> Callable[[FloatArray], object]:
    """Return the faster exponential, in place: NumPy's where it has the best kernel.

    With AVX-512 it takes half the time of torch's, without it more than twice.
    """
    kernels = np.lib.introspect.opt_func_info(func_name="^exp$", signature="float64")
    found = [kernel for each in kernels.values() for kernel in each.values()]
    if all(each["current"] == each["available"].split()[0] for each in found):
        return lambda values: np.exp(values, out=values)
    return lambda values: torch.from_numpy(values).exp_()


def logistic_drops(m: Tensor, change: Tensor) -> Callable[[float], FloatArray]:
    """Return ``eta -> l(m) - l(m - eta change)`` of the logistic loss l.

    With p the sigmoid of m, ``(1 + e^{eta change - m}) / (1 + e^{-m})`` is
    ``p + (1 - p) e^{eta change}``: one exponential and one logarithm for each size.
    The error is a few 1e-16 while no margin moves by more than 700; one that moves
    further is infinitely far, which a clip up to ``FAR`` takes for what it is.

    >>> drop = logistic_drops(torch.tensor([0.0]), torch.tensor([1.0]))(0.0)
    >>> float(drop[0])
    0.0
    """
    right, wrong = torch.sigmoid(m).numpy(), torch.sigmoid(-m).numpy()
    slope, exponential = change.numpy(), _exponential()

    def drops(eta: float) -> FloatArray:
        with np.errstate(all="ignore"):  # the gate takes what is no number
            odds = np.multiply(slope, eta)
            exponential(odds)
            odds *= wrong
            odds += right
            return np.negative(np.log(odds, out=odds), out=odds)

    return drops


def clipped_losses(losses: Tensor, clip: float) -> Tensor:
    """Clip losses to [0, clip]; what is not a number counts as the largest loss."""
    return torch.clamp(torch.nan_to_num(losses, nan=clip, posinf=clip), 0, clip)


def loss_drops(before: Tensor, after: Tensor, form: QueryForm, clip: float) -> Tensor:
    """Return by how much each loss falls, in double precision.

    Form ``"loss"`` clips both losses to [0, clip] first (Chen and Lee 2020, after
    Theorem 1), ``"difference"`` leaves it to the gate to clip the difference.
    """
    if form == "loss":
        before, after = clipped_losses(before, clip), clipped_losses(after, clip)
    return before.double() - after.double()
