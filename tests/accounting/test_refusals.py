# SPDX-License-Identifier: Apache-2.0
"""Every argument of the accounting refuses what it cannot mean, by name and value."""

import math
from functools import partial

import numpy as np
import pytest

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import PlannedAccountant, PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    epsilon_of,
    line_search_budget,
    noise_multiplier_for,
    planned_epsilon,
    rdp_to_epsilon,
    smallest,
    step_mechanism,
)
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    PureDP,
    RepeatAndSelect,
    Repeated,
    Subsampled,
    gaussian_delta,
    poisson_rdp,
)
from armijo.accounting.paper import lemma_pss, printed_epsilon
from armijo.accounting.perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
    PermutedMixture,
    WithOutputNoise,
    calibrate_objective,
    gd_sensitivity,
    least_noise,
    mixture_noise,
    output_noise,
    rsgd_sensitivities,
)
from tests.accounting.accounts import STEP

NAN, INF = math.nan, math.inf
POSITIVE = (NAN, INF, -INF, -1.0, 0.0, True, "1", None)
NOT_NEGATIVE = tuple(value for value in POSITIVE if value != 0.0)
POSITIVE_OR_INF = tuple(value for value in POSITIVE if value != INF)
COUNT = (0, -1, 1.5, 2.0, True, "3", NAN, None)
FROM_TWO = (1, 0, -3, 2.0, 31.5, True, "31", NAN)
FRACTION = (*POSITIVE, 1.0, 1.5)
RATE = (*POSITIVE, 1.0000001, 2, 1e9)

BUDGET = Budget(epsilon=1.0, delta=1e-6)
PURE, PLAIN = PureDP(0.1), step_mechanism(0.1, 1.0)
objective = partial(ObjectivePerturbation, noise_scale=1.0, strong_convexity=9.0)
approximate = partial(
    ApproximateMinima, epsilon=0.5, delta=1e-6, n_rows=100, gradient_tolerance=1e-8
)
search = partial(AboveThreshold, kind="laplace", threshold_scale=1.0, query_scale=1.0)
calibrated = partial(noise_multiplier_for, BUDGET, sampling_prob=1.0, steps=1)
split = partial(line_search_budget, BUDGET, sampling_prob=1.0, steps=1)
permuted = partial(
    rsgd_sensitivities, step_size=1.0, epochs=5, n_batches=10, batch_size=3
)
with_noise = partial(
    WithOutputNoise, first=KiferObjective(epsilon=1.0, delta=1e-6), second=PURE
)

