# SPDX-License-Identifier: Apache-2.0
"""The accounting: what a step pays before it may read a row, and finding the noise.

Every call gets a new budget where a new cost is what is measured, so that no cache
answers. Noise is calibrated with the privacy loss distribution by both sides, for the
same accuracy; the peer is ``dp_accounting.calibrate_dp_mechanism``.
"""

import itertools
from collections.abc import Callable

import dp_accounting as dpa
import torch
from dp_accounting.pld import PLDAccountant

from armijo._noise import add_gaussian
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import noise_multiplier_for
from armijo.accounting.mechanisms import Gaussian, knots, log_binomial_weights
from armijo.data.gate import BatchPlan
from armijo.randomness import SystemBits
from benchmarks import Row, times_faster, under
from benchmarks._timing import in_turns, median_seconds

ORDER = 472  # the order of epsilon 0.05 at delta 1e-8, the largest of the paper's
BUDGET = Budget(epsilon=0.05, delta=1e-8)
RATE = 0.1
CHARGES = 1000
CAP = 20
# What our own calibration promises of the noise; finer would only slow the peer down.
PEER_TOLERANCE = 1e-4
AGREEMENT = 1e-3
NOISE_SECONDS = 8e-3


def rows() -> list[Row]:
    """Measure every part of the accounting that a run waits for."""
    return [
        under("charge an unchanged plan", _unchanged_charge(), 50e-6),
        under("new AboveThreshold curve, Laplace", _curve(_laplace), 0.1),
        under("new AboveThreshold curve, Gaussian", _curve(_gaussian), 0.1),
        under("joint amplified charge, changed budget", _changed_charge(), 0.02),
        _calibration(Budget(epsilon=1.0, delta=1e-5), sampling_prob=0.005, steps=2000),
        _calibration(Budget(epsilon=1.0, delta=1e-5), sampling_prob=0.1, steps=200),
        _gate_noise(),
    ]


def _gate_noise() -> Row:
    """Time the noise of a step of mlp_1000 beside torch's, which is no secret one."""
    size, bits = 795_010, SystemBits()
    tensor = torch.empty(size)
    took = in_turns(
        {
            "ours": lambda: add_gaussian(1 << 40, size, bits, lambda part, noise: None),
            "torch": tensor.normal_,
        },
        rounds=51,
        seconds_each=2.0,
    )
    name = "795,010 numbers of gate noise beside normal_()"
    return under(name, took["ours"], NOISE_SECONDS, took["torch"])


def _plan(gradient_rho: float, search: AboveThreshold) -> BatchPlan:
    """Return one step: a gradient and a line search on one batch."""
    return BatchPlan(
        mechanisms=(Gaussian.from_rho(gradient_rho), search), sampling_prob=RATE
    )


def _unchanged_charge() -> float:
    """Time one charge of a plan that was charged before, as the gate makes it."""
    accountant = PrivacyFilter(BUDGET, order=ORDER)
    plan = _plan(1e-8, AboveThreshold.laplace(1e-4))

    def charges() -> None:
        for _ in range(CHARGES):
            accountant.charge(plan.mechanism, label="step")

    return median_seconds(charges) / CHARGES


def _laplace(factor: float) -> AboveThreshold:
    """Return a search of a run with epsilon near 1."""
    return AboveThreshold.laplace(0.1 * factor, CAP)


def _gaussian(factor: float) -> AboveThreshold:
    """Return its counterpart with Gaussian noise."""
    return AboveThreshold.gaussian(0.005 * factor, CAP)


def _curve(search: Callable[[float], AboveThreshold]) -> float:
    """Time the curve of a search with a budget that was not seen before."""
    orders = knots(ORDER)
    factors = itertools.count(1.0, 0.01)
    return median_seconds(lambda: search(next(factors)).rdp(orders))


def _changed_charge() -> float:
    """Time the first charge after the gradient's budget changed; the search stays."""
    accountant = PrivacyFilter(BUDGET, order=ORDER)
    search = AboveThreshold.laplace(1e-4)
    rhos = itertools.count(1e-8, 1e-10)
    return median_seconds(
        lambda: accountant.charge(_plan(next(rhos), search).mechanism, label="step")
    )


def _calibration(budget: Budget, *, sampling_prob: float, steps: int) -> Row:
    """Compare the time to find the noise for a budget, and the noise that is found."""
    found: dict[str, float] = {}

    def ours() -> None:
        log_binomial_weights.cache_clear()
        found["ours"] = noise_multiplier_for(
            budget, sampling_prob=sampling_prob, steps=steps
        )

    def event(noise: float) -> dpa.DpEvent:
        one = dpa.PoissonSampledDpEvent(sampling_prob, dpa.GaussianDpEvent(noise))
        return dpa.SelfComposedDpEvent(one, steps)

    def peer() -> None:
        found["peer"] = dpa.calibrate_dp_mechanism(
            PLDAccountant, event, budget.epsilon, budget.delta, tol=PEER_TOLERANCE
        )

    times = [median_seconds(fn, repeats=3, warmup=0) for fn in (ours, peer)]
    if abs(found["ours"] / found["peer"] - 1) > AGREEMENT:
        raise ArithmeticError(f"The calibrated noises do not agree: {found}.")
    return times_faster(
        f"calibrate noise, rate {sampling_prob:g}, {steps} steps", *times, 3
    )
