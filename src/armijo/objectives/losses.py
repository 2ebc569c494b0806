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

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.objectives.base import QueryForm
from armijo.objectives.elementwise import exp, log, sigmoid, softplus

FAR = 500.0
"""A clip of differences up to which :meth:`Loss.drops` may stand for them."""

Drops = Callable[[float], FloatArray]
"""By how much losses fall, as a function of the step size."""


@dataclass(frozen=True)
class Loss(ABC):
    """A convex loss of a margin, whose slope lies between -1 and 0.

    A subclass is a whole loss: an object of it, or its name in :data:`LOSSES`, is what
    ``loss=`` takes.  Fields are the parameters of a loss.

    Attributes
    ----------
    name : str
        How it is called.
    flat : bool
        Whether it is zero from some margin on.
    smoothness : float
        Bound on the second derivative, infinite where there is a kink.
    smooth_version : Loss or None
        What takes its place where a proof asks for a smooth loss.
    """

    name: ClassVar[str]
    flat: ClassVar[bool] = False

    @property
    def smoothness(self) -> float:
        """Bound on the second derivative."""
        return math.inf

    @property
    def smooth_version(self) -> "Loss | None":
        """The loss itself where it is smooth."""
        return self if math.isfinite(self.smoothness) else None

    @abstractmethod
    def value(self, m: Tensor) -> Tensor:
        """Return the losses of margins."""

    @abstractmethod
    def slope(self, m: Tensor) -> Tensor:
        """Return the derivative; at a kink one of the two sides."""

    @abstractmethod
    def curvature(self, m: Tensor) -> Tensor:
        """Return the second derivative; at a jump one of the two sides."""

    @abstractmethod
    def margin_at(self, steepness: Tensor) -> Tensor:
        """Return the margin below which the loss falls faster than ``steepness``."""

    def drops(self, m: Tensor, change: Tensor) -> Drops | None:
        """Return ``eta -> l(m) - l(m - eta change)`` where there is a faster way.

        It need not be exact where margins move by more than ``FAR``.
        """
        return None


@dataclass(frozen=True)
class Logistic(Loss):
    """``log(1 + e^{-m})``."""

    name: ClassVar[str] = "logistic"

    @property
    def smoothness(self) -> float:
        """A quarter, at margin zero."""
        return 0.25

    def value(self, m: Tensor) -> Tensor:
        """Return log(1 + e^{-m}), without overflow or cancellation."""
        return torch.from_numpy(softplus(-m.numpy()))

    def slope(self, m: Tensor) -> Tensor:
        """Return -1/(1 + e^m)."""
        slope = sigmoid(-m.numpy())
        return torch.from_numpy(np.negative(slope, out=slope))

    def curvature(self, m: Tensor) -> Tensor:
        """Return ``-s (1 + s)`` for the slope s."""
        slope = self.slope(m)
        return -slope * (1 + slope)

    def margin_at(self, steepness: Tensor) -> Tensor:
        """Return log(1/s - 1)."""
        return torch.from_numpy(log((1 / steepness - 1).numpy()))

    def drops(self, m: Tensor, change: Tensor) -> Drops:
        """Return the drops by one exponential and one logarithm for each size.

        With p the sigmoid of m, ``(1 + e^{eta change - m}) / (1 + e^{-m})`` is
        ``p + (1 - p) e^{eta change}``.  The error is a few 1e-16 while no margin moves
        by more than 700; one that moves further is infinitely far, which a clip up to
        ``FAR`` takes for what it is.

        >>> drop = Logistic().drops(torch.tensor([0.0]), torch.tensor([1.0]))(0.0)
        >>> float(drop[0])
        0.0
        """
        right, wrong = sigmoid(m.numpy()), sigmoid(-m.numpy())
        slope = change.numpy()

        def drops(eta: float) -> FloatArray:
            with np.errstate(all="ignore"):  # the gate takes NaN
                odds = np.multiply(slope, eta)
                exp(odds, out=odds)
                odds *= wrong
                odds += right
                return np.asarray(np.negative(log(odds, out=odds), out=odds))

        return drops


