# SPDX-License-Identifier: Apache-2.0
"""The fitness that PrivGene selects by, with a public bound on its differences.

The enhanced exponential mechanism (Zhang, Xiao, Yang, Zhang and Winslett 2013) picks a
candidate with weight ``exp(epsilon f / Gamma)``.  Gamma bounds how much the
*difference* of two candidates' scores may move, which is far less than a score may: for
features in [0, 1] and a loss whose slope is at most one it is known from the candidates
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from armijo.data.query import BoundedQuery
from armijo.objectives.base import Objective
from armijo.objectives.linear import as_linear
from armijo.privacy.budget import FloatArray


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """Minus the summed loss, minus ``penalty/2 ||w||^2`` without the intercept.

    The penalty is shared out evenly among the public number of rows, and counted in
    the spread.
    """

    penalty: float
    n_rows: int
    fit_intercept: bool

    def query(
        self,
        objective: Objective,
        points: Tensor,
        kept: Sequence[int],
        *,
        loss_spread: float,
    ) -> BoundedQuery:
        """Ask for the best of the ``kept`` rows of ``points``; no score exceeds one.

        ``loss_spread`` bounds how far apart the losses of one row may lie.  Rows that
        break it, whose features leave [0, 1], are clipped by the gate: the guarantee
        does not depend on them.
        """
        shares = self._shares(points)
        spread = loss_spread + float(np.ptp(shares))
        return as_linear(objective).point_scores(
            points, kept, spread=spread, penalties=shares
        )

    def moves(self, objective: Objective, w: Tensor, size: float) -> BoundedQuery:
        """Ask for the best move of ``size`` along one coordinate, up or down."""
        steps = size * torch.eye(w.numel(), dtype=w.dtype)
        shares = self._shares(torch.cat([w + steps, w - steps]))
        # Both ways along one coordinate are 2 s apart, other pairs s.
        spread = 2 * size + float(np.ptp(shares))
        return as_linear(objective).coordinate_scores(
            w, size, spread=spread, penalties=shares
        )

    def _shares(self, points: Tensor) -> FloatArray:
        """Return each point's penalty, divided among the rows."""
        weights = points[:, :-1] if self.fit_intercept else points
        whole = weights.square().sum(dim=1).numpy() * (0.5 * self.penalty)
        return np.asarray(whole / self.n_rows)


def largest_spread(points: Tensor) -> float:
    """Return how far the losses of one row at two points may lie apart.

    ``max over pairs of sum(max(v - w, 0))``: scores differ by ``x.(v - w)``, which is
    largest where x is one for the positive differences and zero for the others, and
    the slope of the loss is at most one.

    >>> import torch
    >>> largest_spread(torch.tensor([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]]))
    1.0
    """
    largest = max(
        float((point - points).clamp(min=0).sum(dim=1).max()) for point in points
    )
    return largest or 1.0  # all points equal: any unit will do
