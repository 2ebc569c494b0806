# SPDX-License-Identifier: Apache-2.0
"""The public penalty ``l2/2 ||w||^2``, the same for every objective."""

from collections.abc import Callable

from torch import Tensor


class SquaredPenalty:
    """What an objective with a coefficient ``l2`` says of its penalty.

    Without one no product of long vectors is formed.
    """

    l2: float

    def penalty(self, w: Tensor) -> float:
        """Return ``l2/2 ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w) if self.l2 else 0.0

    def penalty_drop(self, w: Tensor, step: Tensor) -> Callable[[float], float]:
        """Return ``eta -> l2 (eta w.d - eta^2/2 d.d)``."""
        if not self.l2:
            return lambda eta: 0.0
        linear, square = float(w @ step), float(step @ step)
        return lambda eta: self.l2 * eta * (linear - 0.5 * eta * square)

    def penalty_gradient(self, w: Tensor) -> Tensor:
        """Return ``l2 w``."""
        return self.l2 * w
