# SPDX-License-Identifier: Apache-2.0
"""The exact Gaussian against multi-precision arithmetic, and noise on the safe side."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    best_order,
    gaussian_noise,
    smallest,
    step_mechanism,
)
from armijo.accounting.mechanisms import Gaussian, Repeated, gaussian_delta
from armijo.accounting.perturbation import dense_orders
from tests.accounting.renyi_noise import rdp_keeps

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
DELTA = 1e-8
ANALYTIC = (89.0792, 45.9374, 23.6747, 12.2050, 6.3039, 3.2712)
ZCDP = (121.4765, 60.7793, 30.4307, 15.2562, 7.6686, 3.8742)
# sampling_prob, steps, noise at each epsilon; solved with tolerance 1e-3 in log noise
DP_SGD = [
    (0.1, 50, (97.97, 43.36, 21.91, 11.19, 5.835, 3.177)),
    (0.1, 100, (138.39, 61.06, 30.71, 15.54, 7.964, 4.191)),
    (1.0, 50, (977.2, 429.8, 215.2, 107.85, 54.22, 27.41)),
]

log_epsilons = st.floats(math.log(1e-4), math.log(50.0))
log_deltas = st.floats(math.log(1e-12), math.log(0.2))


def reference_delta(epsilon: float, noise: float) -> float:
    """Balle and Wang's formula as it stands, with 60 digits."""
    with mpmath.workdps(60):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(noise)
        first = mpmath.ncdf(1 / (2 * s) - e * s)
        return float(first - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s))


@pytest.mark.parametrize(("epsilon", "noise"), [*zip(EPSILONS, ANALYTIC, strict=True)])
def test_golden_noise_of_one_release(epsilon, noise):
    budget = Budget(epsilon=epsilon, delta=DELTA)
    assert gaussian_noise(budget) == pytest.approx(noise, abs=6e-5)


@pytest.mark.parametrize(("epsilon", "noise"), [*zip(EPSILONS, ZCDP, strict=True)])
def test_golden_noise_by_concentrated_privacy(epsilon, noise):
    budget = Budget(epsilon=epsilon, delta=DELTA)
    orders = dense_orders(budget)

    def keeps(scale: float) -> bool:
        return rdp_keeps(Gaussian(noise_scale=scale), budget, orders, classical=True)

    assert smallest(keeps) == pytest.approx(noise, rel=2e-5)


@pytest.mark.parametrize(("sampling_prob", "steps", "noises"), DP_SGD)
def test_golden_noise_of_dp_sgd(sampling_prob, steps, noises):
    orders = np.arange(2.0, 501.0)
    for epsilon, noise in zip(EPSILONS, noises, strict=True):
        budget = Budget(epsilon=epsilon, delta=DELTA)

        def keeps(scale: float, budget: Budget = budget) -> bool:
            run = Repeated(step_mechanism(sampling_prob, scale), steps)
            return rdp_keeps(run, budget, orders, classical=True)

        assert keeps(noise * 1.0015)
        assert not keeps(noise * 0.9985)


@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.01, 0.5, 3.0, 50.0])
@pytest.mark.parametrize("noise", [0.02, 0.3, 1.0, 4.0, 90.0, 5e4])
def test_delta_is_that_of_many_digits(epsilon, noise):
    expected = reference_delta(epsilon, noise)
    found = gaussian_delta(epsilon, noise)
    if expected < 1e-300:
        assert found < 1e-290
    else:
        assert found == pytest.approx(expected, rel=2e-9, abs=0.0)


@pytest.mark.parametrize("noise", [1e-300, 1e300])
def test_extreme_noise_neither_overflows_nor_warns(noise):
    assert gaussian_delta(1.0, noise) == (1.0 if noise < 1 else 0.0)


@given(log_epsilons, log_deltas)
def test_noise_keeps_the_budget_and_hardly_less_does(log_epsilon, log_delta):
    budget = Budget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    noise = gaussian_noise(budget)
    assert gaussian_delta(budget.epsilon, noise) <= budget.delta
    assert gaussian_delta(budget.epsilon, noise * (1 - 1e-8)) > budget.delta


@given(log_epsilons, st.floats(-3.0, 6.0), st.floats(1e-3, 1.0))
def test_delta_falls_with_noise_and_with_epsilon(log_epsilon, log_noise, more):
    epsilon, noise = math.exp(log_epsilon), math.exp(log_noise)
    delta = gaussian_delta(epsilon, noise)
    assert 0 <= delta <= 1
    assert gaussian_delta(epsilon, noise * (1 + more)) <= delta
    assert gaussian_delta(epsilon * (1 + more), noise) <= delta


@given(log_epsilons, log_deltas)
def test_the_exact_noise_is_below_that_of_the_curve(log_epsilon, log_delta):
    budget = Budget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    orders = dense_orders(budget)
    scale = gaussian_noise(budget) * (1 - 1e-6)
    assert not rdp_keeps(Gaussian(noise_scale=scale), budget, orders)


@given(log_epsilons, log_deltas)
def test_orders_surround_the_best_one(log_epsilon, log_delta):
    budget = Budget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    orders = dense_orders(budget)
    assert orders[0] <= 1.5
    assert orders[-1] >= max(2560, 2 * best_order(budget))
    assert np.all(np.diff(orders) > 0)


def test_the_classical_conversion_asks_for_more_noise():
    budget = Budget(epsilon=0.5, delta=1e-6)
    orders = dense_orders(budget)
    release = Gaussian(noise_scale=9.6)
    assert rdp_keeps(release, budget, orders)
    assert not rdp_keeps(release, budget, orders, classical=True)


@given(st.floats(-20.0, 20.0), st.floats(-5.0, 5.0))
def test_the_solver_finds_a_step_from_either_side(log_step, log_start):
    step = math.exp(log_step)
    found = smallest(lambda x: x >= step, math.exp(log_start))
    assert step <= found <= step * (1 + 2e-12)


def test_the_solver_says_when_nothing_or_everything_keeps():
    with pytest.raises(ValueError, match="raise epsilon"):
        smallest(lambda _: False)
    assert 0 < smallest(lambda _: True) < 1e-17
