# SPDX-License-Identifier: Apache-2.0
"""Private selection: like ``dp-accounting``, and above exact divergences."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from armijo.accounting.calibration import rdp_to_epsilon
from armijo.accounting.mechanisms import (
    SELECTION_ORDERS,
    Gaussian,
    Mechanism,
    PureDP,
    RepeatAndSelect,
    Repeated,
    Subsampled,
)
from armijo.accounting.perturbation import KiferObjective
from tests.accounting import contract
from tests.accounting.accounts import Fixed


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


@contract.over(
    {
        "geometric": RepeatAndSelect(Gaussian(noise_scale=5.0), 10.0),
        "sampled": RepeatAndSelect(Subsampled(Gaussian(noise_scale=3.0), 0.1), 4.0),
    }
)
def test_contract(mechanism, check):
    check(mechanism)
