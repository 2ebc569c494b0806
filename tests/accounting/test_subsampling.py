# SPDX-License-Identifier: Apache-2.0
"""One batch, one charge: composition before amplification, chords, bad rates.

The amplification formula itself is tested with Theorem B.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    PureDP,
    Repeated,
    Subsampled,
    knots,
    log_binomial_weights,
    poisson_rdp,
)
from tests.accounting.accounts import Laplace
from tests.accounting.contract import assert_convex, over

STEP = Composed((Gaussian(noise_scale=3.0), AboveThreshold.laplace(0.3)))

MECHANISMS: dict[str, Mechanism] = {
    "gaussian": Subsampled(Gaussian(noise_scale=2.0), 0.02),
    "small": Subsampled(Gaussian.from_rho(1e-8), 1e-3),
    "step": Subsampled(STEP, 0.1),
    "gaussian-step": Subsampled(
        Composed((Gaussian(noise_scale=6.0), AboveThreshold.gaussian(0.01, 10))), 0.1
    ),
    "whole": Subsampled(STEP, 1.0),
    "nested": Subsampled(
        Composed((Repeated(PureDP(0.1), 3), ExponentialMechanism(0.2))), 0.3
    ),
}


@over(MECHANISMS)
def test_contract(mechanism, check):
    check(mechanism)


@pytest.mark.parametrize("inner", [PureDP(0.7), Laplace(0.5)])
@pytest.mark.parametrize("sampling_prob", [0.001, 0.1, 0.6])
def test_cumulant_is_convex(inner, sampling_prob):
    orders = np.arange(2.0, 150.0)
    assert_convex(orders, Subsampled(inner, sampling_prob).rdp(orders), 1e-9)


parts = st.one_of(
    st.floats(0.7, 100.0).map(lambda s: Gaussian(noise_scale=s)),
    st.floats(0.01, 1.4).map(Laplace),
    st.floats(1e-3, 1.0).map(PureDP),
    st.floats(1e-3, 1.0).map(ExponentialMechanism),
)


@settings(max_examples=60)
@given(st.lists(parts, min_size=2, max_size=3), st.floats(1e-3, 1), st.integers(2, 80))
def test_one_batch_costs_at_least_as_much_as_separate_batches(
    inner, sampling_prob, order
):
    at = np.array([float(order)])
    joint = Subsampled(Composed(tuple(inner)), sampling_prob).rdp(at)[0]
    separate = sum(Subsampled(part, sampling_prob).rdp(at)[0] for part in inner)
    assert joint >= separate * (1 - 1e-9)
    assert joint <= Composed(tuple(inner)).rdp(at)[0] * (1 + 1e-6)


# Joint over separate cost of gradient and search (sampling_prob, rho, order, ratio).
SUPERADDITIVE = [
    (0.1, 5e-5, 64, 1.0001),
    (0.1, 5e-3, 4, 1.0015),
    (0.1, 5e-3, 32, 1.0075),
    (0.1, 0.05, 2, 1.011),
    (0.1, 0.05, 8, 1.026),
    (0.005, 0.1, 4, 1.023),
    (0.005, 0.1, 16, 1.027),
    (0.005, 0.5, 4, 1.133),
    (0.005, 0.5, 8, 1.212),
    (0.005, 0.5, 12, 4.0),
]


@pytest.mark.parametrize(("sampling_prob", "rho", "order", "ratio"), SUPERADDITIVE)
def test_published_price_of_one_batch(sampling_prob, rho, order, ratio):
    gradient = Gaussian.from_rho(rho)
    search = AboveThreshold.laplace(math.sqrt(2 * rho))
    at = np.array([float(order)])
    joint = Subsampled(Composed((gradient, search)), sampling_prob).rdp(at)[0]
    separate = sum(
        Subsampled(part, sampling_prob).rdp(at)[0] for part in (gradient, search)
    )
    digits = 5e-5 if ratio < 1.001 else 5e-4 if ratio < 2 else 0.05
    assert joint / separate == pytest.approx(ratio, abs=digits + 5e-5)


@settings(max_examples=40)
@given(parts, st.floats(1e-4, 0.5), st.floats(1.1, 2.0), st.integers(2, 60))
def test_cost_rises_with_the_rate_up_to_no_amplification(
    inner, sampling_prob, factor, order
):
    at = np.array([float(order)])
    low = Subsampled(inner, sampling_prob).rdp(at)[0]
    high = Subsampled(inner, sampling_prob * factor).rdp(at)[0]
    assert 0 < low <= high * (1 + 1e-12)
    assert high <= inner.rdp(at)[0] * (1 + 1e-6)


@pytest.mark.parametrize("top", [2, 3, 31, 32, 33, 100, 5000])
def test_knots_are_integers_from_two_to_the_top(top):
    at = knots(top)
    assert at[0] == 2
    assert at[-1] == top
    assert np.all(at == np.rint(at))
    assert np.all(np.diff(at) > 0)
    assert np.all(np.diff(at[at <= 32]) == 1)
    assert at.size <= 100


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 3.0])
def test_chords_are_above_the_curve_and_near_it(epsilon):
    top = 900
    mechanism = ExponentialMechanism(epsilon)
    exact = mechanism.rdp(np.arange(2.0, top + 1))
    chords = mechanism.integer_curve(top)
    assert np.all(chords[:2] == 0)
    assert np.all(chords[2:] >= exact * (1 - 1e-9))
    assert np.all(chords[2:] <= exact * (1 + 2e-3))


def test_chords_meet_the_curve_of_a_search_at_the_knots():
    for search in (AboveThreshold.laplace(0.2), AboveThreshold.gaussian(0.02, 6)):
        at = knots(300)
        chords = search.integer_curve(300)
        np.testing.assert_allclose(chords[at.astype(int)], search.rdp(at), rtol=1e-12)
        cumulant = np.arange(-1, 300) * chords
        assert np.all(np.diff(cumulant[1:]) > 0)


def test_integer_curve_is_linear_in_the_parts():
    search = AboveThreshold.laplace(0.2)
    alone = search.integer_curve(70)
    gradient = Gaussian(noise_scale=3.0)
    both = Composed((gradient, Repeated(search, 4))).integer_curve(70)
    expected = 4 * alone
    expected[2:] += gradient.rdp(np.arange(2.0, 71.0))
    np.testing.assert_allclose(both, expected, rtol=1e-14)


def test_cached_tables_cannot_be_changed():
    for table in (
        AboveThreshold.laplace(0.2).integer_curve(50),
        log_binomial_weights(50, 0.1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            table *= 0.0


@pytest.mark.parametrize("sampling_prob", [1e-6, 0.1, 0.9])
@pytest.mark.parametrize("order", [2, 10, 700])
def test_binomial_weights_add_up(order, sampling_prob):
    rest = np.exp(log_binomial_weights(order, sampling_prob)).sum()
    none_or_one = (1 - sampling_prob) ** order + order * sampling_prob * (
        1 - sampling_prob
    ) ** (order - 1)
    assert rest + none_or_one == pytest.approx(1.0, rel=1e-11, abs=0.0)


def test_orders_do_not_depend_on_each_other():
    mechanism = Subsampled(Composed((Gaussian(noise_scale=2.0), PureDP(0.1))), 0.05)
    orders = np.array([7.0, 2.0, 300.0, 31.0])
    together = mechanism.rdp(orders)
    alone = [float(mechanism.rdp(order)) for order in orders]
    np.testing.assert_allclose(together, alone, rtol=1e-14)


def test_no_noise_on_a_batch_is_no_privacy():
    silent = Composed((Gaussian(noise_scale=0.0), PureDP(0.1)))
    assert np.all(Subsampled(silent, 0.01).rdp([2.0, 40.0]) == math.inf)


@pytest.mark.parametrize("orders", [1.5, [2.0, 2.5], [1.0, 2.0], [0.0], [-3.0]])
def test_orders_other_than_integers_from_two_are_refused(orders):
    with pytest.raises(ValueError, match="integer orders >= 2") as caught:
        Subsampled(PureDP(0.1), 0.1).rdp(orders)
    assert repr(orders) in str(caught.value)


def test_rate_zero_never_samples():
    assert poisson_rdp(5, 0.0, np.ones(6)) == 0.0


def test_values_differ_by_rate_and_inner():
    rates, inners = (0.1, 0.2), (PureDP(0.1), PureDP(0.2))
    values = {Subsampled(i, r) for i, r in itertools.product(inners, rates)}
    assert len(values) == 4
    assert Subsampled(PureDP(0.1), 0.1) in values
