# SPDX-License-Identifier: Apache-2.0
"""Whitened unit rows: every release moves by at most its sensitivity, bit for bit."""

import math

import numpy as np
import pytest
import torch

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.feature_rows import FeatureRows, held_rows
from armijo.data.integer_rows import FEATURE_BITS
from armijo.data.query import Rows
from armijo.methods.base import Problem
from armijo.methods.whitened import (
    WHITENING_BITS,
    Whitened,
    WhitenedSpace,
    centered_rows,
    row_sum,
    whitened_rows,
    whitening_of,
)
from armijo.objectives.linear import LinearObjective
from armijo.training.run import Run

BITS = 20
CLASSES, FEATURES = 3, 12
OBJECTIVE = LinearObjective(
    loss="softmax", n_features=FEATURES, n_classes=CLASSES, l2=0.0
)


def unit_steps(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, FEATURES))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.rint(rows * 2**FEATURE_BITS).astype(np.int16)


def extreme_steps():
    """Return rows that no feature map makes: a bound must hold for any."""
    rows = np.zeros((6, FEATURES), dtype=np.int16)
    rows[0], rows[1] = 32767, -32768
    rows[2, 0], rows[3, ::2] = 1, -3
    rows[4] = np.arange(FEATURES) * 2731
    return rows


def space(whitened=True, seed=0):
    rng = np.random.default_rng(seed)
    center = 0.1 * rng.normal(size=FEATURES)
    square = rng.normal(size=(FEATURES, FEATURES))
    values, vectors = np.linalg.eigh(square @ square.T / FEATURES)
    found = whitening_of(values, vectors, 0.05) if whitened else None
    return WhitenedSpace(
        objective=OBJECTIVE,
        center=center,
        radius=1.0,
        constant=0.03,
        clip=0.03,
        whitening=found,
        digest=f"{seed} {whitened}",
    )


def integers(query, steps, y, known):
    rows = Rows(held_rows(steps, known.astype(float)), y, run_cache={})
    return query.contributions(rows).integers(BITS).numpy().astype(object)


def queries():
    w = torch.from_numpy(np.random.default_rng(5).normal(size=OBJECTIVE.size))
    return {
        "sum": row_sum(),
        "moments": space(whitened=False).second_moments(),
        "gradient": space().gradient_sum(w),
    }


@pytest.mark.parametrize("name", ["sum", "moments", "gradient"])
def test_one_row_moves_a_release_by_at_most_its_bound(name):
    query = queries()[name]
    steps = np.concatenate([unit_steps(20), extreme_steps()])
    y = np.arange(len(steps)) % CLASSES
    everybody = np.ones(len(steps), dtype=bool)
    whole, most = integers(query, steps, y, everybody), 0.0
    for row in range(len(steps)):
        without = everybody.copy()
        without[row] = False
        moved = whole - integers(query, steps, y, without)
        alone = integers(query, steps[row : row + 1], y[row : row + 1], everybody[:1])
        assert (moved == alone).all()  # nothing of it goes through other rows
        length = math.isqrt(int((moved * moved).sum()))
        assert length <= query.bound * 2**BITS
        most = max(most, length / (query.bound * 2**BITS))
    assert most > 0.9  # the bound is one that is reached


@pytest.mark.parametrize("name", ["sum", "moments", "gradient"])
def test_a_row_without_a_class_adds_nothing(name):
    query, steps = queries()[name], unit_steps(8)
    y = np.array([0, 1, 2, 0, 1, 2, -1, 7])
    known = (y >= 0) & (y < CLASSES)
    found = integers(query, steps, y, known)
    steps[6:] = extreme_steps()[:2]
    assert (integers(query, steps, y, known) == found).all()
    assert (integers(query, steps[:6], y[:6], known[:6]) == found).all()


def test_drops_are_clipped_jointly():
    method = Whitened().calibrate(
        Budget(epsilon=1.0, delta=1e-5), Problem(objective=OBJECTIVE, n_rows=100)
    )
    search = method.descent.search(3)
    assert search.sensitivity == pytest.approx(math.sqrt(3))


def test_whitened_rows_do_not_depend_on_their_block():
    steps = np.concatenate([unit_steps(40), extreme_steps()])
    frame = space()

    def seen(part):
        rows = held_rows(part, np.ones(len(part)))
        rows = whitened_rows(centered_rows(rows, frame.center), frame.whitening)
        return rows.block(slice(None))

    whole = seen(steps)
    for place in (0, 7, 39, 41):
        assert np.array_equal(seen(steps[place : place + 1])[0], whole[place])
    order = np.random.default_rng(0).permutation(len(steps))
    assert np.array_equal(seen(steps[order]), whole[order])


