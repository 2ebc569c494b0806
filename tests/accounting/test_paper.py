# SPDX-License-Identifier: Apache-2.0
"""The printed formulas, reproduced to the digit, and never called a guarantee."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import SEEDED
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import rdp_to_epsilon
from armijo.accounting.ledger import read_ledger
from armijo.accounting.mechanisms import (
    Composed,
    Gaussian,
    PureDP,
    Subsampled,
    laplace_rdp,
    poisson_rdp,
)
from armijo.accounting.paper import (
    BROKEN_PREMISES,
    ORDERS,
    PaperAccountant,
    lemma_pss,
    printed_cost,
    printed_curve,
    printed_epsilon,
    proposition1,
    proposition1_limit,
    theorem2,
    theorem3,
)
from armijo.errors import BudgetExceeded, UnchargedAccess
from tests.accounting.accounts import BUDGET, STEP, drain, on_file, snapshot
from tests.marks import thinned


def printed_step(epsilon: float) -> Subsampled:
    """One step of the convex experiments: rate 0.1, a hundredth of epsilon each."""
    share = epsilon / 100
    gradient = Gaussian.from_rho(share**2 / 2)
    return Subsampled(Composed((gradient, AboveThreshold.laplace(share))), 0.1)


@pytest.mark.parametrize("epsilon", [1.0, 0.01])
def test_theorem_2_is_twice_a_laplace_curve_whatever_the_cap(epsilon):
    orders = np.array([2.0, 8.0, 32.0, 128.0, 512.0])
    found = theorem2(orders, epsilon / 2, epsilon / 4).tolist()
    search = AboveThreshold.laplace(epsilon, 30)
    assert printed_curve(search, orders).tolist() == found
    assert found == (2 * laplace_rdp(orders, epsilon / 2)).tolist()


@given(st.floats(1e-3, 100.0), st.floats(1e-3, 100.0), st.integers(2, 500))
def test_theorem_3_is_the_printed_fraction(sigma1, sigma2, order):
    v1, v2 = sigma1**2, sigma2**2
    expected = order * (4 * v1 + v2) / (2 * v1 * v2)
    assert float(theorem3(np.array(float(order)), sigma1, sigma2)) == expected


@pytest.mark.parametrize("cap", [1, 30, 1000])
def test_theorem_3_claims_rho_whatever_the_cap(cap):
    search = AboveThreshold.gaussian(0.05, cap)
    orders = np.array([2.0, 8.0, 500.0])
    np.testing.assert_allclose(printed_curve(search, orders), 0.05 * orders)


def test_other_curves_are_the_usual_ones():
    orders = np.array([2.0, 9.0])
    for mechanism in (Gaussian(noise_scale=3.0), PureDP(0.2)):
        found = printed_curve(mechanism, orders)
        assert found.tolist() == mechanism.rdp(orders).tolist()


def test_proposition_1_vectors():
    assert proposition1(31, 0.5, 1e-8) == 0.5 + math.log(1e8) / 30
    limit = float(proposition1_limit(31, BUDGET))
    assert limit == 1.0 - math.log(1e8) / 30
    assert proposition1(31, limit, 1e-8) == pytest.approx(1.0, rel=1e-14, abs=0.0)


def literal_lemma(order: int, sampling_prob: float, curve: list[float]) -> float:
    """The lemma with integers and floats, term by term, as it is printed."""
    total = (1 - sampling_prob) ** (order - 1) * (
        order * sampling_prob - sampling_prob + 1
    )
    total += (
        math.comb(order, 2)
        * sampling_prob**2
        * (1 - sampling_prob) ** (order - 2)
        * math.exp(curve[2])
    )
    for term in range(3, order + 1):
        weight = (
            math.comb(order, term)
            * sampling_prob**term
            * (1 - sampling_prob) ** (order - term)
        )
        total += 3 * weight * math.exp((term - 1) * curve[term])
    return math.log(total) / (order - 1)


@given(st.integers(2, 60), st.floats(0.01, 0.9), st.floats(1e-5, 0.1))
def test_lemma_is_the_printed_sum(order, sampling_prob, rho):
    curve = [rho * k for k in range(order + 1)]
    expected = literal_lemma(order, sampling_prob, curve)
    found = lemma_pss(order, sampling_prob, np.array(curve))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-14)


def test_lemma_vectors():
    search = laplace_rdp(np.maximum(np.arange(65.0), 1.5), 0.005) * 2
    joint = 5e-5 * np.arange(65.0) + search
    assert lemma_pss(8, 0.1, joint) == pytest.approx(1.05e-2, rel=1e-2, abs=0.0)
    assert lemma_pss(64, 0.1, joint) == pytest.approx(1.71e-2, rel=1e-2, abs=0.0)


@pytest.mark.parametrize("order", [2, 3, 20, 300])
def test_lemma_charges_for_nothing(order):
    found = lemma_pss(order, 0.1, np.zeros(order + 1))
    assert found <= math.log(3) / (order - 1)
    if order > 2:
        assert found > 1e-4
    assert found >= poisson_rdp(order, 0.1, np.zeros(order + 1)) - 1e-16


def test_lemma_at_rate_one_is_no_amplification():
    curve = 0.01 * np.arange(10.0)
    assert lemma_pss(9, 1.0, curve) == curve[9]


def test_parts_are_amplified_one_by_one():
    gradient, search = STEP.inner.mechanisms
    together = printed_cost(STEP, ORDERS)
    apart = [
        printed_cost(Subsampled(part, STEP.sampling_prob), ORDERS)
        for part in (gradient, search)
    ]
    assert together.tolist() == (apart[0] + apart[1]).tolist()
    alone = printed_cost(gradient, ORDERS)
    np.testing.assert_allclose(alone, gradient.rdp(ORDERS.astype(float)), rtol=1e-14)


def test_results_do_not_depend_on_what_ran_before():
    first = printed_cost(printed_step(0.4), ORDERS).tolist()
    printed_cost(STEP, ORDERS)
    assert printed_cost(printed_step(0.4), ORDERS).tolist() == first


STEPS = [(0.05, 2), (0.1, 14), (0.2, 36), (0.4, 81), (0.8, 164), (1.0, 201)]


@pytest.mark.parametrize(("epsilon", "steps"), thinned(STEPS, 3))
def test_steps_that_fit_as_printed(epsilon, steps):
    label = Budget(epsilon=epsilon, delta=1e-8)
    watch = PaperAccountant(label)
    step = printed_step(epsilon)
    assert drain(watch, step) == steps
    assert watch.n_charges == steps
    assert 0 < watch.epsilon_spent() <= epsilon
    assert np.any(watch.spent <= watch.limits)
    assert np.all(watch.spent + watch.cost(step) > watch.limits)
    assert printed_epsilon(step, steps, 1e-8) <= epsilon
    assert printed_epsilon(step, steps + 1, 1e-8) > epsilon


def test_any_surviving_order_carries_on():
    watch = PaperAccountant(BUDGET)
    drain(watch, Subsampled(Gaussian(noise_scale=4.0), 0.01))
    exhausted = watch.spent > watch.limits
    assert np.any(exhausted)
    assert not np.all(exhausted)


def test_refusal_changes_nothing():
    watch = PaperAccountant(BUDGET)
    watch.charge(STEP, batch=0)
    before = snapshot(watch)
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        watch.charge(PureDP(40.0))
    with pytest.raises(BudgetExceeded):
        watch.charge(Subsampled(Gaussian(noise_scale=0.0), 0.1))
    with pytest.raises(UnchargedAccess):
        watch.charge(STEP, batch=0)
    assert snapshot(watch) == before


def test_unusable_orders_are_dropped():
    limits = PaperAccountant(Budget(epsilon=0.05, delta=1e-8)).limits
    # The printed conversion needs a > 1 + log(1/delta)/epsilon, here 369.4.
    assert limits.size == 500 - 369
    assert np.all(limits > 0)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("relation", list(Neighboring))
@pytest.mark.parametrize("budget", [BUDGET, Budget(epsilon=50.0, delta=0.5)], ids=str)
def test_there_is_never_a_guarantee(budget, relation, seeded):
    watch = PaperAccountant(budget, relation=relation, insecure_deterministic=seeded)
    for _ in range(2):
        assert not watch.guarantee.holds
        assert watch.guarantee.broken_premises == BROKEN_PREMISES + (SEEDED,) * seeded
        assert watch.guarantee.accountant == "paper-as-printed"
        assert watch.guarantee.sentence().startswith("NO GUARANTEE")
        watch.charge(Gaussian(noise_scale=500.0))


def test_premises_name_what_is_broken():
    told = " ".join(BROKEN_PREMISES)
    for word in ("Theorem 3 is false", "separately", "orders", "batch size"):
        assert word in told


def test_ledger_says_that_there_is_no_guarantee(tmp_path):
    path = tmp_path / "run.ledger"
    watch = on_file(PaperAccountant(BUDGET), path)
    watch.charge(STEP, label="as printed")
    header = read_ledger(path).header
    assert header["guarantee"] is False
    assert header["broken_premises"] == list(BROKEN_PREMISES)
    assert header["accountant"] == "paper-as-printed"
    assert watch.header()["guarantee"] is False


def test_sound_charge_is_cheaper_than_the_printed_one():
    orders = np.arange(2.0, 501.0)
    step = printed_step(1.0)
    sound = rdp_to_epsilon(orders, 201 * step.rdp(orders), 1e-8).min()
    assert sound < 0.1 * printed_epsilon(step, 201, 1e-8)


def test_label_that_the_orders_cannot_express_is_refused():
    with pytest.raises(ValueError, match=r"got 0\.03 at delta 1e-08") as caught:
        PaperAccountant(Budget(epsilon=0.03, delta=1e-8))
    assert "0.0369" in str(caught.value)
