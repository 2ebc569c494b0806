# SPDX-License-Identifier: Apache-2.0
"""The theorem of Steinke, Nasr and Jagielski on mechanisms whose laws are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armijo.accounting.budget import Budget
from armijo.audit.one_run import (
    TRAINERS,
    OneRun,
    guess_epsilon,
    guess_p_value,
    right_guesses,
)
from tests.audit import broken


class TestPValue:
    @given(
        canaries=st.integers(1, 60),
        share=st.floats(0, 1),
        accuracy=st.floats(0, 1),
        epsilon=st.floats(0, 4),
        delta=st.floats(0, 0.01),
    )
    def test_is_the_printed_formula(self, canaries, share, accuracy, epsilon, delta):
        """Written again as a loop over i."""
        guesses = max(1, round(share * canaries))
        right = round(accuracy * guesses)
        bias = math.exp(epsilon) / (1 + math.exp(epsilon))
        chance = stats.binom.pmf(np.arange(guesses + 1), guesses, bias).tolist()
        steepest = max(
            (sum(chance[right - i : right]) / i for i in range(1, right + 1)),
            default=0.0,
        )
        expected = min(sum(chance[right:]) + 2 * canaries * delta * steepest, 1.0)
        found = guess_p_value(
            canaries=canaries,
            guesses=guesses,
            right=right,
            epsilon=epsilon,
            delta=delta,
        )
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)

    @pytest.mark.parametrize("delta", [0.001, 0.02])
    @pytest.mark.parametrize("epsilon", [0.0, 1.0])
    def test_bounds_what_name_and_shame_achieves(self, epsilon, delta):
        """Each canary is named with chance delta, else its answer is randomized."""
        canaries = 40
        bias = math.exp(epsilon) / (1 + math.exp(epsilon))
        chance = delta + (1 - delta) * bias
        for right in range(canaries + 1):
            achieved = stats.binom.sf(right - 1, canaries, chance)
            bound = guess_p_value(
                canaries=canaries,
                guesses=canaries,
                right=right,
                epsilon=epsilon,
                delta=delta,
            )
            assert bound >= achieved * (1 - 1e-9)

    def test_bounds_what_telling_everything_with_chance_delta_achieves(self):
        """All or nothing: (0, delta)-private; half of the canaries are guessed."""
        canaries, guesses, delta = 30, 15, 0.01
        for right in range(guesses + 1):
            told = delta + (1 - delta) * stats.binom.sf(right - 1, guesses, 0.5)
            arguments = {"canaries": canaries, "guesses": guesses, "right": right}
            bound = guess_p_value(**arguments, epsilon=0.0, delta=delta)
            assert bound >= told * (1 - 1e-9)
        # Without the second term the bound would be false.
        assert guess_p_value(**arguments, epsilon=0.0, delta=0.0) < told

    @given(right=st.integers(0, 30), epsilon=st.floats(0, 5), more=st.floats(0.01, 2))
    def test_rises_with_epsilon_and_delta(self, right, epsilon, more):
        def found(epsilon, delta):
            return guess_p_value(
                canaries=50, guesses=30, right=right, epsilon=epsilon, delta=delta
            )

        assert found(epsilon, 0.0) <= found(epsilon + more, 0.0) + 1e-12
        assert found(epsilon, 0.0) <= found(epsilon, 1e-3)

    def test_impossible_numbers_are_refused(self):
        with pytest.raises(ValueError, match="right <= guesses <= canaries"):
            guess_p_value(canaries=5, guesses=6, right=3, epsilon=1.0, delta=0.0)


def epsilon_found(accuracy, canaries, delta=1e-6, confidence=0.95):
    return guess_epsilon(
        canaries=canaries,
        guesses=canaries,
        right=round(accuracy * canaries),
        delta=delta,
        confidence=confidence,
    )


class TestEpsilon:
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_comes_near_the_truth_of_randomized_response(self, epsilon):
        accuracy = 1 / (1 + math.exp(-epsilon))
        found = [epsilon_found(accuracy, m, 0.0) for m in (100, 1000, 100_000)]
        assert found == sorted(found)
        assert 0.97 * epsilon < found[-1] < epsilon

    def test_is_the_edge_of_what_the_p_value_rules_out(self):
        numbers = {"canaries": 200, "guesses": 100, "right": 80, "delta": 1e-5}
        found = guess_epsilon(**numbers, confidence=0.95)
        assert guess_p_value(**numbers, epsilon=found) <= 0.05
        assert guess_p_value(**numbers, epsilon=found + 1e-5) > 0.05

    def test_covers_randomized_response(self):
        """At 90 % at most one audit in ten exceeds; frequencies would in half."""
        epsilon, canaries, rounds = 1.0, 100, 400
        rng = np.random.default_rng(3)
        accuracy = 1 / (1 + math.exp(-epsilon))
        shares = rng.binomial(canaries, accuracy, rounds) / canaries
        kinds, place = np.unique(shares, return_inverse=True)
        found = np.array([epsilon_found(share, canaries, 0.0, 0.9) for share in kinds])
        assert np.mean(found[place] > epsilon) <= 0.1 + 3 * math.sqrt(0.09 / rounds)
        assert np.mean(shares > accuracy) > 0.3

    def test_no_skill_is_no_epsilon(self):
        assert epsilon_found(0.5, 1000) == 0

    def test_a_large_delta_explains_everything(self):
        assert epsilon_found(1.0, 1000, 1e-6) > 4
        assert epsilon_found(1.0, 1000, 0.05) < 1


def test_guesses_are_the_surest_of_each_side():
    scores = np.array([5.0, 1.0, 4.0, 0.0, 3.0, 2.0])
    there = np.array([True, False, True, True, False, False])
    assert right_guesses(scores, there, 1) == 1
    assert right_guesses(scores, there, 2) == 3
    assert right_guesses(scores, there, 3) == 4


class TestTrainedModel:
    BUDGET = Budget(epsilon=2.0, delta=1e-5)

    def played(self, model="sgd", canaries=None, seed=1):
        canaries = canaries or (1000 if model == "images" else 3000)
        audit = OneRun(model=model, budget=self.BUDGET)
        return audit.play(canaries=canaries, confidence=0.95, seed=seed)

    @pytest.mark.parametrize("model", TRAINERS)
    def test_a_sound_model_is_not_refuted_but_its_canaries_are_seen(self, model):
        outcome = self.played(model)
        assert 0.2 < outcome.epsilon < outcome.claim.epsilon
        assert outcome.detail["guesses"] == outcome.trials // 5

    def test_a_seed_repeats_it(self):
        assert self.played(canaries=300) == self.played(canaries=300)
        assert self.played(canaries=300, seed=None).trials == 300

    @pytest.mark.parametrize(
        "model", ["sgd", "network", "network-auto", "network-blsgd", "images"]
    )
    def test_an_eighth_of_the_noise_is_caught(self, model, monkeypatch):
        for _ in range(3):
            broken.noise_halved(monkeypatch)
        assert self.played(model).exceeds
