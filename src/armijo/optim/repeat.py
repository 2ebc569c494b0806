# SPDX-License-Identifier: Apache-2.0
"""Repeat and select: a geometric number of runs, of which the best is kept."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from armijo.noise import BitSource, poisson_coins
from armijo.privacy.selection import RepeatAndSelect

Result = TypeVar("Result")


def stop_chance(mechanism: RepeatAndSelect) -> float:
    """Return the chance to stop after each run: a geometric number of them.

    Rounded up, so that neither the mean nor ``-log`` of the chance exceeds what was
    charged for.

    >>> from armijo.privacy.mechanisms import Gaussian
    >>> round(stop_chance(RepeatAndSelect(Gaussian(noise_scale=9.0), mean=4.0)), 12)
    0.25
    """
    chance = max(mechanism.stop_probability, 1 / mechanism.mean)
    return float(np.nextafter(chance, 1.0))


def best_run(
    run: Callable[[], tuple[float, Result]], mechanism: RepeatAndSelect, bits: BitSource
) -> Result:
    """Call ``run`` until a coin says stop, and return the result of the highest score.

    Of equal scores the first is kept: as good as a random one, since the runs are
    alike.  How often ``run`` was called is not told.
    """
    chance = stop_chance(mechanism)
    highest, best = run()
    while not poisson_coins(1, chance, bits).size:
        score, result = run()
        if score > highest:
            highest, best = score, result
    return best
