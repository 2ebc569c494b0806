# SPDX-License-Identifier: Apache-2.0
"""The searched step for networks: its queries, its rule for the step, its mean."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import planned_epsilon
from armijo.accounting.mechanisms import Composed, Gaussian, Subsampled
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.data.sources import TensorRows
from armijo.methods.base import Direction, Problem, minimize
from armijo.methods.searched_sgd import SearchedSGD, SearchedState, _evidence
from armijo.objectives.linear import LinearObjective
from armijo.objectives.module import ModuleObjective, as_module
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.networks.network_doubles import CROSS_ENTROPY, ROWS, examples, network

DTYPE = torch.float64


def built(steps=12, noise=1.0, sampling_prob=0.2, **given):
    sizes = {"sampling_prob": sampling_prob, "steps": steps}
    return SearchedSGD(**given, **sizes, noise_multiplier=noise)


def state(method, **given):
    return replace(method.init(torch.zeros(3, dtype=DTYPE)), **given)


def test_drops_are_those_of_one_example_at_a_time():
    objective = ModuleObjective(network(DTYPE), CROSS_ENTROPY)
    X, y = examples(DTYPE)
    w, sizes = objective.start(), (0.1, 0.4)
    step = torch.linspace(-1, 1, len(w), dtype=DTYPE)
    units = np.array([0.5, 2.0])
    query = objective.drops_along(w, step, sizes, units=units)
    found = query.contributions(Rows(X, y, cache={}, seed=0))
    for i in range(len(y)):
        losses = []
        for size in (0.0, *sizes):
            objective.load(w - size * step)
            out = objective.module(X[i : i + 1])
            losses.append(CROSS_ENTROPY(out, y[i : i + 1]).item())
        expected = (losses[0] - np.array(losses[1:])) / units
        np.testing.assert_allclose(found[i], expected, atol=1e-12)
    assert query.bound == math.sqrt(2)


def test_other_objectives_are_refused():
    with pytest.raises(TypeError, match="LinearObjective"):
        as_module(LinearObjective(loss="logistic", n_features=2))


def test_a_batch_with_a_search_is_one_gaussian_of_both():
    """1/sigma^2 of gradient and search add up to that of a gradient over 1 - share."""
    method = built(noise=1.3, search_share=0.2, max_grad_norm=2.0)
    joint = method.plan(state(method, updates=0)).mechanism
    alone = method.plan(state(method, updates=1)).mechanism
    assert isinstance(joint, Subsampled) and isinstance(joint.inner, Composed)
    assert isinstance(alone.inner, Gaussian)
    assert alone.inner.noise_multiplier == pytest.approx(1.3)
    rho = sum(part.rho for part in joint.inner.mechanisms)
    assert rho == pytest.approx(alone.inner.rho / 0.8)


def test_the_plan_is_the_schedule():
    method = built(steps=11, reset_every=4)
    planned = [kind for kind, count in method.schedule() for _ in range(count)]
    asked = [method.plan(state(method, updates=t)).mechanism for t in range(11)]
    assert planned == asked
    assert sum(isinstance(kind.inner, Composed) for kind in planned) == 3


def test_the_noise_uses_the_budget_and_no_more():
    budget = Budget(epsilon=2.0, delta=1e-5)
    method = SearchedSGD(sampling_prob=0.1, steps=40).calibrate(budget, Problem())
    found, _ = planned_epsilon(method.schedule(), budget.delta)
    assert 0.98 * budget.epsilon < found <= budget.epsilon


@pytest.mark.parametrize(
    ("halve", "double", "expected"), [(9, 0, 0.5), (0, 9, 2.0), (6, 9, 2.0), (5, 5, 1)]
)
def test_the_step_follows_strong_evidence_only(halve, double, expected):
    method = built()
    before = state(method, step_size=1.0)
    after = method._changed(before, halve=halve, double=double)
    assert after.step_size == expected
    if expected != 1:
        assert (after.halve, after.double) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("halve", "double"), [(math.nan, 0), (0, math.nan), (9, math.nan), (math.nan, 9)]
)
def test_evidence_that_is_no_number_halves_the_step(halve, double):
    method = built()
    before = state(method, step_size=1.0)
    after = method._changed(before, halve=halve, double=double)
    assert (after.step_size, after.halve, after.double) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("gain", "noise"), [(math.nan, 1.0), (math.nan, 0.0), (math.inf, math.inf)]
)
def test_a_gain_that_is_no_number_is_no_evidence_to_double(gain, noise):
    method, found = built(), _evidence(gain, noise)
    after = method._changed(state(method, step_size=1.0), halve=found, double=found)
    assert after.step_size == 0.5


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_noise_alone_moves_no_step_within_its_deviation(values):
    """A mean of ten searches has the deviation 0.23; some of these are asked for."""
    method = built()
    now = state(method, step_size=1.0)
    for value in values:
        now = method._changed(now, halve=0.5 * value, double=-0.5 * value)
    assert now.step_size == 1.0


def test_noise_alone_hardly_ever_changes_the_step_of_a_run():
    rng = np.random.default_rng(0)
    method = built(steps=2000)
    changed = 0
    for _ in range(100):
        now = state(method, step_size=1.0)
        for halve, double in rng.normal(size=(400, 2)):
            now = method._changed(now, halve=halve, double=double)
        changed += now.step_size != 1.0
    assert changed <= 12


@pytest.mark.parametrize(
    ("clip", "first", "largest"), [(1, 4, 8), (2, 4, 4), (1, 20, 20)]
)
def test_doubling_ends(clip, first, largest):
    method = built(max_grad_norm=clip, step_size=first)
    now = state(method, step_size=first / clip)
    for _ in range(200):
        now = method._changed(now, halve=-5.0, double=5.0)
    assert now.step_size == largest
    now = method._changed(now, halve=math.nan, double=math.nan)
    assert now.step_size == largest / 2


def test_repeated_weak_evidence_adds_up():
    method = built()
    now = state(method, step_size=1.0)
    for _ in range(12):
        now = method._changed(now, halve=-1.0, double=1.0)
    assert now.step_size > 1.0


def test_the_mean_forgets_the_early_iterates():
    """Weights of the iterates are those of Shamir and Zhang's polynomial decay."""
    method = built(averaging_power=3.0)
    now, points = state(method), []
    rng = np.random.default_rng(0)
    for _ in range(40):
        vector = torch.from_numpy(rng.normal(size=3))
        now = method._moved(now, Direction(vector=vector))
        points.append(now.point)
    weights, left = [], 1.0
    for t in range(40, 0, -1):
        share = 4.0 / (3.0 + t)
        weights.append(left * share)
        left *= 1 - share
    assert left == pytest.approx(0.0, abs=1e-12)
    mean = sum(w * p for w, p in zip(reversed(weights), points, strict=True))
    torch.testing.assert_close(now.w, mean)
    assert weights[0] > 3 * weights[-1]


