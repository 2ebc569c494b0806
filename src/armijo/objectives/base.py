# SPDX-License-Identifier: Apache-2.0
"""What a method may ask of an objective: bounded queries and the public penalty."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from armijo.data.query import BoundedQuery

QueryForm = Literal["loss", "difference"]
"""How the search clips: both losses, or the difference of losses."""


class Objective(ABC):
    """A sum of per-example losses plus ``l2/2 ||w||^2``, on a flat vector ``w``.

    The penalty is public: no data, no cost.  Without one no product of long vectors is
    formed.
    """

    l2: float

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of parameters."""

    @abstractmethod
    def start(self) -> Tensor:
        """Return the parameters to start from."""

    @abstractmethod
    def gradient_sum(self, w: Tensor, *, clip: float) -> BoundedQuery:
        """Ask for the sum of per-example gradients, each clipped to ``clip``."""

    @abstractmethod
    def loss_drop_sum(
        self, w: Tensor, step: Tensor, step_size: float, *, form: QueryForm, clip: float
    ) -> BoundedQuery:
        """Ask for the sum of ``f(w) - f(w - step_size step)``, each within ``clip``."""

    @abstractmethod
    def step_scores(
        self, w: Tensor, step: Tensor, step_sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask which ``w - step_size step`` has the least loss, each at most ``clip``.

        One score for each step size, the best the largest, at most ``clip/2`` either
        way.
        """

    @abstractmethod
    def normalized_gradient_sum(self, w: Tensor, *, stability: float) -> BoundedQuery:
        """Ask for the sum of ``g / (||g|| + stability)``, each shorter than one."""

    @abstractmethod
    def losses_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask for the summed losses at ``w - size step``, in units of their clip."""

    def penalty(self, w: Tensor) -> float:
        """Return ``l2/2 ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w) if self.l2 else 0.0

    def penalty_drop(self, w: Tensor, step: Tensor) -> Callable[[float], float]:
        """Return ``eta -> penalty(w) - penalty(w - eta step)``."""
        if not self.l2:
            return lambda eta: 0.0
        linear, square = float(w @ step), float(step @ step)
        return lambda eta: self.l2 * eta * (linear - 0.5 * eta * square)

    def penalty_gradient(self, w: Tensor) -> Tensor:
        """Return ``l2 w``."""
        return self.l2 * w
