# SPDX-License-Identifier: Apache-2.0
"""Losses of a margin ``m = y w.x`` with their derivatives (Chen and Lee 2020, models).

=========  =================================================  ======================
loss       value                                              derivative
=========  =================================================  ======================
logistic   log(1 + e^{-m})                                    -1 / (1 + e^m)
hinge      max(0, 1 - m)                                      -1 if m < 1 else 0
huber      1 - m, (1 + h - m)^2 / (4h) if |1 - m| <= h, or 0  -1, -(1+h-m)/(2h), or 0
=========  =================================================  ======================

A row's value is a function of its margin alone, at any place of a batch: see
:mod:`armijo.objectives.elementwise`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo.objectives.base import QueryForm
from armijo.objectives.elementwise import exp, log, sigmoid, softplus
from armijo.privacy.budget import FloatArray


@dataclass(frozen=True)
class MarginLoss:
    """A loss of the margin and its derivative."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def _logistic(m: Tensor) -> Tensor:
    """Return log(1 + e^{-m}), without overflow or cancellation."""
    return torch.from_numpy(softplus(-m.numpy()))


def _logistic_slope(m: Tensor) -> Tensor:
    """Return -1/(1 + e^m)."""
    slope = sigmoid(-m.numpy())
    return torch.from_numpy(np.negative(slope, out=slope))


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
        return MarginLoss(_logistic, _logistic_slope)
    if name == "hinge":
        return MarginLoss(_hinge, lambda m: -(m < 1).to(m.dtype))
    h = huber_width

    def huber(m: Tensor) -> Tensor:
        gap = torch.clamp(1 + h - m, min=0)
        return torch.where(m < 1 - h, 1 - m, gap * gap / (4 * h))

    def huber_derivative(m: Tensor) -> Tensor:
        return -torch.clamp((1 + h - m) / (2 * h), 0, 1)

    return MarginLoss(huber, huber_derivative)


FAR = 500.0
"""A clip of differences up to which :func:`logistic_drops` may stand for them."""


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
    right, wrong = sigmoid(m.numpy()), sigmoid(-m.numpy())
    slope = change.numpy()

    def drops(eta: float) -> FloatArray:
        with np.errstate(all="ignore"):  # the gate takes what is no number
            odds = np.multiply(slope, eta)
            exp(odds, out=odds)
            odds *= wrong
            odds += right
            return np.asarray(np.negative(log(odds, out=odds), out=odds))

    return drops


def known_labels(y: NDArray[Any], classes: Iterable[int]) -> Tensor:
    """Return labels as floats, NaN where one is no class.

    >>> known_labels(np.array([1, 0, -1]), (-1, 1)).tolist()
    [1.0, nan, -1.0]
    """
    labels = np.array(y, dtype=np.float64)
    known = np.isin(labels, np.array(list(classes), dtype=np.float64))
    return torch.from_numpy(np.where(known, labels, np.nan))


def softmax_losses(scores: FloatArray, y: NDArray[Any]) -> FloatArray:
    """Return ``log(sum_c e^{s_c}) - s_y`` of each row, NaN for a class unknown.

    Classes are added one by one, in their order, not by a reduction of the library.
    """
    columns = np.ascontiguousarray(scores.T)
    top, _, total = _softmax_terms(columns)
    chosen = np.full(top.shape, np.nan)
    for k, column in enumerate(columns):
        chosen = np.where(y == k, column, chosen)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((top - chosen) + log(total))


def softmax_slopes(scores: FloatArray, y: NDArray[Any]) -> FloatArray:
    """Return ``e^{s_c} / sum - [c = y]`` of each row, NaN for a class unknown."""
    _, terms, total = _softmax_terms(np.ascontiguousarray(scores.T))
    known = np.zeros(total.shape, dtype=bool)
    for k, term in enumerate(terms):
        right = y == k
        known |= right
        term /= total
        term -= right
    terms[:, ~known] = np.nan
    return np.asarray(terms.T)


def _softmax_terms(columns: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the largest score, ``e`` to the others below it, and their sum."""
    top = columns[0]
    for column in columns[1:]:
        top = np.maximum(top, column)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        terms = exp(columns - top)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
    return top, terms, total


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
