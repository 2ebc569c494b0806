# SPDX-License-Identifier: Apache-2.0
"""HyFreeDP: the fitted step, the clip that follows the loss, and what is paid."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from armijo._noise import PoissonRows
from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import noise_multiplier_for, planned_epsilon
from armijo.baselines.hyfree import HyFree, parabola_minimum
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.estimators import PrivateLogisticRegression
from armijo.methods.base import Problem, minimize
from armijo.objectives.linear import LinearObjective
from armijo.objectives.losses import Huber
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice
from tests.training.files import survived

BUDGET = Budget(epsilon=1.0, delta=1e-6)
ROWS, FEATURES = 90, 3
LITERAL = {"step_change": 1e12, "significance": 0.0, "growth_cap": 1.0}


class Answers:
    """A batch without rows: what a step needs beside released sums would fail."""

    expected_size = 100.0

    def __init__(self, *sums):
        self.sums = [np.array(values, dtype=float) for values in sums]

    def noisy_sum(self, query, mechanism):
        return self.sums.pop(0)

    def noisy_vector(self, query, mechanism):
        return torch.from_numpy(self.sums.pop(0))


def table():
    rng = np.random.default_rng(3)
    X = on_lattice(rng.normal(size=(ROWS, FEATURES)) * [1.0, 2.0, 0.5])
    y = np.where(X @ [1.0, -1.0, 2.0] + rng.normal(size=ROWS) > 0.3, 1.0, -1.0)
    return X, y


def objective(loss="logistic", **more):
    return LinearObjective(loss=loss, n_features=FEATURES, **more)


def run(method, model, *, steps, seed=None, data=None):
    X, y = table() if data is None else data
    randomness = Randomness()
    if seed is not None:
        randomness = Randomness(seed=seed, insecure_deterministic=True)
    private = PrivateDataset(
        X, y, n_rows=len(y), accountant=FreeAccountant(), randomness=randomness
    )
    state = method.init(torch.zeros(model.size, dtype=torch.float64))
    return list(minimize(model, private, method, state, max_batches=steps))


def hyfree(**settings):
    """Return the method with what is usual for linear models."""
    return HyFree(**settings).completed(Problem(objective=objective()))


def quiet(**settings):
    return hyfree(**settings, noise_multiplier=0.0)


class PlainHyFree:
    """The method in NumPy, one example after the other."""

    def __init__(self, own, l2, size):
        self.own, self.l2, self.size = own, l2, size
        self.eta, self.clip = own["step_size"], own["loss_clip"]
        self.m, self.v, self.t = 0.0, 0.0, 0

    def loss(self, w, X, y):
        losses = [
            math.log1p(math.exp(-label * (x @ w)))
            for x, label in zip(X, y, strict=True)
        ]
        kept = sum(min(value, self.clip) for value in losses) / self.size
        return kept, kept + self.l2 / 2 * (w @ w)

    def direction(self, g):
        if self.own["variant"] == "sgd":
            return g
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        mean, square = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return mean / (np.sqrt(square) + 1e-8)

    def step(self, w, X, y):
        total = np.zeros_like(w)
        for x, label in zip(X, y, strict=True):
            g = -label * x / (1 + math.exp(label * (x @ w)))
            total += g / (math.sqrt(g @ g) + self.own["stability"])
        self.t += 1
        d = self.direction(total / self.size + self.l2 * w)
        if (self.t - 1) % self.own["reset_every"] == 0:
            behind = self.loss(w + self.eta * d, X, y)[1]
            data, here = self.loss(w, X, y)
            ahead = self.loss(w - self.eta * d, X, y)[1]
            bend, fall = ahead + behind - 2 * here, (behind - ahead) / 2
            if bend > 0 and fall > 0:
                self.eta *= fall / bend
            if data > 0:
                self.clip = self.own["growth_cap"] * data
        return w - self.eta * d


@pytest.mark.usefixtures("plain_products")
@pytest.mark.parametrize("variant", ["sgd", "adam"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("growth_cap", [1.0, 3.0])
def test_without_noise_it_is_the_plain_method(variant, every, growth_cap):
    own = {
        "variant": variant,
        "reset_every": every,
        "growth_cap": growth_cap,
        "step_size": 0.3,
        "loss_clip": 0.8,
        "stability": 0.1,
    }
    steps, sampling_prob, seed = 12, 0.4, 5
    method = quiet(sampling_prob=sampling_prob, steps=steps, **{**LITERAL, **own})
    found = run(method, objective(l2=0.02), steps=steps, seed=seed)
    again = Randomness(seed=seed, insecure_deterministic=True)
    X, y = table()
    X = np.column_stack([X, np.ones(ROWS)])
    plain, w = PlainHyFree(own, 0.02, sampling_prob * ROWS), np.zeros(FEATURES + 1)
    sizes = set()
    for charge, (state, record) in enumerate(found):
        bits = again.for_charge(charge).row_bits()
        chosen = PoissonRows(sampling_prob, bits).chosen(0, ROWS)
        w = plain.step(w, X[chosen], y[chosen])
        np.testing.assert_allclose(state.w.numpy(), w, rtol=0, atol=1e-7)
        # The curvature is a small difference of losses: digits cancel.
        assert record.step_size == pytest.approx(plain.eta, rel=1e-6)
        assert state.loss_clip == pytest.approx(plain.clip, rel=1e-9)
        sizes.add(record.step_size)
    assert len(sizes) > 1
    assert np.abs(w).max() > 0.1


@pytest.mark.usefixtures("plain_products")
def test_on_a_quadratic_the_step_is_newtons():
    """A Huberized hinge of great width is a parabola wherever the margins are."""
    h = 50.0
    model = objective(Huber(h), l2=0.05, fit_intercept=False)
    method = quiet(
        sampling_prob=1.0, variant="sgd", step_size=0.7, loss_clip=1e3, **LITERAL
    )
    ((state, record),) = run(method, model, steps=1)
    X, y = table()
    slopes = np.full(ROWS, -(1 + h) / (2 * h)) * y
    gradient = X.T @ slopes / ROWS
    hessian = X.T @ X / (2 * h) / ROWS + 0.05 * np.eye(FEATURES)
    normalized = [
        s * x / (np.linalg.norm(s * x) + 1.0) for s, x in zip(slopes, X, strict=True)
    ]
    d = np.sum(normalized, axis=0) / ROWS
    newton = (gradient @ d) / (d @ hessian @ d)
    assert record.step_size == pytest.approx(newton, rel=1e-8)
    np.testing.assert_allclose(state.w.numpy(), -newton * d, rtol=1e-8)


@pytest.mark.parametrize("points", [3, 5, 7])
def test_a_parabola_is_found_exactly(points):
    places = np.arange(points, dtype=float) - points // 2
    values = 2.0 * (places - 1.7) ** 2 + 5.0
    assert parabola_minimum(places, values) == pytest.approx(1.7, rel=1e-12)


@pytest.mark.parametrize(
    "values", [[0.0, 1.0, 0.5], [1.0, 1.0, 1.0], [0.0, 1.0, 3.0], [3.0, math.nan, 1.0]]
)
def test_what_is_no_valley_ahead_gives_no_step(values):
    assert parabola_minimum(np.array([-1.0, 0.0, 1.0]), np.array(values)) is None


def test_curvature_within_its_noise_gives_no_step():
    """Of three values with noise s, the curvature coefficient has noise sqrt(1.5) s."""
    places, values = np.array([-1.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0])
    assert parabola_minimum(places, values, 0.99 / math.sqrt(1.5)) == pytest.approx(0.5)
    assert parabola_minimum(places, values, 1.01 / math.sqrt(1.5)) is None


class TestFit:
    """One step from given answers: sums of a gradient and of three losses."""

    size = 100.0

    def after(self, losses, noise=0.0, **settings):
        own = hyfree(variant="sgd", step_size=0.5, **settings)
        method = replace(own, noise_multiplier=noise)
        batch = Answers([1.0, 0.0, 0.0, 0.0], np.array(losses) * self.size)
        state = method.init(torch.zeros(4, dtype=torch.float64))
        return method.step(batch, objective(l2=0.0), state)

    def test_step_and_clip_follow_the_fit(self):
        state, record = self.after([0.9, 0.6, 0.5])
        assert record.step_size == pytest.approx(0.5 * 0.2 / 0.2)
        assert state.loss_clip == pytest.approx(3.0 * 0.6)
        assert record.loss_clip == 1.0

    def test_the_next_clip_is_in_units_of_this_one(self):
        state, _ = self.after([0.9, 0.6, 0.5], loss_clip=2.0, growth_cap=1.0)
        assert state.loss_clip == pytest.approx(1.2)

    @pytest.mark.parametrize("losses", [[0.4, 0.6, 0.4], [0.2, 0.3, 0.7]])
    def test_the_old_step_stays_without_a_valley(self, losses):
        assert self.after(losses)[1].step_size == 0.5

    @pytest.mark.parametrize("level", [0.0, -0.2])
    def test_the_old_clip_stays_below_zero(self, level):
        assert self.after([0.5, level, 0.1])[0].loss_clip == 1.0

    @pytest.mark.parametrize(
        ("losses", "step"), [([1, 0.5, 0.02], 1.0), ([1, 0, 0.9], 0.25)]
    )
    def test_one_fit_changes_the_step_by_a_bounded_factor(self, losses, step):
        assert self.after(losses)[1].step_size == pytest.approx(step)
        free = self.after(losses, step_change=1e9)[1].step_size
        assert (free > 1.0) if step > 0.5 else (free < 0.25)

    def test_noise_that_hides_the_curvature_keeps_the_step(self):
        assert self.after([0.9, 0.6, 0.45], noise=0.1)[1].step_size > 0.6
        assert self.after([0.9, 0.6, 0.45], noise=50.0)[1].step_size == 0.5
        literal = self.after([0.9, 0.6, 0.45], noise=50.0, significance=0.0)
        assert literal[1].step_size != 0.5

    def test_the_public_penalty_joins_the_fit(self):
        method = hyfree(variant="sgd", step_size=0.5, noise_multiplier=0.0)
        batch = Answers([100.0, 0.0, 0.0, 0.0], [90.0, 60.0, 50.0])
        state = method.init(torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
        _, record = method.step(batch, objective(l2=0.4), state)
        d = 1.0 + 0.4  # gradient and penalty's
        values = [
            level + 0.2 * (1 - s * d) ** 2
            for level, s in [(0.9, -0.5), (0.6, 0.0), (0.5, 0.5)]
        ]
        expected = parabola_minimum(np.array([-1.0, 0.0, 1.0]), np.array(values))
        assert record.step_size == pytest.approx(0.5 * expected)


def test_a_clip_at_the_mean_falls_and_one_with_headroom_does_not():
    kept = {}
    for growth_cap in (1.0, 3.0):
        method = quiet(
            sampling_prob=1.0, steps=30, reset_every=1, growth_cap=growth_cap
        )
        kept[growth_cap] = run(method, objective(), steps=30)[-1][0].loss_clip
    assert kept[1.0] < 0.02
    assert kept[3.0] > 0.2


@pytest.mark.parametrize(
    ("sampling_prob", "epsilon", "every"),
    [(0.1, 0.5, 4), (0.3, 1.0, 1), (1.0, 2.0, 50)],
)
def test_the_plan_fits_and_uses_the_budget(sampling_prob, epsilon, every):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    settings = HyFree(sampling_prob=sampling_prob, steps=11, reset_every=every)
    method = settings.calibrate(budget, Problem(objective=objective(), n_rows=9))
    spent, proof = planned_epsilon(method.schedule(), budget.delta)
    assert 0.99 * epsilon <= spent <= epsilon
    assert proof == ("planned-profile" if sampling_prob == 1 else "planned-pld")
    alone = noise_multiplier_for(budget, sampling_prob=sampling_prob, steps=11)
    assert method.base.gradient.noise_scale / alone == pytest.approx(1.01, abs=2e-3)
    assert method.losses.noise_multiplier > method.base.gradient.noise_multiplier


def test_the_two_kinds_of_batches_stand_in_their_order():
    method = hyfree(steps=12, reset_every=5, noise_multiplier=3.0)
    parts = [
        (getattr(kind.inner, "mechanisms", (kind.inner,)), count)
        for kind, count in method.schedule()
    ]
    gradient, both = (method.base.gradient,), (method.base.gradient, method.losses)
    assert parts == [
        (both, 1),
        (gradient, 4),
        (both, 1),
        (gradient, 4),
        (both, 1),
        (gradient, 1),
    ]
    ones = hyfree(steps=12, reset_every=1, noise_multiplier=3.0).schedule()
    assert [count for _, count in ones] == [12]


@pytest.mark.parametrize("shape", ["rows", "empty", "zero", "nan"])
def test_a_whole_run_keeps_its_plan(shape):
    X, y = table()
    if shape == "empty":
        X, y = X[:0], y[:0]
    if shape == "zero":
        X = np.zeros_like(X)
    if shape == "nan":
        X[::3] = np.nan
    # Noise that is enough for the budget, found beforehand.
    method = hyfree(steps=7, reset_every=3, sampling_prob=0.2, noise_multiplier=4.0)
    accountant = PlannedAccountant(
        BUDGET, method.schedule(), insecure_deterministic=True
    )
    data = PrivateDataset(
        X,
        y,
        n_rows=ROWS,
        accountant=accountant,
        randomness=Randomness(seed=1, insecure_deterministic=True),
    )
    state = method.init(torch.zeros(4, dtype=torch.float64))
    found = list(minimize(objective(), data, method, state))
    assert [record.tries for _, record in found] == [3, 0, 0, 3, 0, 0, 3]
    assert found[-1][1].epsilon <= BUDGET.epsilon
    assert all(bool(torch.isfinite(state.w).all()) for state, _ in found)
    last = found[-1][0]
    again = survived(last)
    assert torch.equal(again.w, last.w)
    assert torch.equal(again.second_moment, last.second_moment)
    assert replace(again, w=0, first_moment=0, second_moment=0) == replace(
        last, w=0, first_moment=0, second_moment=0
    )


rows = st.lists(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=3, max_size=3
    ),
    max_size=6,
)


@given(rows, st.floats(1e-3, 10.0), st.floats(1e-3, 1e3), st.integers(0, 5))
def test_each_row_stays_within_its_bound(X, stability, clip, seed):
    """What the gate would clip to is kept already, up to rounding."""
    X = np.array(X, dtype=float).reshape(-1, 3)
    y = np.where(np.arange(len(X)) % 2, 1.0, -1.0)
    rng = np.random.default_rng(seed)
    w, d = torch.from_numpy(rng.normal(size=4)), torch.from_numpy(rng.normal(size=4))
    model, batch = objective(), Rows(X, y)
    outer = model.normalized_gradient_sum(w, stability=stability).contributions(batch)
    with np.errstate(over="ignore", invalid="ignore"):
        full = np.column_stack([batch.X, np.ones(len(X))])
        norms = np.abs(outer.coefficients[:, 0]) * np.linalg.norm(full, axis=1)
    assert np.all(norms[np.isfinite(norms)] <= 1 + 1e-12)
    query = model.losses_along(w, d, [-0.5, 0.0, 0.5], clip=clip)
    shares = query.contributions(batch)
    assert query.bound == math.sqrt(3)
    assert shares.shape == (len(X), 3)
    kept = ~batch.blanks()
    assert np.all((shares[kept] >= 0) & (shares[kept] <= 1 + 1e-12))
    assert np.isnan(shares[~kept]).all()


def torch_loss(loss, scores, label):
    """The losses as torch has them, which can be differentiated."""
    if loss == "softmax":
        return torch.logsumexp(scores[0], dim=0) - scores[0, int(label)]
    margin = scores[0] * label
    return torch.relu(1 - margin) if loss == "hinge" else -logsigmoid(margin)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
@pytest.mark.usefixtures("plain_products")
def test_normalized_gradients_of_every_loss(loss):
    X, y = table()
    classes = 3 if loss == "softmax" else 2
    if loss == "softmax":
        y = (np.arange(ROWS) % 3).astype(int)
    model = objective(loss, n_classes=classes)
    w = torch.linspace(-1.0, 1.0, model.size, dtype=torch.float64)
    outer = model.normalized_gradient_sum(w, stability=0.2).contributions(Rows(X, y))
    for i in range(ROWS):
        v = w.clone().requires_grad_()
        weights = v.reshape(model.outputs, -1)
        score = weights[:, :-1] @ torch.from_numpy(X[i]) + weights[:, -1]
        scores = score if model.outputs == 1 else score[None]
        (g,) = torch.autograd.grad(torch_loss(loss, scores, y[i]), v)
        ours = np.outer(outer.coefficients[i], [*X[i], 1.0]).ravel()
        expected = (g / (g.norm() + 0.2)).numpy()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


def test_the_first_step_is_the_optimizers():
    w = torch.zeros(2, dtype=torch.float64)
    starts = {
        variant: hyfree(variant=variant).init(w).step_size
        for variant in ("adam", "sgd")
    }
    assert starts == {"adam": 0.1, "sgd": 1.0}
    assert hyfree(step_size=1e-4).init(w).step_size == 1e-4


def test_one_step_is_paid_and_delivered():
    """Its only batch is a fit; the batch after it would be of another kind."""
    X, y = table()
    model = PrivateLogisticRegression(
        epsilon=1.0, delta=1e-6, method=HyFree(steps=1), classes=[-1, 1], n_rows=ROWS
    ).fit(X, y)
    assert model.n_iter_ == len(model.privacy_.ledger) == 1
    assert np.any(model.coef_)
