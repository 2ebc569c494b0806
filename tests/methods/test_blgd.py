# SPDX-License-Identifier: Apache-2.0
"""DP-BLGD: a failed search buys the missing budget of the gradient, no more."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import PrivateBatch
from armijo.data.query import Rows
from armijo.methods import BLGD, Problem
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from tests.methods.scripted import FlatObjective, ScriptedBatch

RHO, EPSILON, GROWTH = 0.02, 0.2, 0.3
FAIL = None


def method_of(**settings):
    method = BLGD(**{"gradient_rho": RHO, "search_epsilon": EPSILON, **settings})
    objective = LinearObjective(loss="logistic", n_features=2)
    return method.completed(Problem(objective=objective))


def feed(method, state, script, *, batch_size=1.0, objective=None):
    """Run scripted batches; return the last state, records, plans and batches."""
    records, plans, batches = [], [], []
    for noisy_sum, answer in script:
        plans.append(method.plan(state))
        batches.append(ScriptedBatch(noisy_sum, answer, batch_size))
        state, record = method.step(batches[-1], objective or FlatObjective(), state)
        records.append(record)
    return state, records, plans, batches


def start(method, size=2):
    return method.init(torch.zeros(size, dtype=torch.float64))


class TestCost:
    def test_a_retry_costs_the_increase_only(self):
        method = method_of()
        script = [([1.0, 0.0], FAIL)] * 4 + [([1.0, 0.0], 0), ([1.0, 0.0], 0)]
        state, records, plans, _ = feed(method, start(method), script)
        rhos = [plan.mechanisms[0].rho for plan in plans]
        increases = [RHO * GROWTH * 1.3**k for k in range(4)]
        assert rhos == pytest.approx([RHO, *increases, RHO * 1.3**4])
        assert sum(rhos[:5]) == pytest.approx(RHO * 1.3**4)
        assert [r.gradient_rho for r in records] == pytest.approx(rhos)
        assert state.gradient_rho == pytest.approx(RHO * 1.3**4)

    def test_the_search_budget_never_grows(self):
        method = method_of()
        script = [([1.0, 0.0], FAIL)] * 3 + [([1.0, 0.0], 2)]
        state, _, plans, _ = feed(method, start(method), script)
        wanted = AboveThreshold.laplace(EPSILON, 20)
        assert [plan.mechanisms[1] for plan in plans] == [wanted] * 4
        assert state.search_epsilon == EPSILON

    def test_all_rows_without_amplification(self):
        method = method_of()
        plan = method.plan(start(method))
        assert plan.sampling_prob == 1.0
        assert plan.mechanisms[0] == Gaussian.from_rho(RHO, 3.0)
        orders = np.array([2.0, 8.0])
        parts = sum(mechanism.rdp(orders) for mechanism in plan.mechanisms)
        np.testing.assert_allclose(plan.mechanism.rdp(orders), parts)

    def test_a_batch_answers_what_was_planned(self):
        method = method_of()
        script = [([1.0, 0.0], FAIL), ([0.0, 1.0], FAIL), ([0.0, 1.0], 0)]
        _, _, plans, batches = feed(method, start(method), script)
        assert [tuple(batch.used) for batch in batches] == [
            plan.mechanisms for plan in plans
        ]

    def test_no_growth_is_refused_up_front_or_survives_a_retry(self):
        try:
            method = method_of(budget_growth=0.0)
        except ValueError:
            return
        state, *_ = feed(method, start(method), [([1.0, 0.0], FAIL)])
        assert method.plan(state).mechanisms[0].rho > 0


class TestGradAvg:
    def test_weights_are_the_budgets(self):
        method = method_of()
        script = [([13.0, 0.0], FAIL), ([0.0, 26.0], FAIL)]
        state, *_ = feed(method, start(method), script)
        expected = [13.0 / 1.3, 0.3 * 26.0 / 1.3]
        assert state.pending.vector.tolist() == pytest.approx(expected)
        state, *_ = feed(method, state, [([0.0, 0.0], FAIL)])
        third = 0.3 / 1.3  # what the third one adds to 1.3 rho, relative to 1.69 rho
        shrunk = [value * (1 - third) for value in expected]
        assert state.pending.vector.tolist() == pytest.approx(shrunk)

    def test_noise_energy_is_that_of_the_whole_budget(self):
        method = method_of()
        state = start(method)
        for k in range(4):
            state, *_ = feed(method, state, [([1.0, 0.0], FAIL)], batch_size=5.0)
            total = RHO * 1.3**k
            expected = 2 * 9.0 / (2 * total) / 25.0
            assert state.pending.noise_sq_norm == pytest.approx(expected)

    def test_the_penalty_is_not_averaged_away(self):
        method = method_of()
        objective = FlatObjective(penalty=0.5)
        script = [([1.0, 1.0], FAIL), ([1.0, 1.0], FAIL), ([1.0, 1.0], 0)]
        state, *_ = feed(
            method, start(method), script, objective=objective, batch_size=2.0
        )
        assert state.previous.tolist() == pytest.approx([1.0, 1.0])

    def test_variance_of_the_refined_gradient(self):
        """Real noise on 20,000 coordinates: C^2 / (2 rho_total), and unbiased."""
        size, rows, clip = 20_000, 4, 3.0
        method = method_of(max_grad_norm=clip)
        per_row = np.full(size, clip / math.sqrt(size) / 2)
        objective = FlatObjective(size, per_row)
        randomness = Randomness(seed=4, insecure_deterministic=True).for_charge(0)
        state = start(method, size)
        for k in range(4):
            plan = method.plan(state)
            held = Rows(np.zeros((rows, 1)), None)
            batch = PrivateBatch(held, plan, randomness, n_rows=rows)
            batch.first_above = lambda queries, mechanism: FAIL
            state, _ = method.step(batch, objective, state)
            noise = (state.pending.vector.numpy() - per_row) * rows
            variance = clip**2 / (2 * RHO * 1.3**k)
            assert abs(noise.mean()) < 5 * math.sqrt(variance / size)
            low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], size) / size * variance
            assert low < noise.var() < high
            # One half each would have a visibly larger variance.
            assert k == 0 or not low < 1.1 * variance < high


class TestUpdate:
    def test_failure_moves_nothing(self):
        method = method_of()
        state, records, *_ = feed(method, start(method), [([2.0, 1.0], FAIL)])
        assert state.w.tolist() == [0.0, 0.0]
        assert (records[0].step_size, records[0].tries) == (0.0, 20)
        assert (state.updates, state.previous) == (0, None)

    def test_success_moves_along_the_refined_direction(self):
        method = method_of()
        script = [([13.0, 0.0], FAIL), ([0.0, 0.0], 1)]
        state, records, *_ = feed(method, start(method), script)
        np.testing.assert_allclose(state.w, [-1.6 * 10.0, 0.0], atol=1e-12)
        assert state.pending is None
        assert records[1].step_size == 1.6
        assert records[1].direction_norm == pytest.approx(10.0)

    def test_angle_to_the_last_update(self):
        method = method_of()
        script = [([1.0, 0.0], 0), ([0.0, 1.0], FAIL), ([0.0, 1.0], 0)]
        _, records, *_ = feed(method, start(method), script)
        assert [record.angle for record in records] == [None, None, pytest.approx(90)]

    def test_refresh_of_the_first_step(self):
        method = method_of(reset_every=2)
        script = [([1.0, 0.0], 6), ([1.0, 0.0], FAIL), ([1.0, 0.0], 4)]
        state, *_ = feed(method, start(method), script)
        assert state.initial_step == pytest.approx(1.2 * 2.0 * 0.8**4)
        assert state.recent_steps == ()

    def test_clips_stay(self):
        method = method_of()
        script = [([1.0, 0.0], FAIL), ([-1.0, 0.0], FAIL), ([1.0, 0.0], 0)]
        state, *_ = feed(method, start(method), script)
        assert (state.max_grad_norm, state.loss_clip) == (3.0, 1.0)