def test_the_product_with_the_whitening_is_exact():
    """Against Python's integers; a float error would show in some row."""
    rng = np.random.default_rng(0)
    size = 300
    square = rng.normal(size=(size, size))
    values, vectors = np.linalg.eigh(square @ square.T / size)
    whitening = whitening_of(values, vectors, 1e-6)
    rows = rng.normal(size=(3, size))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    steps = np.rint(rows * 2**FEATURE_BITS)
    exact = steps.astype(int).astype(object) @ whitening.astype(int).astype(object)
    assert (np.matmul(steps, whitening) == exact.astype(float)).all()
    assert np.abs(whitening).max() <= 2**WHITENING_BITS
    assert np.linalg.norm(whitening / 2**WHITENING_BITS, 2) <= 1.0


def test_whitening_makes_variances_equal():
    rng = np.random.default_rng(1)
    scales = np.geomspace(1, 0.1, FEATURES)
    rows = rng.normal(size=(4000, FEATURES)) * scales
    second = rows.T @ rows / len(rows)
    whitening = whitening_of(*np.linalg.eigh(second), 0.0) / 2**WHITENING_BITS
    white = rows @ whitening
    found = np.linalg.eigvalsh(white.T @ white / len(rows))
    assert found.max() / found.min() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_all_releases_together_are_one_gaussian(epsilon):
    problem = Problem(objective=OBJECTIVE, n_rows=1000)
    method = Whitened().calibrate(Budget(epsilon=epsilon, delta=1e-5), problem)
    total = sum(
        (part.sensitivity / part.noise_scale) ** 2
        for plan in method.plans()
        for part in plan.mechanisms
    )
    assert total == pytest.approx(method.noise_multiplier**-2, rel=1e-9)


def run(steps, y, known=None, *, epsilon=8.0, seed=0, **settings):
    known = np.ones(len(y), dtype=bool) if known is None else known
    return Run(
        OBJECTIVE,
        FeatureRows.of(steps, y, known),
        Whitened(steps=8, **settings),
        Budget(epsilon=epsilon, delta=1e-5),
        n_rows=len(y),
        relation=Neighboring.ZERO_OUT,
        seed=seed,
    ).complete()


def separable(count, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    rows = 0.4 * rng.normal(size=(count, FEATURES))
    rows[np.arange(count), y] += 2.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.rint(rows * 2**FEATURE_BITS).astype(np.int16), y


def accuracy(found, steps, y):
    state = found.state
    rows = centered_rows(held_rows(steps, np.ones(len(y))), state.center.numpy())
    whitening = state.whitening.numpy().reshape(FEATURES, FEATURES)
    weights = state.w.numpy().reshape(CLASSES, -1)
    scores = whitened_rows(rows, whitening).product(weights[:, :-1].T) + weights[:, -1]
    return (scores.argmax(axis=1) == y).mean()


def test_it_learns_and_uses_up_its_plan():
    steps, y = separable(2000)
    found = run(steps, y)
    assert accuracy(found, *separable(500, seed=1)) > 0.95
    assert len(found.records) == 10
    assert found.privacy.epsilon_spent <= 8.0 * (1 + 1e-9)
    assert found.privacy.epsilon_spent > 7.9


def test_noise_is_what_separates_small_budgets_from_large_ones():
    steps, y = separable(60)
    small = np.mean([accuracy(run(steps, y, epsilon=0.05), steps, y)])
    assert small < accuracy(run(steps, y, epsilon=50.0), steps, y)


def test_blank_rows_change_nothing_whatever_they_hold():
    steps, y = separable(50)
    known = np.ones(50, dtype=bool)
    known[[3, 9]] = False
    first = run(steps, y, known).w
    steps[[3, 9]], y[[3, 9]] = 32767, -1
    assert torch.equal(run(steps, y, known).w, first)
    assert not torch.equal(run(steps, y, np.ones(50, dtype=bool)).w, first)


def test_one_class_alone_and_only_blanks_train_like_anything():
    steps, _ = separable(20)
    for y in (np.zeros(20, dtype=int), np.full(20, -1)):
        found = run(steps, y, y >= 0)
        assert torch.isfinite(found.w).all()
        assert len(found.records) == 10


def test_no_noise_is_not_needed_for_finite_weights():
    steps, y = separable(50)
    found = run(np.zeros_like(steps), y, epsilon=1e4)
    assert torch.isfinite(found.w).all()


def test_the_search_never_goes_beyond_the_first_step():
    found = run(*separable(500), search_share=0.3)
    sizes = [record.step_size for record in found.records if record.step_size]
    assert max(sizes) <= 8.0


def test_rows_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="as many labels as rows"):
        FeatureRows.of(unit_steps(5), np.zeros(4), np.ones(5, dtype=bool))
