# SPDX-License-Identifier: Apache-2.0
"""Curves against integrals, worst cases and exact arithmetic; bad settings."""

import itertools
import json
import math
from itertools import pairwise, product

import dp_accounting
import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import norm

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.calibration import rdp_to_epsilon
from armijo.accounting.mechanisms import (
    SELECTION_ORDERS,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    PureDP,
    RepeatAndSelect,
    Repeated,
    Subsampled,
    describe,
    knots,
    laplace_rdp,
    log_binomial_weights,
    poisson_rdp,
)
from armijo.accounting.perturbation import KiferObjective
from tests.accounting.accounts import Fixed, Laplace
from tests.accounting.contract import assert_convex, over
from tests.accounting.exact_divergence import (
    FloatArray,
    Noises,
    drifting_signs,
    log_law,
    renyi,
    threshold_nodes,
)

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


scores = st.lists(
    st.tuples(st.floats(-20, 20), st.floats(-1, 1)), min_size=1, max_size=8
)


@given(scores, st.floats(0.01, 5.0), st.sampled_from([1.5, 2.0, 5.0, 30.0]))
def test_noisy_max_bounds_the_exponential_mechanism(utilities, epsilon, order):
    here = log_softmax([u for u, _ in utilities], epsilon)
    there = log_softmax([u + shift for u, shift in utilities], epsilon)
    bound = float(ExponentialMechanism(epsilon).rdp(order))
    assert renyi(here, there, order)[0] <= bound * (1 + 1e-9) + 1e-14
    assert renyi(there, here, order)[0] <= bound * (1 + 1e-9) + 1e-14


@given(scores, st.floats(0.01, 5.0), st.sampled_from([1.5, 2.0, 5.0, 30.0]))
def test_pure_dp_bounds_everything_with_bounded_loss(utilities, epsilon, order):
    here = log_softmax([u for u, _ in utilities], 1.0)
    # Moving logits by at most epsilon/2 keeps every loss within epsilon.
    moved = np.array([u + epsilon * shift for u, shift in utilities])
    there = log_softmax(moved.tolist(), 1.0)
    bound = float(PureDP(epsilon).rdp(order))
    assert renyi(here, there, order)[0] <= bound * (1 + 1e-12) + 1e-14


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


STEP = Composed((Gaussian(noise_scale=3.0), AboveThreshold.laplace(0.3)))

SAMPLED: dict[str, Mechanism] = {
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


@pytest.mark.parametrize("inner", [PureDP(0.7), Laplace(0.5)])
@pytest.mark.parametrize("sampling_prob", [0.001, 0.1, 0.6])
def test_cumulant_on_a_batch_is_convex(inner, sampling_prob):
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


def reference(event: dpa.DpEvent, mean: float) -> float:
    """Epsilon at 1e-6 by the Renyi accountant of ``dp-accounting``."""
    accountant = RdpAccountant(SELECTION_ORDERS.tolist())
    accountant.compose(RepeatAndSelectDpEvent(event, mean, 1.0))
    return float(accountant.get_epsilon(1e-6))


def own(inner: Mechanism, mean: float) -> float:
    """The same by our curve."""
    curve = RepeatAndSelect(inner, mean).rdp(SELECTION_ORDERS)
    return float(np.min(rdp_to_epsilon(SELECTION_ORDERS, curve, 1e-6)))


@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
@pytest.mark.parametrize("noise", [0.7, 5.0, 80.0])
def test_epsilon_is_that_of_dp_accounting(mean, noise):
    expected = reference(dpa.GaussianDpEvent(noise), mean)
    found = own(Gaussian(noise_scale=noise), mean)
    assert found == pytest.approx(expected, rel=1e-7)


def test_epsilon_of_tuned_dp_sgd_is_that_of_dp_accounting():
    step = dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(2.0))
    expected = reference(dpa.SelfComposedDpEvent(step, 200), 20.0)
    inner = Repeated(Subsampled(Gaussian(noise_scale=2.0), 0.05), 200)
    assert own(inner, 20.0) == pytest.approx(expected, rel=1e-6)


