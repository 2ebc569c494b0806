# SPDX-License-Identifier: Apache-2.0
"""What the tests of the accountants share: a step, prices, and what they look at."""

import dataclasses
import math
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import log_ndtr, ndtr

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import Budget
from armijo.accounting.ledger import Ledger
from armijo.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    Subsampled,
    laplace_rdp,
)
from armijo.errors import BudgetExceeded

FloatArray = NDArray[np.float64]
BUDGET = Budget(epsilon=1.0, delta=1e-8)
STEP = Subsampled(
    Composed((Gaussian(noise_scale=4.0), AboveThreshold.laplace(0.3))), 0.2
)


@dataclasses.dataclass(frozen=True)
class Fixed(Mechanism):
    """A mechanism that costs what it says at every order."""

    price: float

    def rdp(self, orders: FloatArray) -> FloatArray:
        return np.full(np.shape(orders), self.price)


@dataclasses.dataclass(frozen=True)
class Laplace(Mechanism):
    """One number with Laplace noise: a mechanism with a curve and nothing else."""

    epsilon: float

    def rdp(self, orders: FloatArray) -> FloatArray:
        return laplace_rdp(orders, self.epsilon)


A = TypeVar("A", bound=Accountant)


def on_file(watch: A, path: Path) -> A:
    """The accountant, with a file for its charges."""
    return watch.attach(Ledger.open(path, header=watch.header()))


def drain(watch: Accountant, mechanism: Mechanism) -> int:
    """Charge until the filter refuses; return how often it did not."""
    count = 0
    while watch.affords(mechanism):
        watch.charge(mechanism)
        count += 1
    with pytest.raises(BudgetExceeded):
        watch.charge(mechanism)
    return count


def snapshot(watch: Accountant) -> tuple[object, ...]:
    """Everything that a refused request must leave as it was."""
    return (
        watch.spent.tolist(),
        watch.remaining().tolist(),
        watch.n_charges,
        watch.limits.tolist(),
        tuple(watch.ledger.charges),
    )


def gaussian_delta(epsilon: float, rho: float) -> float:
    """Smallest delta of Gaussian noise at ``epsilon`` (Balle and Wang 2018, Thm 8)."""
    shift = math.sqrt(2 * rho)
    up, down = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return float(ndtr(up) - math.exp(epsilon + float(log_ndtr(down))))


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Smallest epsilon of Gaussian noise at ``delta``, by bisection."""
    if gaussian_delta(0.0, rho) <= delta:
        return 0.0
    top = rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9
    root = optimize.brentq(lambda e: gaussian_delta(e, rho) - delta, 0.0, top)
    return float(root)