# What is called, arguments of it, and the values that each of them refuses.
REFUSALS = [
    (partial(Budget, delta=1e-5), "epsilon", POSITIVE),
    (partial(Budget, epsilon=1.0), "delta", FRACTION),
    (lambda delta: rdp_to_epsilon(2, 0.1, delta), "delta", FRACTION),
    (lambda delta: planned_epsilon([(PLAIN, 1)], delta), "delta", FRACTION),
    (lambda delta: printed_epsilon(STEP, 3, delta), "delta", FRACTION),
    (lambda steps: printed_epsilon(STEP, steps, 1e-5), "steps", COUNT),
    (partial(epsilon_of, PLAIN, 1, accountant="planned"), "delta", FRACTION),
    (partial(epsilon_of, PLAIN, 1, accountant="adaptive"), "delta", FRACTION),
    (lambda steps: epsilon_of(PLAIN, steps, 1e-5), "steps", COUNT),
    (partial(epsilon_of, PLAIN, 1, 1e-5), "accountant", ("filter", "", None)),
    (partial(gaussian_delta, noise_multiplier=1.0), "epsilon", NOT_NEGATIVE),
    (partial(gaussian_delta, 1.0), "noise_multiplier", POSITIVE),
    (partial(smallest, lambda _: True), "start", POSITIVE),
    (PureDP, "epsilon", POSITIVE),
    (partial(ExponentialMechanism, epsilon=1.0), "epsilon sensitivity", POSITIVE),
    (Gaussian, "noise_scale", NOT_NEGATIVE),
    (partial(Gaussian, noise_scale=1.0), "sensitivity", POSITIVE),
    (Gaussian.from_rho, "rho", POSITIVE_OR_INF),
    (partial(Gaussian.from_rho, 1.0), "sensitivity", POSITIVE),
    (partial(Repeated, PURE), "count", COUNT),
    (partial(RepeatAndSelect, PURE), "mean", (*POSITIVE, 1.0, 0.5)),
    (partial(Subsampled, PURE), "sampling_prob", RATE),
    (lambda order: poisson_rdp(order, 0.1, np.ones(9)), "order", FROM_TWO),
    (lambda order: lemma_pss(order, 0.1, np.ones(9)), "order", FROM_TWO),
    (
        lambda sampling_prob: poisson_rdp(2, sampling_prob, np.ones(3)),
        "sampling_prob",
        (*NOT_NEGATIVE, 1.01, False),
    ),
    (
        lambda sampling_prob: lemma_pss(2, sampling_prob, np.ones(3)),
        "sampling_prob",
        RATE,
    ),
    (search, "threshold_scale query_scale", NOT_NEGATIVE),
    (search, "kind", ("normal", "", None, 3)),
    (
        lambda search_epsilon: AboveThreshold.laplace(search_epsilon),
        "search_epsilon",
        POSITIVE_OR_INF,
    ),
    (partial(AboveThreshold.laplace, 1.0), "max_queries", (*COUNT[:-1], INF)),
    (
        lambda search_rho: AboveThreshold.gaussian(search_rho, 3),
        "search_rho",
        POSITIVE_OR_INF,
    ),
    (partial(AboveThreshold.gaussian, 1.0), "max_queries", (*COUNT, INF)),
    (partial(PrivacyFilter, BUDGET), "order", FROM_TWO),
    (lambda count: PlannedAccountant(BUDGET, [(PLAIN, count)]), "count", COUNT),
    (partial(step_mechanism, noise_multiplier=1.0), "sampling_prob", RATE),
    (partial(step_mechanism, 0.1), "noise_multiplier", POSITIVE),
    (calibrated, "sampling_prob", RATE),
    (calibrated, "steps", COUNT),
    (calibrated, "accountant", ("filter", "")),
    (split, "sampling_prob", RATE),
    (split, "steps", COUNT),
    (partial(KiferObjective, delta=1e-6), "epsilon", POSITIVE),
    (
        partial(KiferObjective, epsilon=0.5, delta=1e-6),
        "delta lipschitz smoothness",
        POSITIVE,
    ),
    (
        partial(ChaudhuriObjective, epsilon=0.5, l2=1e-3, n_rows=100),
        "epsilon l2 smoothness n_rows",
        POSITIVE,
    ),
    (approximate, "epsilon delta lipschitz smoothness n_rows", POSITIVE),
    (approximate, "output_share", (1.0,)),
    (approximate, "noise_share", (0.0,)),
    (approximate, "gradient_tolerance", (-1.0,)),
    (objective, "noise_scale strong_convexity lipschitz smoothness", POSITIVE),
    (
        partial(least_noise, BUDGET, strong_convexity=9.0),
        "strong_convexity smoothness",
        POSITIVE,
    ),
    (partial(calibrate_objective, BUDGET), "l2_sum", POSITIVE),
    (partial(output_noise, 1.0, budget=BUDGET), "strong_convexity", POSITIVE),
    (with_noise, "second_epsilon", POSITIVE),
    (
        lambda sensitivity: PermutedMixture(
            sensitivities=(1.0, sensitivity), noise_scale=1.0
        ),
        "sensitivity",
        POSITIVE,
    ),
    (partial(PermutedMixture, sensitivities=(1.0,)), "noise_scale", POSITIVE),
    (
        lambda sensitivity: mixture_noise(BUDGET, (sensitivity,)),
        "sensitivity",
        POSITIVE,
    ),
    (
        partial(gd_sensitivity, step_size=1.0, steps=5, n_rows=10),
        "step_size steps n_rows smoothness",
        POSITIVE,
    ),
    (permuted, "step_size epochs n_batches batch_size smoothness", POSITIVE),
]


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        pytest.param(call, name, value, id=f"{number}-{name}-{value!r}")
        for number, (call, names, values) in enumerate(REFUSALS)
        for name in names.split()
        for value in values
    ],
)
def test_what_an_argument_cannot_mean_is_refused(call, name, value):
    with pytest.raises(ValueError) as caught:
        call(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Composed(()), r"at least one mechanism, got \(\)"),
        (lambda: PlannedAccountant(BUDGET, []), "at least one access"),
        (partial(PermutedMixture, sensitivities=(), noise_scale=1.0), "one for each"),
        (
            partial(PermutedMixture, sensitivities=[1.0], noise_scale=1.0),
            "one for each",
        ),
    ],
)
def test_nothing_is_no_mechanism_and_no_plan(call, message):
    with pytest.raises(ValueError, match=message):
        call()