def generating_slope(choice: RepeatAndSelect, x: np.ndarray) -> np.ndarray:
    """Derivative of the generating function of the number of runs."""
    gamma = choice.stop_probability
    return gamma / (1 - (1 - gamma) * x) ** 2


@settings(max_examples=40)
@given(
    noise=st.floats(0.8, 8.0),
    mean=st.floats(1.001, 40.0),  # nearer to one the law has no digits left
    order=st.sampled_from([1.5, 2.0, 4.0, 9.0]),
)
def test_exact_divergence_of_the_best_of_normals_stays_below(noise, mean, order):
    choice = RepeatAndSelect(Gaussian(noise_scale=noise), mean)
    bound = float(choice.rdp(np.array(order)))
    y = np.linspace(-14 * noise - 9, 14 * noise + 9, 40_001)
    logs = [
        norm.logpdf(y, center, noise)
        + np.log(generating_slope(choice, norm.cdf(y, center, noise)))
        for center in (0.0, 1.0)
    ]
    assert np.trapezoid(np.exp(logs[0]), y) == pytest.approx(1.0, abs=1e-6)
    for p, q in (logs, logs[::-1]):
        moment = np.trapezoid(np.exp(order * p + (1 - order) * q), y)
        assert math.log(moment) / (order - 1) <= bound + 1e-9


@given(st.floats(1.001, 1e4))
def test_the_law_has_the_mean_that_was_asked(mean):
    gamma = RepeatAndSelect(PureDP(0.1), mean).stop_probability
    assert gamma <= 1 / mean
    assert gamma == pytest.approx(1 / mean, rel=1e-10)


def test_costs_rise_with_order_mean_and_inner_cost():
    orders = np.concatenate([np.arange(2.0, 300.0), [1000.0, 4096.0, 9000.0]])
    choice = RepeatAndSelect(Gaussian(noise_scale=9.0), 12.0)
    curve = choice.rdp(orders)
    at_grid = choice.rdp(SELECTION_ORDERS)
    assert np.all(np.diff(at_grid) >= 0)
    assert np.all(curve > choice.inner.rdp(orders))
    assert np.all(RepeatAndSelect(choice.inner, 24.0).rdp(orders) > curve)
    louder = RepeatAndSelect(Gaussian(noise_scale=8.0), 12.0)
    assert np.all(louder.rdp(orders) > curve)


def test_pure_runs_cost_at_most_the_pure_theorem():
    # In the limit of large orders, three times the epsilon of one pure run.
    choice = RepeatAndSelect(Fixed(0.2), 10.0)
    curve = choice.rdp(np.array([4096.0, 1e9]))
    sampling_prob = -math.log(choice.stop_probability)
    slack = 2 * sampling_prob / 4096 + math.log(10) / 4095
    assert np.all(curve <= 3 * 0.2 + slack + 1e-12)


def test_an_infinite_inner_curve_stays_infinite():
    choice = RepeatAndSelect(KiferObjective(epsilon=1.0, delta=1e-6), 5.0)
    assert np.all(np.isposinf(choice.rdp(np.array([2.0, 50.0]))))


SELECTED: dict[str, Mechanism] = {
    "geometric": RepeatAndSelect(Gaussian(noise_scale=5.0), 10.0),
    "geometric-on-batches": RepeatAndSelect(
        Subsampled(Gaussian(noise_scale=3.0), 0.1), 4.0
    ),
}


@over(MECHANISMS | {f"batch-{k}": v for k, v in SAMPLED.items()} | SELECTED)
def test_contract(mechanism, check):
    check(mechanism)


def mixture(log_p: FloatArray, log_q: FloatArray, sampling_prob: float) -> FloatArray:
    """Log law of a Poisson batch: one row is in it or not."""
    return np.logaddexp(
        math.log(sampling_prob) + log_p, math.log1p(-sampling_prob) + log_q
    )


