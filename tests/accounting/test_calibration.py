# SPDX-License-Identifier: Apache-2.0
"""Calibration: never over the budget, hardly under it, and like ``dp-accounting``."""

import functools
import math

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import PlannedAccountant, PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    StepBudget,
    best_order,
    epsilon_of,
    gaussian_noise,
    line_search_budget,
    noise_for_plan,
    noise_multiplier_for,
    order_for,
    planned_epsilon,
    rdp_limit,
    rdp_to_epsilon,
    smallest,
    step_mechanism,
)
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    RepeatAndSelect,
    Repeated,
    Subsampled,
    gaussian_delta,
)
from armijo.accounting.perturbation import dense_orders
from armijo.errors import BudgetExceeded
from tests.accounting.accounts import drain
from tests.accounting.renyi_noise import rdp_keeps
from tests.marks import slow, thinned

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def event(sampling_prob: float, noise: float, steps: int) -> dpa.DpEvent:
    """The same steps for ``dp-accounting``."""
    gaussian = dpa.GaussianDpEvent(noise)
    step = (
        dpa.PoissonSampledDpEvent(sampling_prob, gaussian)
        if sampling_prob < 1
        else gaussian
    )
    return dpa.SelfComposedDpEvent(step, steps)


def reference_epsilon(
    sampling_prob: float, noise: float, steps: int, delta: float
) -> float:
    """Epsilon by the privacy loss distribution of ``dp-accounting``."""
    return float(
        PLDAccountant().compose(event(sampling_prob, noise, steps)).get_epsilon(delta)
    )


@functools.cache
def calibrated(
    accountant: str, epsilon: float, delta: float, sampling_prob: float, steps: int
) -> float:
    """The noise for a setting, found once."""
    budget = Budget(epsilon=epsilon, delta=delta)
    return noise_multiplier_for(
        budget, sampling_prob=sampling_prob, steps=steps, accountant=accountant
    )


# epsilon, delta, sampling_prob, steps
SETTINGS = [(1.0, 1e-5, 0.1, 100), (0.5, 1e-5, 1.0, 10), (0.3, 1e-8, 0.2, 50)]
LARGER = [
    (2.0, 1e-6, 0.02, 200),
    (1.0, 1e-5, 0.005, 2000),
    (2.0, 1e-6, 0.01, 500),
    (8.0, 1e-6, 0.02, 1000),
    (4.0, 1e-7, 0.1, 300),
    (0.2, 1e-6, 0.05, 1000),
]
ALL_SETTINGS = [
    *SETTINGS,
    *slow(LARGER),
]


@pytest.mark.parametrize(("epsilon", "delta", "sampling_prob", "steps"), ALL_SETTINGS)
def test_planned_noise_is_that_of_dp_accounting(epsilon, delta, sampling_prob, steps):
    noise = calibrated("planned", epsilon, delta, sampling_prob, steps)
    # Falling in the noise: between these two lies the solution of dp-accounting.
    assert reference_epsilon(sampling_prob, noise * (1 + 1e-6), steps, delta) <= epsilon
    assert reference_epsilon(sampling_prob, noise * (1 - 1e-3), steps, delta) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "sampling_prob", "steps"),
    [
        SETTINGS[0],
        *slow(SETTINGS[1:] + LARGER),
    ],
)
def test_planned_noise_agrees_with_their_calibration(
    epsilon, delta, sampling_prob, steps
):
    ours = calibrated("planned", epsilon, delta, sampling_prob, steps)
    theirs = dpa.calibrate_dp_mechanism(
        PLDAccountant,
        lambda noise: event(sampling_prob, noise, steps),
        epsilon,
        delta,
        dpa.ExplicitBracketInterval(0.8 * ours, 1.2 * ours),
        tol=1e-5,
    )
    assert ours == pytest.approx(theirs, rel=1e-3, abs=0.0)


@pytest.mark.parametrize(("epsilon", "delta", "sampling_prob", "steps"), ALL_SETTINGS)
def test_budget_is_kept_and_used_up(epsilon, delta, sampling_prob, steps):
    for accountant, used in (("planned", 1e-3), ("adaptive", 1e-4)):
        noise = calibrated(accountant, epsilon, delta, sampling_prob, steps)
        step = step_mechanism(sampling_prob, noise)
        found, _ = epsilon_of(step, steps, delta, accountant=accountant)
        assert epsilon * (1 - used) <= found <= epsilon


