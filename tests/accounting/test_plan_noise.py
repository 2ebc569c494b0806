# SPDX-License-Identifier: Apache-2.0
"""Noise for a whole plan: on the safe side of the budget, and close to it."""

import pytest

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    gaussian_noise,
    noise_for_plan,
    planned_epsilon,
)
from armijo.accounting.mechanisms import Composed, Gaussian, RepeatAndSelect, Subsampled
from armijo.errors import BudgetExceeded


def plain(sampling_prob, steps):
    return lambda z: [(Subsampled(Gaussian(noise_scale=z), sampling_prob), steps)]


def mixed(z):
    both = Composed((Gaussian(noise_scale=z), Gaussian(noise_scale=3 * z)))
    kinds = Subsampled(both, 0.2), Subsampled(Gaussian(noise_scale=z), 0.2)
    return [(kinds[0], 1), (kinds[1], 4), (kinds[0], 1), (kinds[1], 3)]


def selected(z):
    return [(RepeatAndSelect(Gaussian(noise_scale=z), mean=5.0), 1)]


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 6.0])
def test_gaussians_on_all_rows_need_the_exact_noise_of_one(epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    ours, exact = noise_for_plan(budget, plain(1.0, 9)), 3 * gaussian_noise(budget)
    assert exact <= ours == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("plan_at", "epsilon"),
    [(plain(1.0, 3), 3.0), (mixed, 0.5), (selected, 0.2), (selected, 4.0)],
)
def test_the_whole_plan_fits_and_little_less_noise_does_not(plan_at, epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    noise = noise_for_plan(budget, plan_at)
    assert 0.99 * epsilon <= planned_epsilon(plan_at(noise), 1e-6)[0] <= epsilon
    PlannedAccountant(budget, plan_at(noise))
    with pytest.raises(BudgetExceeded):
        PlannedAccountant(budget, plan_at(0.98 * noise))