def exact_curve(log_p: FloatArray, log_q: FloatArray, top: int) -> FloatArray:
    """Divergences at all orders 0..top; the first two are not used."""
    curve = np.zeros(top + 1)
    # Equal laws may come out at -1e-16, which is no divergence.
    curve[2:] = np.maximum(renyi(log_p, log_q, np.arange(2, top + 1)), 0.0)
    return curve


def gaussian_curve(rho: float, top: int) -> FloatArray:
    """The Gaussian curve at all orders 0..top."""
    return rho * np.arange(top + 1.0)


laws = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(
    lambda weights: np.log(np.divide(weights, sum(weights)))
)


@given(laws, laws, st.integers(2, 30), st.floats(1e-3, 0.99))
def test_formula_is_exact_on_any_three_point_pair(log_p, log_q, order, sampling_prob):
    direct = renyi(mixture(log_p, log_q, sampling_prob), log_q, order)[0]
    formula = poisson_rdp(order, sampling_prob, exact_curve(log_p, log_q, order))
    assert formula == pytest.approx(direct, rel=1e-9, abs=1e-14)


def random_log_law(rng: np.random.Generator, size: int) -> FloatArray:
    """Draw a law, sometimes nearly uniform and sometimes nearly degenerate."""
    weights = rng.dirichlet(np.full(size, rng.choice([0.2, 1.0, 5.0]))) + 1e-9
    return np.log(weights / weights.sum())


def test_second_direction_is_bounded_by_the_two_first_ones():
    rng = np.random.default_rng(30)
    orders = np.array([2.0, 2.5, 3.0, 4.0, 7.3, 16.0, 32.0, 100.0])
    first_alone_fails = 0
    for _ in range(2000):
        size = int(rng.integers(2, 6))
        log_p, log_q = random_log_law(rng, size), random_log_law(rng, size)
        sampling_prob = float(rng.choice([0.005, 0.05, 0.1, 0.3, 0.7]))
        mixed, swapped = (
            mixture(log_p, log_q, sampling_prob),
            mixture(log_q, log_p, sampling_prob),
        )
        second = renyi(log_q, mixed, orders)
        first = renyi(mixed, log_q, orders)
        assert np.all(
            second <= np.maximum(first, renyi(swapped, log_p, orders)) + 1e-13
        )
        first_alone_fails += int(np.any(second > first + 1e-9))
    # The larger of two is needed: the first direction alone is not a bound.
    assert first_alone_fails > 100


def test_formula_bounds_both_directions_and_both_roles():
    rng = np.random.default_rng(31)
    orders = np.arange(2, 25)
    for _ in range(150):
        size = int(rng.integers(2, 6))
        log_p, log_q = random_log_law(rng, size), random_log_law(rng, size)
        sampling_prob = float(rng.choice([0.005, 0.1, 0.5]))
        curve = np.maximum(exact_curve(log_p, log_q, 24), exact_curve(log_q, log_p, 24))
        bound = np.array([poisson_rdp(int(a), sampling_prob, curve) for a in orders])
        for inside, outside in ((log_p, log_q), (log_q, log_p)):
            mixed = mixture(inside, outside, sampling_prob)
            assert np.all(renyi(mixed, outside, orders) <= bound * (1 + 1e-12) + 1e-14)
            assert np.all(renyi(outside, mixed, orders) <= bound * (1 + 1e-12) + 1e-14)