@pytest.mark.parametrize("noise", [2.5, *slow([14.0])])
@pytest.mark.parametrize("accountant", ["planned", "adaptive"])
def test_calibration_inverts_accounting(noise, accountant):
    sampling_prob, steps, delta = 0.02, 150, 1e-6
    epsilon, _ = epsilon_of(
        step_mechanism(sampling_prob, noise), steps, delta, accountant=accountant
    )
    back = noise_multiplier_for(
        Budget(epsilon=epsilon, delta=delta),
        sampling_prob=sampling_prob,
        steps=steps,
        accountant=accountant,
    )
    assert back == pytest.approx(noise, rel=5e-4, abs=0.0)


def test_epsilon_names_its_accountant():
    plain, searching = (
        step_mechanism(0.1, 5.0, search) for search in (None, ExponentialMechanism(0.1))
    )
    planned, by_pld = epsilon_of(plain, 20, 1e-6)
    adaptive, by_filter = epsilon_of(plain, 20, 1e-6, accountant="adaptive")
    assert (by_pld, by_filter) == ("planned-pld", "filter-rdp")
    assert planned < adaptive
    assert epsilon_of(searching, 20, 1e-6)[1] == "planned-rdp"


# In the first the curve turns up sharply just above the best order: a grid of orders
# stops a little short of it.
@pytest.mark.parametrize(
    ("sampling_prob", "steps", "loss"),
    [(0.01, 1, 2e-2), (0.01, 4000, 2e-3), (0.3, 60, 2e-3), (1.0, 4000, 2e-3)],
)
def test_adaptive_epsilon_is_that_of_the_best_order(sampling_prob, steps, loss):
    step = step_mechanism(sampling_prob, 25.0)
    found, _ = epsilon_of(step, steps, 1e-6, accountant="adaptive")
    orders = np.unique(np.rint(np.geomspace(2, 20_000, 300)))
    best = rdp_to_epsilon(orders, steps * step.rdp(orders), 1e-6).min()
    assert found == pytest.approx(best, rel=loss, abs=0.0)


def test_noise_moves_the_right_way():
    def noise(
        epsilon: float = 1.0, sampling_prob: float = 0.05, steps: int = 200
    ) -> float:
        budget = Budget(epsilon=epsilon, delta=1e-6)
        return noise_multiplier_for(
            budget, sampling_prob=sampling_prob, steps=steps, accountant="adaptive"
        )

    usual = noise()
    assert noise(epsilon=2.0) < usual < noise(epsilon=0.6)
    assert noise(sampling_prob=0.02) < usual < noise(sampling_prob=0.2)
    assert noise(steps=50) < usual < noise(steps=1000)


def test_a_search_on_the_batch_needs_more_noise():
    alone = noise_multiplier_for(
        BUDGET, sampling_prob=0.1, steps=100, accountant="adaptive"
    )
    search = AboveThreshold.laplace(0.1, 8)
    for accountant in ("planned", "adaptive"):
        both = noise_multiplier_for(
            BUDGET, sampling_prob=0.1, steps=100, search=search, accountant=accountant
        )
        assert alone < both < 1.2 * alone
        step = step_mechanism(0.1, both, search)
        assert step == Subsampled(Composed((Gaussian(noise_scale=both), search)), 0.1)
        found, _ = epsilon_of(step, 100, BUDGET.delta, accountant=accountant)
        assert 0.999 <= found <= 1.0


@pytest.mark.parametrize("epsilon", [0.3, *slow([0.1])])
def test_unreachable_budget_is_a_clear_error(epsilon):
    with pytest.raises(ValueError, match=f"No noise reaches epsilon {epsilon:g}") as e:
        noise_multiplier_for(
            Budget(epsilon=epsilon, delta=1e-5),
            sampling_prob=0.1,
            steps=1000,
            search=AboveThreshold.laplace(5.0),
        )
    assert "lower the budget of the search" in str(e.value)


def test_more_budget_than_anyone_needs():
    noise = noise_multiplier_for(
        Budget(epsilon=1e9, delta=1e-5),
        sampling_prob=0.1,
        steps=1,
        accountant="adaptive",
    )
    assert 0 < noise < 0.01


SMALL = Budget(epsilon=0.01, delta=1e-10)


def test_small_budget_is_not_lost_to_a_cap_on_the_order():
    order = best_order(SMALL)
    rho = float(rdp_limit(order, SMALL)) / order
    noise = noise_multiplier_for(
        SMALL, sampling_prob=1.0, steps=1, accountant="adaptive"
    )
    assert noise == pytest.approx(math.sqrt(0.5 / rho), rel=1e-3, abs=0.0)


