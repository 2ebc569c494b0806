# SPDX-License-Identifier: Apache-2.0
"""Poisson amplification without the factor 3: exact where it can be, never too low."""

import math
from itertools import pairwise, product

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.mechanisms import Composed, Gaussian, Subsampled, poisson_rdp
from tests.accounting.exact_divergence import (
    FloatArray,
    Noises,
    drifting_signs,
    log_law,
    renyi,
    threshold_nodes,
)


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
