# SPDX-License-Identifier: Apache-2.0
"""The permuted mixture: its curve and profile against exact laws, and its noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import gaussian_noise, rdp_to_epsilon
from armijo.accounting.mechanisms import Gaussian, gaussian_delta
from armijo.accounting.perturbation import PermutedMixture, dense_orders, mixture_noise
from tests.accounting import contract

MIXTURE = PermutedMixture(sensitivities=(0.5, 1.0, 2.5), noise_scale=3.0)
mixtures = st.builds(
    lambda bounds, noise: PermutedMixture(
        sensitivities=tuple(bounds), noise_scale=noise
    ),
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=6),
    st.floats(0.5, 50.0),
)


@contract.over({"mixture": MIXTURE})
def test_contract(mechanism, check):
    check(mechanism)
    assert mechanism.relation is Neighboring.REPLACE_ONE


@given(mixtures, st.floats(1.05, 300.0))
def test_curve_is_the_mean_of_moments(release, order):
    ratios = np.array(release.sensitivities) / release.noise_scale
    moments = logsumexp(order * (order - 1) * ratios**2 / 2) - math.log(len(ratios))
    found = float(release.rdp(np.array(order)))
    assert found == pytest.approx(moments / (order - 1), rel=1e-6, abs=1e-12)
    assert found <= float(release.worst_case.rdp(np.array(order))) * (1 + 1e-12)
    assert found >= order * np.mean(ratios**2) / 2 * (1 - 1e-12)


@given(mixtures, st.floats(0.0, 3.0))
def test_exact_mixtures_stay_below_the_profile(release, epsilon):
    noise, bounds = release.noise_scale, np.array(release.sensitivities)
    y = np.linspace(-9 * noise, 9 * noise + 3, 40_001)  # the kink costs h squared
    p = norm.pdf(y, 0.0, noise)
    q = norm.pdf(y[:, None], bounds, noise).mean(axis=1)
    for one, other in ((p, q), (q, p)):
        exact = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), y)
        assert exact <= release.delta_at(epsilon) + 1e-6
    worst = release.worst_case.noise_multiplier
    assert release.delta_at(epsilon) <= gaussian_delta(epsilon, worst) * (1 + 1e-12)


@given(mixtures, st.floats(math.log(1e-10), math.log(0.1)))
def test_the_profile_is_never_above_the_converted_curve(release, log_delta):
    delta = math.exp(log_delta)
    orders = dense_orders(Budget(epsilon=1.0, delta=delta))
    epsilon = float(np.min(rdp_to_epsilon(orders, release.rdp(orders), delta)))
    assert release.delta_at(epsilon) <= delta * (1 + 1e-9)


@settings(max_examples=40)
@given(
    st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=6).map(tuple),
    st.floats(math.log(1e-3), math.log(10.0)),
)
def test_noise_keeps_the_budget_and_hardly_less_does(bounds, log_epsilon):
    budget = Budget(epsilon=math.exp(log_epsilon), delta=1e-8)
    orders = dense_orders(budget)

    def at(noise: float) -> tuple[float, float]:
        release = PermutedMixture(sensitivities=bounds, noise_scale=noise)
        by_rdp = rdp_to_epsilon(orders, release.rdp(orders), budget.delta)
        return float(np.min(by_rdp)), release.delta_at(budget.epsilon)

    noise = mixture_noise(budget, bounds)
    tight = mixture_noise(budget, bounds, profile=True)
    assert at(noise)[0] <= budget.epsilon * (1 + 1e-9) + 1e-12
    assert at(noise * (1 - 1e-5))[0] > budget.epsilon
    assert at(tight)[1] <= budget.delta < at(tight * (1 - 1e-6))[1]
    assert tight <= noise
    assert tight <= max(bounds) * gaussian_noise(budget) * (1 + 1e-9)


def test_one_batch_is_one_gaussian():
    release = PermutedMixture(sensitivities=(2.0,), noise_scale=5.0)
    orders = np.array([1.5, 2.0, 80.0])
    plain = Gaussian(noise_scale=5.0, sensitivity=2.0)
    np.testing.assert_allclose(release.rdp(orders), plain.rdp(orders), rtol=1e-14)
    budget = Budget(epsilon=0.3, delta=1e-6)
    tight = mixture_noise(budget, (2.0,), profile=True)
    assert tight == pytest.approx(2 * gaussian_noise(budget), rel=1e-11)
