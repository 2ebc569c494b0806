# SPDX-License-Identifier: Apache-2.0
"""Noise: the laws, the exactness of single decisions, choices and Poisson coins.

Statistical tests use fixed seeds. Right laws must have a p-value above 1e-4, wrong
ones (scale off by 2/3 or 3/2) one below 1e-12.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from armijo._noise import (
    PoissonRows,
    add_gaussian,
    exponential_choice,
    gaussian,
    poisson_sample,
    rejection,
    rounded_gaussian,
    rounded_laplace,
)
from armijo._noise.gaussian import (
    BLOCK,
    PIECE,
    Strips,
    _few,
    exact_exponent,
    float_exponent,
    in_tail,
    strips_for,
)
from armijo._noise.rejection import (
    GUARD,
    LazyUniform,
    e_folds,
    exp_bounds,
    is_below_exp,
    rational,
    uniform_below,
)
from armijo._noise.vectors import (
    gaussian_vector,
    radial_vector,
    random_order,
    with_gaussian,
)
from armijo.randomness import KeyedBits, Randomness, RowBits
from tests.seeded_bits import SeededBits

ACCEPT, REJECT = 1e-4, 1e-12
LARGEST_WORD = 2**64 - 1


class ScriptedBits:
    """Words in a given order; asking for more than were given is an error."""

    def __init__(self, words: Sequence[int] = (), short: Sequence[int] = ()) -> None:
        self.words, self.short = list(words), list(short)

    def uint64(self, n: int) -> np.ndarray:
        taken, self.words = self.words[:n], self.words[n:]
        assert len(taken) == n, "script has ended"
        return np.array(taken, dtype=np.uint64)

    def fill(self, words: np.ndarray) -> None:
        words[:] = self.uint64(words.size)

    def uint16(self, n: int) -> np.ndarray:
        taken, self.short = self.short[:n], self.short[n:]
        assert len(taken) == n, "script has ended"
        return np.array(taken, dtype=np.uint16)


FAMILIES = [
    pytest.param(rounded_laplace, stats.laplace, id="laplace"),
    pytest.param(rounded_gaussian, stats.norm, id="gaussian"),
]


def law_p_value(draws: np.ndarray, law: stats.rv_continuous, scale: float) -> float:
    """Chi-square of integers against ``law`` at half-integers; both tails lumped."""
    edges = np.arange(-10 * scale - 2, 10 * scale + 3) - 0.5
    usable = np.flatnonzero(np.diff(law.cdf(edges, scale=scale)) * draws.size >= 10)
    full = np.array([-np.inf, *edges[usable[0] : usable[-1] + 2], np.inf])
    expected = np.diff(law.cdf(full, scale=scale)) * draws.size
    observed = np.histogram(draws, full)[0]
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 5])
@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_small_scales_have_the_rounded_law(sampler, law, scale):
    draws = sampler(scale, 200_000, SeededBits(scale))
    assert law_p_value(draws, law, scale) > ACCEPT


@pytest.mark.parametrize("scale", [1, 2, 5])
@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_exact_arithmetic_alone_has_the_rounded_law(sampler, law, scale):
    draws = sampler(scale, 2_000, SeededBits(10 + scale), _guard=1.0)
    assert law_p_value(draws, law, scale) > ACCEPT


@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_wrong_scales_are_rejected(sampler, law):
    draws = sampler(6, 20_000, SeededBits(1))
    assert law_p_value(draws, law, 6) > ACCEPT
    assert law_p_value(draws, law, 4) < REJECT
    assert law_p_value(draws, law, 9) < REJECT


@pytest.mark.parametrize("scale", [1000, 2**24, 6 * 2**24, 2**40, 2**50])
@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_kolmogorov_smirnov_tells_large_scales_apart(sampler, law, scale):
    draws = sampler(scale, 20_000, SeededBits(2)).astype(float)
    draws += np.random.default_rng(2).random(draws.size) - 0.5  # no ties at scale 1000
    for factor, accepted in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p_value = stats.kstest(draws, law(scale=factor * scale).cdf).pvalue
        assert p_value > ACCEPT if accepted else p_value < REJECT


@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_signs_are_fair_and_tell_nothing_of_the_size(sampler, law):
    draws = sampler(50, 50_000, SeededBits(4))
    draws = draws[draws != 0]
    small = np.abs(draws) < 40
    table = [
        [np.sum(s & (draws > 0)), np.sum(s & (draws < 0))] for s in (small, ~small)
    ]
    assert stats.binomtest(int(np.sum(draws > 0)), draws.size).pvalue > ACCEPT
    assert stats.chi2_contingency(table).pvalue > ACCEPT


@pytest.mark.parametrize("scale", [1, 4])
def test_laplace_is_zero_with_the_exact_chance(scale):
    draws = rounded_laplace(scale, 100_000, SeededBits(scale))
    zeros = int(np.sum(draws == 0))
    chance = -math.expm1(-1 / (2 * scale))
    assert stats.binomtest(zeros, draws.size, chance).pvalue > ACCEPT
    discrete = math.tanh(1 / (2 * scale))
    assert stats.binomtest(zeros, draws.size, discrete).pvalue < ACCEPT


@settings(max_examples=30)
@given(scale=st.integers(1, 2**50), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("sampler", [rounded_laplace, rounded_gaussian])
def test_float_and_exact_decisions_agree_bit_by_bit(sampler, scale, seed):
    fast = sampler(scale, 15, SeededBits(seed))
    exact = sampler(scale, 15, SeededBits(seed), _guard=1.0)
    np.testing.assert_array_equal(fast, exact)


@given(
    scale=st.integers(1, 2**50),
    strip=st.integers(-400, 400),
    rest=st.integers(0, 2**50 - 1),
    later=st.integers(0, LARGEST_WORD),
)
def test_float_error_stays_far_below_the_guard(scale, strip, rest, later):
    cover, place = strips_for(scale), (strip << 50) + rest
    exponent = exact_exponent(place, cover, ScriptedBits([later]))
    smallest, largest = exp_bounds(*exponent(64), 40)
    value = Fraction(float(np.exp(-float_exponent(np.array([place]), cover))[0]))
    assert smallest - Fraction(GUARD) / 32 < value < largest + Fraction(GUARD) / 32


@given(scale=st.one_of(st.integers(1, 100), st.integers(1, 2**50)))
def test_every_strip_is_above_the_curve_and_has_the_chance_of_its_area(scale):
    cover = strips_for(scale)
    half = 2**13
    first = cover.starts[:half] >> 50
    numbers, where, counts = np.unique(first, return_index=True, return_counts=True)
    assert numbers.tolist() == list(range(numbers.size)) and cover.tail == where[-1]
    assert (cover.starts[half:] >> 50).tolist() == (-1 - first).tolist()
    for table in (cover.heights, cover.sure):
        assert table[half:].tolist() == table[:half].tolist()
    heights = [Fraction(float(h)) for h in cover.heights[where]]
    areas = {h / int(n) for h, n in zip(heights[:-1], counts, strict=False)}
    # Half of the tail's proposals have its first height, and are in one of 8 strips.
    assert areas == {heights[-1] * 16 / int(counts[-1])}
    for _ in range(60):  # further on the curve falls ever faster
        heights += 7 * [heights[-1]] + [heights[-1] / 2]
    for number, height in enumerate(heights):
        assert curve(number, cover)[1] <= height <= 2
    for number, sure in enumerate(cover.sure[where[:-1]]):
        end = curve(number + 1, cover)[0]
        assert Fraction(int(sure), 2**cover.uniform_bits) * heights[number] <= end
    assert cover.sure[where[-1]] == 0


def curve(number: int, cover: Strips) -> tuple[Fraction, Fraction]:
    """Bounds of the bell curve where a strip begins."""
    z = Fraction(number << cover.shift, cover.scale)
    return exp_bounds(z**2 / 2, z**2 / 2, 30)


def inverse_e_words(count: int) -> list[int]:
    """The binary digits of exp(-1) in 64-bit words, from its alternating series."""
    total = sum(Fraction((-1) ** n, math.factorial(n)) for n in range(80))
    digits = math.floor(total * 2 ** (64 * count))
    return [(digits >> (64 * (count - 1 - i))) & LARGEST_WORD for i in range(count)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (lambda w: [w[1] - 1], True),
        (lambda w: [w[1] + 1], False),
        (lambda w: [w[1], 0], True),
        (lambda w: [w[1], w[2] - 1], True),
        (lambda w: [w[1], w[2] + 1], False),
        (lambda w: [w[1], w[2], LARGEST_WORD], False),
    ],
)
def test_ties_are_decided_by_the_bits_that_follow(later, expected):
    words = inverse_e_words(4)
    bits = ScriptedBits(later(words))
    assert is_below_exp(LazyUniform(words[0], bits), rational(1)) is expected
    assert bits.words == []


@pytest.mark.parametrize(("step", "expected"), [(-1, 2), (1, 1)])
def test_laplace_draw_that_hangs_on_the_second_word(step, expected):
    # At scale 1 every u is 0 (kept for certain, coin 0), the low bit 0 means plus, and
    # the coin 0 says "not zero"; v is 1 if U < exp(-1), which 64 bits leave open.
    proposals = 18
    first, second = inverse_e_words(2)
    folds = [first] + [LARGEST_WORD] * (proposals - 1)
    block = [0] * proposals + folds + [0] * (2 * proposals)
    bits = ScriptedBits([*block, second + step])
    assert rounded_laplace(1, 1, bits).tolist() == [expected]
    assert bits.words == []


def test_words_of_the_incomplete_round_are_passed_over():
    # 2**64 = 4 mod 6, so the last word is refused; it would have meant minus, u = 1.
    places = [LARGEST_WORD] + [4] * 17
    bits = ScriptedBits(places + [LARGEST_WORD] * 18 + [0] * 36)
    assert rounded_laplace(3, 1, bits).tolist() == [3]
    assert bits.words == []


KEEP = 2**16 - 1  # the last bits of a word whose coin begins with sixteen zeros


def gaussian_proposals(scale: int) -> int:
    """How many proposals are drawn for one number."""
    return int(12 / strips_for(scale).acceptance)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, 0),
        (2**49 - 2**16, 0),  # just below one half
        (2**49, 1),
        (2**50 - 2**16, 1),
        (2**63, -1),  # the strip from -1 to 0
        (2**63 + 2**49 - 2**16, -1),
        (2**63 + 2**49, 0),
    ],
)
def test_gaussian_draw_is_the_nearest_integer(word, expected):
    # At scale 1 a strip is one wide, and the slots of the first one come first. The
    # coin 0 keeps any proposal.
    bits = ScriptedBits([word + KEEP] * gaussian_proposals(1))
    assert rounded_gaussian(1, 1, bits).tolist() == [expected]
    assert bits.words == []


@pytest.mark.parametrize("exponent", [3, 38, 39, 40, 45, 50])
@pytest.mark.parametrize("twice", [5, -5, 1, -1, 4])
def test_the_nearest_integer_needs_no_bit_of_the_coin(exponent, twice):
    """At half integers and next to them, whatever bits a word has left for its coin."""
    cover, count = strips_for(2**exponent), gaussian_proposals(2**exponent)
    last = 2**cover.uniform_bits
    assert cover.uniform_bits == min(16, 54 - exponent)
    for place in (twice * cover.half, twice * cover.half - last):
        strip = place >> 50
        number = strip if strip >= 0 else -1 - strip
        slot = int(np.searchsorted(cover.starts[: 2**13], number << 50))
        slot += 2**13 * (strip < 0)
        for coin in (last - 1, int(cover.table[slot]) % last + 1):
            word = (slot << 50) + place % 2**50 + coin
            found = rounded_gaussian(2**exponent, 1, ScriptedBits([word] * count))
            assert found.tolist() == [(place + cover.half) >> cover.unit]


def test_a_coin_that_is_not_sure_gets_the_rest_of_its_bits():
    # The first strip of scale 1 is a little higher than 1. At its beginning a coin just
    # below 1/height is kept, at its end one below exp(-1/2)/height.
    count, cover = gaussian_proposals(1), strips_for(1)
    height = Fraction(float(cover.heights[0]))
    at_start, at_end = 0, 2**50 - 1
    other = (int(np.searchsorted(cover.starts[: 2**13], 2 << 50)) << 50) + KEEP
    for place, chance in ((at_start, 1), (at_end, math.exp(-0.5))):
        for shift, kept in ((-(2.0**-30), True), (2.0**-30, False)):
            coin = int(Fraction(chance + shift) / height * 2**64)
            assert coin >> 48 >= cover.sure[0]
            first = (place & ~KEEP) | (~(coin >> 48) & KEEP)
            second = (coin << 16) & LARGEST_WORD | (place & KEEP)
            # All others are kept, and are from 2 on.
            bits = ScriptedBits([first, *[other] * (count - 1), second])
            assert bool(rounded_gaussian(1, 1, bits)[0] < 2) is kept
            assert bits.words == []


def test_holes_are_filled_in_order_and_the_rest_is_drawn_again():
    cover = strips_for(1)
    one, two = (
        (int(np.searchsorted(cover.starts[: 2**13], n << 50)) << 50) + KEEP
        for n in (1, 2)
    )
    refused = 0  # the coin of the word 0 begins with ones, and so it goes on below
    count = int((2 + 3 * math.sqrt(2) + 8) / cover.acceptance)
    # Two holes; behind them the second proposal is accepted, and the last.
    words = [*[refused] * 3, two, *[refused] * (count - 5), one]
    bits = ScriptedBits(words + [LARGEST_WORD] * (count - 2))
    assert _few(cover, 2, bits).tolist() == [2, 1]
    assert bits.words == []
    # With the last one refused as well, the second number is drawn again.
    words[-1] = refused
    again = [one] * gaussian_proposals(1)
    bits = ScriptedBits(words + [LARGEST_WORD] * (count - 1) + again)
    assert _few(cover, 2, bits).tolist() == [2, 1]
    assert bits.words == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([0b1000], (0, 0)),  # the first coin is 1: no halving, first of eight strips
        ([0b1111], (0, 7)),
        ([0b10010], (1, 2)),
        ([2**63 + 5], (60, 5)),  # the last coin of the word
        ([1, 0b10], (62, 1)),  # 61 coins were not enough
        ([1, 0, 0b10], (61 + 64 + 1, 1)),
    ],
)
def test_gaussian_tail_goes_on_as_long_as_its_coins_say(words, expected):
    bits = ScriptedBits(words)
    halvings, parts = in_tail(1, bits)
    assert (halvings.tolist(), parts.tolist()) == ([expected[0]], [expected[1]])
    assert bits.words == []


def test_tails_of_all_kinds_at_once():
    bits = ScriptedBits([0b1000, 3, 0b10010, 0, 0b100, 1])
    halvings, parts = in_tail(4, bits)
    assert halvings.tolist() == [0, 61 + 2, 1, 61]
    assert parts.tolist() == [0, 3, 2, 0]
    assert bits.words == []


@pytest.mark.parametrize(
    ("side", "expected"), [(0, 4 + 8 + 2), (2**63, -4 - 8 - 2 - 1)]
)
def test_the_last_slot_is_the_tail(side, expected):
    # Scale 1: four strips, then the third of eight after one halving. A coin 0 keeps
    # the place, after as many bits as its small chance needs.
    count = gaussian_proposals(1)
    words = [side + (0x1FFF << 50) + KEEP, *[KEEP] * (count - 1)]
    bits = ScriptedBits([*words, 0, 0b10010, *[0] * 20])
    assert rounded_gaussian(1, 1, bits).tolist() == [expected]


def test_the_tail_beyond_four_deviations_has_the_law():
    scale = 1000  # strips of 32, so that the tail begins at 125 of them
    cover = strips_for(scale)
    tail_only = replace(
        cover,
        starts=np.repeat(cover.starts[[cover.tail, -1]], 2**13),
        sure=np.zeros_like(cover.sure),
        heights=np.full_like(cover.heights, cover.heights[-1]),
        tail=0,
        acceptance=0.5,
    )
    draws = _few(tail_only, 20_000, SeededBits(5))
    assert stats.binomtest(int(np.sum(draws > 0)), draws.size).pvalue > ACCEPT
    draws = np.abs(draws)
    start = 125 * 32
    edges = start + np.array([0, 30, 64, 100, 150, 200, 256, 320, 400, 512, 700, 1000])
    full = np.array([*edges, 10**9]) - 0.5
    full[0] = start  # what rounds to the first number from below is of another strip
    masses = np.diff(-stats.norm.sf(full, scale=scale))
    expected = masses / masses.sum() * draws.size
    observed = np.histogram(draws, [start, *full[1:]])[0]
    assert stats.chisquare(observed, expected).pvalue > ACCEPT
    wrong = np.diff(-stats.norm.sf(full, scale=1.1 * scale))
    wrong *= draws.size / wrong.sum()
    assert stats.chisquare(observed, wrong).pvalue < REJECT


@pytest.mark.parametrize("scale", [5, 2**40])
def test_draws_beyond_four_deviations_are_as_many_as_they_should_be(scale):
    size = 2_000_000
    far = int(np.sum(np.abs(rounded_gaussian(scale, size, SeededBits(6))) > 4 * scale))
    chance = 2 * stats.norm.sf((4 * scale + 0.5) / scale)
    assert stats.binomtest(far, size, chance).pvalue > ACCEPT


@pytest.mark.parametrize("sign", [1, -1])
def test_gaussian_exponent_refines_its_place_with_the_coin(sign):
    # Scale 1, z near the root of 2, so that the exponent is near 1.
    place = int(sign * math.sqrt(2) * 2**50)
    later = ScriptedBits([0, 0])
    low, high = exact_exponent(place, strips_for(1), later)(128)
    assert later.words == []
    assert 0 < high - low < Fraction(1, 2**170)
    assert float(low) == pytest.approx(1.0)


@pytest.mark.parametrize(("word", "expected"), [(2**63 - 1, True), (2**63, False)])
def test_heights_scale_the_uniform_number(word, expected):
    # 2 U < 1 for U below one half.
    coin = LazyUniform(word, ScriptedBits())
    assert is_below_exp(coin, rational(0), Fraction(2)) is expected


def test_small_heights_are_not_mistaken_for_hopeless_coins():
    # exp(-100) = 3.7e-44: U = 2**-64 is above it, 2**-64 2**-90 is not.
    hopeless = LazyUniform(1, ScriptedBits())
    assert is_below_exp(hopeless, rational(100)) is False
    low = LazyUniform(1, ScriptedBits([0]))
    assert is_below_exp(low, rational(100), Fraction(1, 2**90)) is True


def test_hopeless_coins_are_decided_without_their_exponential():
    huge = rational(10**5000)
    assert is_below_exp(LazyUniform(1, ScriptedBits()), huge) is False
    bits = ScriptedBits([0, 0, 5])
    assert is_below_exp(LazyUniform(0, bits), huge) is False
    assert bits.words == []
    assert is_below_exp(LazyUniform(LARGEST_WORD, ScriptedBits()), rational(0)) is True


@given(st.fractions(0, 60, max_denominator=10**6), st.integers(12, 60))
def test_exp_bounds_enclose_tightly(x, digits):
    low, high = exp_bounds(x, x, digits)
    finer = exp_bounds(x, x, digits + 40)
    assert low <= finer[0] <= finer[1] <= high
    assert high - low <= high * Fraction(10) ** (2 - digits) * (1 + x)
    assert float(low) == pytest.approx(math.exp(-x), rel=1e-9)


@pytest.mark.parametrize("guard", [GUARD, 1.0])
def test_e_folds_count_the_powers_above(guard):
    numbers = (0.9, 0.37, 0.36, 0.02, 1e-11)
    # The word 1 leaves U between 2**-64 and 2**-63, and exp(-44) lies there too.
    words = np.array([int(u * 2**64) for u in numbers] + [1, 1], dtype=np.uint64)
    bits = ScriptedBits([0, LARGEST_WORD])
    expected = [math.floor(-math.log(u)) for u in numbers]
    assert e_folds(words, bits, guard).tolist() == [*expected, 44, 43]
    assert bits.words == []


@given(fold=st.integers(1, 27), side=st.sampled_from([-1, 1]), size=st.integers(0, 50))
def test_e_folds_near_a_power_are_those_of_exact_arithmetic(fold, side, size):
    word = round(math.exp(-fold) * 2**64) + side * 2**size
    words = np.array([max(0, word)], dtype=np.uint64)
    fast, exact = (e_folds(words, SeededBits(fold), guard) for guard in (GUARD, 1.0))
    assert fast.tolist() == exact.tolist()


def test_uniform_integers_reject_the_incomplete_last_round():
    words = np.array([0, 5, LARGEST_WORD - 1, LARGEST_WORD], dtype=np.uint64)
    numbers, usable = uniform_below(words, 3)
    assert numbers.tolist()[:3] == [0, 2, 2]
    assert usable.tolist() == [True, True, True, False]
    assert uniform_below(words, 2**51)[1].all()
    # The refused word would have meant index 0.
    bits = ScriptedBits([LARGEST_WORD, 1, 2, 2, 2, 2] + [0] * 6)
    assert exponential_choice([0, 0, 0], 1, bits) == 1


@pytest.mark.parametrize(("guard", "times"), [(GUARD, 4_000), (1.0, 1_000)])
def test_exponential_choice_has_the_softmax_law(guard, times):
    gaps, scale, bits = [3, 1, 4, 40, 2], 2, SeededBits(5)
    draws = [exponential_choice(gaps, scale, bits, _guard=guard) for _ in range(times)]
    weights = np.exp(-np.array(gaps) / scale)
    counts = np.bincount(draws, minlength=5)
    keep = [0, 1, 2, 4]
    expected = weights[keep] / weights[keep].sum() * counts.sum()
    assert counts[3] == 0
    assert stats.chisquare(counts[keep], expected).pvalue > ACCEPT
    assert stats.chisquare(counts[keep], expected[::-1]).pvalue < REJECT


@settings(max_examples=40)
@given(
    gaps=st.lists(st.integers(0, 10**9), min_size=1, max_size=6),
    power=st.integers(0, 400),
    seed=st.integers(0, 2**32),
)
def test_exponential_choice_knows_only_differences_and_ratios(gaps, power, seed):
    unit = 10**power
    scaled = [gap * unit + 7**900 for gap in gaps]
    plain = exponential_choice(gaps, 10**6, SeededBits(seed))
    assert exponential_choice(scaled, 10**6 * unit, SeededBits(seed)) == plain
    assert exponential_choice(gaps, 10**6, SeededBits(seed), _guard=1.0) == plain


@pytest.mark.parametrize("sampling_prob", [0.005, 0.1, 0.7, 1 / 3])
def test_inclusion_counts_are_binomial(sampling_prob):
    bits, n = SeededBits(6), 200_000
    rows = poisson_sample(n, sampling_prob, bits)
    assert stats.binomtest(rows.size, n, sampling_prob).pvalue > ACCEPT
    assert stats.binomtest(rows.size, n, sampling_prob * 0.7).pvalue < REJECT
    sizes = [poisson_sample(100, sampling_prob, bits).size for _ in range(3_000)]
    variance = 100 * sampling_prob * (1 - sampling_prob)
    assert np.var(sizes) == pytest.approx(variance, rel=0.15)


def test_rows_are_independent_of_each_other():
    bits, rounds = SeededBits(7), 8_000
    batches = np.zeros((rounds, 9), dtype=np.int64)
    for batch in batches:
        batch[poisson_sample(9, 0.3, bits)] = 1
    patterns = batches[:, [0, 4, 8]] @ [4, 2, 1]
    ones = np.array([i.bit_count() for i in range(8)])
    expected = rounds * 0.3**ones * 0.7 ** (3 - ones)
    observed = np.bincount(patterns, minlength=8)
    assert stats.chisquare(observed, expected).pvalue > ACCEPT
    inclusions = batches.sum(axis=0)
    z = (inclusions - 0.3 * rounds) / math.sqrt(0.21 * rounds)
    assert stats.chi2.sf(float(z @ z), 9) > ACCEPT


def test_ties_of_poisson_coins_are_resolved_exactly():
    sampling_prob = 0.5 + 2.0**-40
    bits = ScriptedBits(
        words=[2**40 - 1, 2**40, 2**40 + 1],
        short=[0x7FFF, 0x8000, 0x8000, 0x8000, 0x8001],
    )
    assert poisson_sample(5, sampling_prob, bits).tolist() == [0, 1]
    assert (bits.words, bits.short) == ([], [])
    # A rate of 16 bits leaves nothing to refine: U equal to it is not below it.
    assert poisson_sample(2, 0.5, ScriptedBits(short=[0x8000, 0x7FFF])).tolist() == [1]


def test_smallest_rate_needs_all_its_bits():
    sampling_prob, words = 2.0**-1074, 17
    bits = ScriptedBits(words=[0] * words, short=[0])
    assert poisson_sample(1, sampling_prob, bits).tolist() == [0]
    assert bits.words == []
    bits = ScriptedBits(words=[0] * (words - 1) + [2**30], short=[0])
    assert poisson_sample(1, sampling_prob, bits).tolist() == []
    assert poisson_sample(100_000, 1e-12, SeededBits(8)).size == 0


@given(
    sampling_prob=st.floats(0, 1, exclude_min=True, exclude_max=True),
    nudges=st.lists(st.integers(-1, 1), min_size=1, max_size=8),
    word=st.integers(0, LARGEST_WORD),
)
def test_poisson_coins_compare_the_numbers_they_stand_for(sampling_prob, nudges, word):
    head = math.floor(Fraction(sampling_prob) * 2**16)
    short = [min(max(head + nudge, 0), 2**16 - 1) for nudge in nudges]
    bits = ScriptedBits(words=[word] * (20 * len(short)), short=short)
    tail = Fraction(word, LARGEST_WORD)  # the same word for ever
    values = [(s + tail) / 2**16 for s in short]
    expected = [i for i, value in enumerate(values) if value < Fraction(sampling_prob)]
    assert poisson_sample(len(short), sampling_prob, bits).tolist() == expected


def test_full_rate_draws_nothing_and_no_rows_are_no_trouble():
    assert poisson_sample(4, 1.0, ScriptedBits()).tolist() == [0, 1, 2, 3]
    assert poisson_sample(0, 0.5, ScriptedBits()).tolist() == []
    assert poisson_sample(10, 0.5, SeededBits(0)).dtype == np.int64


@pytest.mark.parametrize(("sampler", "law"), FAMILIES)
def test_limits_and_types_of_the_lattice_samplers(sampler, law):
    assert sampler(0, 3, ScriptedBits()).tolist() == [0, 0, 0]
    assert sampler(5, 0, SeededBits(0)).tolist() == []
    for size in (1, 7, 40_001):
        draws = sampler(np.int64(5), size, SeededBits(0))
        assert draws.shape == (size,)
        assert draws.dtype == np.int64
    for scale in (-1, 2**50 + 1, math.nan):
        with pytest.raises(ValueError, match=r"Expected scale"):
            sampler(scale, 3, SeededBits(0))
    with pytest.raises(ValueError, match="Expected size >= 0, got -1"):
        sampler(5, -1, SeededBits(0))
    with pytest.raises(ValueError, match="Expected scale to be an integer"):
        sampler(1.5, 3, SeededBits(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 1), "at least one gap"),
        (([0, -1], 1), r"Expected gaps\[1\] >= 0, got -1"),
        (([0.5], 1), r"Expected gaps\[0\] to be an integer"),
        (([0], 0), "Expected scale >= 1, got 0"),
    ],
)
def test_bad_choices_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        exponential_choice(*arguments, SeededBits(0))


@pytest.mark.parametrize("sampling_prob", [0.0, -0.1, 1.5, math.nan, math.inf])
def test_bad_rates_are_refused(sampling_prob):
    with pytest.raises(ValueError, match=r"Expected .*sampling_prob"):
        poisson_sample(3, sampling_prob, SeededBits(0))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [PIECE, PIECE + 1, BLOCK, 2 * BLOCK + 5])
def test_gaussian_numbers_are_the_same_on_any_number_of_threads(threads, size):
    added, written, times = (np.zeros(size, dtype=np.int64) for _ in range(3))

    def put(places, noise):
        assert (added[places] == 0).all()  # what comes again was 0 before
        added[places] += noise
        written[places] = noise
        times[places] += 1

    scale = 2**40
    add_gaussian(scale, size, SeededBits(3), put, threads=threads)
    expected = rounded_gaussian(scale, size, SeededBits(3))
    np.testing.assert_array_equal(added, expected)
    np.testing.assert_array_equal(written, expected)
    assert times.min() == 1 and (times.max() == 2) == (size > PIECE)
    again = rounded_gaussian(scale, size, SeededBits(3), threads=threads)
    np.testing.assert_array_equal(again, expected)


def test_each_block_is_drawn_from_a_key_of_its_own():
    size, scale, keys = 2 * BLOCK + 5, 2**30, SeededBits(3)
    draws = rounded_gaussian(scale, size, SeededBits(3))
    for start in range(0, size, BLOCK):
        block = KeyedBits(keys.uint64(4).tobytes())
        count = min(PIECE, size - start)
        words, table = block.uint64(count), strips_for(scale).table
        places = (words - table[words >> np.uint64(50)]).view(np.int64)
        equal = draws[start : start + count] == places >> strips_for(scale).unit
        assert equal.mean() > 0.9  # the first words of the block, but where compared
    values, counts = np.unique(draws, return_counts=True)
    assert values.size > size - 1000 and counts.max() <= 3  # no block comes twice


@pytest.mark.parametrize("scale", [1, 2, 7, 2**20, 2**45])
def test_blocks_have_the_law_of_few_numbers(monkeypatch, scale):
    """Small pieces and blocks, so that all seams and late places are seen often."""
    monkeypatch.setattr(gaussian, "PIECE", 50)
    monkeypatch.setattr(gaussian, "BLOCK", 170)
    draws = rounded_gaussian(scale, 20_000, SeededBits(17))
    few = np.array(
        [rounded_gaussian(scale, 50, SeededBits(900 + k)) for k in range(400)]
    ).ravel()
    assert stats.ks_2samp(draws, few).pvalue > ACCEPT
    for sample in (draws, few):
        law = stats.norm(scale=scale)
        if scale > 1000:
            assert stats.kstest(sample, law.cdf).pvalue > ACCEPT
        else:
            edges = np.arange(-2 * scale, 2 * scale + 1) - 0.5
            chances = np.diff([0.0, *law.cdf(edges), 1.0])
            observed = np.bincount(
                np.searchsorted(edges, sample), minlength=len(chances)
            )
            assert stats.chisquare(observed, 20_000 * chances).pvalue > ACCEPT


@pytest.mark.parametrize("part", [1, 7, 64])
def test_comparisons_in_parts_are_those_of_all_at_once(monkeypatch, part):
    strips = strips_for(6)
    words = SeededBits(5).uint64(200).copy()
    words[::3] |= np.uint64((2**13 - 1) << 50)  # the last slot of a side: in the tail
    slots = (words >> np.uint64(50)) & np.uint64(2**13 - 1)
    assert 0 < np.count_nonzero(slots >= strips.tail) < words.size
    for guard in (GUARD, 1.0):
        monkeypatch.setattr(gaussian, "_COMPARED", words.size)
        noise, kept = gaussian._compared(words, strips, SeededBits(6), guard)
        monkeypatch.setattr(gaussian, "_COMPARED", part)
        again = gaussian._compared(words, strips, SeededBits(6), guard)
        assert np.array_equal(again[0], noise) and np.array_equal(again[1], kept)
        assert 0 < np.count_nonzero(kept) < words.size


@pytest.mark.parametrize("size", [0, 3, PIECE + 1])
def test_blocks_without_noise_are_zero(size):
    taken = []
    add_gaussian(0, size, ScriptedBits(), lambda part, noise: taken.append(noise))
    assert np.concatenate(taken).tolist() == [0] * size


def test_an_error_in_a_thread_is_not_lost():
    def fail(part, noise):
        raise OSError("no place")

    with pytest.raises(OSError, match="no place"):
        add_gaussian(1, 3 * BLOCK, SeededBits(3), fail, threads=2)


class ScriptedRows:
    """Bits of rows that a test chose."""

    def __init__(self, short: list[int], longer: dict[int, list[int]]) -> None:
        self.short, self.longer = short, longer

    def first(self, start: int, n: int) -> np.ndarray:
        return np.array(self.short[start : start + n], dtype=np.uint16)

    def more(self, rows: np.ndarray, word: int) -> np.ndarray:
        found = [self.longer[int(row)][word - 1] for row in rows]
        return np.array(found, dtype=np.uint64)


@given(
    sampling_prob=st.floats(0, 1, exclude_min=True, exclude_max=True),
    nudges=st.lists(st.integers(-1, 1), min_size=1, max_size=8),
    tails=st.lists(st.lists(st.integers(0, LARGEST_WORD), min_size=18, max_size=18)),
    start=st.integers(0, 7),
)
def test_a_batch_compares_the_numbers_of_its_rows(sampling_prob, nudges, tails, start):
    head = math.floor(Fraction(sampling_prob) * 2**16)
    short = [min(max(head + nudge, 0), 2**16 - 1) for nudge in nudges]
    exact = math.floor(Fraction(sampling_prob) * 2 ** (16 + 64 * 18))
    ties = [exact >> 64 * (17 - k) & LARGEST_WORD for k in range(18)]
    longer = {row: (tails + [ties] * 8)[row] for row in range(len(short))}
    expected = []
    for row, first in enumerate(short):
        value = first
        for word in longer[row]:
            value = value << 64 | word
        if value < exact:
            expected.append(row)
    batch = PoissonRows(sampling_prob, ScriptedRows(short, longer))
    assert batch.chosen(0, len(short)).tolist() == expected
    start = min(start, len(short))
    later = [row - start for row in expected if row >= start]
    assert batch.chosen(start, len(short) - start).tolist() == later


class TiedRows(RowBits):
    """Bits of rows whose first 16 are those of one half, so that others decide."""

    def first(self, start: int, n: int) -> np.ndarray:
        return np.full(n, 0x8000, dtype=np.uint16)


def test_further_words_of_rows_are_fair():
    n, share = 100_000, 0.3
    batch = PoissonRows(0.5 + share * 2.0**-16, TiedRows(bytes(32)))
    rows = batch.chosen(0, n)
    assert stats.binomtest(rows.size, n, share).pvalue > ACCEPT
    assert stats.binomtest(rows.size, n, share * 0.9).pvalue < REJECT
    assert (batch.chosen(999, n - 999) + 999 == rows[rows >= 999]).all()


@pytest.mark.parametrize("sampling_prob", [0.005, 0.7, 1 / 3])
def test_the_rows_of_a_batch_are_binomial_whatever_the_blocks(sampling_prob):
    n = 1_000_000
    batch = PoissonRows(sampling_prob, RowBits(bytes(31) + b"a"))
    rows = batch.chosen(0, n)
    assert stats.binomtest(rows.size, n, sampling_prob).pvalue > ACCEPT
    assert stats.binomtest(rows.size, n, sampling_prob * 0.7).pvalue < REJECT
    cuts = [0, 1, 8, 250_001, 250_002, 700_003, n]
    parts = [a + batch.chosen(a, b - a) for a, b in itertools.pairwise(cuts)]
    assert (np.sort(np.concatenate(parts[::-1])) == rows).all()


def test_batches_of_different_charges_are_independent():
    run, n = Randomness(bytes(32)), 40_000
    drawn = np.zeros((4, n), dtype=np.int64)
    for charge, row in enumerate(drawn):
        bits = run.for_charge(charge).row_bits()
        row[PoissonRows(0.3, bits).chosen(0, n)] = 1
    patterns = np.bincount(np.array([8, 4, 2, 1]) @ drawn, minlength=16)
    ones = np.array([i.bit_count() for i in range(16)])
    expected = n * 0.3**ones * 0.7 ** (4 - ones)
    assert stats.chisquare(patterns, expected).pvalue > ACCEPT
    # The same bits for every charge would be found.
    repeated = np.bincount(np.array([8, 4, 2, 1]) @ drawn[[0] * 4], minlength=16)
    assert stats.chisquare(repeated, expected).pvalue < REJECT


def test_rows_of_a_batch_are_independent_of_their_neighbors():
    n = 90_000
    inside = np.zeros(n, dtype=np.int64)
    inside[PoissonRows(0.3, RowBits(bytes(32))).chosen(0, n)] = 1
    for places in ((0, 1, 2), (0, 3, 7), (0, 4, 8)):
        rows = inside.reshape(-1, 9)[:, places] @ [4, 2, 1]
        ones = np.array([i.bit_count() for i in range(8)])
        expected = n / 9 * 0.3**ones * 0.7 ** (3 - ones)
        assert stats.chisquare(np.bincount(rows, minlength=8), expected).pvalue > ACCEPT


def test_many_rows_are_drawn_in_parts(monkeypatch):
    """No row is lost or doubled at a seam, wherever the seams are."""
    batch = PoissonRows(0.3, RowBits(bytes(32)))
    rows = batch.chosen(5, 1000)
    monkeypatch.setattr(rejection, "_PART", 7)
    assert (batch.chosen(5, 1000) == rows).all()
    assert batch.chosen(5, 0).size == 0
    assert PoissonRows(1.0, ScriptedRows([], {})).chosen(9, 3).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"Expected .*sampling_prob"):
        PoissonRows(0.0, RowBits(bytes(32)))


# Each law is tested once at a fixed seed; a wrong law fails by far more than this.
LEAST_P = 1e-4


class RepeatingBits:
    """Gives the same word twice at first, then counts."""

    def __init__(self):
        self.calls = 0

    def uint64(self, n):
        self.calls += 1
        words = np.arange(n, dtype=np.uint64)
        if self.calls == 1:
            words[:] = 7
        return words[::-1].copy()


def test_gaussian_coordinates():
    draws = gaussian_vector(3.0, 20_000, SeededBits(1))
    assert stats.kstest(draws, stats.norm(scale=3.0).cdf).pvalue > LEAST_P


@pytest.mark.parametrize("size", [1, 4])
def test_radial_norm_is_gamma_and_direction_is_symmetric(size):
    bits = SeededBits(2)
    draws = np.array([radial_vector(0.5, size, bits) for _ in range(4000)])
    norms = np.linalg.norm(draws, axis=1)
    law = stats.gamma(size, scale=0.5)
    assert stats.kstest(norms, law.cdf).pvalue > LEAST_P
    directions = draws / norms[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(4000)
    second = directions.T @ directions / 4000
    assert np.abs(second - np.eye(size) / size).max() < 5 / math.sqrt(4000)


def test_every_order_is_equally_likely():
    bits = SeededBits(3)
    found = [tuple(random_order(3, bits).tolist()) for _ in range(6000)]
    counts = [found.count(order) for order in permutations(range(3))]
    assert sum(counts) == 6000
    assert stats.chisquare(counts).pvalue > LEAST_P


def test_words_that_stand_twice_are_drawn_again():
    bits = RepeatingBits()
    assert random_order(4, bits).tolist() == [3, 2, 1, 0]
    assert bits.calls == 2


def test_nothing_to_order_and_no_noise():
    assert random_order(0, SeededBits(0)).size == 0
    assert not gaussian_vector(0.0, 3, SeededBits(0)).any()


@pytest.mark.parametrize("draw", [gaussian_vector, radial_vector])
def test_a_negative_scale_is_refused(draw):
    with pytest.raises(ValueError, match="scale >= 0"):
        draw(-1.0, 3, SeededBits(0))


def test_law():
    answer = np.linspace(-2, 2, 20_000)
    noisy = with_gaussian(answer, sensitivity=0.1, noise_scale=0.3, bits=SeededBits(1))
    law = stats.norm(scale=0.3)
    assert stats.kstest(noisy - answer, law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("noise_scale", [1e-6, 0.3, 50.0])
def test_everything_is_on_a_lattice_that_only_the_noise_decides(noise_scale):
    step = noise_scale / 2**26
    noisy = with_gaussian(
        np.array([math.pi, -1e-9]),
        sensitivity=1,
        noise_scale=noise_scale,
        bits=SeededBits(2),
    )
    multiples = noisy / step
    np.testing.assert_allclose(multiples, np.rint(multiples), rtol=1e-15, atol=0)


def test_noise_is_raised_where_rounding_moves_more_than_the_answer():
    """Sensitivity of one lattice step, 10,000 coordinates: 101 times the noise."""
    tiny = with_gaussian(
        np.zeros(10_000), sensitivity=2.0**-26, noise_scale=1.0, bits=SeededBits(3)
    )
    assert tiny.std() == pytest.approx(101, rel=0.05)


def test_no_noise_leaves_the_answer():
    answer = np.array([math.pi])
    found = with_gaussian(answer, sensitivity=1, noise_scale=0, bits=SeededBits(0))
    np.testing.assert_array_equal(found, answer)
