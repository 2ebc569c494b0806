# SPDX-License-Identifier: Apache-2.0
"""The automatic method for networks: its public rule, at the edges as well."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from armijo import Trainer
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import noise_multiplier_for
from armijo.methods.auto_network import AutoNetwork, DecayedState, sampling_prob_for
from armijo.methods.base import Problem
from armijo.methods.sgd import GradientState
from tests.networks.network_doubles import (
    CROSS_ENTROPY,
    STEPS,
    examples,
    flat,
    network,
    prepared,
)

ONE = Budget(epsilon=1.0, delta=1e-5)


def calibrated(epsilon=1.0, rows=60_000, **given):
    budget = Budget(epsilon=epsilon, delta=1e-5)
    return AutoNetwork(**given).calibrate(budget, Problem(n_rows=rows))


def first_step(method, norm, size):
    w = torch.zeros(size, dtype=torch.float64)
    w[0] = norm
    return method.init(w).step_size


class TestRule:
    def test_the_walk_of_noise_is_as_long_as_the_first_weights(self):
        """By drawing the walk itself: the step is what makes it as long, or shorter."""
        method, size, norm = calibrated(), 36_758, math.sqrt(2 * (6 + 16 + 128 + 10))
        assert (method.steps, method.sampling_prob) == (482, 0.02)
        state = method.init(torch.full((size,), norm / math.sqrt(size)))
        noise = method.noise_multiplier / (method.sampling_prob * 60_000)
        bits, w = torch.Generator().manual_seed(0), torch.zeros(size)
        for t in range(method.steps):
            size_of_step = method.step_of(replace(state, updates=t))
            w -= size_of_step * noise * torch.randn(size, generator=bits)
        # Twice 0.5 % is the deviation of such a norm; the sum of (1 - t/T)^2 is T/3
        # but for half a step.
        assert w.norm().item() == pytest.approx(norm, rel=0.01)

    def test_steps_are_no_longer_than_six_over_the_clip(self):
        method = calibrated(max_grad_norm=0.5)
        assert first_step(method, 1e6, 10) == 12.0
        assert first_step(method, math.inf, 10) == 12.0

    def test_batches_need_enough_noise_where_that_can_be_had(self):
        rate = sampling_prob_for(ONE, 482, 60_000)
        assert noise_multiplier_for(ONE, sampling_prob=rate, steps=482) >= 1.5
        assert noise_multiplier_for(ONE, sampling_prob=0.015, steps=482) < 1.5

    @pytest.mark.parametrize(("steps", "rate"), [(1000, 0.04), (2000, 0.02)])
    def test_there_are_at_most_forty_passes(self, steps, rate):
        assert sampling_prob_for(replace(ONE, epsilon=8.0), steps, 60_000) == rate

    def test_more_steps_than_passes_allow_take_the_smallest_rate(self):
        assert sampling_prob_for(ONE, 9000, 60_000) == 0.01

    def test_the_step_falls_to_zero_in_a_straight_line(self):
        method = calibrated(rows=2_000, steps=4, sampling_prob=0.5, step_size=2.0)
        state = method.init(torch.ones(3))
        steps = [method.step_of(replace(state, updates=t)) for t in range(4)]
        assert steps == [2.0, 1.5, 1.0, 0.5]
        with pytest.raises(TypeError, match="DecayedState"):
            method.step_of(GradientState(w=torch.ones(3)))

    @pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan, math.inf])
    def test_a_step_from_a_file_is_checked(self, step_size):
        with pytest.raises(ValueError, match="step_size"):
            DecayedState(w=torch.ones(3), step_size=step_size)

    def test_what_is_given_stays(self):
        given = {"steps": 7, "sampling_prob": 0.25, "max_grad_norm": 2.0}
        method = calibrated(**given)
        assert {name: getattr(method, name) for name in given} == given


class TestEdges:
    @pytest.mark.parametrize("rows", [1, 40, 300])
    @pytest.mark.parametrize("epsilon", [1e-3, 1e5])
    def test_few_rows_and_any_budget(self, rows, epsilon):
        method = calibrated(epsilon, rows)
        assert 100 <= method.steps <= 1000
        assert method.sampling_prob == min(1.0, 256 / rows)
        assert 0 < first_step(method, 3.0, 50) <= 6

    def test_many_rows(self):
        method = calibrated(3.0, 10**8, sampling_prob=0.03)
        assert method.steps == 1000
        assert first_step(method, 3.0, 50) == 6

    def test_weights_that_start_at_zero_move(self):
        method = calibrated(0.1, 300)
        assert first_step(method, 0.0, 50) == first_step(method, math.sqrt(2), 50) > 0
        module = nn.Linear(4, 3)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        Trainer(module, CROSS_ENTROPY, examples(), ONE, steps=3, seed=1).run()
        assert flat(module).norm() > 0

    def test_frozen_weights_count_for_nothing(self):
        module = network()
        module[0].weight.data *= 1e6
        module[0].requires_grad_(False)
        kept = flat(module)[:25].clone()
        run = prepared(module)
        own = torch.cat([p.detach().flatten() for p in module[2].parameters()])
        assert run.state.step_size == pytest.approx(
            first_step(run.method, own.norm().item(), len(own)), rel=1e-6
        )
        run.run()
        assert flat(module)[:25].tolist() == kept.tolist()

    def test_a_resumed_run_keeps_its_step_whatever_weights_it_is_given(self, tmp_path):
        given = {"seed": 4, "checkpoint": tmp_path / "run", "checkpoint_every": 1}
        module, other = network(), network()
        for record in prepared(module, **given):
            if record.batch == 2:
                break
        with torch.no_grad():
            for p in other.parameters():
                p *= 100
        run = prepared(other, **given, resume=True).run()
        whole = network()
        again = prepared(whole, seed=4).run()
        assert len(run.records) == STEPS and run.records[0].step_size < 6
        assert run.records == again.records
        assert flat(other).tolist() == flat(whole).tolist()
