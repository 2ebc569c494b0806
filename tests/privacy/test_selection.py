# SPDX-License-Identifier: Apache-2.0
"""Private selection: like ``dp-accounting``, and above exact divergences."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from armijo.privacy.budget import rdp_to_epsilon
from armijo.privacy.mechanisms import Gaussian, Mechanism, PureDP, Repeated
from armijo.privacy.objective_classics import KiferObjective
from armijo.privacy.selection import SELECTION_ORDERS, RepeatAndSelect
from armijo.privacy.subsampling import Subsampled
from tests.privacy import contract
from tests.privacy.accounts import Fixed

SHAPES = [0.0, 0.5, 1.0, 3.0, None]


def reference(event: dpa.DpEvent, mean: float, shape: float | None) -> float:
    """Epsilon at 1e-6 by the Renyi accountant of ``dp-accounting``."""
    accountant = RdpAccountant(SELECTION_ORDERS.tolist())
    shape = math.inf if shape is None else shape
    accountant.compose(RepeatAndSelectDpEvent(event, mean, shape))
    return float(accountant.get_epsilon(1e-6))


def own(inner: Mechanism, mean: float, shape: float | None) -> float:
    """The same by our curve."""
    curve = RepeatAndSelect(inner, mean, shape).rdp(SELECTION_ORDERS)
    return float(np.min(rdp_to_epsilon(SELECTION_ORDERS, curve, 1e-6)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
@pytest.mark.parametrize("noise", [0.7, 5.0, 80.0])
def test_epsilon_is_that_of_dp_accounting(shape, mean, noise):
    expected = reference(dpa.GaussianDpEvent(noise), mean, shape)
    found = own(Gaussian(noise_scale=noise), mean, shape)
    assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("shape", [1.0, None])
def test_epsilon_of_tuned_dp_sgd_is_that_of_dp_accounting(shape):
    step = dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(2.0))
    expected = reference(dpa.SelfComposedDpEvent(step, 200), 20.0, shape)
    inner = Repeated(Subsampled(Gaussian(noise_scale=2.0), 0.05), 200)
    assert own(inner, 20.0, shape) == pytest.approx(expected, rel=1e-6)


def generating_slope(choice: RepeatAndSelect, x: np.ndarray) -> np.ndarray:
    """Derivative of the generating function of the number of runs."""
    if choice.shape is None:
        return choice.mean * np.exp(choice.mean * (x - 1))
    gamma, shape = choice.stop_probability, choice.shape
    rest = 1 - (1 - gamma) * x
    if shape == 0:
        return (1 - gamma) / (-math.log(gamma) * rest)
    return shape * (1 - gamma) * rest ** (-shape - 1) / (gamma**-shape - 1)


@settings(deadline=None, max_examples=40)
@given(
    noise=st.floats(0.8, 8.0),
    mean=st.floats(1.001, 40.0),  # nearer to one the law has no digits left
    shape=st.sampled_from([-0.5, *SHAPES]),
    order=st.sampled_from([1.5, 2.0, 4.0, 9.0]),
)
def test_exact_divergence_of_the_best_of_normals_stays_below(noise, mean, shape, order):
    choice = RepeatAndSelect(Gaussian(noise_scale=noise), mean, shape)
    bound = float(choice.rdp(np.array(order)))
    y = np.linspace(-14 * noise - 9, 14 * noise + 9, 40_001)
    logs = [
        norm.logpdf(y, center, noise)
        + np.log(generating_slope(choice, norm.cdf(y, center, noise)))
        for center in (0.0, 1.0)
    ]
    nothing = math.exp(-mean) if shape is None else 0.0  # a Poisson law may not run
    assert np.trapezoid(np.exp(logs[0]), y) + nothing == pytest.approx(1.0, abs=1e-6)
    for p, q in (logs, logs[::-1]):
        moment = np.trapezoid(np.exp(order * p + (1 - order) * q), y) + nothing
        assert math.log(moment) / (order - 1) <= bound + 1e-9


@given(st.floats(1.001, 1e4), st.floats(-0.9, 20.0))
def test_the_law_has_the_mean_that_was_asked(mean, shape):
    gamma = RepeatAndSelect(PureDP(0.1), mean, shape).stop_probability
    assert 0 < gamma < 1
    # The plain formula below has no digits left elsewhere.
    assume(abs(shape) > 1e-3 and gamma > 1e-60)
    plain = shape * (1 - gamma) / (gamma * (1 - gamma**shape))
    assert plain == pytest.approx(mean, rel=1e-6)


def test_special_laws():
    geometric = RepeatAndSelect(PureDP(0.1), 8.0, 1.0)
    assert geometric.stop_probability == pytest.approx(1 / 8, rel=1e-11)
    logarithmic = RepeatAndSelect(PureDP(0.1), 8.0, 0.0).stop_probability
    assert (1 / logarithmic - 1) / -math.log(logarithmic) == pytest.approx(8.0)
    with pytest.raises(ValueError, match="Poisson"):
        RepeatAndSelect(PureDP(0.1), 8.0, None).stop_probability  # noqa: B018


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_rise_with_order_mean_and_inner_cost(shape):
    orders = np.concatenate([np.arange(2.0, 300.0), [1000.0, 4096.0, 9000.0]])
    choice = RepeatAndSelect(Gaussian(noise_scale=9.0), 12.0, shape)
    curve = choice.rdp(orders)
    at_grid = choice.rdp(SELECTION_ORDERS)
    assert np.all(np.diff(at_grid) >= 0)
    assert np.all(curve > choice.inner.rdp(orders))
    assert np.all(RepeatAndSelect(choice.inner, 24.0, shape).rdp(orders) > curve)
    louder = RepeatAndSelect(Gaussian(noise_scale=8.0), 12.0, shape)
    assert np.all(louder.rdp(orders) > curve)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
def test_pure_runs_cost_at_most_the_pure_theorem(shape):
    # In the limit of large orders, (2 + shape) times the epsilon of one pure run.
    curve = RepeatAndSelect(Fixed(0.2), 10.0, shape).rdp(np.array([4096.0, 1e9]))
    rate = -math.log(RepeatAndSelect(Fixed(0.2), 10.0, shape).stop_probability)
    slack = (1 + shape) * rate / 4096 + math.log(10) / 4095
    assert np.all(curve <= (2 + shape) * 0.2 + slack + 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_infinite_inner_curve_stays_infinite(shape):
    choice = RepeatAndSelect(KiferObjective(epsilon=1.0, delta=1e-6), 5.0, shape)
    assert np.all(np.isposinf(choice.rdp(np.array([2.0, 50.0]))))


@contract.over(
    {
        "geometric": RepeatAndSelect(Gaussian(noise_scale=5.0), 10.0),
        "Poisson": RepeatAndSelect(
            Subsampled(Gaussian(noise_scale=3.0), 0.1), 4.0, None
        ),
    }
)
def test_contract(mechanism, check):
    check(mechanism)


@pytest.mark.parametrize("mean", [1.0, 0.5, -3.0, math.nan, math.inf, "2", True, None])
def test_bad_means_are_refused(mean):
    contract.refused(lambda: RepeatAndSelect(PureDP(1.0), mean), "mean", mean)


@pytest.mark.parametrize("shape", [-1.0, -7.0, math.nan, math.inf, "1"])
def test_bad_shapes_are_refused(shape):
    contract.refused(lambda: RepeatAndSelect(PureDP(1.0), 5.0, shape), "shape", shape)
