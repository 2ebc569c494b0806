# SPDX-License-Identifier: Apache-2.0
"""DP-AGD: budgets, GradAvg, the law of NoisyMin, and descent without noise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import ExponentialMechanism, Gaussian
from armijo.baselines.agd import AGD
from armijo.data.gate import PrivateBatch, PrivateDataset
from armijo.data.query import Rows
from armijo.methods import minimize
from armijo.methods.base import Problem
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from tests.baselines.choice_law import blobs, log_laws, opened, run, zeros
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice
from tests.methods.scripted import FlatObjective, ScriptedBatch
from tests.training.files import content, survived

RHO, EPSILON = 0.02, 0.3
LOGISTIC = LinearObjective(loss="logistic", n_features=3, l2=0.01)


def method_of(**settings):
    return AGD(**{"gradient_rho": RHO, "search_epsilon": EPSILON, **settings})


def feed(method, state, script, objective=LOGISTIC):
    """Run scripted batches; return the last state, records and plans."""
    records, plans = [], []
    for noisy_sum, chosen in script:
        plans.append(method.plan(state))
        batch = ScriptedBatch(noisy_sum, chosen, 10.0)
        state, record = method.step(batch, objective, state)
        assert tuple(batch.used) == plans[-1].mechanisms
        records.append(record)
    return state, records, plans


G = [3.0, 0.0, 4.0, 0.0]


class TestBudgets:
    def calibrated(self, method):
        problem = Problem(objective=LOGISTIC, n_rows=100)
        return method.calibrate(Budget(epsilon=1.2, delta=1e-8), problem)

    def test_equal_split(self):
        method = self.calibrated(AGD())
        assert method.gradient_rho == pytest.approx(0.01**2 / 2)
        assert method.search_epsilon == pytest.approx(0.02)
        cost = ExponentialMechanism(method.search_epsilon).rdp(np.array([2.0]))[0]
        assert cost == pytest.approx(2 * method.gradient_rho, rel=1e-4)

    def test_classical_split(self):
        settings = AGD(initial_split="classical", selection="pure")
        method = self.calibrated(settings)
        assert method.gradient_rho == pytest.approx(0.01**2 / 74.6, rel=1e-3)
        noise = Gaussian.from_rho(method.gradient_rho, 3.0).noise_scale
        assert noise == pytest.approx(3 * math.sqrt(2 * math.log(1.25e8)) / 0.01)
        assert method.search_epsilon == pytest.approx(0.01)

    def test_settings_reach_the_method(self):
        asked = {"grid_size": 7, "loss_clip": 1.5, "growth_cap": 1.3, "max_step": 4.0}
        asked |= {"max_grad_norm": 2.0, "budget_growth": 0.4, "reset_every": 3}
        method = self.calibrated(AGD(splits=30, **asked))
        assert {name: getattr(method, name) for name in asked} == asked
        assert method.search_epsilon == pytest.approx(0.04)

    def test_a_failure_buys_the_increase_only(self):
        method = method_of()
        script = [(G, 0)] * 3 + [(G, 5), (G, 5)]
        state, records, plans = feed(method, method.init(zeros(LOGISTIC)), script)
        rhos = [plan.mechanisms[0].rho for plan in plans]
        bought = [RHO, *(0.1 * RHO * 1.1**k for k in range(3)), RHO * 1.1**3]
        assert rhos == pytest.approx(bought)
        assert [r.gradient_rho for r in records] == pytest.approx(bought)
        selection = ExponentialMechanism(EPSILON, 1.5)
        assert [plan.mechanisms[1] for plan in plans] == [selection] * 5
        assert state.gradient_rho == pytest.approx(RHO * 1.1**3)

    def test_a_success_is_charged_once(self):
        """No second charge for the gradient after a step was found."""
        budget = Budget(epsilon=3.0, delta=1e-6)
        accountant = PrivacyFilter(budget, order=8, insecure_deterministic=True)
        X, y = blobs()
        data = PrivateDataset(
            X,
            y,
            n_rows=len(X),
            accountant=accountant,
            randomness=Randomness(seed=5, insecure_deterministic=True),
        )
        method = method_of(gradient_rho=0.002, search_epsilon=0.1)
        state = method.init(zeros(LOGISTIC))
        found = list(minimize(LOGISTIC, data, method, state))
        expected, grown = 0.0, 0.002
        failed = False
        for _, record in found:
            expected += 8 * (grown * 0.1 / 1.1 if failed else grown)
            expected += float(ExponentialMechanism(0.1).rdp(np.array([8.0]))[0])
            failed = record.step_size == 0
            grown *= 1.1 if failed else 1.0
        assert len(found) > 20
        assert any(record.step_size == 0 for _, record in found)
        assert accountant.spent[0] == pytest.approx(expected)
        assert accountant.spent[0] <= accountant.limits[0]


class TestGradAvg:
    def test_all_measurements_count_by_their_budgets(self):
        """Not the first one again and again: the third is added to the average."""
        method = method_of()
        sums = np.eye(4)[:3]
        script = [(row, 0) for row in sums]
        state, *_ = feed(method, method.init(zeros(LOGISTIC)), script)
        weights = np.array([1.0, 0.1, 0.11]) / 1.21
        expected = weights @ sums
        np.testing.assert_allclose(state.pending.vector.numpy(), expected, atol=1e-12)

    def test_variance_is_that_of_the_whole_budget(self):
        size, rows, clip = 20_000, 4, 3.0
        per_row = np.full(size, clip / math.sqrt(size) / 2)
        method, randomness = (
            method_of(),
            Randomness(seed=4, insecure_deterministic=True).for_charge(0),
        )
        state = method.init(torch.zeros(size, dtype=torch.float64))
        for k in range(5):
            plan = method.plan(state)
            held = Rows(np.zeros((rows, 1)), None)
            batch = PrivateBatch(held, plan, randomness, n_rows=rows)
            batch.noisy_argmax = lambda query, mechanism: 0
            state, _ = method.step(batch, FlatObjective(size, per_row), state)
            noise = state.pending.vector.numpy() - rows * per_row
            variance = clip**2 / (2 * RHO * 1.1**k)
            assert state.pending.noise_sq_norm == pytest.approx(size * variance)
            low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], size) / size * variance
            assert low < noise.var() < high
            assert abs(noise.mean()) < 5 * math.sqrt(variance / size)
        assert not low < clip**2 / (2 * RHO) < high


def tied_rows(count):
    """Rows without features: every step has the loss log 2."""
    return np.zeros((count, 1)), np.ones(count)


class TestNoisyMin:
    """Selection on real losses, its law taken from the gate."""

    objective = LinearObjective(loss="hinge", n_features=1, fit_intercept=False, l2=0.0)

    def log_law(self, monkeypatch, X, y, **settings):
        """Return the law along the direction -1 from zero, without gradient noise."""
        method = method_of(gradient_rho=math.inf, **settings)
        state = method.init(zeros(self.objective))
        with monkeypatch.context() as patch:
            released = torch.ones(1, dtype=torch.float64)  # the same on both neighbors
            patch.setattr(PrivateBatch, "noisy_vector", lambda *_: released)
            (law,) = log_laws(monkeypatch, method, state, X, y, self.objective)
        return law

    def test_weights_are_exponential_in_the_summed_clipped_loss(self, monkeypatch):
        rng = np.random.default_rng(1)
        X, y = rng.normal(size=(9, 1)), np.where(rng.random(9) < 0.5, 1.0, -1.0)
        law = self.log_law(monkeypatch, X, y, loss_clip=1.7)
        steps = np.linspace(0, 2, 21)
        losses = np.maximum(0, 1 + y * X[:, 0] * steps[:, None])
        scores = -EPSILON * np.minimum(losses, 1.7).sum(axis=1) / 1.7
        expected = scores - np.log(np.exp(scores).sum())
        np.testing.assert_allclose(law, expected, atol=1e-5)

    def test_the_tie_of_21_is_even(self, monkeypatch):
        law = self.log_law(monkeypatch, *tied_rows(50))
        np.testing.assert_allclose(law, -math.log(21), atol=1e-12)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_one_row_more_in_the_tie(self, monkeypatch, sign):
        """A row whose loss is 0 or C at all but one step: e^epsilon and no more.

        The public code's argmin(loss + noise) would move it by e^(20 epsilon).
        """
        X, y = tied_rows(50)
        more = np.vstack([X, [[1e9]]]), np.append(y, sign)
        before = self.log_law(monkeypatch, X, y)
        after = self.log_law(monkeypatch, *more)
        change = after - before
        # Step 0 costs 1; the others cost 0 or the clip 3.
        others = 0.0 if sign == -1 else EPSILON
        weights = np.exp(-np.array([EPSILON / 3, *[others] * 20]))
        expected = np.log(weights / weights.sum()) + math.log(21)
        np.testing.assert_allclose(change, expected, atol=1e-5)
        assert np.abs(change).max() <= EPSILON
        assert np.ptp(change) == pytest.approx(
            EPSILON / 3 if sign < 0 else EPSILON * 2 / 3
        )

    @given(
        values=st.lists(
            st.tuples(st.floats(-8, 8), st.sampled_from([-1.0, 1.0])),
            min_size=1,
            max_size=6,
        )
    )
    def test_bounded_range_between_neighbors(self, values):
        with pytest.MonkeyPatch.context() as patch:
            X = np.array([[x] for x, _ in values])
            y = np.array([label for _, label in values])
            more = self.log_law(patch, X, y)
            less = self.log_law(patch, X[1:], y[1:])
        change = more - less
        assert np.ptp(change) <= EPSILON * (1 + 1e-9)
        assert np.abs(change).max() <= EPSILON * (1 + 1e-9)

    def test_the_gate_draws_by_that_law(self, monkeypatch):
        method = method_of(search_epsilon=2.0, gradient_rho=math.inf, grid_size=4)
        X, y = np.array([[0.8], [0.5], [-0.4]]), np.array([-1.0, -1.0, -1.0])
        state = method.init(zeros(self.objective))
        (law,) = log_laws(monkeypatch, method, state, X, y, self.objective)
        randomness = Randomness(seed=8, insecure_deterministic=True).for_charge(0)
        data = PrivateDataset(
            X, y, n_rows=3, accountant=FreeAccountant(), randomness=randomness
        )
        counts = np.zeros(5)
        for _ in range(2000):
            batch = data.open(method.plan(state))
            _, record = method.step(batch, self.objective, state)
            counts[round(record.step_size / 0.5)] += 1
        assert np.ptp(np.exp(law)) > 0.1
        assert stats.chisquare(counts, 2000 * np.exp(law)).pvalue > 1e-4


def plain_descent(X, y, *, l2, steps, loss_clip):
    """Grid descent on all rows, written without the package."""
    X = np.column_stack([X, np.ones(len(X))])
    w, largest, recent, path, chosen = np.zeros(X.shape[1]), 2.0, [], [], []
    for _ in range(steps):
        slope = -1 / (1 + np.exp(y * (X @ w)))
        total = sum(s * label * x for s, label, x in zip(slope, y, X, strict=True))
        d = total / np.sqrt(total @ total) + l2 * w
        grid = [largest * j / 20 for j in range(21)]
        sums = [
            np.minimum(np.logaddexp(0, -y * (X @ (w - eta * d))), loss_clip).sum()
            for eta in grid
        ]
        best = int(np.argmin(sums))
        gap = sorted(sums)[1] - min(sums)
        assert gap > 2e-5  # far above the lattice of the gate
        if best > 0:
            w = w - grid[best] * d
            recent.append(grid[best])
            if len(recent) == 10:
                largest, recent = min(1.1 * max(recent), 2.0), []
        chosen.append(grid[best])
        path.append(w)
    return path, chosen


@pytest.mark.parametrize("loss_clip", [3.0, 1.2])
@pytest.mark.usefixtures("plain_products")
def test_huge_budgets_are_plain_grid_descent(loss_clip):
    X, y = blobs(150)
    X = on_lattice(X)
    method = method_of(
        gradient_rho=math.inf,
        search_epsilon=1e12,
        max_grad_norm=1e6,
        loss_clip=loss_clip,
    )
    data = PrivateDataset(X, y, n_rows=150, accountant=FreeAccountant())
    state = method.init(zeros(LOGISTIC))
    found = list(minimize(LOGISTIC, data, method, state, max_batches=12))
    path, chosen = plain_descent(X, y, l2=0.01, steps=12, loss_clip=loss_clip)
    assert [record.step_size for _, record in found] == pytest.approx(chosen)
    assert len(set(chosen)) > 3
    for (state, _), expected in zip(found, path, strict=True):
        np.testing.assert_allclose(state.w.numpy(), expected, rtol=0, atol=1e-12)


class TestUpdate:
    def test_candidate_i_moves_by_i_steps(self):
        """Not by i - 1: the least positive candidate moves."""
        method = method_of()
        for chosen in (1, 7, 20):
            start = method.init(zeros(LOGISTIC))
            state, records, _ = feed(method, start, [(G, chosen)])
            assert records[0].step_size == pytest.approx(0.1 * chosen)
            expected = -0.1 * chosen * np.array([0.6, 0, 0.8, 0])
            np.testing.assert_allclose(state.w.numpy(), expected, atol=1e-15)
            assert (state.updates, state.pending) == (1, None)
            assert records[0].direction_norm == pytest.approx(0.5)
            assert records[0].tries == 21

    def test_the_penalty_joins_after_the_normalization(self):
        method = method_of()
        w = torch.tensor([1.0, 2.0, 0.0, -1.0], dtype=torch.float64)
        state, *_ = feed(method, method.init(w), [(G, 10)])
        expected = w.numpy() - np.array([0.6, 0, 0.8, 0]) - 0.01 * w.numpy()
        np.testing.assert_allclose(state.w.numpy(), expected, atol=1e-15)

    def test_step_zero_moves_nothing(self):
        method = method_of()
        state, records, _ = feed(method, method.init(zeros(LOGISTIC)), [(G, 0)])
        assert state.w.tolist() == [0.0] * 4
        assert (records[0].step_size, state.updates, state.recent_steps) == (0.0, 0, ())

    def test_failures_neither_refresh_nor_empty_the_grid(self):
        method = method_of()
        state, *_ = feed(method, method.init(zeros(LOGISTIC)), [(G, 0)] * 30)
        assert (state.max_step, state.updates) == (2.0, 0)

    def test_refresh_shrinks_and_recovers(self):
        method = method_of(reset_every=2)
        state, *_ = feed(method, method.init(zeros(LOGISTIC)), [(G, 3), (G, 5)])
        assert state.max_step == pytest.approx(1.1 * 0.5)
        assert state.recent_steps == ()
        state, *_ = feed(method, state, [(G, 20), (G, 20)])
        assert state.max_step == pytest.approx(1.1 * 0.55)
        for _ in range(20):
            state, *_ = feed(method, state, [(G, 20), (G, 20)])
        assert state.max_step == 2.0

    def test_the_least_steps_keep_the_grid_positive(self):
        method = method_of(reset_every=1)
        state, *_ = feed(method, method.init(zeros(LOGISTIC)), [(G, 1)] * 60)
        assert state.max_step > 0

    def test_no_gradient_at_all(self):
        """Zero rows without noise: the penalty is all there is."""
        method = method_of()
        w = torch.ones(4, dtype=torch.float64)
        state, *_ = feed(method, method.init(w), [([0.0] * 4, 20)])
        np.testing.assert_allclose(state.w.numpy(), 1 - 2 * 0.01)

    def test_state_survives_a_checkpoint(self):
        method = method_of()
        state, *_ = feed(method, method.init(zeros(LOGISTIC)), [(G, 3), (G, 0)])
        again = survived(state)
        assert content(again) == content(state)
        assert method.plan(again) == method.plan(state)


class TestRuns:
    @pytest.mark.parametrize("split", ["equal", "classical"])
    @pytest.mark.parametrize("rule", ["bounded", "pure"])
    def test_the_budget_is_used_and_kept(self, split, rule):
        X, y = blobs()
        result = run("agd", X, y, initial_split=split, selection=rule, splits=10)
        assert 0.95 <= result.records[-1].epsilon <= 1.0
        assert np.all(result.accountant.spent <= result.accountant.limits)

    def test_it_learns(self):
        X, y = blobs(4000)
        w = run("agd", X, y, epsilon=4.0).w
        right = np.sign(X @ w[:3] + w[3]) == y
        assert right.mean() > 0.8

    def test_more_classes(self):
        X, _ = blobs(1500)
        y = np.digitize(X[:, 0], [0.4, 0.7])
        objective = LinearObjective(loss="softmax", n_features=3, n_classes=3)
        w = run("agd", X, y, epsilon=20.0, objective=objective).w.reshape(3, 4)
        right = (X @ w[:, :3].T + w[:, 3]).argmax(axis=1) == y
        assert right.mean() > 0.7

    def test_rows_without_numbers_do_not_choose(self, monkeypatch):
        X, y = np.full((5, 3), math.nan), np.ones(5)
        method = method_of()
        state = method.init(zeros(LOGISTIC))
        (law,) = log_laws(monkeypatch, method, state, X, y, LOGISTIC)
        np.testing.assert_allclose(law, -math.log(21), atol=1e-12)

    def test_a_batch_answers_its_plan_only(self):
        method = method_of()
        state = method.init(zeros(LOGISTIC))
        batch = opened(method, state, *blobs(10))
        method.step(batch, LOGISTIC, state)
        with pytest.raises(Exception, match="used already"):
            method.step(batch, LOGISTIC, state)
