# SPDX-License-Identifier: Apache-2.0
"""The tight analysis: golden noise, exact laws of a one-weight model, calibration."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.calibration import (
    gaussian_noise,
    planned_epsilon,
    rdp_to_epsilon,
    reachable,
)
from armijo.accounting.mechanisms import Gaussian, PureDP, gaussian_delta, pure_delta
from armijo.accounting.perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    PermutedMixture,
    WithOutputNoise,
    calibrate_objective,
    contraction,
    dense_orders,
    gd_sensitivity,
    least_noise,
    mixture_noise,
    output_noise,
    rsgd_sensitivities,
    rsgd_step_size,
    with_output_share,
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


# Gradients of all rows z at w, with Lipschitz constant 1 and this smoothness.
Gradients = Callable[[np.ndarray, np.ndarray], np.ndarray]


def logistic(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    return -z / (1 + np.exp(z @ w))[:, None]


def huber(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    return -z * np.clip(1.5 - z @ w, 0.0, 1.0)[:, None]


def quadratic(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Not Lipschitz, but two rows differ by 2 at most, which is all that is used."""
    return 0.7 * w - z


def linear(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The worst case of a contraction by ``1 - step l2``."""
    return z + 0 * w


LOSSES: list[tuple[Gradients, float]] = [
    (logistic, 0.25),
    (huber, 1.0),
    (quadratic, 0.7),
    (linear, 0.25),
]
problems = {
    "loss": st.sampled_from(LOSSES),
    "seed": st.integers(0, 2**32 - 1),
    "l2": st.sampled_from([0.0, 0.01, 0.3]),
    "reach": st.floats(0.05, 1.3),  # of the longest step that still contracts
}


def neighbors(seed: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of norm one, and the row and its opposite that differ."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rows[:1], -rows[:1]


def descend(
    gradients: Gradients, batches: list[np.ndarray], steps: list[float], l2: float
) -> list[np.ndarray]:
    """Return all iterates; one step per batch, each batch divided by its own size."""
    w, path = np.zeros(3), []
    for batch, step in zip(batches, steps, strict=True):
        w = w - step * (gradients(batch, w).sum(axis=0) / len(batch) + l2 * w)
        path.append(w)
    return path


@settings(max_examples=60)
@given(**problems, n_rows=st.integers(1, 6), steps=st.integers(1, 40))
def test_descent_never_moves_further_than_its_sensitivity(
    loss, seed, l2, reach, n_rows, steps
):
    gradients, smoothness = loss
    step = reach * 2 / (smoothness + l2)
    setting = {"step_size": step, "steps": steps, "n_rows": n_rows, "l2": l2}
    setting["smoothness"] = smoothness
    bound = gd_sensitivity(**setting)
    rows, one, other = neighbors(seed, n_rows)
    ends = [
        descend(
            gradients, [np.concatenate([row, rows[1:]])] * steps, [step] * steps, l2
        )[-1]
        for row in (one, other, 0 * one)
    ]
    scale = 1e-9 * (1 + bound)
    assert np.linalg.norm(ends[0] - ends[1]) <= bound + scale
    once = gd_sensitivity(**setting, relation=Neighboring.ZERO_OUT)
    assert once == gd_sensitivity(**setting, relation=Neighboring.ADD_REMOVE)
    assert once == pytest.approx(bound / 2, rel=1e-12)
    # A row of zeros contributes nothing (the same pull as all others if quadratic).
    for end in ends[:2]:
        assert np.linalg.norm(end - ends[2]) <= once + scale


@settings(max_examples=60)
@given(
    **problems,
    n_batches=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    epochs=st.integers(1, 6),
)
def test_permuted_descent_never_moves_further_than_its_batch_says(
    loss, seed, l2, reach, n_batches, batch_size, epochs
):
    gradients, smoothness = loss
    first = reach * 2 / (smoothness + l2)
    bounds = rsgd_sensitivities(
        step_size=first,
        epochs=epochs,
        n_batches=n_batches,
        batch_size=batch_size,
        l2=l2,
        smoothness=smoothness,
    )
    assert len(bounds) == n_batches
    rows, one, other = neighbors(seed, n_batches * batch_size)
    steps = [
        first / math.sqrt(epoch + 1) if n_batches > 1 else first
        for epoch in range(epochs)
        for _ in range(n_batches)
    ]
    for k, bound in enumerate(bounds):
        means = []
        for row in (one, other):
            data = rows.copy()
            data[k * batch_size] = row[0]
            batches = np.split(data, n_batches) * epochs
            means.append(np.mean(descend(gradients, batches, steps, l2), axis=0))
        assert np.linalg.norm(means[0] - means[1]) <= bound * (1 + 1e-9) + 1e-9


def test_bounds_are_reached_by_linear_losses():
    rows, one, other = neighbors(3, 4)
    data = [np.concatenate([row, rows[1:]]) for row in (one, other)]
    ends = [descend(linear, [each] * 9, [0.5] * 9, 0.3)[-1] for each in data]
    bound = gd_sensitivity(step_size=0.5, steps=9, n_rows=4, l2=0.3)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(bound, rel=1e-12)
    bounds = rsgd_sensitivities(
        step_size=0.5, epochs=1, n_batches=2, batch_size=2, l2=0.3
    )
    means = [
        np.mean(descend(linear, np.split(each, 2), [0.5] * 2, 0.3), axis=0)
        for each in data
    ]
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(bounds[0], rel=1e-12)


@given(st.floats(1e-3, 20.0), st.floats(0.0, 2.0), st.integers(1, 60))
def test_the_closed_form_is_the_recursion(step, l2, steps):
    c = contraction(step, l2, 0.25)
    expected = 0.0
    for _ in range(steps):
        expected = c * expected + 2 * step / 50
    setting = {"step_size": step, "steps": steps, "n_rows": 50, "l2": l2}
    found = gd_sensitivity(**setting)
    assert found == pytest.approx(expected, rel=1e-9)
    if c <= 1:
        published = gd_sensitivity(**setting, published=True)
        assert found <= 2 / 3 * published * (1 + 1e-12)


def test_published_sensitivity_and_special_steps():
    published = partial(gd_sensitivity, steps=50, n_rows=1000, published=True)
    assert published(step_size=1.0) == 0.15
    assert gd_sensitivity(step_size=1.0, steps=50, n_rows=1000, smoothness=1.0) == 0.1
    one = gd_sensitivity(step_size=1.0, steps=7, n_rows=10, smoothness=1e-300, l2=1.0)
    assert one == 0.2  # a contraction to zero keeps the last push only
    with pytest.raises(ValueError, match="step_size <= 8"):
        published(step_size=9.0)
    assert rsgd_step_size(0.5, 3, 2) == 0.25
    assert rsgd_step_size(0.5, 3, 1) == 0.5


MIXTURE = PermutedMixture(sensitivities=(0.5, 1.0, 2.5), noise_scale=3.0)
mixtures = st.builds(
    lambda bounds, noise: PermutedMixture(
        sensitivities=tuple(bounds), noise_scale=noise
    ),
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=6),
    st.floats(0.5, 50.0),
)


def test_the_relation_of_a_mixture():
    assert MIXTURE.relation is Neighboring.REPLACE_ONE


@contract.over(
    {
        "logistic": ObjectivePerturbation(noise_scale=3.0, strong_convexity=40.0),
        "huber": ObjectivePerturbation(
            noise_scale=50.0, strong_convexity=1.1, lipschitz=2.0, smoothness=1.0
        ),
        "pure": PURE,
        "mixture": MIXTURE,
    }
)
def test_contract(mechanism, check):
    check(mechanism)


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
def test_the_profile_of_a_mixture_is_never_above_its_converted_curve(
    release, log_delta
):
    delta = math.exp(log_delta)
    orders = dense_orders(Budget(epsilon=1.0, delta=delta))
    epsilon = float(np.min(rdp_to_epsilon(orders, release.rdp(orders), delta)))
    assert release.delta_at(epsilon) <= delta * (1 + 1e-9)


@settings(max_examples=40)
@given(
    st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=6).map(tuple),
    st.floats(math.log(1e-3), math.log(10.0)),
)
def test_noise_of_a_mixture_keeps_the_budget_and_hardly_less_does(bounds, log_epsilon):
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
