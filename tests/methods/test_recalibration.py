# SPDX-License-Identifier: Apache-2.0
"""Recalibration: scores of a wrong scale are mended, and noise holds it back."""

import math

import numpy as np
import pytest
from scipy.special import expit, log_expit, log_softmax, softmax

from armijo.methods.recalibration import Recalibration

ROWS = 20_000


def recalibration(noise, outputs=1, clip=0.6):
    return Recalibration(
        noise=noise, share=0.03, clip=clip, n_rows=ROWS, outputs=outputs
    )


def corrected(known, how, scores, y, shares, rng):
    """Make the three releases; return what is known, and whether bounds were kept."""
    within = True
    for update in range(3):
        gradients = how.gradients(known, scores, y, update)
        used = how.mechanism(update)
        norms = np.linalg.norm(gradients, axis=1)
        within &= bool((np.minimum(norms, used.sensitivity) > 0.99 * norms).all())
        noisy = gradients.sum(axis=0) + used.noise_scale * rng.normal(
            size=gradients.shape[1]
        )
        known = how.corrected(known, noisy / ROWS, update, shares)
    return known, within


def binary(seed=0):
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=ROWS) - 1.0
    y = np.where(rng.random(ROWS) < expit(truth), 1.0, -1.0)
    return truth, y, rng


def loss(scores, y):
    return -float(log_expit(scores * y).mean())


@pytest.mark.parametrize(("scale", "offset"), [(0.5, 0.0), (0.6, 0.5), (1.4, -0.3)])
def test_scores_of_a_wrong_scale_are_mended(scale, offset):
    truth, y, rng = binary()
    scores = (truth * scale + offset)[:, None]
    how = recalibration(1.0)
    known = how.begin(None, 1.5 * scale, np.array([offset - scale]))
    known, _ = corrected(known, how, scores, y, np.array([0.7, 0.3]), rng)
    before, best = loss(scores[:, 0], y), loss(truth, y)
    after = loss(how.logits(known, scores)[:, 0], y)
    assert after - best < 0.5 * (before - best) + 1e-3


def test_much_noise_changes_little():
    truth, y, rng = binary()
    scores = truth[:, None]
    shifts = []
    for noise in (1.0, 1e6):
        how = recalibration(noise)
        known = how.begin(None, 1.5, np.array([-1.0]))
        start = how.parameters(known)[2]
        known, _ = corrected(known, how, scores * 0.5, y, np.array([0.7, 0.3]), rng)
        shifts.append(np.abs(how.parameters(known)[2] - start).max())
    assert shifts[1] < 0.05 * shifts[0]


def test_the_order_of_scores_stays():
    """Whatever the noise: the scale is never negative."""
    truth, y, _ = binary()
    scores = np.sort(truth)[:, None]
    for seed in range(20):
        how = recalibration(3000.0)
        known = how.begin(None, 1.5, np.array([-1.0]))
        rng = np.random.default_rng(seed)
        known, _ = corrected(known, how, scores, y, np.array([0.7, 0.3]), rng)
        assert (np.diff(how.logits(known, scores)[:, 0]) >= 0).all()
        assert np.isfinite(known).all()


def test_several_classes_have_one_scale():
    rng = np.random.default_rng(0)
    truth = 1.5 * rng.normal(size=(ROWS, 3))
    draws = rng.random((ROWS, 1)) > np.cumsum(softmax(truth, axis=1), axis=1)
    y = draws.sum(axis=1).astype(float)

    def loss(scores):
        return -float(
            log_softmax(scores, axis=1)[np.arange(ROWS), y.astype(int)].mean()
        )

    how = recalibration(1.0, outputs=3)
    known = how.begin(None, 0.75, np.zeros(3))
    scores = truth * 0.5
    known, _ = corrected(known, how, scores, y, np.full(3, 1 / 3), rng)
    assert loss(how.logits(known, scores)) < 0.5 * (loss(scores) + loss(truth))


def test_gradients_stay_within_their_sensitivity():
    truth, y, rng = binary()
    how = recalibration(1.0)
    known = how.begin(None, 1.5, np.array([-1.0]))
    _, within = corrected(known, how, truth[:, None], y, np.array([0.7, 0.3]), rng)
    assert within


def test_a_row_without_a_label_has_no_gradient():
    for outputs in (1, 3):
        how = recalibration(1.0, outputs)
        known = how.begin(None, 1.0, np.zeros(outputs))
        for update in range(3):
            found = how.gradients(
                known, np.zeros((1, outputs)), np.array([math.nan]), update
            )
            assert np.isnan(found).any()
