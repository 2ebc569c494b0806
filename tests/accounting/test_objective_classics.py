# SPDX-License-Identifier: Apache-2.0
"""The older objective perturbations: golden values, promises kept in one weight."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import gaussian_noise
from armijo.accounting.mechanisms import PureDP
from armijo.accounting.perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
)
from tests.accounting import contract, one_weight

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
KST = (247.4758, 123.8187, 61.9900, 31.0756, 15.6180, 7.8886)
KIFER = KiferObjective(epsilon=0.5, delta=1e-6)
PURE = ChaudhuriObjective(epsilon=0.5, l2=1e-3, n_rows=10_000)
AMP = ApproximateMinima(epsilon=0.5, delta=1e-6, n_rows=10_000, gradient_tolerance=1e-8)
slopes = st.floats(-1.0, 1.0)


@pytest.mark.parametrize(("epsilon", "noise"), [*zip(EPSILONS, KST, strict=True)])
def test_golden_noise_of_kifer(epsilon, noise):
    release = KiferObjective(epsilon=epsilon, delta=1e-8, smoothness=1.0)
    assert release.noise_scale == pytest.approx(noise, abs=6e-5)
    longer = KiferObjective(epsilon=epsilon, delta=1e-8, lipschitz=3.0)
    assert longer.noise_scale == pytest.approx(3 * noise, abs=2e-4)
    assert release.strong_convexity == 2 / epsilon


@pytest.mark.parametrize("release", [KIFER, AMP])
def test_one_promise_is_a_step_without_a_curve(release):
    assert release.delta_at(0.5) == release.delta_at(7.0) == 1e-6
    assert release.delta_at(np.nextafter(0.5, 0)) == release.delta_at(0.0) == 1.0
    assert np.all(np.isposinf(release.rdp(np.array([[2.0, 64.0]]))))
    assert release.rdp(np.array([[2.0, 64.0]])).shape == (1, 2)


@pytest.mark.parametrize("release", [KIFER, PURE, AMP])
def test_releases_are_values_that_tell_all(release):
    contract.is_a_value(release)
    contract.description_is_json_and_tells_all(release)
    relation = release.relation
    assert (relation is Neighboring.ADD_REMOVE) == (release is KIFER)
    assert (relation is Neighboring.REPLACE_ONE) == (release is not KIFER)


@contract.over({"pure": PURE})
def test_contract(mechanism, check):
    check(mechanism)


@settings(max_examples=20)
@given(
    epsilon=st.floats(0.3, 4.0),
    delta=st.floats(1e-4, 0.05),
    huber=st.booleans(),
    others=st.lists(slopes, max_size=3),
)
def test_kifer_keeps_its_promise(epsilon, delta, huber, others):
    release = KiferObjective(
        epsilon=epsilon, delta=delta, smoothness=1.0 if huber else 0.25
    )
    noise, curvature = release.noise_scale, release.strong_convexity
    base = [one_weight.Row(x, huber) for x in others]
    w = one_weight.weights((10 * noise + 4) / curvature)
    law = one_weight.gaussian_log_density(noise)
    without = one_weight.log_law(w, base, curvature, law)
    added = [*base, one_weight.Row(1.0, huber)]
    with_row = one_weight.log_law(w, added, curvature, law)
    assert one_weight.hockey_stick(w, with_row, without, epsilon) <= delta


def test_chaudhuri_by_hand():
    # A regularizer that is strong enough: nothing is added.
    assert PURE.extra_convexity == 0
    rest = 0.5 - math.log(1 + 2 * 0.25 / 10 + 0.25**2 / 10**2)
    assert PURE.epsilon_prime == pytest.approx(rest, rel=1e-12)
    assert PURE.norm_scale == pytest.approx(2 / rest, rel=1e-12)
    # One that is not: half of epsilon goes to the Jacobian.
    weak = ChaudhuriObjective(epsilon=0.5, l2=1e-6, n_rows=10_000, smoothness=1.0)
    assert weak.epsilon_prime == 0.25
    extra = 1 / (10_000 * (math.exp(0.125) - 1)) - 1e-6
    assert weak.extra_convexity == pytest.approx(extra, rel=1e-12)


def test_pure_profile_is_that_of_randomized_response():
    np.testing.assert_array_equal(
        PURE.rdp(np.array([2.0, 9.0])), PureDP(0.5).rdp(np.array([2.0, 9.0]))
    )
    truth = math.exp(0.5) / (1 + math.exp(0.5))
    for epsilon in (0.0, 0.2, 0.49):
        exact = truth - math.exp(epsilon) * (1 - truth)
        assert PURE.delta_at(epsilon) == pytest.approx(exact, rel=1e-12)
    assert PURE.delta_at(0.5) == PURE.delta_at(3.0) == 0.0


@settings(max_examples=30)
@given(
    epsilon=st.floats(0.05, 4.0),
    log_l2=st.floats(-6.0, 2.0),
    huber=st.booleans(),
    rows=st.lists(slopes, min_size=2, max_size=5),
)
def test_chaudhuri_is_pure_when_a_row_is_replaced(epsilon, log_l2, huber, rows):
    before = [one_weight.Row(x, huber) for x in rows[1:]]
    n_rows = len(before)
    release = ChaudhuriObjective(
        epsilon=epsilon,
        l2=math.exp(log_l2),
        n_rows=n_rows,
        smoothness=1.0 if huber else 0.25,
    )
    curvature = n_rows * (release.l2 + release.extra_convexity)
    w = one_weight.weights(60.0)
    law = one_weight.laplace_log_density(release.norm_scale)
    one = one_weight.log_law(w, before, curvature, law)
    after = [one_weight.Row(rows[0], huber), *before[1:]]
    other = one_weight.log_law(w, after, curvature, law)
    assert np.max(np.abs(one - other)) <= epsilon + 1e-9


def test_approximate_minima_by_hand():
    release = ApproximateMinima(
        epsilon=2.0,
        delta=1e-6,
        n_rows=1000,
        gradient_tolerance=1e-6,
        lipschitz=3.0,
        smoothness=0.5,
        output_share=0.1,
        noise_share=0.75,
    )
    assert release.strong_convexity == pytest.approx(2 * 0.5 / 0.45)
    tail = 1 + math.sqrt(2 * math.log(1 / 0.9e-6))
    assert release.noise_scale == pytest.approx(2 * 3.0 / 1000 * tail / 1.35)
    tail = 1 + math.sqrt(2 * math.log(1 / 1e-7))
    radius = 1000 * 1e-6 / release.strong_convexity
    assert release.output_noise_scale == pytest.approx(2 * radius * tail / 0.2)


@given(st.floats(0.01, 10.0), st.floats(math.log(1e-12), math.log(1e-3)))
def test_noise_on_approximate_minima_suffices(epsilon, log_delta):
    release = ApproximateMinima(
        epsilon=epsilon, delta=math.exp(log_delta), n_rows=500, gradient_tolerance=1e-4
    )
    share = Budget(epsilon=0.01 * epsilon, delta=0.01 * release.delta)
    distance = 2 * 500 * 1e-4 / release.strong_convexity
    assert release.output_noise_scale >= distance * gaussian_noise(share)


@settings(max_examples=20)
@given(
    epsilon=st.floats(0.3, 4.0),
    delta=st.floats(1e-3, 0.05),
    huber=st.booleans(),
    rows=st.lists(slopes, max_size=2),
)
def test_exact_minima_keep_their_share_when_a_row_is_replaced(
    epsilon, delta, huber, rows
):
    others = [one_weight.Row(x, huber) for x in rows]
    release = ApproximateMinima(
        epsilon=epsilon,
        delta=delta,
        n_rows=len(others) + 1,
        gradient_tolerance=0.0,
        smoothness=1.0 if huber else 0.25,
    )
    noise = release.noise_scale * release.n_rows  # of the sum
    curvature = release.strong_convexity
    w = one_weight.weights((10 * noise + 4) / curvature)
    law = one_weight.gaussian_log_density(noise)
    one, other = (
        one_weight.log_law(w, [*others, one_weight.Row(x, huber)], curvature, law)
        for x in (1.0, -1.0)
    )
    share = one_weight.hockey_stick(w, one, other, 0.99 * epsilon)
    assert share <= 0.99 * delta
    assert release.output_noise_scale == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 5.0, "noise_share": 0.5}, "raise noise_share"),
        ({"epsilon": 40.0, "noise_share": 0.99}, "lower epsilon"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ApproximateMinima(**{**vars(AMP), **change})
