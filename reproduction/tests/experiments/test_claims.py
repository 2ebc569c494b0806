# SPDX-License-Identifier: Apache-2.0
"""Verdicts by rule: on results made so that the answer is known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo_reproduction import experiment
from armijo_reproduction.claims import (
    CLAIMS,
    FAILS,
    HOLDS,
    NOISE,
    NOT_RUN,
    ONLY_PUBLISHED,
    WinCount,
)
from armijo_reproduction.results import Part, paired_diff
from armijo_reproduction.spec import PUBLISHED

VERDICTS = {HOLDS, FAILS, NOISE, ONLY_PUBLISHED}
CLEAR, TIED = {0: 0.02, 1: 0.021, 2: 0.019}, {0: 0.02, 1: -0.02, 2: 0.001}


def claim(text):
    """Return the one claim that begins with a text."""
    (found,) = (each for each in CLAIMS if each.text.startswith(text))
    return found


def convex(name, accuracy):
    """Return results: an accuracy by line, budget and setting, and some noise."""
    wanted = experiment(name)
    rows = [
        {
            **vars(key),
            "accuracy": accuracy(key.line, key.epsilon, key.setting)
            + 0.001 * np.random.default_rng(key.seed()).normal(),
            "gradients": 100.0,
            "objectives": 400.0,
        }
        for key in wanted.run_keys()
        if key.repeat == 0
    ]
    return Part(experiment=wanted, table=pd.DataFrame(rows))


def networks(name, **finals):
    """Return curves that rise to a final accuracy at a pace."""
    wanted = experiment(name)
    rows = []
    for key in wanted.run_keys():
        final, pace = finals.get(key.line.split(" (")[0], (0.9, 1.0))
        for step in range(
            wanted.evaluate_every, wanted.steps + 1, wanted.evaluate_every
        ):
            part = min(1.0, pace * step / wanted.steps)
            rows.append(
                {
                    **vars(key),
                    "iteration": step,
                    "accuracy": final * part,
                    "objective": 2.3 - 2.0 * final * part,
                    "step_size": 1.0 - 0.5 * step / wanted.steps,
                }
            )
    return Part(experiment=wanted, table=pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([CLEAR], HOLDS),
        ([CLEAR, CLEAR, TIED], HOLDS),
        ([CLEAR, TIED], NOISE),
        ([TIED, TIED, "against"], NOISE),
        ([CLEAR, "against"], FAILS),
        ([CLEAR, TIED, "against"], FAILS),
        (["against"], FAILS),
    ],
)
def test_the_rule_of_orderings(gaps, verdict):
    against = {fold: -gap for fold, gap in CLEAR.items()}
    folds = [against if gap == "against" else gap for gap in gaps]
    assert WinCount.of(map(paired_diff, folds)).verdict() == verdict


@given(
    st.lists(
        st.dictionaries(st.integers(0, 9), st.floats(-1, 1), min_size=2),
        min_size=1,
        max_size=8,
    )
)
def test_turning_a_comparison_around_turns_its_count_around(gaps):
    there = WinCount.of(map(paired_diff, gaps))
    back = WinCount.of(
        paired_diff({f: -gap for f, gap in each.items()}) for each in gaps
    )
    assert (there.above, there.tied, there.below) == (back.below, back.tied, back.above)
    assert there.mean == pytest.approx(-back.mean)
    assert not (there.verdict() == HOLDS and back.verdict() == HOLDS)


def test_a_single_run_decides_nothing():
    assert WinCount.of([paired_diff({0: 0.5})]).verdict() == NOISE


def test_without_results_no_claim_is_judged():
    assert {each.finding([]).verdict for each in CLAIMS} == {NOT_RUN}


def test_every_claim_is_judged_on_whole_results(parts):
    for each in CLAIMS:
        found = each.finding(parts)
        assert found.verdict in VERDICTS and found.measured, each.text
    assert len({each.text for each in CLAIMS}) == len(CLAIMS) == 33


def known(sound, published):
    """Return accuracies by series or setting, others for series as published."""

    def accuracy(line, epsilon, setting):
        values = published if line.endswith(PUBLISHED) else sound
        return values.get(line.removesuffix(PUBLISHED), values.get(setting, 0.8))

    return accuracy


LAPLACE, OUTPERFORMS = "Laplace noise", "DP-BLGD outperforms DP-AGD"
BEST = "At epsilon 0.05 alpha = 0.5 is best"


@pytest.mark.parametrize(
    ("text", "name", "place", "sound", "published", "verdict"),
    [
        (LAPLACE, "search-noise", "search=laplace", 0.82, 0.78, HOLDS),
        (LAPLACE, "search-noise", "search=laplace", 0.78, 0.82, ONLY_PUBLISHED),
        (LAPLACE, "search-noise", "search=laplace", 0.78, 0.78, FAILS),
        (OUTPERFORMS, "logistic-bank", "DP-BLGD", 0.85, 0.75, HOLDS),
        (OUTPERFORMS, "logistic-bank", "DP-BLGD", 0.75, 0.85, ONLY_PUBLISHED),
        (OUTPERFORMS, "logistic-bank", "DP-BLGD", 0.80, 0.85, ONLY_PUBLISHED),
        (OUTPERFORMS, "logistic-bank", "DP-BLGD", 0.80, 0.80, NOISE),
        (OUTPERFORMS, "logistic-bank", "DP-BLGD", 0.75, 0.75, FAILS),
        (BEST, "armijo-slope", "slope=0.5", 0.82, 0.82, HOLDS),
        (BEST, "armijo-slope", "slope=0.5", 0.78, 0.78, FAILS),
        (BEST, "armijo-slope", "slope=0.5", 0.7999, 0.7999, NOISE),
    ],
)
def test_claims_are_judged_under_both_accountings(
    text, name, place, sound, published, verdict
):
    accuracy = known(sound={place: sound}, published={place: published})
    finding = claim(text).finding([convex(name, accuracy)])
    assert finding.verdict == verdict
    assert "Published accounting" in finding.measured


def test_a_claim_about_small_budgets_looks_at_small_budgets():
    def accuracy(line, epsilon, setting):
        return 0.7 if line == "ObjPert" and epsilon <= 0.1 else 0.8

    found = claim("ObjPert is low").finding([convex("svm-bank", accuracy)])
    assert found.verdict == HOLDS and "above in 6 of 6 settings" in found.measured
    sgd = claim("DP-SGD is low").finding([convex("svm-bank", accuracy)])
    assert sgd.verdict == NOISE


def test_three_of_four_data_sets():
    def parts(*won):
        return [
            convex(
                f"logistic-{name}",
                lambda line, *_, good=name in won: (
                    0.8 if line == "Outpert-RSGD" else 0.85 if good else 0.75
                ),
            )
            for name in ("adult", "ipums-br", "census", "bank")
        ]

    three = claim("The three outperform Outpert-RSGD on 3 of 4")
    assert three.finding(parts("adult", "ipums-br", "census")).verdict == HOLDS
    assert three.finding(parts("adult", "census")).verdict == FAILS
    assert three.finding(parts("adult")[:2]).verdict == NOT_RUN
    bank = claim("On Bank Outpert-RSGD")
    assert bank.finding(parts("adult")).verdict == HOLDS
    assert bank.finding(parts("bank")).verdict == FAILS


@pytest.mark.parametrize(("spread", "verdict"), [(0.015, HOLDS), (0.05, FAILS)])
def test_robust_means_a_small_spread(spread, verdict):
    def accuracy(line, epsilon, setting):
        low = epsilon == 0.2 and setting == "shrink=0.3"
        return 0.8 - (spread if low else 0.0)

    found = claim("Robust to beta").finding([convex("step-shrink", accuracy)])
    assert found.verdict == verdict and "beta = 0.3" in found.measured


@pytest.mark.parametrize(("count", "verdict"), [(150.0, HOLDS), (900.0, FAILS)])
def test_evaluations_are_judged_in_passes(count, verdict):
    part = convex("evaluations", lambda *_: 0.8)
    tenth = part.table["setting"] == "sampling_prob=0.1"
    part.table.loc[tenth, ["gradients", "objectives"]] = [count, 4 * count]
    found = claim("Batches greatly reduce").finding([part])
    assert found.verdict == verdict
    assert f"{count:.0f} batches of a tenth" in found.measured


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.02, -0.02, HOLDS), (0.02, 0.02, FAILS), (-0.02, 0.0, FAILS), (0.0, 0.0, NOISE)],
)
def test_the_two_sides_of_the_clip_claim(low, high, verdict):
    def accuracy(line, epsilon, setting):
        gain = low if epsilon == 0.05 else high
        return 0.8 + (0.0 if setting == "clip_decay=0.0" else gain)

    found = claim("A decaying clip").finding([convex("clip-decay", accuracy)])
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("pace", "verdict"), [(2.0, HOLDS), (1.0, NOISE), (0.8, FAILS)]
)
def test_who_is_sooner_at_high_accuracy(pace, verdict):
    part = networks("mnist-mlp", **{"DP-BLSGD": (0.9, pace)})
    found = claim("MLP: high accuracy in fewer").finding([part])
    assert found.verdict == verdict and "iterations until" in found.measured


def test_networks_by_their_final_values():
    ahead = networks("cifar-cnn", **{"DP-BLSGD": (0.95, 1.0)})
    behind = networks("cifar-cnn", **{"DP-BLSGD": (0.85, 1.0)})
    level = networks("cifar-cnn")
    for text in ("CIFAR-10: better final accuracy", "CIFAR-10: lower objective"):
        verdicts = [claim(text).finding([p]).verdict for p in (ahead, behind, level)]
        assert verdicts == [HOLDS, FAILS, NOISE], text


def test_steps_that_fall_and_steps_that_rise():
    part = networks("mnist-cnn")
    falls = claim("The chosen step size falls")
    assert falls.finding([part]).verdict == HOLDS
    part.table["step_size"] = 2.0 - part.table["step_size"]
    assert falls.finding([part]).verdict == FAILS
