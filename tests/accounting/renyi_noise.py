# SPDX-License-Identifier: Apache-2.0
"""Noise by Renyi curves over many orders: what older papers print, for comparison."""

import math
from dataclasses import replace

import numpy as np

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import rdp_limit, smallest
from armijo.accounting.mechanisms import Mechanism
from armijo.accounting.perturbation import ObjectivePerturbation, dense_orders
from tests.accounting.exact_divergence import FloatArray


def rdp_keeps(
    mechanism: Mechanism, budget: Budget, orders: FloatArray, *, classical: bool = False
) -> bool:
    """Say whether the curve of a mechanism keeps the budget at one of the orders.

    ``classical`` converts with ``epsilon = R + log(1/delta) / (a - 1)``, Mironov
    (2017), Proposition 3, as older papers do, not with the tighter ``rdp_limit``.
    """
    limits = rdp_limit(orders, budget)
    if classical:
        limits = budget.epsilon + math.log(budget.delta) / (orders - 1)
    return bool(np.any(mechanism.rdp(orders) <= limits))


def objective_noise_rdp(
    budget: Budget, *, classical: bool = False, **settings: float
) -> float:
    """Return the smallest noise of objective perturbation by its Renyi curve."""
    release = ObjectivePerturbation(noise_scale=1.0, **settings)
    # The Jacobian's cost does not fall with the noise: only the rest picks the order.
    rest = budget.epsilon - release.jacobian_cost
    orders = dense_orders(Budget(epsilon=rest, delta=budget.delta))

    def keeps(noise: float) -> bool:
        release_at = replace(release, noise_scale=noise)
        return rdp_keeps(release_at, budget, orders, classical=classical)

    return smallest(keeps, release.lipschitz)
