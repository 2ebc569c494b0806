# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and DP-Adam: plain descent without noise, and noise that the budget asks."""

import math

import numpy as np
import pytest
import torch

from armijo._noise import PoissonRows
from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.data.gate import PrivateDataset
from armijo.errors import BudgetExceeded
from armijo.methods import Problem, minimize
from armijo.methods.sgd import DPSGD, DPAdam
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice

BUDGET = Budget(epsilon=1.0, delta=1e-6)
ROWS, FEATURES, STEPS = 90, 3, 20
SILENT = {"noise_multiplier": 0.0, "max_grad_norm": 1e6}
RNG = np.random.default_rng(5)
X = on_lattice(RNG.normal(size=(ROWS, FEATURES)))
Y = np.where(X @ [1.0, -2.0, 0.5] > 0, 1.0, -1.0)


def problem(loss="logistic"):
    objective = LinearObjective(loss=loss, n_features=FEATURES, l2=0.01)
    return Problem(objective=objective, n_rows=ROWS)


def iterates(method, randomness=None):
    data = PrivateDataset(
        X, Y, n_rows=ROWS, accountant=FreeAccountant(), randomness=randomness
    )
    start = method.init(torch.zeros(FEATURES + 1, dtype=torch.float64))
    found = minimize(problem().objective, data, method, start, max_batches=STEPS)
    return [state.w.numpy() for state, _ in found]


def plain_gradient(w, rows, size):
    """One example after the other, in Python."""
    total = np.zeros(FEATURES + 1)
    for i in rows:
        x = np.append(X[i], 1.0)
        total -= Y[i] * x / (1 + math.exp(Y[i] * (x @ w)))
    return total / size + 0.01 * w


@pytest.mark.usefixtures("plain_products")
def test_without_noise_sgd_is_plain_descent():
    method = DPSGD(sampling_prob=1.0, steps=STEPS, step_size=0.7, **SILENT)
    w = np.zeros(FEATURES + 1)
    for found in iterates(method):
        w = w - 0.7 * plain_gradient(w, range(ROWS), ROWS)
        assert found == pytest.approx(w, abs=1e-12)


@pytest.mark.usefixtures("plain_products")
def test_batches_are_poisson_and_the_divisor_is_public():
    seeded = Randomness(seed=4, insecure_deterministic=True)
    method = DPSGD(sampling_prob=0.2, steps=STEPS, step_size=0.7, **SILENT)
    w = np.zeros(FEATURES + 1)
    for charge, found in enumerate(iterates(method, seeded)):
        bits = seeded.for_charge(charge).row_bits()
        rows = PoissonRows(0.2, bits).chosen(0, ROWS)
        w = w - 0.7 * plain_gradient(w, rows, 0.2 * ROWS)
        assert found == pytest.approx(w, abs=1e-12)


@pytest.mark.usefixtures("plain_products")
def test_without_noise_adam_is_plain_adam():
    method = DPAdam(sampling_prob=1.0, steps=STEPS, step_size=0.1, **SILENT)
    w = torch.zeros(FEATURES + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    for found in iterates(method):
        w.grad = torch.from_numpy(plain_gradient(w.detach().numpy(), range(ROWS), ROWS))
        optimizer.step()
        assert found == pytest.approx(w.detach().numpy(), abs=1e-12)


@pytest.mark.parametrize("settings", [DPSGD(), DPAdam(), DPSGD(sampling_prob=1)])
def test_the_noise_is_what_the_budget_asks(settings):
    method = settings.calibrate(BUDGET, problem())
    epsilon, name = planned_epsilon(method.schedule(), BUDGET.delta)
    assert 0.995 * BUDGET.epsilon <= epsilon <= BUDGET.epsilon
    assert name == ("planned-profile" if settings.sampling_prob == 1 else "planned-pld")
    assert method.gradient.sensitivity == 3.0


def test_a_given_noise_makes_as_many_steps_as_it_can():
    settings = DPSGD(noise_multiplier=4.0, sampling_prob=0.05, steps=20_000)
    method = settings.calibrate(BUDGET, problem())
    assert method.gradient.noise_multiplier == 4.0
    mechanism, steps = method.schedule()[0]
    assert planned_epsilon([(mechanism, steps)], BUDGET.delta)[0] <= BUDGET.epsilon
    assert planned_epsilon([(mechanism, steps + 1)], BUDGET.delta)[0] > BUDGET.epsilon
    few = DPSGD(noise_multiplier=4.0, sampling_prob=0.05, steps=3).calibrate(
        BUDGET, problem()
    )
    assert few.steps == 3


def test_noise_too_small_for_one_step_is_refused():
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        DPSGD(noise_multiplier=0.5, sampling_prob=1.0).calibrate(BUDGET, problem())


def test_step_sizes_by_loss():
    assert DPSGD().calibrate(BUDGET, problem()).step_size == 1.0
    assert DPSGD().calibrate(BUDGET, problem("hinge")).step_size == 0.5
    assert DPAdam().calibrate(BUDGET, problem("hinge")).step_size == 0.1
    assert DPSGD(step_size=0.3).calibrate(BUDGET, problem("hinge")).step_size == 0.3


def test_noise_has_the_scale_it_was_charged_for():
    """A chi-squared test that rejects two thirds and three halves of the noise."""
    method = DPSGD(sampling_prob=1.0, steps=1, max_grad_norm=2.0).calibrate(
        BUDGET, problem()
    )
    seeds = range(200)
    draws = []
    for seed in seeds:
        data = PrivateDataset(
            np.zeros((0, FEATURES)),
            np.zeros(0),
            n_rows=1,
            accountant=_paid(method),
            randomness=Randomness(seed=seed, insecure_deterministic=True),
        )
        start = method.init(torch.zeros(FEATURES + 1, dtype=torch.float64))
        [(state, _)] = minimize(problem().objective, data, method, start)
        draws.append(-state.w.numpy() / method.step_size)
    spread = np.std(draws) / method.gradient.noise_scale
    assert 0.9 < spread < 1.1


def _paid(method):
    return PlannedAccountant(BUDGET, method.schedule(), insecure_deterministic=True)


def test_a_large_delta_that_makes_epsilon_free_is_no_error():
    budget = Budget(epsilon=0.01, delta=0.1)
    method = DPSGD(steps=2, sampling_prob=0.5).calibrate(budget, problem())
    assert planned_epsilon(method.schedule(), 0.1)[0] <= 0.01