FITTING = [
    (1.0, 1e-8, 0.1, 100),
    (0.5, 1e-6, 0.05, 7),
    *slow([(4.0, 1e-8, 0.005, 2000), (0.004, 1e-8, 0.5, 10)]),
    # A plain best order loses the last step of these two, most of the next budget.
    (0.1, 1e-8, 0.1, 100),
    (0.25, 8e-8, 0.28, 3),
    (0.0233, 4e-8, 0.00123, 2),
]


@pytest.mark.parametrize(("epsilon", "delta", "sampling_prob", "steps"), FITTING)
def test_calibrated_steps_fit_into_a_filter(epsilon, delta, sampling_prob, steps):
    budget = Budget(epsilon=epsilon, delta=delta)
    noise = noise_multiplier_for(
        budget, sampling_prob=sampling_prob, steps=steps, accountant="adaptive"
    )
    step = step_mechanism(sampling_prob, noise)
    watch = PrivacyFilter(budget, order=order_for(budget, step))
    assert drain(watch, step) == steps
    assert watch.epsilon_spent() <= epsilon


@pytest.mark.parametrize("sampling_prob", [0.01, 0.3])
def test_order_for_is_the_best_one(sampling_prob):
    step = step_mechanism(sampling_prob, 3.0, AboveThreshold.laplace(0.2))
    orders = np.arange(2.0, 200.0)
    affordable = rdp_limit(orders, BUDGET) / step.rdp(orders)
    order = order_for(BUDGET, step)
    assert affordable[order - 2] >= affordable.max() * (1 - 2e-3)


def capped(epsilon):
    return AboveThreshold.laplace(epsilon, 4)


def gaussian(epsilon):
    return AboveThreshold.gaussian(epsilon**2 / 2, 10)


@pytest.mark.parametrize(
    "search", [gaussian, ExponentialMechanism, *slow([AboveThreshold.laplace, capped])]
)
@pytest.mark.parametrize(
    ("epsilon", "sampling_prob", "steps"),
    [(3.0, 0.1, 100), *slow([(0.7, 1.0, 5)])],
)
def test_line_search_budget_is_kept_and_used_up(epsilon, sampling_prob, steps, search):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    found = line_search_budget(
        budget, sampling_prob=sampling_prob, steps=steps, search=search
    )
    assert isinstance(found, StepBudget)
    assert found.search_epsilon == pytest.approx(math.sqrt(2 * found.gradient_rho))
    gradient = Gaussian.from_rho(found.gradient_rho)
    step = Subsampled(Composed((gradient, search(found.search_epsilon))), sampling_prob)
    spent, _ = epsilon_of(step, steps, 1e-6, accountant="adaptive")
    assert epsilon * (1 - 1e-4) <= spent <= epsilon * (1 + 1e-9)
    alone = noise_multiplier_for(
        budget, sampling_prob=sampling_prob, steps=steps, accountant="adaptive"
    )
    assert gradient.noise_multiplier > alone


def test_line_search_budget_defaults_to_the_search_of_the_paper():
    default = line_search_budget(BUDGET, sampling_prob=1.0, steps=5)
    named = line_search_budget(
        BUDGET, sampling_prob=1.0, steps=5, search=AboveThreshold.laplace
    )
    assert default == named


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


@pytest.mark.parametrize(("sampling_prob", "steps", "noises"), thinned(DP_SGD, 2))
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


def plain(sampling_prob, steps):
    return lambda z: [(Subsampled(Gaussian(noise_scale=z), sampling_prob), steps)]


def mixed(z):
    both = Composed((Gaussian(noise_scale=z), Gaussian(noise_scale=3 * z)))
    kinds = Subsampled(both, 0.2), Subsampled(Gaussian(noise_scale=z), 0.2)
    return [(kinds[0], 1), (kinds[1], 4), (kinds[0], 1), (kinds[1], 3)]


def selected(z):
    return [(RepeatAndSelect(Gaussian(noise_scale=z), mean=5.0), 1)]


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 6.0])
def test_gaussians_on_all_rows_need_the_exact_noise_of_one(epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    ours, exact = noise_for_plan(budget, plain(1.0, 9)), 3 * gaussian_noise(budget)
    assert exact <= ours == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("plan_at", "epsilon"),
    [(plain(1.0, 3), 3.0), (mixed, 0.5), (selected, 0.2), (selected, 4.0)],
)
def test_the_whole_plan_fits_and_little_less_noise_does_not(plan_at, epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    noise = noise_for_plan(budget, plan_at)
    assert 0.99 * epsilon <= planned_epsilon(plan_at(noise), 1e-6)[0] <= epsilon
    PlannedAccountant(budget, plan_at(noise))
    with pytest.raises(BudgetExceeded):
        PlannedAccountant(budget, plan_at(0.98 * noise))
