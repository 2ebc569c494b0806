# SPDX-License-Identifier: Apache-2.0
"""Tuned DP-SGD: one charge for the search, and only its best run comes out."""

import math
from dataclasses import dataclass, field, fields

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.accounting.mechanisms import Gaussian, RepeatAndSelect
from armijo.baselines.tuned import TunedSGD, TunedState, best_run, stopping_probability
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.errors import BudgetExceeded
from armijo.methods.base import Problem, minimize
from armijo.methods.sgd import DPSGD
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from tests.seeded_bits import SeededBits
from tests.training.files import survived

BUDGET = Budget(epsilon=1.0, delta=1e-6)
ROWS = 400
OBJECTIVE = LinearObjective(loss="logistic", n_features=3)


def table(rows=ROWS):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(rows, 3))
    return X, np.where(X @ [2.0, -1.0, 0.5] > 0, 1.0, -1.0)


@pytest.fixture(scope="module")
def small():
    """A search whose noise was solved for the budget."""
    settings = TunedSGD(sampling_prob=0.5, steps=3, repetitions=4.0)
    return settings.calibrate(BUDGET, Problem(objective=OBJECTIVE, n_rows=ROWS))


def data_for(method, seed, table=None):
    X, y = globals()["table"]() if table is None else table
    accountant = PlannedAccountant(
        BUDGET, method.schedule(), insecure_deterministic=True
    )
    randomness = Randomness(seed=seed, insecure_deterministic=True).for_charge(0)
    return PrivateDataset(
        X, y, n_rows=ROWS, accountant=accountant, randomness=randomness
    )


def run(method, seed=0, **more):
    data = data_for(method, seed, **more)
    start = method.init(torch.zeros(OBJECTIVE.size, dtype=torch.float64))
    return list(minimize(OBJECTIVE, data, method, start)), data.accountant


@dataclass(frozen=True, kw_only=True)
class Watched(TunedSGD):
    """Remembers what each run scored and with which settings."""

    log: list = field(default_factory=list, compare=False)

    def _run(self, *task):
        score, state = super()._run(*task)
        self.log.append((score, state))
        return score, state


def watched(method, **changes):
    kept = {f.name: getattr(method, f.name) for f in fields(TunedSGD)}
    return Watched(**{**kept, **changes})


@pytest.mark.parametrize(
    ("sampling_prob", "epsilon", "repetitions"), [(0.1, 0.5, 10.0), (1.0, 3.0, 2.5)]
)
def test_the_search_fits_and_uses_the_budget(sampling_prob, epsilon, repetitions):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    settings = TunedSGD(sampling_prob=sampling_prob, steps=9, repetitions=repetitions)
    method = settings.calibrate(budget, Problem(objective=OBJECTIVE, n_rows=9))
    spent, proof = planned_epsilon(method.schedule(), budget.delta)
    assert 0.99 * epsilon <= spent <= epsilon
    assert proof == "planned-rdp"


def test_the_score_gets_its_share():
    method = TunedSGD(sampling_prob=1.0, steps=9, score_share=0.2).calibrate(
        BUDGET, Problem(objective=OBJECTIVE, n_rows=9)
    )
    gradients = 9 * 0.5 / method.noise_multiplier**2
    assert method.score.rho / (gradients + method.score.rho) == pytest.approx(0.2)


def test_the_winner_is_the_best_by_noisy_score(small):
    lengths = set()
    for seed in range(12):
        method = watched(small)
        ((state, record),), accountant = run(method, seed)
        best = max(score for score, _ in method.log)
        winner = next(run for score, run in method.log if score == best)
        assert state is winner
        assert (record.step_size, record.max_grad_norm) == (
            winner.step_size,
            winner.max_grad_norm,
        )
        assert accountant.n_charges == 1
        lengths.add(len(method.log))
    assert len(lengths) > 2


def test_nothing_tells_how_many_runs_there_were(small):
    assert {f.name for f in fields(TunedState)} == {
        "w",
        "step_size",
        "max_grad_norm",
        "score",
    }
    shown = []
    for seed in range(12):
        ((_, record),), _ = run(watched(small), seed)
        shown.append(
            {k: v for k, v in record.to_dict().items() if k not in HELD_BY_WINNER}
        )
    assert all(found == shown[0] for found in shown)
    assert shown[0]["gradients"] is None


HELD_BY_WINNER = {"step_size", "max_grad_norm"}


def test_one_run_of_one_setting_is_plain_sgd(small):
    """With a mean of one the search ends after its first run."""
    method = watched(
        small, step_sizes=(0.7,), max_grad_norms=(2.0,), repetitions=1 + 1e-12
    )
    ((state, _),), _ = run(method, seed=4)
    assert len(method.log) == 1
    sgd = DPSGD(
        sampling_prob=0.5,
        steps=3,
        step_size=0.7,
        max_grad_norm=2.0,
        noise_multiplier=small.noise_multiplier,
    )
    data = data_for(sgd, seed=4)
    path = list(minimize(OBJECTIVE, data, sgd, sgd.init(torch.zeros(4).double())))
    assert len(path) == 3
    assert torch.equal(state.w, path[-1][0].w)


