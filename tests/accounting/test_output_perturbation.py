# SPDX-License-Identifier: Apache-2.0
"""Output perturbation: no pair of neighbors moves further than the bounds say."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.accounting.budget import Neighboring
from armijo.accounting.perturbation import (
    contraction,
    gd_sensitivity,
    rsgd_sensitivities,
    rsgd_step_size,
)

# Gradients of all rows z at w, with Lipschitz constant 1 and this smoothness.
Gradients = Callable[[np.ndarray, np.ndarray], np.ndarray]


def logistic(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    return -z / (1 + np.exp(z @ w))[:, None]


def huber(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    return -z * np.clip(1.5 - z @ w, 0.0, 1.0)[:, None]


def quadratic(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Not Lipschitz, but two rows differ by 2 at most, which is all that is used."""
    return 0.7 * w - z


def linear(z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The worst case of a contraction by ``1 - step l2``."""
    return z + 0 * w


LOSSES: list[tuple[Gradients, float]] = [
    (logistic, 0.25),
    (huber, 1.0),
    (quadratic, 0.7),
    (linear, 0.25),
]
problems = {
    "loss": st.sampled_from(LOSSES),
    "seed": st.integers(0, 2**32 - 1),
    "l2": st.sampled_from([0.0, 0.01, 0.3]),
    "reach": st.floats(0.05, 1.3),  # of the longest step that still contracts
}


def neighbors(seed: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of norm one, and the row and its opposite that differ."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rows[:1], -rows[:1]


def descend(
    gradients: Gradients, batches: list[np.ndarray], steps: list[float], l2: float
) -> list[np.ndarray]:
    """Return all iterates; one step per batch, each batch divided by its own size."""
    w, path = np.zeros(3), []
    for batch, step in zip(batches, steps, strict=True):
        w = w - step * (gradients(batch, w).sum(axis=0) / len(batch) + l2 * w)
        path.append(w)
    return path


@settings(max_examples=60)
@given(**problems, n_rows=st.integers(1, 6), steps=st.integers(1, 40))
def test_descent_never_moves_further_than_its_sensitivity(
    loss, seed, l2, reach, n_rows, steps
):
    gradients, smoothness = loss
    step = reach * 2 / (smoothness + l2)
    setting = {"step_size": step, "steps": steps, "n_rows": n_rows, "l2": l2}
    setting["smoothness"] = smoothness
    bound = gd_sensitivity(**setting)
    rows, one, other = neighbors(seed, n_rows)
    ends = [
        descend(
            gradients, [np.concatenate([row, rows[1:]])] * steps, [step] * steps, l2
        )[-1]
        for row in (one, other, 0 * one)
    ]
    scale = 1e-9 * (1 + bound)
    assert np.linalg.norm(ends[0] - ends[1]) <= bound + scale
    once = gd_sensitivity(**setting, relation=Neighboring.ZERO_OUT)
    assert once == gd_sensitivity(**setting, relation=Neighboring.ADD_REMOVE)
    assert once == pytest.approx(bound / 2, rel=1e-12)
    # A row of zeros contributes nothing (the same pull as all others if quadratic).
    for end in ends[:2]:
        assert np.linalg.norm(end - ends[2]) <= once + scale


@settings(max_examples=60)
@given(
    **problems,
    n_batches=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    epochs=st.integers(1, 6),
)
def test_permuted_descent_never_moves_further_than_its_batch_says(
    loss, seed, l2, reach, n_batches, batch_size, epochs
):
    gradients, smoothness = loss
    first = reach * 2 / (smoothness + l2)
    bounds = rsgd_sensitivities(
        step_size=first,
        epochs=epochs,
        n_batches=n_batches,
        batch_size=batch_size,
        l2=l2,
        smoothness=smoothness,
    )
    assert len(bounds) == n_batches
    rows, one, other = neighbors(seed, n_batches * batch_size)
    steps = [
        first / math.sqrt(epoch + 1) if n_batches > 1 else first
        for epoch in range(epochs)
        for _ in range(n_batches)
    ]
    for k, bound in enumerate(bounds):
        means = []
        for row in (one, other):
            data = rows.copy()
            data[k * batch_size] = row[0]
            batches = np.split(data, n_batches) * epochs
            means.append(np.mean(descend(gradients, batches, steps, l2), axis=0))
        assert np.linalg.norm(means[0] - means[1]) <= bound * (1 + 1e-9) + 1e-9


def test_bounds_are_reached_by_linear_losses():
    rows, one, other = neighbors(3, 4)
    data = [np.concatenate([row, rows[1:]]) for row in (one, other)]
    ends = [descend(linear, [each] * 9, [0.5] * 9, 0.3)[-1] for each in data]
    bound = gd_sensitivity(step_size=0.5, steps=9, n_rows=4, l2=0.3)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(bound, rel=1e-12)
    bounds = rsgd_sensitivities(
        step_size=0.5, epochs=1, n_batches=2, batch_size=2, l2=0.3
    )
    means = [
        np.mean(descend(linear, np.split(each, 2), [0.5] * 2, 0.3), axis=0)
        for each in data
    ]
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(bounds[0], rel=1e-12)


@given(st.floats(1e-3, 20.0), st.floats(0.0, 2.0), st.integers(1, 60))
def test_the_closed_form_is_the_recursion(step, l2, steps):
    c = contraction(step, l2, 0.25)
    expected = 0.0
    for _ in range(steps):
        expected = c * expected + 2 * step / 50
    setting = {"step_size": step, "steps": steps, "n_rows": 50, "l2": l2}
    found = gd_sensitivity(**setting)
    assert found == pytest.approx(expected, rel=1e-9)
    if c <= 1:
        published = gd_sensitivity(**setting, published=True)
        assert found <= 2 / 3 * published * (1 + 1e-12)


def test_published_sensitivity_and_special_steps():
    published = partial(gd_sensitivity, steps=50, n_rows=1000, published=True)
    assert published(step_size=1.0) == 0.15
    assert gd_sensitivity(step_size=1.0, steps=50, n_rows=1000, smoothness=1.0) == 0.1
    one = gd_sensitivity(step_size=1.0, steps=7, n_rows=10, smoothness=1e-300, l2=1.0)
    assert one == 0.2  # a contraction to zero keeps the last push only
    with pytest.raises(ValueError, match="step_size <= 8"):
        published(step_size=9.0)
    assert rsgd_step_size(0.5, 3, 2) == 0.25
    assert rsgd_step_size(0.5, 3, 1) == 0.5