def test_without_noise_the_loss_falls_and_a_tiny_step_grows():
    objective = ModuleObjective(network(DTYPE), CROSS_ENTROPY)
    data = PrivateDataset(
        TensorRows(*examples(DTYPE)),
        n_rows=ROWS,
        accountant=FreeAccountant(),
        randomness=Randomness(seed=1, insecure_deterministic=True),
    )
    settings = SearchedSGD(step_size=0.01, reset_every=1, sampling_prob=1.0, steps=40)
    method = replace(settings, noise_multiplier=0.0)
    first = method.init(objective.start())
    found = [s for s, _ in minimize(objective, data, method, first, max_batches=40)]
    assert found[-1].step_size >= 8 * first.step_size
    X, y = examples(DTYPE)
    objective.load(first.w)
    before = CROSS_ENTROPY(objective.module(X), y).mean().item()
    objective.load(found[-1].w)
    assert CROSS_ENTROPY(objective.module(X), y).mean().item() < 0.9 * before


def test_the_unit_of_the_drops_is_above_what_noise_alone_shows():
    method = built(max_grad_norm=2.0)
    size, variance = 10_000, 1e-4
    noise_only = Direction(
        vector=torch.full((size,), 1e-2, dtype=DTYPE), noise_sq_norm=size * variance
    )
    _, slope = method._slope(state(method), noise_only, size)
    assert slope == pytest.approx(2.0 * math.sqrt(variance * math.sqrt(2 * size)))


def test_a_state_from_a_file_is_checked():
    w = torch.zeros(2)
    with pytest.raises(ValueError, match="step_size"):
        SearchedState(w=w, point=w, step_size=0.0)


def test_past_the_end_the_last_batch_is_named_again():
    """The accountant refuses it; another kind of batch would be an error instead."""
    method = built(steps=1)
    assert method.plan(state(method, updates=1)) == method.plan(state(method))
