# SPDX-License-Identifier: Apache-2.0
"""Budgets of private selections."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    affordable_epsilon,
    concentrated_rho,
    planned_epsilon,
    selection_epsilon,
)
from armijo.accounting.mechanisms import ExponentialMechanism, OnlySelection

GOLDEN = {
    0.05: 3.388329e-5,
    0.1: 1.353499e-4,
    0.2: 5.399409e-4,
    0.4: 2.148211e-3,
    0.8: 8.502247e-3,
    1.6: 3.331190e-2,
}


@pytest.mark.parametrize(("epsilon", "rho"), GOLDEN.items())
def test_concentrated_rho(epsilon, rho):
    found = concentrated_rho(Budget(epsilon=epsilon, delta=1e-8))
    assert found == pytest.approx(rho, rel=1e-6)
    assert found + 2 * math.sqrt(found * math.log(1e8)) == pytest.approx(epsilon)


@pytest.mark.parametrize("rho", [1e-6, 1e-3])
def test_what_a_budget_buys(rho):
    orders = np.array([2.0, 10.0])
    bounded = selection_epsilon(rho, "bounded")
    np.testing.assert_allclose(
        ExponentialMechanism(bounded).rdp(orders), orders * rho, rtol=1e-2
    )
    assert np.all(
        ExponentialMechanism(bounded).rdp(orders) <= orders * rho * (1 + 1e-12)
    )
    assert selection_epsilon(rho, "pure") == pytest.approx(bounded / 2)


@pytest.mark.parametrize("start", [1e-3, 5.0])
@pytest.mark.parametrize("count", [1, 30])
def test_the_largest_epsilon_that_fits(count, start):
    budget = Budget(epsilon=0.7, delta=1e-6)

    def schedule(epsilon):
        return ((ExponentialMechanism(epsilon), count),)

    found = affordable_epsilon(budget, schedule, start)
    PlannedAccountant(budget, schedule(found))
    assert planned_epsilon(schedule(found), 1e-6)[0] >= 0.7 * 0.999
    assert planned_epsilon(schedule(found * 1.001), 1e-6)[0] > 0.7


class TestOnlySelection:
    @given(epsilon=st.floats(1e-3, 5.0), delta=st.sampled_from([1e-12, 1e-8, 1e-3]))
    def test_its_epsilon_is_the_promise(self, epsilon, delta):
        plan = ((OnlySelection(epsilon), 1),)
        found, proof = planned_epsilon(plan, delta)
        assert proof == "planned-profile"
        assert epsilon - 8 * delta <= found * (1 + 1e-9)
        assert found <= epsilon * (1 + 1e-9)

    @given(
        law=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5),
        moves=st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
        epsilon=st.floats(0.1, 3.0),
        share=st.floats(0.0, 1.2),
    )
    def test_its_profile_holds_for_every_selection(self, law, moves, epsilon, share):
        """Against the exact delta of a law and its neighbor."""
        p = np.array(law) / np.sum(law)
        q = p * np.exp(epsilon * np.array(moves[: len(p)]))
        q = q / q.sum()
        at = share * epsilon
        exact = max(
            np.maximum(p - math.exp(at) * q, 0).sum(),
            np.maximum(q - math.exp(at) * p, 0).sum(),
        )
        assert exact <= OnlySelection(epsilon).delta_at(at) + 1e-12

    def test_twice_is_not_once(self):
        assert planned_epsilon(((OnlySelection(0.5), 2),), 1e-6)[0] > 0.9
