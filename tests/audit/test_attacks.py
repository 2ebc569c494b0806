# SPDX-License-Identifier: Apache-2.0
"""Attacks find what differs, and are judged by trials that did not make them."""

import numpy as np
import pytest

from armijo.audit.bounds import epsilon_of_test
from armijo.audit.games import ATTACK_SHARE, Claim, best_attack, play_game

CONFIDENCE = 0.95


def value(tpr, fpr):
    return epsilon_of_test(tpr, fpr, 0.0)


def audited(absent, present):
    """Make the attack from the first half and bound epsilon by the other."""
    half = len(absent) // 2
    attack = best_attack(absent[:half], present[:half], value, CONFIDENCE)
    return attack.counts(absent[half:], present[half:]).epsilon(0.0, CONFIDENCE)


def noise(trials, width, seed):
    return np.random.default_rng(seed).normal(size=(trials, width))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_shift_of_one_number_is_found_either_way(sign):
    absent, present = noise(400, 4, 0), noise(400, 4, 1)
    present[:, 2] += 4 * sign
    assert audited(absent, present) > 2.5


def test_a_shift_of_a_sum_is_found():
    """Each number alone is hidden by what all have in common."""
    absent, present = noise(600, 6, 0), noise(600, 6, 1)
    for sample in (absent, present):
        sample += 5 * noise(600, 1, 2)
    present[:, 0] += 3
    assert audited(absent, present) > 2
    alone = best_attack(absent[:300, :1], present[:300, :1], value, CONFIDENCE)
    counts = alone.counts(absent[300:, :1], present[300:, :1])
    assert counts.epsilon(0.0, CONFIDENCE) < 0.6


def test_a_change_of_spread_is_found():
    absent, present = noise(600, 2, 0), noise(600, 2, 1)
    present[:, 1] *= 6
    assert audited(absent, present) > 2


def test_differences_that_never_occur_without_the_row_are_found():
    """What noise that is used twice looks like: two numbers agree, or they do not."""
    absent, present = noise(400, 2, 0), noise(400, 2, 1)
    absent[:, 1], present[:, 1] = absent[:, 0], present[:, 0]
    present[:, 1] += np.random.default_rng(2).integers(0, 2, size=400)
    assert audited(absent, present) > 2.5


def test_answers_with_names_instead_of_sizes_are_ordered_by_their_odds():
    """One-hot answers: neither of the two that tell is at an end of the scale."""
    rng = np.random.default_rng(0)
    laws = [0.3, 0.05, 0.3, 0.35], [0.3, 0.4, 0.05, 0.25]
    samples = [np.eye(4)[rng.choice(4, size=2000, p=law)] for law in laws]
    assert audited(*samples) > 1.2


def test_constants_do_no_harm():
    absent, present = noise(300, 3, 0), noise(300, 3, 1)
    absent[:, 1] = present[:, 1] = 7.0
    present[:, 0] += 4
    assert audited(absent, present) > 2


def test_nothing_is_found_where_nothing_differs():
    """Thirty games with ten useless numbers: at most one in twenty may be wrong."""
    found = [
        audited(noise(120, 10, 2 * i), noise(120, 10, 2 * i + 1)) for i in range(30)
    ]
    assert np.sum(np.array(found) > 0) <= 4


def test_trials_that_made_the_attack_would_say_too_much():
    """Games counted on the trials of the attack: far more than one is wrong."""
    wrong = 0
    for i in range(20):
        absent, present = noise(40, 30, 2 * i), noise(40, 30, 2 * i + 1)
        attack = best_attack(absent, present, value, CONFIDENCE)
        wrong += attack.counts(absent, present).epsilon(0.0, CONFIDENCE) > 0
    assert wrong > 4


class TestValuesThatAreNoNumbers:
    """They tell of the row like any other value, and do not hide the other ones."""

    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("where", ["absent", "present"])
    def test_they_are_found_on_either_side(self, odd, where):
        samples = {"absent": noise(200, 3, 0), "present": noise(200, 3, 1)}
        samples[where][:, 1] = odd
        assert audited(samples["absent"], samples["present"]) > 2.5

    def test_they_are_found_where_they_are_rarer(self):
        absent, present = noise(600, 2, 0), noise(600, 2, 1)
        present[::2, 0] = absent[::20, 0] = np.nan
        assert audited(absent, present) > 1.5

    @pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
    def test_what_differs_beside_them_is_still_found(self, odd):
        absent, present = noise(400, 3, 0), noise(400, 3, 1)
        for sample in (absent, present):
            sample[::3, 0] = odd
        present[:, 2] += 4
        assert audited(absent, present) > 2.5

    def test_those_that_first_occur_where_they_are_counted_do_no_harm(self):
        absent, present = noise(400, 2, 0), noise(400, 2, 1)
        present[:, 1] += 4
        present[300:, 0] = np.nan
        assert audited(absent, present) > 2.5

    def test_a_game_that_releases_them_is_refuted(self):
        class Spoiled:
            name = "spoiled"
            claim = Claim(1.0, 0.0)

            def play(self, present, randomness):
                return np.array([np.nan if present else 0.0])

        assert play_game(Spoiled(), trials=100, confidence=0.95, seed=0).exceeds


class Counted:
    """Writes down which trials were made; releases its own number."""

    name = "counted"
    claim = Claim(1.0, 0.0)

    def __init__(self):
        self.made = []

    def play(self, present, randomness):
        self.made.append(present)
        word = randomness.for_charge(0).stream("search").uint64(1)[0]
        return np.array([float(word >> np.uint64(40)) + present * 0.0])


def test_a_game_keeps_its_trials_apart():
    game = Counted()
    done = []
    outcome = play_game(game, trials=50, confidence=0.95, progress=done.append)
    assert game.made == [False, True] * 50
    assert done == list(range(1, 101))
    assert outcome.trials == 2 * (50 - int(ATTACK_SHARE * 50))
    assert outcome.detail["positives"] == outcome.detail["negatives"]


def test_a_seed_repeats_a_game_and_none_does_not():
    class Released(Counted):
        def play(self, present, randomness):
            vector = super().play(present, randomness)
            self.made[-1] = float(vector[0])
            return vector

    def released(seed):
        game = Released()
        play_game(game, trials=20, confidence=0.95, seed=seed)
        return game.made

    first = released(3)
    assert first == released(3)
    assert len(set(first)) > 35
    assert first != released(4)
    assert released(None) != released(None)
