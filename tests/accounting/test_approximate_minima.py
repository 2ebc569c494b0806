# SPDX-License-Identifier: Apache-2.0
"""Composition of an exact release with noise for the error of its solver."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import gaussian_noise, planned_epsilon, reachable
from armijo.accounting.mechanisms import Gaussian, PureDP, pure_delta
from armijo.accounting.perturbation import (
    ChaudhuriObjective,
    KiferObjective,
    WithOutputNoise,
    calibrate_objective,
    with_output_share,
)

BUDGETS = st.builds(
    Budget,
    epsilon=st.floats(min_value=0.01, max_value=8.0),
    delta=st.floats(min_value=1e-10, max_value=1e-2),
)


def kst_with_noise(budget: Budget) -> WithOutputNoise:
    first, second = with_output_share(budget)
    return WithOutputNoise(
        first=KiferObjective(epsilon=first.epsilon, delta=first.delta),
        second=Gaussian(noise_scale=gaussian_noise(second)),
        second_epsilon=second.epsilon,
    )


def tight_with_noise(budget: Budget) -> WithOutputNoise:
    first, second = with_output_share(budget)
    return WithOutputNoise(
        first=calibrate_objective(first, l2_sum=10.0),
        second=Gaussian(noise_scale=gaussian_noise(second)),
        second_epsilon=second.epsilon,
    )


def pure_with_noise(budget: Budget) -> WithOutputNoise:
    first, second = with_output_share(budget)
    return WithOutputNoise(
        first=ChaudhuriObjective(epsilon=first.epsilon, l2=0.01, n_rows=100),
        second=PureDP(second.epsilon),
        second_epsilon=second.epsilon,
    )


@pytest.mark.parametrize("make", [kst_with_noise, tight_with_noise, pure_with_noise])
class TestEveryRelease:
    @given(budget=BUDGETS)
    def test_the_planned_accountant_affords_it(self, make, budget):
        accountant = PlannedAccountant(budget, [(make(budget), 1)])
        assert accountant.guarantee.accountant == "planned-profile"
        # A pure promise also holds with less epsilon at this delta.
        least = 0.95 if make is not pure_with_noise else 0.0
        assert least * budget.epsilon <= accountant.planned_epsilon <= budget.epsilon

    @given(budget=BUDGETS, share=st.floats(min_value=0.0, max_value=3.0))
    def test_delta_falls_with_epsilon(self, make, budget, share):
        release = make(budget)
        low, high = share * budget.epsilon, 1.1 * share * budget.epsilon
        assert release.delta_at(high) <= release.delta_at(low) * (1 + 1e-9) + 1e-300

    def test_both_curves_are_added(self, make):
        orders = np.array([1.5, 4.0])
        release = make(Budget(epsilon=1.0, delta=1e-6))
        expected = release.first.rdp(orders) + release.second.rdp(orders)
        np.testing.assert_array_equal(release.rdp(orders), expected)


def test_the_deltas_add_up_and_the_epsilons_too():
    release = kst_with_noise(Budget(epsilon=1.0, delta=1e-6))
    whole = release.delta_at(1.0)
    assert whole == pytest.approx(1e-6, rel=1e-6)
    assert whole <= 1e-6
    assert release.delta_at(0.995) == 1.0  # the first alone needs 0.99
    assert release.delta_at(0.005) == 1.0  # less than the second's own epsilon


def test_too_little_output_noise_is_not_hidden():
    first, second = with_output_share(Budget(epsilon=1.0, delta=1e-6))
    release = WithOutputNoise(
        first=KiferObjective(epsilon=first.epsilon, delta=first.delta),
        second=Gaussian(noise_scale=0.5 * gaussian_noise(second)),
        second_epsilon=second.epsilon,
    )
    assert planned_epsilon([(release, 1)], 1e-6)[0] > 1.0


def test_a_pure_second_that_costs_more_than_its_share_is_not_free():
    first = ChaudhuriObjective(epsilon=0.9, l2=0.01, n_rows=100)
    release = WithOutputNoise(first=first, second=PureDP(0.1), second_epsilon=0.05)
    assert release.delta_at(1.0) == pure_delta(0.05, 0.1) > 0.02


@given(budget=BUDGETS)
def test_shares_stay_within_the_budget(budget):
    first, second = with_output_share(budget)
    assert first.epsilon + second.epsilon <= budget.epsilon
    assert first.delta + second.delta <= budget.delta
    assert second.epsilon == pytest.approx(0.01 * budget.epsilon)
    assert reachable(budget).epsilon < budget.epsilon
