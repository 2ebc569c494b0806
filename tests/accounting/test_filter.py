# SPDX-License-Identifier: Apache-2.0
"""The privacy filter: nothing is spent that does not fit, and nothing is forgotten."""

import json
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import SEEDED, PrivacyFilter
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import best_order, rdp_limit
from armijo.accounting.mechanisms import Composed, Gaussian, PureDP, Subsampled
from armijo.errors import BudgetExceeded, UnchargedAccess
from tests.accounting.accounts import BUDGET, STEP, Fixed, drain, snapshot
from tests.accounting.contract import refused


def test_default_order_and_limit():
    watch = PrivacyFilter(BUDGET)
    assert watch.order == 31
    assert watch.limits.tolist() == [float(rdp_limit(31, BUDGET))]
    assert watch.guarantee.holds
    assert watch.guarantee.budget == BUDGET == watch.budget
    assert watch.guarantee.accountant == "filter-rdp"
    assert watch.spent.tolist() == [0.0]
    assert watch.epsilon_spent() == 0.0


def test_order_and_limits_never_change():
    watch = PrivacyFilter(BUDGET, order=24)
    with pytest.raises(AttributeError):
        watch.order = 31
    with pytest.raises(AttributeError):
        watch.limits = np.array([9.0])
    assert watch.order == 24
    with pytest.raises(ValueError, match="read-only"):
        watch.limits[0] = 9.0
    before = float(watch.cost(STEP)[0])
    assert before == float(STEP.rdp(np.array([24.0]))[0])


def test_cost_is_the_curve_at_the_order():
    watch = PrivacyFilter(BUDGET, order=20)
    assert watch.cost(STEP).tolist() == STEP.rdp(np.array([20.0])).tolist()
    assert watch.charge(STEP) == 0
    assert watch.charge(STEP) == 1
    assert watch.spent[0] == pytest.approx(
        2 * float(STEP.rdp(20.0)), rel=1e-15, abs=0.0
    )
    assert watch.remaining()[0] == watch.limits[0] - watch.spent[0]


def test_costs_handed_out_cannot_make_the_next_charge_cheaper():
    watch = PrivacyFilter(BUDGET)
    expected = watch.cost(STEP).tolist()
    try:
        watch.cost(STEP)[:] = 0.0
    except ValueError:
        pass  # read-only is as good as a copy
    watch.charge(STEP)
    assert watch.spent.tolist() == expected


def test_as_many_steps_as_the_limit_holds():
    watch = PrivacyFilter(BUDGET)
    cost = float(watch.cost(STEP)[0])
    seen = [watch.epsilon_spent()]
    while watch.affords(STEP):
        watch.charge(STEP)
        seen.append(watch.epsilon_spent())
    assert watch.n_charges == math.floor(float(watch.limits[0]) / cost)
    assert seen[0] == 0.0
    assert np.all(np.diff(seen) > 0)
    assert watch.spent[0] <= watch.limits[0]
    assert watch.spent[0] + cost > watch.limits[0]
    assert watch.epsilon_spent() <= BUDGET.epsilon
    assert watch.epsilon_spent() >= BUDGET.epsilon * (1 - cost / watch.limits[0])


@pytest.mark.parametrize(
    "greedy",
    [Fixed(100.0), Fixed(math.inf), Gaussian(noise_scale=0.0), PureDP(50.0)],
    ids=repr,
)
def test_refusal_changes_nothing(greedy):
    watch = PrivacyFilter(BUDGET)
    watch.charge(STEP, label="kept")
    before = snapshot(watch)
    assert not watch.affords(greedy)
    with pytest.raises(BudgetExceeded, match="Nothing was spent") as caught:
        watch.charge(greedy, label="refused")
    assert "epsilon 1 at delta 1e-08" in str(caught.value)
    assert snapshot(watch) == before
    assert watch.affords(STEP)
    assert watch.charge(STEP) == 1


@pytest.mark.parametrize("price", [0.0, -1e-9, math.nan, -math.inf])
def test_free_and_senseless_costs_are_refused(price):
    watch = PrivacyFilter(BUDGET)
    before = snapshot(watch)
    for ask in (watch.affords, watch.cost, watch.charge):
        refused(partial(ask, Fixed(price)), "positive cost", [price])
    assert snapshot(watch) == before


prices = st.lists(st.floats(1e-12, 0.4), min_size=1, max_size=25)
choices = st.sampled_from([None, 7, 31, 90])