def joint_laws(
    search: AboveThreshold, gradient: Gaussian, levels: FloatArray, shifts: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log laws (flat, with log quadrature weights) of a noisy number and a search."""
    noises = Noises(
        kind=search.kind,
        threshold_scale=search.threshold_scale,
        query_scale=search.query_scale,
    )
    queries = levels * search.query_scale
    nodes = threshold_nodes(noises, queries, queries + shifts)
    stops = [log_law(noises, each, nodes) for each in (queries, queries + shifts)]
    sigma = gradient.noise_scale
    # The order-a moment sits where a times the mean is: cover means up to 40.
    edges = np.linspace(-14.0 * sigma - 40.0, 14.0 * sigma + 40.0, 161)
    abscissas, weights = np.polynomial.legendre.leggauss(10)
    half = 0.5 * np.diff(edges)[:, None]
    x = (edges[:-1, None] + half * (1.0 + abscissas)).ravel()
    log_weight = np.log(half * weights).ravel()
    means = [(-0.5 * ((x - mean) / sigma) ** 2) for mean in (1.0, 0.0)]
    constant = math.log(sigma * math.sqrt(2.0 * math.pi))
    present, absent = (
        (density[:, None] - constant + stop).ravel()
        for density, stop in zip(means, stops, strict=True)
    )
    return present, absent, np.repeat(log_weight, len(levels) + 1)


def weighted_renyi(
    log_p: FloatArray, log_q: FloatArray, log_weight: FloatArray, orders: FloatArray
) -> FloatArray:
    """Divergences of two densities on quadrature nodes."""
    # Adding the log weight to both laws integrates p^a q^(1-a) with that weight.
    return renyi(log_p + log_weight, log_q + log_weight, orders)


SEARCHES = [
    AboveThreshold.laplace(0.6),
    AboveThreshold.laplace(0.6, 9),
    AboveThreshold.gaussian(0.05, 9),
]


@pytest.mark.parametrize("sampling_prob", [0.005, 0.1, 0.5])
@pytest.mark.parametrize("search", SEARCHES, ids=["laplace", "capped", "gaussian"])
def test_joint_subsampled_step_stays_below_the_charge(search, sampling_prob):
    gradient = Gaussian.from_rho(0.05)
    orders = np.array([2.0, 4.0, 8.0, 16.0])
    bound = Subsampled(Composed((gradient, search)), sampling_prob).rdp(orders)
    runs = [
        (np.array([0.0] * 6 + [0.3] * 3), np.array([1.0] * 6 + [-1.0] * 3)),
        (np.full(9, -1.0), np.array([1.0, -1.0] * 4 + [0.5])),
        drifting_signs(9),
    ]
    largest = 0.0
    for (levels, shifts), sign in product(runs, (1.0, -1.0)):
        present, absent, weight = joint_laws(search, gradient, levels, sign * shifts)
        mixed = mixture(present, absent, sampling_prob)
        for pair in ((mixed, absent), (absent, mixed)):
            ratio = weighted_renyi(*pair, weight, orders) / bound
            largest = max(largest, float(ratio.max()))
    assert 0.6 < largest <= 1.0


def test_joint_quadrature_reproduces_the_subsampled_gaussian():
    # Without shifts the search tells nothing: what is left has a closed form.
    gradient, search = Gaussian.from_rho(0.05), AboveThreshold.laplace(0.6)
    orders = np.array([2.0, 8.0, 16.0])
    present, absent, weight = joint_laws(search, gradient, np.zeros(4), np.zeros(4))
    found = weighted_renyi(mixture(present, absent, 0.1), absent, weight, orders)
    np.testing.assert_allclose(found, Subsampled(gradient, 0.1).rdp(orders), rtol=1e-10)


def test_one_batch_costs_more_than_two():
    # Two Gaussians on one batch are one Gaussian, whose formula is exact: adding two
    # separately amplified charges for one batch would be too little.
    gradient, losses = Gaussian(noise_scale=1.0), Gaussian(noise_scale=2.0)
    orders = np.array([2.0, 4.0, 8.0])
    joint = Subsampled(Composed((gradient, losses)), 0.005).rdp(orders)
    separate = sum(Subsampled(part, 0.005).rdp(orders) for part in (gradient, losses))
    assert np.all(joint > 1.05 * separate)
    with_search = Composed((gradient, AboveThreshold.laplace(0.5)))
    joint = Subsampled(with_search, 0.005).rdp(orders)
    separate = sum(Subsampled(m, 0.005).rdp(orders) for m in with_search.mechanisms)
    assert np.all(joint >= separate)


@pytest.mark.parametrize("sampling_prob", [0.001, 0.005, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0, 20.0])
def test_subsampled_gaussian_agrees_with_dp_accounting(sampling_prob, noise):
    orders = [2, 3, 5, 8, 16, 31, 64, 128, 256]
    reference = RdpAccountant(orders)
    reference.compose(
        dp_accounting.PoissonSampledDpEvent(
            sampling_prob, dp_accounting.GaussianDpEvent(noise)
        )
    )
    found = Subsampled(Gaussian(noise_scale=noise), sampling_prob).rdp(
        np.array(orders, float)
    )
    # Charges below 1e-10, where the reference itself loses digits, are compared with
    # the multi-precision formula further down.
    np.testing.assert_allclose(found, reference.rdp, rtol=1e-9)


def test_composition_on_one_batch_agrees_with_dp_accounting():
    orders = [2, 3, 5, 16, 64, 256]
    reference = RdpAccountant(orders)
    both = [dp_accounting.GaussianDpEvent(3.0), dp_accounting.GaussianDpEvent(6.0)]
    reference.compose(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.ComposedDpEvent(both))
    )
    inner = Composed((Gaussian(noise_scale=3.0), Gaussian(noise_scale=6.0)))
    found = Subsampled(inner, 0.1).rdp(np.array(orders, float))
    np.testing.assert_allclose(found, reference.rdp, rtol=1e-9)


@pytest.mark.parametrize("order", [2, 7, 64, 500])
def test_charge_rises_with_the_rate_from_zero_to_the_curve(order):
    curve = gaussian_curve(0.02, order)
    rates = [0.0, 1e-6, 1e-3, 0.01, 0.1, 0.3, 0.7, 0.99, 1.0]
    charges = [poisson_rdp(order, sampling_prob, curve) for sampling_prob in rates]
    assert charges[0] == 0.0
    assert charges[-1] == curve[order]
    assert all(low < high for low, high in pairwise(charges))


def test_rate_one_is_the_composition_itself():
    inner = Composed((Gaussian.from_rho(0.05), AboveThreshold.laplace(0.3)))
    orders = np.array([2.0, 3.0, 17.0, 64.0])
    np.testing.assert_array_equal(Subsampled(inner, 1.0).rdp(orders), inner.rdp(orders))


@pytest.mark.parametrize("rho", [1e-9, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("sampling_prob", [1e-6, 0.1, 0.999])
def test_order_five_thousand_neither_overflows_nor_vanishes(sampling_prob, rho):
    curve = gaussian_curve(rho, 5000)
    charge = poisson_rdp(5000, sampling_prob, curve)
    assert 0.0 < charge <= curve[5000]
    # The last term alone: all rows of an imagined group of 5000 are in the batch.
    last = 5000.0 * math.log(sampling_prob) + 4999.0 * float(curve[5000])
    assert charge >= last / 4999.0


def multiprecision_charge(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """The same formula with 60 digits."""
    with mpmath.workdps(60):
        q = mpmath.mpf(sampling_prob)
        total = mpmath.fsum(
            mpmath.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mpmath.expm1((k - 1) * mpmath.mpf(float(curve[k])))
            for k in range(2, order + 1)
        )
        return float(mpmath.log1p(total) / (order - 1))


@pytest.mark.parametrize("order", [2, 8, 64, 400])
@pytest.mark.parametrize("sampling_prob", [1e-4, 0.1])
@pytest.mark.parametrize("rho", [1e-12, 1e-7, 1e-3, 0.3])
def test_tiny_charges_keep_their_digits(order, sampling_prob, rho):
    curve = gaussian_curve(rho, order)
    expected = multiprecision_charge(order, sampling_prob, curve)
    assert poisson_rdp(order, sampling_prob, curve) == pytest.approx(expected, rel=1e-9)
