# SPDX-License-Identifier: Apache-2.0
"""The search of the automatic method: three noisy loss drops, one Gaussian release.

At half, one and two times the last step each example gives its drop of loss, in units
of a public scale that grows with the step; the three numbers are clipped jointly.  The
step changes only when another one wins by twice the noise of the difference.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from armijo.data.query import BoundedQuery, Rows
from armijo.methods.auto_frame import Frame
from armijo.objectives.elementwise import moved
from armijo.privacy.budget import FloatArray

FACTORS = (0.5, 1.0, 2.0)
"""Candidates, in units of the last step."""

DROP_ROOM = 2.0
"""Scale of a drop: so many times what an average row's can be."""

SIGNIFICANCE = 2.0
"""Standard deviations by which another step must win."""

_LAST = FACTORS.index(1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreePoints:
    """One search along ``-direction`` from a point of the frame.

    Attributes
    ----------
    frame : Frame
        Coordinates and losses.
    sizes : tuple of float
        The candidate steps.
    rms_score : float
        Released estimate of the root mean square change of a score for step one.
    """

    frame: Frame
    sizes: tuple[float, ...]
    rms_score: float

    @property
    def scales(self) -> FloatArray:
        """What each drop is divided by: step times score change times slope."""
        slope = self.frame.clip / math.hypot(1.0, self.frame.constant)
        slope = min(slope, 1.0)
        return DROP_ROOM * slope * self.rms_score * np.array(self.sizes)

    def query(self, w: Tensor, step: Tensor) -> BoundedQuery:
        """Ask for the scaled drops at ``w - size step``, models of the rows.

        One example gives a vector of as many drops as candidates, which the gate
        clips to norm ``sqrt(candidates)``: that is the sensitivity.
        """
        frame, scales = self.frame, self.scales

        def contributions(rows: Rows) -> FloatArray:
            scores, y = frame.here(rows, w)
            limits = frame.limits(rows)
            along = frame.objective.scores_of(rows, step)
            before = frame.losses(scores, y, limits)
            after = [
                frame.losses(moved(scores, along, size), y, limits)
                for size in self.sizes
            ]
            drops = torch.stack([before - loss for loss in after], dim=1).numpy()
            return np.asarray(drops / scales)

        return BoundedQuery(contributions=contributions, bound=math.sqrt(len(scales)))

    def penalty_falls(self, point: Tensor, direction: Tensor) -> FloatArray:
        """Return by how much each candidate lowers the penalty, which is public."""
        here = self.frame.penalty(point)
        there = [self.frame.penalty(point - size * direction) for size in self.sizes]
        return here - np.array(there)

    def chosen(
        self,
        noisy_sum: FloatArray,
        noise: float,
        batch_size: float,
        penalty: FloatArray,
    ) -> float:
        """Return the step: the last one unless another wins clearly.

        ``noise`` is the standard deviation of each released sum, ``penalty`` what the
        penalty falls by for each candidate.
        """
        drops = noisy_sum * self.scales / batch_size + penalty
        spread = noise * self.scales / batch_size
        best = _LAST
        for k in range(len(drops)):
            gain = drops[k] - drops[_LAST]
            clear = gain > SIGNIFICANCE * math.hypot(spread[k], spread[_LAST])
            if k != _LAST and clear and drops[k] > drops[best]:
                best = k
        return self.sizes[best]