@given(prices, choices, st.integers(0, 2**32 - 1))
def test_any_adaptive_schedule_stays_within_the_limit(schedule, order, seed):
    watch = PrivacyFilter(Budget(epsilon=3.0, delta=1e-6), order=order)
    rng = np.random.default_rng(seed)
    price = schedule[0]
    for proposal in schedule:
        # The next price depends on what is left and on the answers so far.
        asked = Fixed(float(price))
        affords, before = watch.affords(asked), snapshot(watch)
        if affords:
            watch.charge(asked)
            price = proposal * rng.uniform(0.2, 3.0)
        else:
            with pytest.raises(BudgetExceeded):
                watch.charge(asked)
            assert snapshot(watch) == before
            price = min(proposal, 0.9 * float(watch.remaining().max()) + 1e-12)
    costs = np.array([charge.cost for charge in watch.ledger.charges])
    if costs.size:
        assert watch.spent.tolist() == [math.fsum(column) for column in costs.T]
        assert np.any(watch.spent <= watch.limits)
        assert watch.epsilon_spent() <= 3.0 * (1 + 1e-15)


def test_sum_of_charges_never_exceeds_the_limit_by_a_rounding():
    rng = np.random.default_rng(5)
    for _ in range(300):
        watch = PrivacyFilter(Budget(epsilon=float(rng.uniform(0.1, 3)), delta=1e-6))
        limit = float(watch.limits[0])
        for share in rng.uniform(0, 0.3, size=3).tolist():
            watch.charge(Fixed(share * limit))
        last = Fixed(math.nextafter(limit - float(watch.spent[0]), 9.0))
        if watch.affords(last):
            watch.charge(last)
        assert sum(Fraction(c.cost[0]) for c in watch.ledger.charges) <= Fraction(limit)


def test_batches_are_consumed_once_and_in_order():
    watch = PrivacyFilter(BUDGET)
    gradient, search = (Subsampled(part, 0.2) for part in STEP.inner.mechanisms)
    assert watch.charge(gradient, batch=0) == 0
    before = snapshot(watch)
    for batch in (0, 2, -1):
        with pytest.raises(UnchargedAccess, match=f"Asked to charge batch {batch}"):
            watch.charge(search, batch=batch)
    assert snapshot(watch) == before
    assert watch.charge(STEP, batch=1) == 1
    assert watch.charge(STEP) == 2


def test_no_usable_order_is_refused():
    with pytest.raises(ValueError, match=r"epsilon 0.1 at delta 1e-08, got 2;") as e:
        PrivacyFilter(Budget(epsilon=0.1, delta=1e-8), order=2)
    assert "Order 250 would do" in str(e.value)


def test_small_budgets_use_large_orders():
    budget = Budget(epsilon=0.01, delta=1e-10)
    watch = PrivacyFilter(budget)
    assert watch.order == best_order(budget)
    rho = float(watch.limits[0] / watch.order)
    assert drain(watch, Gaussian.from_rho(rho / 10.5)) == 10


def test_seeded_randomness_voids_the_promise():
    watch = PrivacyFilter(BUDGET, insecure_deterministic=True)
    assert not watch.guarantee.holds
    assert watch.guarantee.broken_premises == (SEEDED,)
    assert watch.header()["guarantee"] is False


def test_header_is_json():
    watch = PrivacyFilter(BUDGET, order=24, relation=Neighboring.ZERO_OUT)
    assert json.loads(json.dumps(watch.header())) == {
        **watch.guarantee.to_dict(),
        "broken_premises": [],
        "assumptions": [],
        "relation": "zero-out",
        "limits": watch.limits.tolist(),
        "orders": [24.0],
    }


@pytest.mark.parametrize(
    "mechanism",
    [
        Subsampled(Gaussian(noise_scale=50.0), 0.5),
        AboveThreshold.laplace(0.01),
        Subsampled(Composed((PureDP(0.01), AboveThreshold.laplace(0.01))), 1.0),
    ],
)
def test_what_is_proved_for_one_row_more_is_refused_for_an_exchanged_one(mechanism):
    watch = PrivacyFilter(BUDGET, relation=Neighboring.REPLACE_ONE)
    with pytest.raises(ValueError, match=r"got replace-one with .* more or less"):
        watch.charge(mechanism)
    assert watch.n_charges == 0
    assert PrivacyFilter(BUDGET, relation=Neighboring.ZERO_OUT).charge(mechanism) == 0
