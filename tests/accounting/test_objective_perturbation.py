# SPDX-License-Identifier: Apache-2.0
"""The tight analysis: golden noise, exact laws of a one-weight model, calibration."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import gaussian_noise, rdp_to_epsilon
from armijo.accounting.mechanisms import Gaussian, gaussian_delta
from armijo.accounting.perturbation import (
    ObjectivePerturbation,
    calibrate_objective,
    dense_orders,
    least_noise,
    output_noise,
)
from tests.accounting import contract, one_weight
from tests.accounting.renyi_noise import objective_noise_rdp

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
DELTA = 1e-8
CONVEXITY = 43.957
PROFILE = (103.0563, 49.9911, 25.0025, 12.6926, 6.5013, 3.3569)
BY_RDP = (139.66, 65.649, 31.902, 15.761, 7.864, 3.958)

budgets = st.builds(
    lambda e, d: Budget(epsilon=math.exp(e), delta=math.exp(d)),
    st.floats(math.log(1e-3), math.log(20.0)),
    st.floats(math.log(1e-12), math.log(1e-2)),
)
scales = st.floats(0.1, 10.0)
releases = st.builds(
    lambda noise, lipschitz, smoothness, more: ObjectivePerturbation(
        noise_scale=noise * lipschitz,
        strong_convexity=smoothness * more,
        lipschitz=lipschitz,
        smoothness=smoothness,
    ),
    st.floats(0.2, 200.0),
    scales,
    scales,
    st.floats(1.01, 1000.0),
)


@pytest.mark.parametrize(
    ("epsilon", "profile", "by_rdp"), [*zip(EPSILONS, PROFILE, BY_RDP, strict=True)]
)
def test_golden_noise(epsilon, profile, by_rdp):
    budget = Budget(epsilon=epsilon, delta=DELTA)
    noise = least_noise(budget, strong_convexity=CONVEXITY).noise_scale
    assert noise == pytest.approx(profile, abs=6e-5)
    noise = objective_noise_rdp(budget, strong_convexity=CONVEXITY, classical=True)
    assert noise == pytest.approx(by_rdp, rel=2e-4)
    tighter = objective_noise_rdp(budget, strong_convexity=CONVEXITY)
    assert profile < tighter < by_rdp


@contract.over(
    {
        "logistic": ObjectivePerturbation(noise_scale=3.0, strong_convexity=40.0),
        "huber": ObjectivePerturbation(
            noise_scale=50.0, strong_convexity=1.1, lipschitz=2.0, smoothness=1.0
        ),
    }
)
def test_contract(mechanism, check):
    check(mechanism)


def test_it_says_its_relation():
    release = ObjectivePerturbation(noise_scale=3.0, strong_convexity=40.0)
    assert release.relation is Neighboring.ADD_REMOVE


@settings(max_examples=25)
@given(
    noise=st.floats(0.7, 4.0),
    more=st.floats(1.05, 8.0),
    huber=st.booleans(),
    others=st.lists(st.floats(-1.0, 1.0), max_size=3),
    epsilon=st.floats(0.0, 3.0),
    order=st.sampled_from([1.3, 2.0, 4.0]),
)
def test_exact_divergences_stay_below(noise, more, huber, others, epsilon, order):
    smoothness = 1.0 if huber else 0.25
    release = ObjectivePerturbation(
        noise_scale=noise, strong_convexity=smoothness * more, smoothness=smoothness
    )
    base = [one_weight.Row(x, huber) for x in others]
    curvature = release.strong_convexity
    w = one_weight.weights((12 * noise + 4 + 4 * len(base)) / curvature)
    law = one_weight.gaussian_log_density(noise)
    without = one_weight.log_law(w, base, curvature, law)
    added = [*base, one_weight.Row(1.0, huber)]
    with_row = one_weight.log_law(w, added, curvature, law)
    exact = one_weight.hockey_stick(w, with_row, without, epsilon)
    assert exact <= release.delta_at(epsilon) + 1e-6
    exact = one_weight.renyi(w, with_row, without, order)
    assert exact <= float(release.rdp(np.array(order))) + 1e-6


@given(releases, st.floats(0.0, 10.0))
def test_the_profile_is_that_of_the_theorem(release, epsilon):
    noise = release.noise_scale / release.lipschitz
    kappa = -math.log(1 - release.smoothness / release.strong_convexity)
    reach = 0.5 / noise**2
    gap = epsilon - kappa - reach
    if gap >= 0:
        expected = 2 * gaussian_delta(epsilon - kappa, noise)
    else:
        tail = 0.5 - math.exp(reach + norm.logcdf(-1 / noise))
        expected = 1 - math.exp(gap) + 2 * math.exp(gap) * tail
    assert release.delta_at(epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(releases, st.floats(0.0, 10.0), st.floats(1e-3, 1.0))
def test_delta_falls_with_epsilon_noise_and_curvature(release, epsilon, more):
    delta = release.delta_at(epsilon)
    assert 0 <= delta <= 1
    assert release.delta_at(epsilon + more) <= delta + 1e-15
    for name in ("noise_scale", "strong_convexity"):
        settings_ = {**vars(release), name: getattr(release, name) * (1 + more)}
        assert ObjectivePerturbation(**settings_).delta_at(epsilon) <= delta + 1e-15


@given(releases, st.floats(math.log(1e-10), math.log(0.1)))
def test_the_profile_is_never_above_the_converted_curve(release, log_delta):
    delta = math.exp(log_delta)
    orders = dense_orders(Budget(epsilon=1.0, delta=delta))
    epsilon = float(np.min(rdp_to_epsilon(orders, release.rdp(orders), delta)))
    assert release.delta_at(epsilon) <= delta * (1 + 1e-9)


@given(budgets, scales, st.floats(1.02, 100.0))
def test_noise_keeps_the_budget_and_hardly_less_does(budget, bend, more):
    convexity = more * bend / -math.expm1(-budget.epsilon)
    settings_ = {"strong_convexity": convexity, "smoothness": bend}
    release = least_noise(budget, **settings_)
    assert release.delta_at(budget.epsilon) <= budget.delta
    less = replace(release, noise_scale=release.noise_scale * (1 - 1e-6))
    assert less.delta_at(budget.epsilon) > budget.delta
    assert objective_noise_rdp(budget, **settings_) >= release.noise_scale


@settings(max_examples=50)
@given(budgets, scales, st.floats(1e-6, 1e5))
def test_calibration_finds_a_release_for_any_regularizer(budget, bend, l2_sum):
    release = calibrate_objective(budget, l2_sum=l2_sum, smoothness=bend)
    assert release.delta_at(budget.epsilon) <= budget.delta
    assert release.strong_convexity >= l2_sum
    assert (release.lipschitz, release.smoothness) == (1.0, bend)
    # Near one Gaussian release, or near what a generous regularizer needs.
    least = -bend / math.expm1(-budget.epsilon)
    generous = max(l2_sum, 10 * bend / budget.epsilon, 5 * least)
    other = least_noise(budget, strong_convexity=generous, smoothness=bend)
    enough = max(other.noise_scale, 1.3 * gaussian_noise(budget))
    assert release.noise_scale <= 1.1 * enough * (1 + 1e-9)


def test_calibration_takes_the_least_regularizer_that_is_good():
    budget = Budget(epsilon=0.05, delta=DELTA)
    release = calibrate_objective(budget, l2_sum=20.0)
    noises = {
        factor: least_noise(budget, strong_convexity=20.0 * factor).noise_scale
        for factor in (1.0, 1.5, 2.0, 3.0, 5.0)
    }
    good = [f for f, noise in noises.items() if noise <= 1.1 * min(noises.values())]
    assert 1.0 < min(good) < 5.0
    assert release.strong_convexity == 20.0 * min(good)
    assert release.noise_scale == noises[min(good)]


def test_noise_on_an_approximate_minimizer():
    budget = Budget(epsilon=0.01, delta=1e-10)
    noise = output_noise(1e-3, 40.0, budget)
    release = Gaussian(noise_scale=noise, sensitivity=2e-3 / 40.0)
    assert gaussian_delta(0.01, release.noise_multiplier) <= 1e-10
    assert noise == pytest.approx(5e-5 * gaussian_noise(budget), rel=1e-9)
    assert output_noise(0.0, 40.0, budget) == 0.0


@pytest.mark.parametrize("convexity", [0.1, 0.25])
def test_too_little_curvature_is_refused_with_what_is_needed(convexity):
    with pytest.raises(ValueError, match=r"strong_convexity > 0\.25, got"):
        ObjectivePerturbation(noise_scale=1.0, strong_convexity=convexity)
    with pytest.raises(ValueError, match=r"strong_convexity > 2\.62708, got 2\.6;"):
        budget = Budget(epsilon=0.1, delta=1e-6)
        least_noise(budget, strong_convexity=2.6)
