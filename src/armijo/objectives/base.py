# SPDX-License-Identifier: Apache-2.0
"""What a method may ask of an objective: bounded queries and the public penalty."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from torch import Tensor

from armijo.data.query import BoundedQuery

QueryForm = Literal["loss", "difference"]
"""How the search clips: both losses, or the difference of losses."""


class Objective(Protocol):
    """A sum of per-example losses plus a public penalty, on a flat vector ``w``."""

    @property
    def size(self) -> int:
        """The number of parameters."""
        ...

    def gradient_sum(self, w: Tensor, *, clip: float) -> BoundedQuery:
        """Ask for the sum of per-example gradients, each clipped to ``clip``."""
        ...

    def loss_drop_sum(
        self,
        w: Tensor,
        step: Tensor,
        step_size: float,
        *,
        form: QueryForm,
        clip: float,
        offset: float = 0.0,
    ) -> BoundedQuery:
        """Ask for the sum of ``f(w) - f(w - step_size step)``, ``clip`` at most each.

        ``offset`` is a public constant added to the sum.
        """
        ...

    def step_scores(
        self, w: Tensor, step: Tensor, step_sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask which ``w - step_size step`` has the least loss, each at most ``clip``.

        One score for each step size, the best the largest, at most ``clip/2`` either
        way.
        """
        ...

    def normalized_gradient_sum(self, w: Tensor, *, stability: float) -> BoundedQuery:
        """Ask for the sum of ``g / (||g|| + stability)``, each shorter than one."""
        ...

    def losses_along(
        self, w: Tensor, step: Tensor, sizes: Sequence[float], *, clip: float
    ) -> BoundedQuery:
        """Ask for the summed losses at ``w - size step``, in units of their clip."""
        ...

    def penalty(self, w: Tensor) -> float:
        """Return the penalty: no data, no cost."""
        ...

    def penalty_drop(self, w: Tensor, step: Tensor) -> Callable[[float], float]:
        """Return the function ``eta -> penalty(w) - penalty(w - eta step)``."""
        ...

    def penalty_gradient(self, w: Tensor) -> Tensor:
        """Return the gradient of the penalty."""
        ...
