# SPDX-License-Identifier: Apache-2.0
"""The support attack finds noise that leaves integers out, and nothing in ours."""

import numpy as np
import pytest
from scipy import stats

from armijo._noise import rounded_gaussian
from armijo.audit.targets import on_rays, shares_on_rays
from tests.noise_doubles import box_muller
from tests.seeded_bits import SeededBits

ROUNDS, PAIRS = 100, 100


def right_guesses(sampler, scale, gap):
    """Guess which of two known sums is under the noise; half of it is luck."""
    right = 0.0
    for number in range(2 * ROUNDS):
        present = number % 2
        release = sampler(scale, 2 * PAIRS, SeededBits(number)) + present * gap
        shares = np.array([shares_on_rays(release - gap * k).max() for k in (0, 1)])
        best = np.flatnonzero(shares == shares.max())
        right += (present in best) / best.size
    return right / (2 * ROUNDS)


@pytest.mark.parametrize("scale", [2**24, 373 * 2**24, 2**40])
def test_planted_noise_is_told_and_ours_is_not(scale):
    gap = 2**18
    assert right_guesses(box_muller, scale, gap) > 0.97
    ours = right_guesses(rounded_gaussian, scale, gap)
    assert stats.binomtest(round(2 * ROUNDS * ours), 2 * ROUNDS).pvalue > 1e-4


@pytest.mark.parametrize("scale", [100, 2**24, 2**33, 2**45])
def test_all_that_the_planted_sampler_draws_is_on_rays(scale):
    draws = box_muller(float(scale), 20_000, SeededBits(1)).reshape(2, -1)
    assert on_rays(*draws).all()
    shifted = np.mean(on_rays(draws[0] + scale // 3, draws[1] + scale // 5))
    assert shifted == 1 if scale == 100 else shifted < 0.9


def test_the_planted_sampler_passes_the_tests_of_one_number_at_a_time():
    draws = box_muller(2.0**24, 20_000, SeededBits(2))
    assert stats.kstest(draws / 2**24, "norm").pvalue > 1e-4


def test_what_is_on_rays_far_out():
    far = 2**40
    x = np.array([far, far, far, 0, 1, 0, 0, -far])
    y = np.array([0, far, far // 3, 0, 1, far, -far, 0])
    # Sine and cosine of half a right angle are one float; a whole one is none.
    assert on_rays(x, y).tolist() == [True, True, False, True, True, *3 * [False]]


def test_a_number_without_a_partner_is_left_out():
    noise = rounded_gaussian(2**30, 7, SeededBits(3))
    np.testing.assert_array_equal(shares_on_rays(noise), shares_on_rays(noise[:6]))