def test_the_score_counts_right_rows(small):
    """Scores of a run differ from its count by the noise that was charged."""
    X, y = table()
    gaps = []
    for seed in range(40):
        method = watched(small)
        run(method, seed)
        for score, state in method.log:
            right = (X @ state.w.numpy()[:3] + state.w.numpy()[3] >= 0) == (y > 0)
            gaps.append((score - right.sum()) / small.score.noise_scale)
    assert len(gaps) > 80
    assert abs(np.mean(gaps)) < 4 / np.sqrt(len(gaps))
    assert 0.7 < np.std(gaps) < 1.3


def test_settings_are_drawn_evenly(small):
    bits, seen = SeededBits(1), {}
    draws = 2400
    for _ in range(draws):
        sgd = small._drawn(bits)
        pair = sgd.step_size, sgd.gradient.sensitivity
        seen[pair] = seen.get(pair, 0) + 1
        assert sgd.gradient.noise_multiplier == pytest.approx(small.noise_multiplier)
    assert len(seen) == len(small.step_sizes) * len(small.max_grad_norms)
    assert max(abs(n - draws / len(seen)) for n in seen.values()) < 5 * np.sqrt(200)


def test_a_second_search_is_refused(small):
    data = data_for(small, seed=0)
    plan = small.plan(small.init(torch.zeros(4).double()))
    data.open(plan)
    with pytest.raises(BudgetExceeded):
        data.open(plan)


def test_the_state_survives_a_checkpoint(small):
    ((state, _),), _ = run(small)
    again = survived(state)
    assert torch.equal(again.w, state.w)
    assert (again.step_size, again.max_grad_norm, again.score) == (
        state.step_size,
        state.max_grad_norm,
        state.score,
    )


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_right_rows_are_those_predicted(loss):
    X, y = table(50)
    if loss == "softmax":
        y = (np.arange(50) % 3).astype(int)
    model = LinearObjective(loss=loss, n_features=3, n_classes=3)
    w = torch.linspace(-1.0, 1.5, model.size, dtype=torch.float64)
    weights = w.numpy().reshape(model.outputs, -1)
    scores = X @ weights[:, :-1].T + weights[:, -1]
    predicted = scores.argmax(axis=1)
    if loss == "logistic":
        predicted = np.where(scores[:, 0] >= 0, 1.0, -1.0)
    query = model.correct_sum(w)
    assert query.bound == 1.0
    found = query.contributions(Rows(X, y))
    np.testing.assert_array_equal(found, (predicted == y)[:, None].astype(float))
    assert 0 < found.sum() < 50


def test_noise_that_cannot_be_drawn_is_refused_beforehand():
    problem = Problem(objective=OBJECTIVE, n_rows=ROWS)
    settings = TunedSGD(sampling_prob=1.0, steps=1, repetitions=2.0, score_share=1e-16)
    with pytest.raises(ValueError, match="nothing was spent"):
        settings.calibrate(BUDGET, problem)


BASE = Gaussian(noise_scale=5.0)


class Runs:
    """Runs with given scores, over and over; the result is the number of the run."""

    def __init__(self, *scores):
        self.scores, self.made = scores, 0

    def __call__(self):
        self.made += 1
        return self.scores[(self.made - 1) % len(self.scores)], self.made


@pytest.mark.parametrize("mean", [1.5, 4.0, 10.0])
def test_the_number_of_runs_is_geometric(mean):
    bits, mechanism, draws = SeededBits(11), RepeatAndSelect(BASE, mean=mean), 4000
    counts = []
    for _ in range(draws):
        runs = Runs(0.0)
        best_run(runs, mechanism, bits)
        counts.append(runs.made)
    assert np.mean(counts) == pytest.approx(mean, rel=0.08)
    top = max(2, int(2 * mean))
    law = [(1 - 1 / mean) ** (k - 1) / mean for k in range(1, top)]
    seen = [counts.count(k) for k in range(1, top)]
    law, seen = [*law, 1 - sum(law)], [*seen, draws - sum(seen)]
    assert chisquare(seen, np.array(law) * draws).pvalue > 1e-4


@pytest.mark.parametrize("mean", [1.0 + 1e-9, 1.1, 3.0, 7.3, 10.0, 1e6])
def test_the_chance_never_undercuts_what_was_charged(mean):
    mechanism = RepeatAndSelect(BASE, mean=mean)
    chance = stopping_probability(mechanism)
    assert 1 / chance <= mean
    assert -math.log(chance) <= -math.log(mechanism.stop_probability)
    assert chance == pytest.approx(1 / mean, rel=1e-9)


def test_the_highest_score_wins_and_the_first_of_equals():
    mechanism, bits = RepeatAndSelect(BASE, mean=50.0), SeededBits(3)
    seen = set()
    for _ in range(300):
        runs = Runs(1.0, 3.0, -2.0, 5.0, 5.0, 4.0)
        kept = best_run(runs, mechanism, bits)
        expected = {1: 1, 2: 2, 3: 2}.get(runs.made, 4)
        assert kept == expected
        seen.add(kept)
    assert seen == {1, 2, 4}
