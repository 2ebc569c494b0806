# SPDX-License-Identifier: Apache-2.0
"""The second implementation agrees with the accountants' bounds, and shares nothing."""

import ast
from pathlib import Path

import numpy as np
import pytest

from armijo.accounting import independent_bounds
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.independent_bounds import NotKnown, delta_of, renyi
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    NonPrivate,
    PureDP,
    RepeatAndSelect,
    Repeated,
    Subsampled,
    describe,
)
from armijo.accounting.perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    PermutedMixture,
    WithOutputNoise,
)
from armijo.accounting.verify import TOLERANCE, rebuild

ORDERS = np.array([2.0, 3.0, 8.0, 31.0, 132.0, 250.0])
STEP = Composed((Gaussian(noise_scale=30.0), AboveThreshold.laplace(0.05)))
OBJECTIVE = ObjectivePerturbation(noise_scale=25.0, strong_convexity=44.0)
MIXTURE = PermutedMixture(sensitivities=(0.1, 0.3), noise_scale=2.0)
MECHANISMS = [
    Gaussian(noise_scale=3.0, sensitivity=2.0),
    PureDP(0.01),
    PureDP(2.0),
    ExponentialMechanism(1e-4),
    ExponentialMechanism(0.05),
    ExponentialMechanism(3.0),
    AboveThreshold.laplace(0.001),
    AboveThreshold.laplace(0.1, 10),
    AboveThreshold.laplace(1.0, 30),
    AboveThreshold.gaussian(0.05, 30),
    AboveThreshold.gaussian(5e-5, 10),
    AboveThreshold(kind="laplace", threshold_scale=0.0, query_scale=300.0),
    AboveThreshold(
        kind="gaussian", threshold_scale=0.0, query_scale=30.0, max_queries=10
    ),
    Repeated(STEP, 3),
    Subsampled(Gaussian(noise_scale=1.0), 0.01),
    Subsampled(STEP, 0.1),
    Subsampled(STEP, 1.0),
    Subsampled(Composed((Gaussian(noise_scale=30.0), ExponentialMechanism(0.02))), 0.1),
    RepeatAndSelect(Gaussian(noise_scale=10.0), 10.0),
    RepeatAndSelect(Gaussian(noise_scale=3.0), 2.5),
    OBJECTIVE,
    MIXTURE,
    ChaudhuriObjective(epsilon=1.0, l2=0.01, n_rows=1000),
    WithOutputNoise(
        first=OBJECTIVE, second=Gaussian(noise_scale=4000.0), second_epsilon=0.002
    ),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_both_implementations_of_a_curve_agree(mechanism):
    found = renyi(describe(mechanism), ORDERS)
    np.testing.assert_allclose(mechanism.rdp(ORDERS), found, rtol=TOLERANCE / 4)


PROFILES = [
    OBJECTIVE,
    MIXTURE,
    ChaudhuriObjective(epsilon=0.3, l2=0.01, n_rows=1000),
    KiferObjective(epsilon=0.2, delta=1e-6),
    ApproximateMinima(epsilon=0.2, delta=1e-6, n_rows=1000, gradient_tolerance=1e-6),
    *(
        WithOutputNoise(first=OBJECTIVE, second=second, second_epsilon=0.002)
        for second in (Gaussian(noise_scale=4000.0), PureDP(0.002), PureDP(0.1))
    ),
]


@pytest.mark.parametrize("mechanism", PROFILES, ids=repr)
@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.1, 0.2, 0.5])
def test_both_implementations_of_a_profile_agree(mechanism, epsilon):
    found = delta_of(describe(mechanism), epsilon)
    assert found == pytest.approx(mechanism.delta_at(epsilon), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *PROFILES, NonPrivate()], ids=repr)
def test_a_description_is_enough_to_rebuild_a_mechanism(mechanism):
    again = rebuild(describe(mechanism))
    assert again == mechanism
    assert repr(again.dp_event()) == repr(mechanism.dp_event())


@pytest.mark.parametrize(
    "mechanism", [Gaussian(noise_scale=3.0), Subsampled(Gaussian(noise_scale=3.0), 0.1)]
)
def test_less_noise_is_not_taken_for_the_same(mechanism):
    described = describe(mechanism)
    noise = described.get("inner", described)
    noise["noise_scale"] *= 1 - TOLERANCE
    assert np.all(renyi(described, ORDERS) > mechanism.rdp(ORDERS) * (1 + TOLERANCE))


def test_unknown_mechanisms_are_named():
    with pytest.raises(NotKnown, match="OfMyOwn"):
        renyi({"mechanism": "OfMyOwn"}, ORDERS)
    with pytest.raises(NotKnown, match="OfMyOwn"):
        delta_of({"mechanism": "OfMyOwn"}, 1.0)
    with pytest.raises(ValueError, match="settings"):
        rebuild({"mechanism": "PureDP", "epsilon": 1.0, "delta": 0.0})


def test_nothing_is_shared_with_the_accountants():
    tree = ast.parse(Path(independent_bounds.__file__).read_text())
    modules = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
    ]
    assert not [name for name in modules if name.startswith("armijo")]
