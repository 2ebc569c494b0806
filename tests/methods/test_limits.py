# SPDX-License-Identifier: Apache-2.0
"""Without noise and with huge clips the methods are plain Armijo descent, exactly.

The descent here is written in NumPy, one example after the other where it matters, and
shares no line with the package.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from armijo._noise import PoissonRows
from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.data.gate import PrivateDataset
from armijo.errors import BudgetExceeded
from armijo.methods import BLGD, BLSGD, Problem, minimize
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice

HUGE = 1e9
STEPS = 25
ROWS, FEATURES, CLASSES = 120, 4, 3
LOSSES = ("logistic", "huber", "softmax")


def problem(loss):
    rng = np.random.default_rng(7)
    X = on_lattice(rng.normal(size=(ROWS, FEATURES)) * [2.0, 2.5, 1.0, 2.0])
    scores = X @ rng.normal(size=(FEATURES, CLASSES)) + rng.gumbel(size=(ROWS, CLASSES))
    if loss == "softmax":
        return X, scores.argmax(axis=1)
    return X, np.where(scores[:, 0] > scores[:, 1], 1.0, -1.0)


class PlainArmijo:
    """f(w) = sum of losses / size + l2/2 ||w||^2 on given rows, descended by Armijo."""

    def __init__(self, loss, l2, size):
        self.loss, self.l2, self.size = loss, l2, size
        self.initial_step, self.recent, self.updates = 2.0, [], 0
        self.tries = []

    def value(self, w, X, y):
        if self.loss == "softmax":
            scores = X @ w.reshape(CLASSES, -1).T
            losses = logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]
        elif self.loss == "logistic":
            losses = np.logaddexp(0.0, -y * (X @ w))
        else:
            gap = 1.0 - y * (X @ w)
            curved = (np.maximum(gap, -0.5) + 0.5) ** 2 / 2.0
            losses = np.where(gap > 0.5, gap, curved)
        return losses.sum() / self.size + 0.5 * self.l2 * (w @ w)

    def gradient(self, w, X, y):
        total = np.zeros_like(w)
        for x, label in zip(X, y, strict=True):
            if self.loss == "softmax":
                scores = w.reshape(CLASSES, -1) @ x
                chance = np.exp(scores - logsumexp(scores))
                chance[label] -= 1.0
                total += np.outer(chance, x).ravel()
                continue
            margin = label * (x @ w)
            slope = -1.0 / (1.0 + math.exp(margin))
            if self.loss == "huber":
                slope = -min(1.0, max(0.0, 1.5 - margin))
            total += slope * label * x
        return total / self.size + self.l2 * w

    def step(self, w, X, y):
        g = self.gradient(w, X, y)
        here, eta, tries = self.value(w, X, y), self.initial_step, 1
        while here - self.value(w - eta * g, X, y) < 0.5 * eta * (g @ g):
            eta, tries = 0.8 * eta, tries + 1
            assert tries <= 20
        self.tries.append(tries)
        self.recent.append(eta)
        self.updates += 1
        if self.updates % 10 == 0:
            self.initial_step = min(self.initial_step, 1.2 * max(self.recent))
            self.recent = []
        return w - eta * g


def run_method(method, loss, *, l2, intercept, randomness, steps=STEPS):
    X, y = problem(loss)
    objective = LinearObjective(
        loss=loss,
        n_features=FEATURES,
        n_classes=CLASSES,
        fit_intercept=intercept,
        l2=l2,
    )
    data = PrivateDataset(
        X, y, n_rows=ROWS, accountant=FreeAccountant(), randomness=randomness
    )
    state = method.init(torch.zeros(objective.size, dtype=torch.float64))
    found = list(minimize(objective, data, method, state, max_batches=steps))
    assert [record.step_size > 0 for _, record in found] == [True] * steps
    return [state.w.numpy() for state, _ in found], [r.tries for _, r in found]


def run_plain(loss, *, l2, intercept, sampling_prob, batches):
    X, y = problem(loss)
    if intercept:
        X = np.column_stack([X, np.ones(ROWS)])
    descent = PlainArmijo(loss, l2, sampling_prob * ROWS)
    w = np.zeros(X.shape[1] * (CLASSES if loss == "softmax" else 1))
    path = []
    for chosen in batches:
        w = descent.step(w, X[chosen], y[chosen])
        path.append(w)
    return path, descent.tries


def complete(kind, **settings):
    objective = LinearObjective(loss="logistic", n_features=2)
    return kind(**settings).completed(Problem(objective=objective))


def noiseless(kind, **settings):
    return complete(
        kind,
        gradient_rho=math.inf,
        search_epsilon=math.inf,
        max_grad_norm=HUGE,
        loss_clip=HUGE,
        **settings,
    )


def assert_same_path(found, expected):
    (path, tries), (plain, plain_tries) = found, expected
    assert tries == plain_tries
    assert max(tries) > 1
    assert np.abs(plain[-1]).max() > 0.1
    for ours, theirs in zip(path, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
class TestNoiseOff:
    @pytest.mark.parametrize("intercept", [True, False])
    @pytest.mark.parametrize("l2", [0.0, 0.05])
    @pytest.mark.parametrize("kind", [BLSGD, BLGD])
    @pytest.mark.usefixtures("plain_products")
    def test_full_batches(self, loss, kind, l2, intercept):
        settings = {"sampling_prob": 1.0} if kind is BLSGD else {}
        model = {"l2": l2, "intercept": intercept}
        found = run_method(
            noiseless(kind, **settings), loss, randomness=Randomness(), **model
        )
        everything = [np.arange(ROWS)] * STEPS
        assert_same_path(
            found, run_plain(loss, sampling_prob=1.0, batches=everything, **model)
        )

    @pytest.mark.parametrize("kind", ["laplace", "gaussian"])
    @pytest.mark.parametrize("form", ["loss", "difference"])
    @pytest.mark.usefixtures("plain_products")
    def test_poisson_batches(self, loss, kind, form):
        """The same batches are drawn again from the same seed."""
        sampling_prob, seed = 0.3, 5
        method = noiseless(
            BLSGD, sampling_prob=sampling_prob, search=kind, search_form=form
        )
        model = {"l2": 0.01, "intercept": True}
        randomness = Randomness(seed=seed, insecure_deterministic=True)
        found = run_method(method, loss, randomness=randomness, **model)
        batches = [
            PoissonRows(sampling_prob, randomness.for_charge(step).row_bits()).chosen(
                0, ROWS
            )
            for step in range(STEPS)
        ]
        assert len({len(chosen) for chosen in batches}) > 5
        assert_same_path(
            found,
            run_plain(loss, sampling_prob=sampling_prob, batches=batches, **model),
        )

    @pytest.mark.parametrize("kind", [BLSGD, BLGD])
    @pytest.mark.usefixtures("plain_products")
    def test_tail_mean_is_a_mean_of_the_same_path(self, loss, kind):
        """The t-th iterate counts t (t + 1) (t + 2); the path itself does not move."""
        settings = {"sampling_prob": 1.0} if kind is BLSGD else {}
        model = {"l2": 0.01, "intercept": True}
        method = noiseless(kind, average_iterates=True, **settings)
        means, tries = run_method(method, loss, randomness=Randomness(), **model)
        everything = [np.arange(ROWS)] * STEPS
        plain, plain_tries = run_plain(
            loss, sampling_prob=1.0, batches=everything, **model
        )
        assert tries == plain_tries
        counts = np.array([t * (t + 1) * (t + 2) for t in range(1, STEPS + 1)])
        for t, mean in enumerate(means, start=1):
            expected = counts[:t] @ np.array(plain[:t]) / counts[:t].sum()
            np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-12)
        assert np.abs(means[-1] - plain[-1]).max() > 1e-3
        late = counts[STEPS // 2 :].sum() / counts.sum()
        assert late == pytest.approx(15 / 16, abs=0.01)  # what the docs promise

    def test_a_clip_that_binds_leaves_the_path(self, loss):
        method = replace(noiseless(BLSGD, sampling_prob=1.0), max_grad_norm=0.5)
        model = {"l2": 0.01, "intercept": True}
        found, _ = run_method(method, loss, randomness=Randomness(), steps=1, **model)
        plain, _ = run_plain(
            loss, sampling_prob=1.0, batches=[np.arange(ROWS)], **model
        )
        assert np.abs(found[0] - plain[0]).max() > 1e-3


@pytest.mark.parametrize("kind", [BLSGD, BLGD])
def test_a_filter_refuses_a_run_without_noise(kind):
    method = noiseless(kind)
    accountant = PrivacyFilter(Budget(epsilon=1e6, delta=0.5))
    data = PrivateDataset(np.ones((3, 2)), np.ones(3), n_rows=3, accountant=accountant)
    with pytest.raises(BudgetExceeded):
        data.open(method.plan(method.init(torch.zeros(3, dtype=torch.float64))))
    assert accountant.n_charges == 0


def test_small_noise_is_close_to_none():
    """The lattice path: integers, exact noise of tiny scale, clips that do not bind."""
    steps = 6
    method = complete(
        BLSGD,
        gradient_rho=1e8,
        search_epsilon=1e6,
        sampling_prob=1.0,
        max_grad_norm=20.0,
        loss_clip=40.0,
    )
    X, y = problem("logistic")
    objective = LinearObjective(loss="logistic", n_features=FEATURES, l2=0.01)
    budget = Budget(epsilon=1e12, delta=1e-5)
    data = PrivateDataset(
        X,
        y,
        n_rows=ROWS,
        accountant=PrivacyFilter(budget, order=2, insecure_deterministic=True),
        randomness=Randomness(seed=1, insecure_deterministic=True),
    )
    state = method.init(torch.zeros(objective.size, dtype=torch.float64))
    found = list(minimize(objective, data, method, state, max_batches=steps))
    batches = [np.arange(ROWS)] * steps
    plain, tries = run_plain(
        "logistic", l2=0.01, intercept=True, sampling_prob=1.0, batches=batches
    )
    assert [record.tries for _, record in found] == tries
    for (state, _), expected in zip(found, plain, strict=True):
        np.testing.assert_allclose(state.w.numpy(), expected, rtol=0, atol=5e-4)
    assert not np.array_equal(found[-1][0].w.numpy(), plain[-1])
