# SPDX-License-Identifier: Apache-2.0
"""Curves against integrals, worst cases and exact arithmetic; bad settings."""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    PureDP,
    Repeated,
    describe,
    laplace_rdp,
)
from tests.accounting.accounts import Laplace
from tests.accounting.contract import assert_convex, over

MECHANISMS: dict[str, Mechanism] = {
    "gaussian": Gaussian(noise_scale=3.0, sensitivity=2.0),
    "small-gaussian": Gaussian.from_rho(1e-9),
    "laplace": Laplace(0.125),
    "small-laplace": Laplace(1e-6),
    "pure": PureDP(0.3),
    "small-pure": PureDP(1e-7),
    "large-pure": PureDP(8.0),
    "noisy-max": ExponentialMechanism(0.4, sensitivity=3.0),
    "small-noisy-max": ExponentialMechanism(1e-6),
    "large-noisy-max": ExponentialMechanism(6.0),
    "composed": Composed((PureDP(0.2), Laplace(1 / 9))),
    "repeated": Repeated(ExponentialMechanism(0.05), 40),
}


@over(MECHANISMS)
def test_contract(mechanism, check):
    check(mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_cumulant_is_convex(mechanism):
    orders = np.arange(2.0, 400.0)
    # The exponential mechanism changes at a * epsilon = 1e-3 to a bound that is 1e-7
    # above the curve.
    assert_convex(orders, mechanism.rdp(orders), 1e-6)


def divergence(order: float, log_p: object, log_q: object, spread: float) -> float:
    """Renyi divergence of two densities on the line by adaptive quadrature."""

    def density(x: float) -> float:
        return math.exp(order * log_p(x) + (1 - order) * log_q(x))  # type: ignore[operator]

    pieces = itertools.pairwise([-spread, 0.0, 1.0, spread])
    total = sum(
        integrate.quad(density, low, high, epsabs=0, epsrel=1e-12, limit=400)[0]
        for low, high in pieces
    )
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0, 20.0])
@pytest.mark.parametrize("scale", [0.7, 2.0, 5.0])
def test_laplace_is_its_integral(order, scale):
    def log_density(center):
        return lambda x: -abs(x - center) / scale - math.log(2 * scale)

    exact = divergence(order, log_density(0.0), log_density(1.0), 60 * scale)
    assert float(laplace_rdp(order, 1 / scale)) == pytest.approx(
        exact, rel=1e-9, abs=0.0
    )


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0, 20.0])
@pytest.mark.parametrize("scale", [1.0, 2.0, 5.0])
def test_gaussian_is_its_integral(order, scale):
    def log_density(center):
        half = 0.5 * math.log(2 * math.pi * scale**2)
        return lambda x: -((x - center) ** 2) / (2 * scale**2) - half

    exact = divergence(order, log_density(0.0), log_density(1.0), 20 + 14 * scale)
    curve = Gaussian(noise_scale=3 * scale, sensitivity=3.0).rdp(order)
    assert float(curve) == pytest.approx(exact, rel=1e-9, abs=0.0)


def exact_laplace(order: object, epsilon: object) -> object:
    """The Laplace curve in exact arithmetic."""
    a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
    total = a * mpmath.exp((a - 1) * e) + (a - 1) * mpmath.exp(-a * e)
    return mpmath.log(total / (2 * a - 1)) / (a - 1)


def exact_pure(order: object, epsilon: object) -> object:
    """Divergence of randomized response: one bit, true with odds exp(epsilon)."""
    a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
    p = 1 / (1 + mpmath.exp(-e))
    total = p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)
    return mpmath.log(total) / (a - 1)


def exact_noisy_max(order: object, epsilon: object) -> object:
    """Largest divergence of two points whose losses are ``epsilon`` apart."""
    a, e = mpmath.mpf(order), mpmath.mpf(epsilon)

    def moment(loss: object) -> object:
        low = loss - e
        # The weight of the upper point makes the ratio average to one.
        weight = -mpmath.expm1(low) / (mpmath.exp(loss) - mpmath.exp(low))
        return weight * mpmath.exp(a * loss) + (1 - weight) * mpmath.exp(a * low)

    low, high = mpmath.mpf(0), e
    for _ in range(130):  # the moment has one peak: ternary search
        third = (high - low) / 3
        if moment(low + third) < moment(high - third):
            low += third
        else:
            high -= third
    return mpmath.log(moment((low + high) / 2)) / (a - 1)


ORDERS = [2, 3, 8, 64, 500, 3000, 40_000]