@dataclass(frozen=True)
class Hinge(Loss):
    """``max(0, 1 - m)``."""

    name: ClassVar[str] = "hinge"
    flat: ClassVar[bool] = True

    @property
    def smooth_version(self) -> Loss:
        """The hinge rounded at its kink."""
        return Huber()

    def value(self, m: Tensor) -> Tensor:
        """Return max(0, 1 - m)."""
        return torch.relu(1 - m)

    def slope(self, m: Tensor) -> Tensor:
        """Return -1 below one."""
        return -(m < 1).to(m.dtype)

    def curvature(self, m: Tensor) -> Tensor:
        """Return zero."""
        return torch.zeros_like(m)

    def margin_at(self, steepness: Tensor) -> Tensor:
        """Return the place of the kink."""
        return torch.ones_like(steepness)


@dataclass(frozen=True)
class Huber(Loss):
    """The hinge, rounded over ``width`` on both sides of its kink.

    >>> float(Huber().value(torch.tensor([1.0]))[0])
    0.125
    """

    name: ClassVar[str] = "huber"
    flat: ClassVar[bool] = True

    width: float = 0.5

    def __post_init__(self) -> None:
        _validate.positive(width=self.width)

    @property
    def smoothness(self) -> float:
        """One over twice the width."""
        return 1 / (2 * self.width)

    def value(self, m: Tensor) -> Tensor:
        """Return 1 - m, or the parabola around one."""
        h = self.width
        gap = torch.clamp(1 + h - m, min=0)
        return torch.where(m < 1 - h, 1 - m, gap * gap / (4 * h))

    def slope(self, m: Tensor) -> Tensor:
        """Return the slope, -1/2 at margin one."""
        h = self.width
        return -torch.clamp((1 + h - m) / (2 * h), 0, 1)

    def curvature(self, m: Tensor) -> Tensor:
        """Return ``smoothness`` within the width."""
        slope = self.slope(m)
        bent = (slope > -1) & (slope < 0)
        return bent.to(slope.dtype) / (2 * self.width)

    def margin_at(self, steepness: Tensor) -> Tensor:
        """Return the margin where the parabola has this slope."""
        return 1 + self.width - 2 * self.width * steepness


@dataclass(frozen=True)
class Squared(Loss):
    """``r^2 / 8`` of a residual r: the curvature is that of the logistic loss at zero.

    >>> float(Squared().slope(torch.tensor([2.0]))[0])
    0.5
    """

    name: ClassVar[str] = "squared"

    @property
    def smoothness(self) -> float:
        """A quarter."""
        return 0.25

    def value(self, m: Tensor) -> Tensor:
        """Return r^2 / 8."""
        return m * m / 8

    def slope(self, m: Tensor) -> Tensor:
        """Return r / 4."""
        return m / 4

    def curvature(self, m: Tensor) -> Tensor:
        """Return a quarter."""
        return torch.full_like(m, 0.25)

    def margin_at(self, steepness: Tensor) -> Tensor:
        """Return the residual of this slope."""
        return 4 * steepness


@dataclass(frozen=True)
class HuberResidual(Squared):
    """The same within ``width`` standard deviations of the target, a line beyond.

    >>> float(HuberResidual(width=1.0).slope(torch.tensor([3.0]))[0])
    0.25
    """

    name: ClassVar[str] = "huber"

    width: float = 1.0

    def value(self, m: Tensor) -> Tensor:
        """Return r^2 / 8, or the line."""
        near = m.clamp(-self.width, self.width)
        return near * near / 8 + (m - near).abs() * (self.width / 4)

    def slope(self, m: Tensor) -> Tensor:
        """Return r / 4 within the width."""
        return m.clamp(-self.width, self.width) / 4

    def curvature(self, m: Tensor) -> Tensor:
        """Return a quarter within the width."""
        return 0.25 * (m.abs() < self.width).to(m.dtype)


RESIDUAL_LOSSES: dict[str, Loss] = {
    loss.name: loss for loss in (Squared(), HuberResidual())
}
"""The losses of a residual by name."""

LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Hinge(), Huber())}
"""The losses of a margin by name."""


def known_labels(y: NDArray[Any] | None, classes: Iterable[int]) -> Tensor:
    """Return labels as floats, NaN where one is no class.

    >>> known_labels(np.array([1, 0, -1]), (-1, 1)).tolist()
    [1.0, nan, -1.0]
    """
    if y is None:
        raise ValueError("Expected labels, got none; a classifier needs y.")
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
