# SPDX-License-Identifier: Apache-2.0
"""The game for the support of the noise: which integers can occur at all.

Noise on a lattice hides a sum only if every integer can occur.  A sampler that makes
two numbers of a radius and an angle in single precision (Box and Muller 1958) leaves
most pairs of integers out: they lie between the rays of the angles that there are.
Whoever knows what the sum would be with the row and without it subtracts both from the
release, and only the right one leaves pairs on rays (Mironov 2012, for pairs).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.calibration import noise_for_plan
from armijo.accounting.mechanisms import Gaussian
from armijo.accounting.planned import PlannedAccountant
from armijo.audit.games import Claim
from armijo.data import fixed_point
from armijo.data.private import BatchPlan, PrivateDataset
from armijo.data.query import BoundedQuery
from armijo.noise import Randomness

IntArray = NDArray[np.int64]

_NEIGHBORS = 4  # angles on each side of the nearest one: arctan and sine err by less
_SIZE = 1024
_ENTRY = 2.0**-6  # a whole number of steps; the norm of such a row is one half


def on_rays(x: IntArray, y: IntArray) -> NDArray[np.bool_]:
    """Say of pairs of integers whether an angle in single precision leads to them.

    That is so if some radius times its cosine rounds to ``x`` and times its sine to
    ``y``.

    Examples
    --------
    >>> on_rays(np.array([2**40, 2**40]), np.array([2**40, 2**40 // 3])).tolist()
    [True, False]
    """
    angle = np.arctan2(y, x).astype(np.float32)
    below = above = angle
    found = _leads(angle, x, y)
    for _ in range(_NEIGHBORS):
        below = np.nextafter(below, np.float32(-np.inf))
        above = np.nextafter(above, np.float32(np.inf))
        found |= _leads(below, x, y) | _leads(above, x, y)
    return found


def _leads(angle: NDArray[np.float32], x: IntArray, y: IntArray) -> NDArray[np.bool_]:
    """Say whether some radius meets both integers, within the error of its product."""
    (low, high), (start, end) = (
        _radii(np.cos(angle), x),
        _radii(np.sin(angle), y),
    )
    reach = 1 + 2.0**-50
    return np.maximum(low, start) <= np.minimum(high, end) * reach


def _radii(
    direction: NDArray[np.float32], number: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return between which radii a coordinate rounds to the number."""
    size, sign = np.abs(direction).astype(float), np.where(direction < 0, -1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (number * sign - 0.5) / size, (number * sign + 0.5) / size
    # Along an axis every radius leads to zero, and none to anything else.
    still = size == 0
    low = np.where(still, np.where(number == 0, 0.0, np.inf), low)
    return np.maximum(low, 0.0), np.where(still, np.inf, high)


def shares_on_rays(noise: IntArray) -> FloatArray:
    """Return which shares of the pairs of a vector are on rays.

    Pairs are neighbors, or number with number of the two halves, as samplers lay them
    out.
    """
    even = noise[: len(noise) // 2 * 2]
    layouts = even.reshape(-1, 2).T, even.reshape(2, -1)
    return np.array([np.mean(on_rays(x, y)) for x, y in layouts])


@dataclass(frozen=True, eq=False)
class SupportGame:
    """A noisy sum of which both exact ones are known.

    Attributes
    ----------
    budget : Budget
        The promise; the noise is solved for it.
    """

    budget: Budget
    name: str = "support"

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given."""
        return Claim(self.budget.epsilon, self.budget.delta)

    @cached_property
    def _mechanism(self) -> Gaussian:
        """The sum: the whole budget."""

        def plan(noise: float) -> BatchPlan:
            return BatchPlan(mechanisms=(Gaussian(noise_scale=noise),))

        noise = noise_for_plan(self.budget, lambda z: [(plan(z).mechanism, 1)])
        return Gaussian(noise_scale=noise)

    @cached_property
    def _unused(self) -> PlannedAccountant:
        """An accountant that nothing was charged to, the model of others."""
        plan = BatchPlan(mechanisms=(self._mechanism,))
        return PlannedAccountant(self.budget, [(plan.mechanism, 1)])

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once; told are the shares on rays without the row and with it."""
        data = PrivateDataset(
            np.full((int(present), _SIZE), _ENTRY),
            n_rows=1,
            accountant=self._unused.unused(),
            randomness=randomness,
        )
        batch = data.open(BatchPlan(mechanisms=(self._mechanism,)), label="sum")
        query = BoundedQuery(contributions=lambda rows: rows.X, bound=1.0)
        noisy = batch.noisy_sum(query, self._mechanism)
        steps = np.rint(noisy * fixed_point.STEPS).astype(np.int64)
        row = round(_ENTRY * fixed_point.STEPS)
        return np.concatenate([shares_on_rays(steps), shares_on_rays(steps - row)])