@pytest.mark.parametrize("epsilon", [1e-7, 1e-4, 0.02, 0.5, 3.0])
@pytest.mark.parametrize("order", ORDERS)
def test_digits_are_kept(order, epsilon):
    at = float(order)
    with mpmath.workdps(60):
        laplace = float(exact_laplace(order, epsilon))
        pure = float(exact_pure(order, epsilon))
    assert float(laplace_rdp(at, epsilon)) == pytest.approx(laplace, rel=1e-12, abs=0.0)
    assert float(PureDP(epsilon).rdp(at)) == pytest.approx(pure, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("epsilon", [1e-7, 1e-4, 0.02, 0.5, 3.0])
@pytest.mark.parametrize("order", ORDERS)
def test_digits_of_noisy_max_are_kept_on_the_safe_side(order, epsilon):
    with mpmath.workdps(50):
        exact = float(exact_noisy_max(order, epsilon))
    found = float(ExponentialMechanism(epsilon).rdp(float(order)))
    assert found == pytest.approx(exact, rel=5e-7, abs=0.0)
    assert found >= exact * (1 - 1e-9)


def log_softmax(scores: list[float], epsilon: float) -> object:
    """Log law of the exponential mechanism for utilities of sensitivity one."""
    logits = 0.5 * epsilon * np.array(scores)
    return logits - np.logaddexp.reduce(logits)


def renyi(order: float, log_p: object, log_q: object) -> float:
    """Divergence of two laws on finitely many points."""
    total = np.logaddexp.reduce(order * log_p + (1 - order) * log_q)  # type: ignore[operator]
    return float(total) / (order - 1)


scores = st.lists(
    st.tuples(st.floats(-20, 20), st.floats(-1, 1)), min_size=1, max_size=8
)


@given(scores, st.floats(0.01, 5.0), st.sampled_from([1.5, 2.0, 5.0, 30.0]))
def test_noisy_max_bounds_the_exponential_mechanism(utilities, epsilon, order):
    here = log_softmax([u for u, _ in utilities], epsilon)
    there = log_softmax([u + shift for u, shift in utilities], epsilon)
    bound = float(ExponentialMechanism(epsilon).rdp(order))
    assert renyi(order, here, there) <= bound * (1 + 1e-9) + 1e-14
    assert renyi(order, there, here) <= bound * (1 + 1e-9) + 1e-14


@given(scores, st.floats(0.01, 5.0), st.sampled_from([1.5, 2.0, 5.0, 30.0]))
def test_pure_dp_bounds_everything_with_bounded_loss(utilities, epsilon, order):
    here = log_softmax([u for u, _ in utilities], 1.0)
    # Moving logits by at most epsilon/2 keeps every loss within epsilon.
    moved = np.array([u + epsilon * shift for u, shift in utilities])
    there = log_softmax(moved.tolist(), 1.0)
    bound = float(PureDP(epsilon).rdp(order))
    assert renyi(order, here, there) <= bound * (1 + 1e-12) + 1e-14


def test_noisy_max_costs_a_quarter_of_pure_dp_when_small():
    orders = np.array([2.0, 8.0, 64.0])
    ratio = ExponentialMechanism(1e-4).rdp(orders) / PureDP(1e-4).rdp(orders)
    np.testing.assert_allclose(ratio, 0.25, rtol=1e-4)


@given(st.floats(0.01, 20.0), st.floats(1.01, 500.0))
def test_general_bounds_hold(epsilon, order):
    pure = float(PureDP(epsilon).rdp(order))
    ceiling = min(epsilon, order * epsilon**2 / 2) * (1 + 1e-12)
    assert 0 < float(laplace_rdp(order, epsilon)) <= pure * (1 + 1e-9) <= ceiling * 2
    assert pure <= ceiling
    assert float(ExponentialMechanism(epsilon).rdp(order)) <= min(
        epsilon, order * epsilon**2 / 8
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_curves_tend_to_epsilon(epsilon):
    far = np.array([1e6 / epsilon])
    for mechanism in (Laplace(epsilon), PureDP(epsilon)):
        assert mechanism.rdp(far)[0] == pytest.approx(epsilon, rel=1e-4, abs=0.0)
    assert ExponentialMechanism(epsilon).rdp(far)[0] == pytest.approx(
        epsilon, rel=1e-3, abs=0.0
    )


def test_gaussian_settings_agree():
    mechanism = Gaussian.from_rho(0.02, sensitivity=3.0)
    assert mechanism.noise_scale == pytest.approx(3.0 * 5.0)
    assert mechanism.noise_multiplier == pytest.approx(5.0)
    assert mechanism.rho == pytest.approx(0.02, rel=1e-14, abs=0.0)
    np.testing.assert_allclose(mechanism.rdp(np.array([2.0, 10.0])), [0.04, 0.2])


@pytest.mark.parametrize(
    "silent", [Gaussian(noise_scale=0.0), Gaussian.from_rho(math.inf, 2.0)]
)
def test_no_noise_is_no_privacy(silent):
    assert silent.noise_multiplier == 0.0
    assert silent.rho == math.inf
    assert np.all(np.isinf(silent.rdp(np.array([2.0, 50.0]))))


def test_large_laplace_losses_do_not_warn():
    assert float(laplace_rdp(142.0, 5.0)) == pytest.approx(4.995, abs=1e-3)


def test_large_noisy_max_budgets_are_not_undercharged():
    # A choice between two that epsilon decides: the loss is epsilon, almost surely.
    assert float(ExponentialMechanism(1000.0).rdp(2.0)) == pytest.approx(
        1000.0, rel=2e-3, abs=0.0
    )


@pytest.mark.parametrize(("scale", "rho"), [(1e-200, math.inf), (1e200, 0.0)])
def test_extreme_noise_scales(scale, rho):
    assert Gaussian(noise_scale=scale).rho == rho


@pytest.mark.parametrize(
    "mechanism",
    [
        AboveThreshold.laplace(0.5, np.int64(7)),
        Gaussian(noise_scale=np.float32(2.0)),
        Repeated(PureDP(0.1), np.int64(3)),
    ],
    ids=repr,
)
def test_numpy_settings_are_described_as_json(mechanism):
    json.dumps(describe(mechanism))


def test_description_nests():
    inner = Composed((Gaussian(noise_scale=2.0), AboveThreshold.laplace(0.5, 7)))
    assert describe(inner) == {
        "mechanism": "Composed",
        "mechanisms": [
            {"mechanism": "Gaussian", "noise_scale": 2.0, "sensitivity": 1.0},
            {
                "mechanism": "AboveThreshold",
                "kind": "laplace",
                "threshold_scale": 4.0,
                "query_scale": 8.0,
                "max_queries": 7,
            },
        ],
    }


def test_description_of_what_is_no_mechanism():
    with pytest.raises(TypeError, match="Expected a mechanism, got 3"):
        describe(3)
