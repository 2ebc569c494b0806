# SPDX-License-Identifier: Apache-2.0
"""The curve of AboveThreshold: what it must be above and below, and bad settings.

That it bounds the divergence of the mechanism is tested elsewhere, by quadrature.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from armijo.accounting.above_threshold import SAFETY, AboveThreshold
from armijo.accounting.mechanisms import Gaussian, Mechanism, PureDP, laplace_rdp
from tests.accounting.contract import assert_convex, over

FloatArray = NDArray[np.float64]

MECHANISMS: dict[str, Mechanism] = {
    "laplace": AboveThreshold.laplace(0.4),
    "laplace-capped": AboveThreshold.laplace(0.4, 5),
    "laplace-small": AboveThreshold.laplace(1e-4, 1),
    "laplace-own-split": AboveThreshold(
        kind="laplace", threshold_scale=30.0, query_scale=10.0
    ),
    "laplace-no-threshold": AboveThreshold(
        kind="laplace", threshold_scale=0.0, query_scale=9.0, max_queries=4
    ),
    "gaussian": AboveThreshold.gaussian(0.05, 20),
    "gaussian-small": AboveThreshold.gaussian(5e-6, 3),
    "gaussian-no-threshold": AboveThreshold(
        kind="gaussian", threshold_scale=0.0, query_scale=6.0, max_queries=10
    ),
}


@over(MECHANISMS)
def test_contract(mechanism, check):
    check(mechanism)


CURVES = [
    *(
        AboveThreshold.laplace(e, cap)
        for e in (1e-3, 0.05, 1.0)
        for cap in (None, 1, 6)
    ),
    *(
        AboveThreshold.gaussian(rho, cap)
        for rho in (5e-5, 0.05, 1.0)
        for cap in (1, 25)
    ),
    AboveThreshold(kind="laplace", threshold_scale=3.0, query_scale=50.0),
    AboveThreshold(
        kind="gaussian", threshold_scale=50.0, query_scale=3.0, max_queries=4
    ),
]


@pytest.mark.parametrize("search", CURVES, ids=repr)
def test_curve_is_the_smallest_bound_over_all_shifts(search):
    orders = np.array([2.0, 3.0, 11.0, 37.0, 120.0, 470.0])
    n = 64 if search.kind == "laplace" else 16
    bounds = [search.shifted_bound(orders, np.full(6, j / n)) for j in range(n + 1)]
    if search.kind == "laplace":
        bounds.append(PureDP(search.epsilon).rdp(orders))
    np.testing.assert_allclose(
        search.rdp(orders), np.min(bounds, axis=0) * SAFETY, rtol=1e-9
    )


@pytest.mark.parametrize("search", CURVES, ids=repr)
def test_cumulant_of_each_shift_is_convex(search):
    # The smallest of several convex functions need not be; each of them is.
    orders = np.arange(2.0, 120.0)
    for t in (0.25, 0.5, 1.0):
        bound = search.shifted_bound(orders, np.full_like(orders, t))
        usable = np.isfinite(bound)
        assert_convex(orders[usable], bound[usable], 1e-9)


def test_cumulant_without_threshold_noise_is_convex():
    orders = np.arange(2.0, 200.0)
    for kind, cap in (
        ("laplace", 1),
        ("laplace", 12),
        ("gaussian", 1),
        ("gaussian", 9),
    ):
        search = AboveThreshold(
            kind=kind, threshold_scale=0.0, query_scale=7.0, max_queries=cap
        )
        assert_convex(orders, search.rdp(orders), 1e-9)


ORDERS = np.array([2.0, 3.0, 8.0, 20.0, 64.0, 200.0, 512.0])


def assert_rising(curves: list[FloatArray]) -> None:
    """Check that each curve is at least the one before it."""
    for lower, upper in itertools.pairwise(curves):
        assert np.all(lower <= upper * (1 + 1e-11))


def test_cost_rises_with_the_budget():
    for cap in (None, 1, 7):
        budgets = np.geomspace(1e-4, 10, 25)
        assert_rising([AboveThreshold.laplace(e, cap).rdp(ORDERS) for e in budgets])
    for cap in (1, 12):
        budgets = np.geomspace(1e-6, 5, 20)
        assert_rising([AboveThreshold.gaussian(r, cap).rdp(ORDERS) for r in budgets])


@pytest.mark.parametrize("threshold_scale", [0.0, 12.0])
@pytest.mark.parametrize("query_scale", [6.0, 300.0])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_cost_rises_with_the_cap(kind, query_scale, threshold_scale):
    some = ORDERS[:5]
    caps = [1, 2, 3, 5, 8, 12, 13, 30, 100, 1000]
    searches = [
        AboveThreshold(
            kind=kind,
            threshold_scale=threshold_scale,
            query_scale=query_scale,
            max_queries=cap,
        )
        for cap in caps
    ]
    curves = [search.rdp(some) for search in searches]
    assert_rising(curves)
    assert np.all(curves[0] < curves[-1])
    if kind == "laplace":
        unlimited = dataclasses.replace(searches[0], max_queries=None).rdp(some)
        assert_rising([curves[-1], unlimited])


@pytest.mark.parametrize("cap", [None, 1, 2, 4, 12, 50, 1000])
@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.3, 1.0, 6.0])
def test_laplace_is_never_above_the_known_bounds(epsilon, cap):
    curve = AboveThreshold.laplace(epsilon, cap).rdp(ORDERS)
    assert np.all(curve <= PureDP(epsilon).rdp(ORDERS) * SAFETY)
    # Zhu and Wang (2020): the threshold's own curve and twice the query budget.
    zhu_wang = laplace_rdp(ORDERS, epsilon / 2) + epsilon / 2
    assert np.all(curve <= zhu_wang * SAFETY)
    assert np.all(curve <= AboveThreshold.laplace(epsilon).rdp(ORDERS) * (1 + 1e-12))


@settings(max_examples=40)
@given(
    st.floats(0.3, 500.0),
    st.floats(0.3, 500.0),
    st.sampled_from([None, 1, 3, 12, 20]),
    st.floats(1.05, 600.0),
)
def test_any_split_is_never_above_the_known_bounds(threshold, query, cap, order):
    search = AboveThreshold(
        kind="laplace", threshold_scale=threshold, query_scale=query, max_queries=cap
    )
    found = float(search.rdp(np.array([order]))[0])
    epsilon = 1 / threshold + 2 / query
    assert search.epsilon == pytest.approx(epsilon)
    assert found <= float(PureDP(epsilon).rdp(order)) * SAFETY * (1 + 1e-12)
    zhu_wang = float(laplace_rdp(order, 1 / threshold)) + 2 / query
    assert found <= zhu_wang * SAFETY * (1 + 1e-12)
    assert found > 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_laplace_tends_to_its_pure_budget(epsilon):
    for split in (0.2, 0.5, 0.8):
        search = AboveThreshold(
            kind="laplace",
            threshold_scale=1 / (split * epsilon),
            query_scale=2 / ((1 - split) * epsilon),
        )
        far = float(search.rdp(np.array([3e4 / epsilon]))[0])
        assert search.epsilon == pytest.approx(epsilon)
        assert far == pytest.approx(epsilon, rel=1e-3, abs=0.0)
        assert far <= epsilon * SAFETY


@pytest.mark.parametrize("cap", [1, 10, 30, 50])
@pytest.mark.parametrize("rho", [5e-5, 0.05, 0.5])
def test_gaussian_is_never_above_zhu_and_wang(rho, cap):
    search = AboveThreshold.gaussian(rho, cap)
    threshold = ORDERS / (2 * search.threshold_scale**2)
    queries = 2 * ORDERS / search.query_scale**2 + math.log1p(cap) / (ORDERS - 1)
    assert np.all(search.rdp(ORDERS) <= (threshold + queries) * SAFETY)
    # Up to fifty queries it is also below the printed formula.
    assert np.all(search.rdp(ORDERS) < Gaussian.from_rho(rho).rdp(ORDERS))


# One comparison of standard deviation sigma: cost a K / sigma^2 for small budgets.
SMALL_BUDGETS = {
    1: 0.318,
    2: 0.511,
    5: 0.868,
    10: 1.217,
    20: 1.632,
    30: 1.902,
    50: 2.267,
    100: 2.800,
}


@pytest.mark.parametrize(("cap", "constant"), SMALL_BUDGETS.items())
def test_gaussian_without_threshold_noise_for_small_budgets(cap, constant):
    search = AboveThreshold(
        kind="gaussian", threshold_scale=0.0, query_scale=1e4, max_queries=cap
    )
    found = search.rdp(np.array([2.0, 4.0])) * 1e8 / np.array([2.0, 4.0])
    np.testing.assert_allclose(found, constant, atol=1.5e-3)


def test_laplace_without_threshold_noise():
    def constant(order: float, query_epsilon: float) -> float:
        search = AboveThreshold(
            kind="laplace", threshold_scale=0.0, query_scale=1 / query_epsilon
        )
        cost = float(search.rdp(np.array([order]))[0])
        return cost / (order * query_epsilon**2)

    assert constant(8.0, 1e-4) == pytest.approx(1.0, abs=0.01)
    assert constant(51.0, 0.01) == pytest.approx(2.2, abs=0.05)
    assert constant(1 + 0.99 * math.log(2) / 0.01, 0.01) > 2.2
    # From log 2 on one bit of every query adds up without end.
    assert constant(1 + 1.01 * math.log(2) / 0.01, 0.01) == math.inf


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 1e-7, 1e-9])
def test_rounding_never_makes_a_tiny_budget_cheaper(epsilon):
    orders = np.array([2.0, 3.0, 8.0, 64.0, 400.0])
    curve = AboveThreshold.laplace(epsilon).rdp(orders)
    small = orders * epsilon**2 / 16  # the leading term; all others are positive
    assert np.all(curve >= small * (1 + 5e-7))
    assert np.all(curve <= PureDP(epsilon).rdp(orders) * SAFETY)
    if epsilon >= 1e-5:
        np.testing.assert_allclose(curve, small, rtol=2e-3)


def test_settings_of_the_paper():
    laplace = AboveThreshold.laplace(0.8, 9)
    assert (laplace.threshold_scale, laplace.query_scale) == (2.5, 5.0)
    assert laplace.epsilon == pytest.approx(0.8)
    gaussian = AboveThreshold.gaussian(0.06, 9)
    assert gaussian.threshold_scale**2 == pytest.approx(25.0)
    assert gaussian.query_scale**2 == pytest.approx(50.0)
    assert gaussian.epsilon == math.inf
    assert (laplace.max_queries, gaussian.max_queries) == (9, 9)


@pytest.mark.parametrize(
    "search",
    [
        AboveThreshold.laplace(math.inf),
        AboveThreshold.gaussian(math.inf, 3),
        AboveThreshold(kind="laplace", threshold_scale=1.0, query_scale=0.0),
    ],
    ids=repr,
)
def test_no_noise_is_no_privacy(search):
    assert search.epsilon == math.inf
    assert np.all(search.rdp(ORDERS) == math.inf)
