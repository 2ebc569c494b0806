# SPDX-License-Identifier: Apache-2.0
"""Cells of columns, and what is learned from noisy counts of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armijo.objectives.cells import (
    FINE_PARTS,
    Layout,
    LevelCells,
    NumericCells,
    OctaveCells,
    kept_levels,
    learned_range,
    marginals,
    narrowed_range,
    nearest_shares,
    shrunk_cdf,
)

ANY = st.floats(width=64)
FINE = OctaveCells(FINE_PARTS)
CELLS = (NumericCells(0.0, 1.0), NumericCells(-5.0, 9.0), OctaveCells(), FINE)
CELLS += (LevelCells(3),)


@pytest.mark.parametrize("part", CELLS)
@given(numbers=arrays(float, 20, elements=ANY))
def test_a_number_falls_into_one_cell_whatever_it_is(part, numbers):
    places = part.places(numbers)
    assert places.min() >= 0 and places.max() < part.size
    alone = [int(part.places(numbers[k : k + 1])[0]) for k in range(20)]
    assert places.tolist() == alone
    assert (places == part.size - 1)[np.isnan(numbers)].all()


@given(arrays(float, 50, elements=st.floats(allow_nan=False)))
def test_cells_of_numbers_are_in_their_order(numbers):
    for part in CELLS[:-1]:
        assert (np.diff(part.places(np.sort(numbers))) >= 0).all()


def test_columns_are_numbered_one_after_the_other():
    layout = Layout((LevelCells(2), LevelCells(4)))
    assert layout.bound == math.sqrt(2)
    assert Layout(layout.parts, (1.0, 0.5)).bound == math.sqrt(1.25)
    columns = [np.array([0, -1, 9]), np.array([3, math.nan, 0.0])]
    assert [p.tolist() for p in layout.places(columns)] == [[0, 2, 2], [6, 7, 3]]
    parts = layout.split(np.arange(8.0))
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5, 6, 7]]


def test_octaves_are_cut_into_equal_parts():
    octaves = OctaveCells().edges
    assert np.isin(octaves, FINE.edges).all() and (np.diff(FINE.edges) > 0).all()
    assert FINE.size - 3 == FINE_PARTS * (OctaveCells().size - 3) - FINE_PARTS + 1
    first, last = FINE.places(np.array([48.0, 49.99]))
    assert first == last == FINE.places(np.array([50.0]))[0] - 1


def counted(numbers, part, noise=0.0):
    counts = np.bincount(part.places(np.asarray(numbers)), minlength=part.size)
    return counts + noise * np.random.default_rng(0).normal(size=part.size)


def octaves(numbers):
    return counted(numbers, OctaveCells())


class TestRange:
    @pytest.mark.parametrize(
        "numbers",
        [
            np.linspace(0, 100, 5000),
            np.linspace(20_000, 90_000, 5000),
            np.linspace(-3, 3, 5000),
            np.linspace(-900, -100, 5000),
            np.linspace(1e-4, 3e-4, 5000),
        ],
    )
    def test_it_holds_clear_numbers_and_is_not_far_wider(self, numbers):
        noise = 20.0
        rng = np.random.default_rng(0)
        counts = octaves(numbers)
        counts += noise * rng.normal(size=counts.size)
        low, high = learned_range(counts, noise, None, None)
        within = (numbers >= low) & (numbers <= high)
        assert within.mean() > 0.98
        assert high - low <= 16 * np.abs(numbers).max()

    def test_it_does_not_grow_by_octaves_that_noise_adds(self):
        """Where few rows are in the next octave, noise beyond it stands out with it."""
        counts = np.zeros(OctaveCells().size)
        one = int(OctaveCells().places(np.array([1.0]))[0])
        counts[one - 3 : one] = 100.0
        counts[one : one + 3] = 3.0, 1.5, 2.2  # together 3.9 deviations
        assert learned_range(counts, 1.0, None, None) == (0.125, 2.0)
        counts[one + 2] = 2.6
        assert learned_range(counts, 1.0, None, None) == (0.125, 8.0)

    @pytest.mark.parametrize(
        ("numbers", "widest"),
        [
            (np.linspace(47.2, 47.8, 5000), 4.0),  # degrees
            (np.linspace(-122.5, -121.3, 5000), 8.0),
            (np.linspace(1.6e9, 1.63e9, 5000), 1.4e8),  # seconds
            (np.full(5000, 42.0), 2.0),
        ],
    )
    @pytest.mark.parametrize("noise", [0.0, 100.0])
    def test_numbers_that_vary_little_have_a_narrow_one(self, numbers, widest, noise):
        wide = learned_range(octaves(numbers), max(noise, 1e-9), None, None)
        fine = counted(numbers, FINE, noise)
        low, high = narrowed_range(wide, fine, noise, 5000)
        assert low <= numbers.min() and numbers.max() <= high
        assert high - low <= widest < wide[1] - wide[0]

    @pytest.mark.parametrize(
        "numbers",
        [
            np.linspace(0, 100, 5000),
            np.linspace(-3, 3, 5000),
            np.exp(np.linspace(-3, 3, 5000)),
            np.where(np.arange(5000) % 3, 47.0, 60.0),  # a third lies elsewhere
        ],
    )
    def test_others_keep_theirs(self, numbers):
        wide = learned_range(octaves(numbers), 1.0, None, None)
        assert narrowed_range(wide, counted(numbers, FINE, 5.0), 5.0, 5000) == wide

    @pytest.mark.parametrize("size", [1e300, 1.7e18, -1.7e18, 1e16, 2.0**50])
    def test_numbers_beyond_all_octaves_keep_a_range(self, size):
        numbers = np.full(5000, size)
        wide = learned_range(octaves(numbers), 1.0, None, None)
        low, high = narrowed_range(wide, counted(numbers, FINE), 1.0, 5000)
        assert wide[0] <= low < high <= wide[1]

    def test_noise_and_few_rows_narrow_nothing(self):
        numbers, wide = np.full(5000, 47.0), (32.0, 64.0)
        for noise in (1000.0, 5000.0, 1e6):
            noisy = counted(numbers, FINE, noise)
            assert narrowed_range(wide, noisy, noise, 5000) == wide
        seen = counted(numbers, FINE)
        assert narrowed_range(wide, seen, 1.0, 7000) == wide  # 2000 are elsewhere
        assert narrowed_range(wide, seen, 1.0, 6000) == (46.0, 48.0)

    @given(
        arrays(float, FINE.size, elements=st.floats(-1e6, 1e6)),
        st.floats(0, 100),
        st.sampled_from(
            [
                *[(32.0, 64.0), (0.0, 1.0), (-4.0, 2.0), (-8.0, 0.0)],
                *[(2.0**50, 2.0**51), (-(2.0**51), -(2.0**50)), (-(2.0**51), 2.0**51)],
            ]
        ),
        st.floats(-10, 1e4),
    )
    def test_it_is_within_the_other_for_any_counts(self, fine, noise, ends, present):
        low, high = narrowed_range(ends, fine, noise, present)
        assert ends[0] <= low < high <= ends[1]

    def test_noise_alone_is_no_scale(self):
        rng = np.random.default_rng(1)
        size = OctaveCells().size
        found = [
            learned_range(rng.normal(size=size), 1.0, None, None) for _ in range(9)
        ]
        usual = learned_range(np.zeros(size), 1.0, None, None)
        assert found.count(usual) >= 8

    @given(
        arrays(float, OctaveCells().size, elements=st.floats(-1e6, 1e6)),
        st.floats(0, 100),
        st.none() | st.floats(-1e9, 1e9),
        st.none() | st.floats(-1e9, 1e9),
    )
    def test_it_is_a_range_for_any_counts(self, counts, noise, low, high):
        if low is not None and high is not None:
            high = None
        ends = learned_range(counts, noise, low, high)
        assert -math.inf < ends[0] < ends[1] < math.inf
        if low is not None:
            assert ends[0] == low


class TestDistribution:
    def test_without_noise_it_is_the_empirical_one(self):
        counts = np.random.default_rng(0).integers(1, 30, 64) * 1.0
        cdf = shrunk_cdf(counts, np.full(64, 1 / 64), counts.sum(), 0.0)
        exact = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
        assert cdf == pytest.approx(exact, abs=1e-12)

    def test_under_much_noise_it_is_the_prior(self):
        prior = np.arange(1.0, 65) / np.arange(1.0, 65).sum()
        noisy = np.random.default_rng(0).normal(size=64) * 1e9
        cdf = shrunk_cdf(noisy, prior, 100.0, 1e9)
        assert np.diff(cdf) == pytest.approx(prior, abs=1e-3)

    @given(
        arrays(float, 37, elements=st.floats(-1e6, 1e6)),
        st.floats(1, 1e6),
        st.floats(1e-3, 1e6),
    )
    def test_it_is_a_distribution_for_any_counts(self, counts, n_rows, noise):
        cdf = shrunk_cdf(counts, np.full(37, 1 / 37), n_rows, noise)
        assert cdf[0] == 0 and cdf[-1] == 1
        assert (np.diff(cdf) >= 0).all()

    def test_ranks_are_monotone_and_within_one(self):
        rng = np.random.default_rng(0)
        part = NumericCells(0.0, 10.0)
        numbers = np.where(rng.random(3000) < 0.3, 0.0, rng.normal(3, 4, 3000))
        counts = np.bincount(part.places(numbers), minlength=part.size)
        counts = counts + 10 * rng.normal(size=part.size)
        (found,) = marginals([part], [counts], 3000.0, 10.0)
        at = np.concatenate([[-math.inf], np.linspace(-1e3, 1e3, 9999), [math.inf]])
        ranks = found.ranks(at)
        assert ranks.min() >= 0 and ranks.max() <= 1
        assert (np.diff(ranks) >= -1e-12).all()
        assert np.isnan(found.ranks(np.array([math.nan]))).all()
        middle = np.median(numbers)
        assert found.ranks(np.array([middle]))[0] == pytest.approx(0.5, abs=0.05)


class TestLevels:
    @given(arrays(float, 9, elements=st.floats(-10, 10)))
    def test_the_nearest_shares(self, shares):
        found = nearest_shares(shares)
        assert found.min() >= 0 and found.sum() <= 1 + 1e-9
        if shares.min() >= 0 and shares.sum() <= 1:
            assert (found == shares).all()
        # No shares that add up to one are nearer, in a direction that was not taken.
        rng = np.random.default_rng(0)
        for other in rng.dirichlet(np.ones(9), 20):
            assert np.sum((shares - found) ** 2) <= np.sum((shares - other) ** 2) + 1e-9

    def test_few_levels_are_all_kept_and_missing_ones_if_they_stand_out(self):
        clear = kept_levels(np.array([500.0, 300.0, 0.0, 200.0]), 1000.0, 1.0)
        assert clear.merged.tolist() == [0, 1, 2, 3]
        assert clear.shares == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=1e-3)
        none = kept_levels(np.array([500.0, 500.0, 0.5]), 1000.0, 1.0)
        assert none.merged.tolist() == [0, 1, 2]
        assert len(none.shares) == 3

    def test_rare_ones_of_many_become_one(self):
        counts = np.zeros(102)
        counts[:2] = 600.0, 300.0
        found = kept_levels(counts, 1000.0, 5.0)
        assert found.merged[:2].tolist() == [0, 1]
        assert set(found.merged[2:].tolist()) == {2}
        assert found.shares == pytest.approx([0.6, 0.3, 0.1], abs=1e-2)

    @given(
        arrays(float, st.integers(2, 60), elements=st.floats(-1e4, 1e4)),
        st.floats(1, 1e5),
        st.floats(0.1, 1e4),
    )
    def test_every_cell_has_a_kept_level(self, counts, n_rows, noise):
        found = kept_levels(counts, n_rows, noise)
        assert len(found.merged) == len(counts)
        assert found.merged.min() >= 0 and found.merged.max() < len(found.shares)
        assert found.shares.min() >= 0 and found.shares.sum() <= 1 + 1e-9
