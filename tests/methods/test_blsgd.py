# SPDX-License-Identifier: Apache-2.0
"""DP-BLSGD on scripted releases: angles, budgets, clips, averages and first steps.

A scripted batch returns given noisy sums and search answers, so every branch of
Algorithms 2 and 3 is reached on purpose.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.mechanisms import Composed, Gaussian, Subsampled
from armijo.data.gate import PrivateBatch
from armijo.data.query import Rows
from armijo.methods import BLGD, BLSGD
from armijo.methods.base import Problem
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from tests.methods.scripted import FlatObjective, ScriptedBatch

RHO, EPSILON = 0.02, 0.2
FAIL = None


LINEAR_MODEL = Problem(objective=LinearObjective(loss="logistic", n_features=2))


def toward(degrees, length=1.0):
    """Return a vector at an angle to the first axis."""
    turn = math.radians(degrees)
    return [length * math.cos(turn), length * math.sin(turn)]


class Run:
    """Feeds a method with scripted batches and keeps states, records and batches."""

    def __init__(self, *, batch_size=1.0, state=None, **settings):
        settings = {"gradient_rho": RHO, "search_epsilon": EPSILON, **settings}
        self.method = BLSGD(**settings).completed(LINEAR_MODEL)
        self.state = self.method.init(torch.zeros(2, dtype=torch.float64))
        self.state = replace(self.state, **(state or {}))
        self.batch_size = batch_size
        self.records, self.batches = [], []

    def feed(self, noisy_sum, answer):
        batch = ScriptedBatch(noisy_sum, answer, self.batch_size)
        self.state, record = self.method.step(batch, FlatObjective(), self.state)
        self.records.append(record)
        self.batches.append(batch)
        return self


class TestMove:
    def test_a_step_along_the_mean(self):
        run = Run(batch_size=4.0).feed([8.0, -4.0], 1)
        np.testing.assert_allclose(run.state.w, [-1.6 * 2.0, 1.6], atol=1e-14)
        assert run.state.updates == 1
        assert run.records[0].step_size == 1.6
        assert run.records[0].tries == 2
        assert run.records[0].direction_norm == pytest.approx(math.sqrt(5))

    def test_no_step_leaves_the_parameters(self):
        run = Run().feed([1.0, 0.0], FAIL)
        assert run.state.w.tolist() == [0.0, 0.0]
        assert run.state.updates == 0
        assert run.state.pending.vector.tolist() == [1.0, 0.0]
        assert (run.records[0].step_size, run.records[0].tries) == (0.0, 20)

    def test_noise_energy_is_that_of_the_mean(self):
        """d sigma^2 / L^2 with sigma^2 = C^2 / (2 rho)."""
        run = Run(batch_size=4.0).feed([1.0, 0.0], FAIL)
        assert run.state.pending.noise_sq_norm == pytest.approx(2 * 9 / (2 * RHO) / 16)

    def test_a_batch_answers_what_was_planned(self):
        run = Run()
        plan = run.method.plan(run.state)
        run.feed([1.0, 0.0], 0)
        assert tuple(run.batches[0].used) == plan.mechanisms
        assert plan.sampling_prob == 0.1
        assert plan.mechanisms == (
            Gaussian.from_rho(RHO, 3.0),
            AboveThreshold.laplace(EPSILON, 20),
        )
        assert plan.mechanism == Subsampled(Composed(plan.mechanisms), 0.1)

    def test_fallback_never_waits(self):
        run = Run(adapt="never", fallback=True, max_tries=2).feed([1.0, 0.0], FAIL)
        assert run.state.pending is None
        assert run.state.w[0].item() == pytest.approx(-2.0 * 0.8**2)


class TestAngleAverage:
    def test_starts_with_the_second_success(self):
        run = Run().feed(toward(0), 0)
        assert run.state.mean_angle == 90.0
        assert run.records[0].angle is None
        run.feed(toward(30, 7.0), 0)
        assert run.state.mean_angle == pytest.approx(0.8 * 90 + 0.2 * 30)
        assert run.records[1].angle == pytest.approx(30)
        run.feed(toward(150), 0)
        assert run.state.mean_angle == pytest.approx(0.8 * 78 + 0.2 * 120)

    def test_decay(self):
        run = Run(angle_decay=0.25).feed(toward(0), 0).feed(toward(10), 0)
        assert run.state.mean_angle == pytest.approx(0.25 * 90 + 0.75 * 10)

    def test_failed_searches_do_not_count(self):
        run = Run().feed(toward(0), 0).feed(toward(40), FAIL).feed(toward(40), FAIL)
        assert run.state.mean_angle == 90.0

    def test_uses_the_averaged_direction(self):
        run = Run().feed(toward(0), 0).feed(toward(20), FAIL).feed(toward(60), 0)
        assert run.records[-1].angle == pytest.approx(40)
        assert run.state.mean_angle == pytest.approx(0.8 * 90 + 0.2 * 40)
        run.feed(toward(40), 0)
        assert run.records[-1].angle == pytest.approx(0, abs=1e-5)

    @pytest.mark.parametrize("sum_", [[0.0, 0.0], [1e-200, 0.0]])
    def test_a_vector_of_zero_is_at_right_angles(self, sum_):
        run = Run().feed(sum_, 0).feed(toward(30), 0)
        assert run.state.mean_angle == pytest.approx(90.0)


class TestBudgets:
    """ChEB with a mean angle of 60: high above 66, low below 30."""

    def retry(self, angle, **settings):
        run = Run(state={"mean_angle": 60.0}, **settings)
        return run.feed(toward(0), FAIL).feed(toward(angle), FAIL)

    @pytest.mark.parametrize("angle", [67, 89, 91, 179, -70, -100])
    def test_gradient_grows_when_directions_disagree(self, angle):
        run = self.retry(angle)
        assert run.state.gradient_rho == pytest.approx(1.3 * RHO)
        assert run.state.search_epsilon == EPSILON

    @pytest.mark.parametrize("angle", [0, 10, 29, -29])
    def test_search_grows_when_they_agree_too_well(self, angle):
        run = self.retry(angle)
        assert run.state.gradient_rho == RHO
        assert run.state.search_epsilon == pytest.approx(1.3 * EPSILON)

    @pytest.mark.parametrize("angle", [31, 45, 65, -40])
    def test_nothing_grows_in_between(self, angle):
        run = self.retry(angle)
        assert (run.state.gradient_rho, run.state.search_epsilon) == (RHO, EPSILON)

    def test_obtuse_is_enough_whatever_the_mean(self):
        run = Run(state={"mean_angle": 150.0})
        run.feed(toward(0), FAIL).feed(toward(91), FAIL)
        assert run.state.gradient_rho == pytest.approx(1.3 * RHO)

    def test_thresholds_are_settings(self):
        assert self.retry(80, angle_high=1.4).state.gradient_rho == RHO
        assert self.retry(20, angle_low=0.3).state.search_epsilon == EPSILON

    @pytest.mark.parametrize("angle", [10, 45, 120])
    def test_always(self, angle):
        run = self.retry(angle, adapt="always")
        assert run.state.gradient_rho == pytest.approx(1.3 * RHO)
        assert run.state.search_epsilon == EPSILON

    @pytest.mark.parametrize("angle", [10, 45, 120])
    def test_never(self, angle):
        run = self.retry(angle, adapt="never")
        assert (run.state.gradient_rho, run.state.search_epsilon) == (RHO, EPSILON)

    def test_a_first_failure_measures_nothing_yet(self):
        run = Run().feed(toward(0), FAIL)
        assert (run.state.gradient_rho, run.state.search_epsilon) == (RHO, EPSILON)

    def test_growth_counts_from_the_next_batch_and_stays(self):
        run = Run(budget_growth=0.5)
        run.feed(toward(0), FAIL).feed(toward(120), 0).feed(toward(60), 0)
        assert [batch.used[0].rho for batch in run.batches] == pytest.approx(
            [RHO, RHO, 1.5 * RHO]
        )
        assert [r.gradient_rho for r in run.records] == [RHO, RHO, 1.5 * RHO]
        assert run.method.plan(run.state).mechanisms[0].rho == pytest.approx(1.5 * RHO)

    def test_is_compared_with_the_pending_average(self):
        run = Run(state={"mean_angle": 60.0})
        run.feed(toward(0), FAIL).feed(toward(60), FAIL).feed(toward(90), FAIL)
        assert run.records[1].angle == pytest.approx(60)
        assert run.records[2].angle == pytest.approx(60)
        assert run.state.gradient_rho == RHO


class TestAverages:
    def test_plain_is_one_half_each_time(self):
        run = Run().feed([4.0, 0.0], FAIL).feed([0.0, 4.0], FAIL).feed([8.0, 0.0], 0)
        assert run.state.previous.tolist() == [5.0, 1.0]
        assert run.state.w.tolist() == [-10.0, -2.0]
        assert run.state.pending is None

    def test_plain_energy(self):
        run = Run(adapt="never").feed([4.0, 0.0], FAIL)
        one = run.state.pending.noise_sq_norm
        run.feed([0.0, 4.0], FAIL)
        assert run.state.pending.noise_sq_norm == pytest.approx(one / 2)
        run.feed([0.0, 4.0], FAIL)
        assert run.state.pending.noise_sq_norm == pytest.approx(one / 8 + one / 4)

    def test_weighted_counts_measurements_equally_at_equal_noise(self):
        run = Run(average="weighted", adapt="never")
        run.feed([6.0, 0.0], FAIL)
        one = run.state.pending.noise_sq_norm
        run.feed([0.0, 6.0], FAIL).feed([3.0, 3.0], FAIL)
        assert run.state.pending.vector.tolist() == pytest.approx([3.0, 3.0])
        run.feed([0.0, 0.0], FAIL)
        assert run.state.pending.vector.tolist() == pytest.approx([2.25, 2.25])
        assert run.state.pending.noise_sq_norm == pytest.approx(one / 4)

    def test_weighted_counts_by_budget(self):
        """Two measurements at rho and a third at 2 rho are worth 4 rho together."""
        run = Run(average="weighted", adapt="always", budget_growth=1.0)
        run.feed([4.0, 0.0], FAIL)
        one = run.state.pending.noise_sq_norm
        run.feed([0.0, 4.0], FAIL).feed([8.0, 0.0], FAIL)
        assert [batch.used[0].rho for batch in run.batches] == pytest.approx(
            [RHO, RHO, 2 * RHO]
        )
        assert run.state.pending.vector.tolist() == pytest.approx([5.0, 1.0])
        assert run.state.pending.noise_sq_norm == pytest.approx(one / 4)


class TestFirstStep:
    def test_refresh_counts_updates_and_only_lowers(self):
        run = Run(reset_every=2)
        run.feed(toward(0), 5).feed(toward(0), FAIL).feed(toward(0), FAIL)
        assert run.state.initial_step == 2.0
        assert len(run.state.recent_steps) == 1
        run.feed(toward(0), 3)
        assert run.state.initial_step == pytest.approx(1.2 * 2.0 * 0.8**3)
        assert run.state.recent_steps == ()
        lower = run.state.initial_step
        run.feed(toward(0), 0)
        assert run.records[-1].step_size == lower
        run.feed(toward(0), 4)
        assert run.state.initial_step == lower

    def test_headroom(self):
        run = Run(reset_every=1, growth_cap=2.0).feed(toward(0), 10)
        assert run.state.initial_step == pytest.approx(2.0 * 2.0 * 0.8**10)

    def test_every_ten_updates(self):
        run = Run()
        for _ in range(9):
            run.feed(toward(0), 4)
        assert run.state.initial_step == 2.0
        run.feed(toward(0), 4)
        assert run.state.initial_step == pytest.approx(1.2 * 2.0 * 0.8**4)


class TestClips:
    """DP-BLSGD-AC: C falls by a share, once per update, from the next batch on."""

    def test_once_per_update(self):
        run = Run(clip_decay=0.1, adapt="always")
        for _ in range(4):
            run.feed(toward(0), FAIL)
        assert run.state.gradient_rho == pytest.approx(RHO * 1.3**3)
        assert run.state.max_grad_norm == pytest.approx(2.7)
        assert run.state.loss_clip == pytest.approx(0.9)
        run.feed(toward(0), 0).feed(toward(0), FAIL).feed(toward(0), FAIL)
        assert run.state.max_grad_norm == pytest.approx(2.43)
        assert run.state.loss_clip == pytest.approx(0.81)

    def test_applies_from_the_next_measurement(self):
        run = Run(clip_decay=0.1, adapt="always")
        run.feed(toward(0), FAIL).feed(toward(0), FAIL)
        assert run.method.plan(run.state).mechanisms[0].sensitivity == 2.7
        run.feed(toward(0), 0)
        assert [batch.gradient_bound for batch in run.batches] == [3.0, 3.0, 2.7]
        assert [b.search_bounds[0] for b in run.batches] == pytest.approx([1, 1, 0.9])
        assert [b.used[0].sensitivity for b in run.batches] == [3.0, 3.0, 2.7]
        assert [record.max_grad_norm for record in run.records] == [3.0, 3.0, 2.7]

    def test_falls_also_when_the_retry_succeeds(self):
        run = Run(clip_decay=0.1, adapt="always")
        run.feed(toward(0), FAIL).feed(toward(0), 0)
        assert run.state.max_grad_norm == pytest.approx(2.7)
        assert not run.state.clip_lowered

    def test_only_with_the_gradient_budget(self):
        run = Run(clip_decay=0.1)
        run.feed(toward(0), FAIL).feed(toward(5), FAIL)
        assert run.state.search_epsilon > EPSILON
        assert (run.state.max_grad_norm, run.state.loss_clip) == (3.0, 1.0)

    def test_not_without_decay(self):
        run = Run(adapt="always").feed(toward(0), FAIL).feed(toward(120), FAIL)
        assert run.state.gradient_rho > RHO
        assert (run.state.max_grad_norm, run.state.loss_clip) == (3.0, 1.0)


@given(
    script=st.lists(
        st.tuples(
            st.floats(0, 360), st.floats(0.01, 10), st.none() | st.integers(0, 19)
        ),
        max_size=40,
    ),
    clip_decay=st.sampled_from([0.0, 0.05]),
    adapt=st.sampled_from(["angle", "always", "never"]),
)
def test_any_script_keeps_the_rules(script, clip_decay, adapt):
    run = Run(clip_decay=clip_decay, adapt=adapt, reset_every=3)
    for degrees, length, answer in script:
        before = run.state
        run.feed(toward(degrees, length), answer)
        after, record = run.state, run.records[-1]
        moved = after.updates - before.updates
        assert moved == (answer is not None) == (record.step_size > 0)
        assert moved or torch.equal(before.w, after.w)
        assert (after.pending is None) == bool(moved)
        grew = after.gradient_rho / before.gradient_rho
        assert grew == pytest.approx(1) or grew == pytest.approx(1.3)
        assert after.search_epsilon >= before.search_epsilon
        assert (grew == pytest.approx(1)) or after.search_epsilon == (
            before.search_epsilon
        )
        assert after.initial_step <= before.initial_step
        lowered = before.max_grad_norm / after.max_grad_norm
        assert lowered == pytest.approx(before.loss_clip / after.loss_clip)
        assert lowered == 1 or (clip_decay and grew > 1.2 and not before.clip_lowered)
        assert 0 <= after.mean_angle <= 180
    assert run.state.updates == sum(answer is not None for *_, answer in script)


GRADIENT_RHO, SEARCH_EPSILON, GROWTH = 0.02, 0.2, 0.3


def method_of(**settings):
    method = BLGD(
        **{"gradient_rho": GRADIENT_RHO, "search_epsilon": SEARCH_EPSILON, **settings}
    )
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
        increases = [GRADIENT_RHO * GROWTH * 1.3**k for k in range(4)]
        assert rhos == pytest.approx([GRADIENT_RHO, *increases, GRADIENT_RHO * 1.3**4])
        assert sum(rhos[:5]) == pytest.approx(GRADIENT_RHO * 1.3**4)
        assert [r.gradient_rho for r in records] == pytest.approx(rhos)
        assert state.gradient_rho == pytest.approx(GRADIENT_RHO * 1.3**4)

    def test_the_search_budget_never_grows(self):
        method = method_of()
        script = [([1.0, 0.0], FAIL)] * 3 + [([1.0, 0.0], 2)]
        state, _, plans, _ = feed(method, start(method), script)
        wanted = AboveThreshold.laplace(SEARCH_EPSILON, 20)
        assert [plan.mechanisms[1] for plan in plans] == [wanted] * 4
        assert state.search_epsilon == SEARCH_EPSILON

    def test_all_rows_without_amplification(self):
        method = method_of()
        plan = method.plan(start(method))
        assert plan.sampling_prob == 1.0
        assert plan.mechanisms[0] == Gaussian.from_rho(GRADIENT_RHO, 3.0)
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
            total = GRADIENT_RHO * 1.3**k
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
            variance = clip**2 / (2 * GRADIENT_RHO * 1.3**k)
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
