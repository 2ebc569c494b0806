# SPDX-License-Identifier: Apache-2.0
"""Epsilon of a plan, and the inverse problem: how much noise for a plan or a few steps.

When all mechanisms and their number are settled before the first row is read, ordinary
composition applies in any order of the charges, even one that is chosen during the run
(docs/proofs.md, "Planned charges in any order"), and for Gaussian noise the privacy
loss distribution (PLD, through ``dp-accounting``) replaces the Renyi curve.
Several Gaussians on one batch are together one Gaussian: 1/sigma^2 adds up (adaptive
Gaussian-DP composition, Dong, Roth and Su 2022), and Poisson sampling amplifies that
one mechanism.  :func:`noise_for_plan` solves for the one scale that all mechanisms of a
plan share; the other functions ask about runs of equal steps.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from armijo import _validate
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    Repeated,
    Subsampled,
    gaussian_delta,
    parts,
)
from armijo.errors import BudgetExceeded

Plan = Sequence[tuple[Mechanism, int]]
ROUNDING = 1e-9
"""Share of epsilon that the search in a profile, to ten digits, may add."""

_SMALLEST_PLD, _LARGEST_PLD = 1e-3, 50.0  # beyond them its grid fills the memory
_SMALLEST_PROFILE, _LARGEST_PROFILE = 5e-7, 5e5
_REACH = 1e18  # how far from its start a solution is sought
_LARGEST_ORDER = 2**40
_LOG_TOLERANCE = 1e-4  # of a selection's epsilon


def rdp_to_epsilon(order: ArrayLike, rdp: ArrayLike, delta: float) -> FloatArray:
    """Convert Renyi divergence at an order to epsilon at ``delta``.

    ``epsilon = R + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)``, Canonne, Kamath
    and Steinke (2020), Proposition 12; never below zero.

    >>> float(rdp_to_epsilon(31, 0.5, 1e-8).round(12))
    0.966766628493
    """
    _validate.open_unit(delta=delta)
    a = np.asarray(order, dtype=float)
    slack = np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return np.maximum(np.asarray(rdp, dtype=float) + slack, 0.0)


def rdp_limit(order: ArrayLike, budget: Budget) -> FloatArray:
    """Return the largest Renyi divergence at ``order`` that still keeps the budget.

    The inverse of :func:`rdp_to_epsilon`; zero or negative where the order cannot be
    used for this budget.
    """
    a = np.asarray(order, dtype=float)
    return (
        budget.epsilon
        - np.log1p(-1 / a)
        + (math.log(budget.delta) + np.log(a)) / (a - 1)
    )


def best_order(budget: Budget) -> int:
    """Return the integer order that affords most when costs are linear in the order.

    ``argmax rdp_limit(a) / a``, the choice of accounting rule for every setting whose
    noise multiplier is about 2 or more.  The optimum lies near
    ``2 log(1/delta) / epsilon``, so all integers up to twice that are tried, as far as
    doubles tell neighboring integers safely apart; below that epsilon of about 1e-11 a
    smaller order is as valid.

    >>> best_order(Budget(epsilon=1.0, delta=1e-8))
    31
    """
    reach = -4 * math.log(budget.delta) / budget.epsilon
    low, high = 2.0, float(max(64, math.ceil(min(reach, _LARGEST_ORDER))))
    while True:  # the ratio has one maximum: close in on it, whatever the reach
        orders = np.unique(np.rint(np.geomspace(low, high, 2048)))
        at = int(np.argmax(rdp_limit(orders, budget) / orders))
        if orders.size == high - low + 1:
            return int(orders[at])
        low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]


def order_grid(budget: Budget) -> NDArray[np.int64]:
    """Return integer orders from 2 to well past the best one, dense at first."""
    top = 4 * best_order(budget)
    sparse = np.geomspace(64, max(top, 65), 120)
    grid = np.concatenate([np.arange(2, 65), np.rint(sparse)])
    return np.unique(grid).astype(np.int64)


def between(orders: FloatArray, at: int) -> FloatArray:
    """Return the integers around one order of a grid (at most 64 of them)."""
    low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]
    return np.unique(np.rint(np.linspace(low, high, 64)))


def smallest_epsilon(curve: Callable[[FloatArray], FloatArray], delta: float) -> float:
    """Return epsilon of a Renyi curve at the best of all useful integer orders.

    Which orders are useful depends on the answer: the grid is moved to larger orders
    as long as that finds a much smaller epsilon, then refined around the best.
    """
    best, guess = math.inf, 1.0
    while guess >= 1e-4:
        orders = order_grid(Budget(epsilon=guess, delta=delta)).astype(float)
        epsilons = rdp_to_epsilon(orders, curve(orders), delta)
        best = min(best, float(np.min(epsilons)))
        if best > guess / 2:
            break
        guess = min(best, guess / 5)
    near = between(orders, int(np.argmin(epsilons)))
    return min(best, float(np.min(rdp_to_epsilon(near, curve(near), delta))))


def smallest(
    keeps: Callable[[float], bool],
    start: float = 1.0,
    rtol: float = 1e-12,
    *,
    arithmetic: bool = False,
) -> float:
    """Return the smallest positive number that ``keeps``, to a relative precision.

    Parameters
    ----------
    keeps : callable
        False below the solution and true from there on.
    start : float, default=1.0
        Where to look first; the solution may be far from it.
    rtol : float, default=1e-12
        How far above the solution the answer may be.
    arithmetic : bool, default=False
        Whether to halve at the arithmetic mean instead of the geometric.

    Returns
    -------
    float
        A number for which ``keeps`` was evaluated and true.

    Raises
    ------
    ValueError
        If nothing up to ``1e18 * start`` keeps.
    """
    _validate.positive(start=start)
    high = start
    while not keeps(high):
        high *= 2
        if high > _REACH * start:
            raise ValueError(
                f"Expected a budget that some noise keeps, found none up to {high:g}; "
                "raise epsilon, or lower what else is charged to it."
            )
    low = high / 2
    while keeps(low):
        low, high = low / 2, low
        if high < start / _REACH:  # so much budget that hardly any noise is needed
            return high
    while high > low * (1 + rtol):
        geometric = math.sqrt(low) * math.sqrt(high)
        middle = (low + high) / 2 if arithmetic else geometric
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def gaussian_noise(budget: Budget) -> float:
    """Return the smallest noise multiplier of one Gaussian release in the budget.

    Balle and Wang (2018), Algorithm 1, solved by :func:`smallest`.

    >>> round(gaussian_noise(Budget(epsilon=0.2, delta=1e-8)), 4)
    23.6747
    """
    return smallest(lambda noise: gaussian_delta(budget.epsilon, noise) <= budget.delta)


def _event(mechanism: Mechanism) -> dpa.DpEvent | None:
    """Translate to an event the PLD accountant knows; None if there is none."""
    if any(part.self_composed for part in parts(mechanism)):
        return None  # a plan counts equal charges; what is repeated inside has a curve
    event = mechanism.dp_event()
    return event if event is not None and PLDAccountant().supports(event) else None


def planned_epsilon(
    plan: Plan, delta: float, *, coarseness: float = 1.0
) -> tuple[float, str]:
    """Return epsilon of a whole plan at ``delta`` and the name of what proves it.

    ``"planned-profile"`` for one release with its own profile of (epsilon, delta), as
    all Gaussians on all rows are together (Balle and Wang 2018, Theorem 8);
    ``"planned-pld"`` where every mechanism has a privacy loss distribution, else (and
    where epsilon is so small or large that the distribution would fill the memory)
    ``"planned-rdp"``: the sum of Renyi curves at the best order.  Losses are rounded
    up, so a larger ``coarseness`` is faster and looser but always valid.
    """
    _validate.open_unit(delta=delta)
    return _epsilon_of(tuple(plan), delta, coarseness)


# Repeated fits of one table, or of one plan's folds, ask for the same number again.
@lru_cache(maxsize=256)
def _epsilon_of(
    plan: tuple[tuple[Mechanism, int], ...], delta: float, coarseness: float
) -> tuple[float, str]:
    folded = on_all_rows_as_one(merged(plan))
    by_profile = _profile_epsilon(folded, delta)
    if by_profile < math.inf:
        return by_profile, "planned-profile"
    by_rdp = _rdp_epsilon(folded, delta)
    events = [_event(mechanism) for mechanism, _ in folded]
    if None in events or not _SMALLEST_PLD < by_rdp < _LARGEST_PLD:
        return by_rdp, "planned-rdp"
    # In proportion to epsilon, so that rounding the loss up stays below 0.1 % of it.
    width = coarseness * min(1e-4, max(by_rdp * 1e-4, 1e-7))
    accountant = PLDAccountant(value_discretization_interval=width)
    try:
        for event, (_, count) in zip(events, folded, strict=True):
            accountant.compose(event, count)
        return min(float(accountant.get_epsilon(delta)), by_rdp), "planned-pld"
    except (OverflowError, MemoryError):  # noise or steps beyond its grid
        return by_rdp, "planned-rdp"


def merged(plan: Plan) -> Plan:
    """Count equal charges together: a composition does not depend on the order."""
    counts: dict[Mechanism, int] = {}
    for mechanism, count in plan:
        counts[mechanism] = counts.get(mechanism, 0) + count
    return tuple(counts.items())


def on_all_rows_as_one(plan: Plan) -> Plan:
    """Count all Gaussians on all rows as the one that they are together."""
    rho, others = 0.0, []
    for mechanism, count in plan:
        gaussian = mechanism.as_gaussian()
        if gaussian is not None and gaussian.noise_scale > 0:
            rho += count * gaussian.rho
        else:
            others.append((mechanism, count))
    return (*others, *([(Gaussian.from_rho(rho), 1)] if rho else []))


def delta_at(folded: Plan, epsilon: float) -> float:
    """Return delta by the own proof of a plan that is a single release, else one."""
    if len(folded) != 1 or folded[0][1] != 1:
        return 1.0
    return folded[0][0].delta_at(epsilon)


def _profile_epsilon(folded: Plan, delta: float) -> float:
    """Return the smallest epsilon, to ten digits, whose delta is small enough."""
    if delta_at(folded, _LARGEST_PROFILE) > delta:
        return math.inf

    def keeps(epsilon: float) -> bool:
        return epsilon > _SMALLEST_PROFILE and delta_at(folded, epsilon) <= delta

    start, rtol = 2 * _SMALLEST_PROFILE, ROUNDING / 10
    return smallest(keeps, start, rtol, arithmetic=True)


def reachable(budget: Budget) -> Budget:
    """Return the budget less what the search in a profile may add."""
    return Budget(epsilon=budget.epsilon * (1 - ROUNDING), delta=budget.delta)


def _rdp_epsilon(plan: Plan, delta: float) -> float:
    def total(orders: FloatArray) -> FloatArray:
        return np.asarray(
            np.sum([count * mechanism.rdp(orders) for mechanism, count in plan], axis=0)
        )

    return smallest_epsilon(total, delta)


AccountantName = Literal["planned", "adaptive"]
_TINY = 1e-12  # a large delta may make epsilon zero, which has no logarithm
COARSENESS = 5.0
"""Of the loss distribution while noise is sought; costs 0.05 % noise."""


def noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget.

    ``plan_at(scale)`` names every charge of a run; more scale must mean less cost.
    Solved on Renyi curves, then refined by a few secant steps in (log noise, log
    epsilon) where the plan has a privacy loss distribution.  The result always keeps
    the budget: the last evaluation is on the safe side.

    >>> from armijo.accounting.mechanisms import Gaussian
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_for_plan(budget, lambda z: [(Gaussian(noise_scale=z), 1)]), 3)
    3.731
    """

    def planned(scale: float) -> tuple[float, str]:
        return planned_epsilon(plan_at(scale), budget.delta, coarseness=COARSENESS)

    start = renyi_noise_for_plan(budget, plan_at)
    if planned(start)[1] == "planned-rdp":
        return start
    return _secant(lambda scale: planned(scale)[0], start, budget.epsilon)


def renyi_noise_for_plan(budget: Budget, plan_at: Callable[[float], Plan]) -> float:
    """Return the smallest scale whose plan keeps the budget by its Renyi curves."""

    def share_at(scale: float) -> float:
        charges = merged(plan_at(scale))
        parts = tuple(Repeated(part, count) for part, count in charges)
        return best_share(budget, Composed(parts))[0]

    return _solve_log(share_at, budget)


def _solve_log(share_at: Callable[[float], float], budget: Budget) -> float:
    """Solve a falling share(noise) = 1 of the budget by bracketing in log noise."""
    low, high = 0.0, 0.0
    while share_at(math.exp(high)) > 1:
        high += 1.0
        if high > 40:
            raise ValueError(
                f"No noise reaches epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}: what else is done costs more; lower the budget of "
                "the search or the number of runs, or raise epsilon."
            )
    while share_at(math.exp(low)) <= 1:
        low -= 1.0
        if low < -8:  # so much epsilon that hardly any noise is needed
            return math.exp(low)
    root = brentq(lambda z: math.log(share_at(math.exp(z))), low, high, xtol=1e-7)
    return math.exp(root + 2e-7)


def _secant(epsilon_at: Callable[[float], float], start: float, target: float) -> float:
    """Refine ``start`` (which keeps the target) on a tighter, costlier epsilon."""
    safe = previous = start
    value = max(epsilon_at(previous), _TINY)
    noise = previous * max((value / target) ** 0.9, 0.8)
    for _ in range(12):
        new = max(epsilon_at(noise), _TINY)
        if new <= target:
            safe = noise
            if new >= target * (1 - 2e-4):
                break
        if new == value or noise == previous:
            break  # epsilon does not follow the noise any more
        slope = math.log(new / value) / math.log(noise / previous)
        previous, value = noise, new
        factor = (target * (1 - 1e-4) / new) ** (1 / slope)
        noise *= min(max(factor, 0.7), 1.4)
    return safe


def best_share(budget: Budget, step: Mechanism) -> tuple[float, int]:
    """Return the smallest share of a limit that one step uses, and at which order."""
    orders = order_grid(budget).astype(float)
    shares = _shares(budget, step, orders)
    orders = between(orders, int(np.argmin(shares)))
    shares = _shares(budget, step, orders)
    at = int(np.argmin(shares))
    return float(shares[at]), int(orders[at])


def _shares(budget: Budget, step: Mechanism, orders: FloatArray) -> FloatArray:
    """Return cost over limit; infinite where the order has no limit left."""
    limits = rdp_limit(orders, budget)
    usable = np.maximum(limits, 1e-300)
    with np.errstate(over="ignore"):  # a share too large for a double is infinite
        return np.where(limits > 0, step.rdp(orders) / usable, np.inf)


def step_mechanism(
    sampling_prob: float, noise_multiplier: float, search: Mechanism | None = None
) -> Subsampled:
    """Return one step: a Gaussian gradient and perhaps a search on one batch."""
    _validate.positive(noise_multiplier=noise_multiplier)
    gradient = Gaussian(noise_scale=noise_multiplier)
    inner = gradient if search is None else Composed((gradient, search))
    return Subsampled(inner, sampling_prob)


def epsilon_of(
    step: Mechanism,
    steps: int,
    delta: float,
    *,
    accountant: AccountantName = "planned",
) -> tuple[float, str]:
    """Return epsilon of ``steps`` equal steps and which accountant proves it.

    ``"adaptive"`` is the smallest preset epsilon with which a privacy filter affords
    them, its order chosen for these costs beforehand.
    """
    _validate.at_least(1, steps=steps)
    _validate.choice(("planned", "adaptive"), accountant=accountant)
    if accountant == "planned":
        return planned_epsilon([(step, steps)], delta)
    by_filter = smallest_epsilon(lambda orders: steps * step.rdp(orders), delta)
    return by_filter, "filter-rdp"


@lru_cache(maxsize=256, typed=True)
def noise_multiplier_for(
    budget: Budget,
    *,
    sampling_prob: float,
    steps: int,
    search: Mechanism | None = None,
    accountant: AccountantName = "planned",
) -> float:
    """Return the smallest noise multiplier with which ``steps`` steps keep the budget.

    See :func:`noise_for_plan`; ``"adaptive"`` stays with the Renyi curves that a filter
    adds up.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(noise_multiplier_for(budget, sampling_prob=1.0, steps=1), 3)
    3.731
    """
    _validate.sampling_prob(sampling_prob=sampling_prob)
    _validate.at_least(1, steps=steps)
    _validate.choice(("planned", "adaptive"), accountant=accountant)
    solve = noise_for_plan if accountant == "planned" else renyi_noise_for_plan
    return solve(
        budget, lambda noise: [(step_mechanism(sampling_prob, noise, search), steps)]
    )


def affordable_steps(
    budget: Budget, *, sampling_prob: float, noise_multiplier: float, most: int
) -> int:
    """Return how many of ``most`` steps with given noise keep the budget, when planned.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> affordable_steps(budget, sampling_prob=0.01, noise_multiplier=1.0, most=900)
    254
    """
    _validate.at_least(1, most=most)
    step = step_mechanism(sampling_prob, noise_multiplier)

    def needed(steps: int) -> float:
        return planned_epsilon([(step, steps)], budget.delta)[0]

    if needed(1) > budget.epsilon:
        raise BudgetExceeded(
            f"One step with noise_multiplier {noise_multiplier:g} at "
            f"sampling_prob {sampling_prob:g} "
            f"costs epsilon {needed(1):.4g}, the budget is {budget.epsilon:g}; raise "
            "the noise or epsilon, or leave the noise to be solved. Nothing was spent."
        )
    if needed(most) <= budget.epsilon:
        return most
    return bisect_left(
        range(1, most), True, lo=1, key=lambda steps: needed(steps) > budget.epsilon
    )


def order_for(budget: Budget, step: Mechanism) -> int:
    """Return the order at which the budget affords most of these steps.

    Chosen from public settings before any row is seen, as the filter requires.
    """
    return best_share(budget, step)[1]


SelectionRule = Literal["bounded", "pure"]
"""What a selection's budget buys: by its bounded range, or as pure DP (replicas)."""


def selection_epsilon(rho: float, rule: SelectionRule) -> float:
    """Return the epsilon that a selection gets for ``rho``.

    A draw with weights ``exp(epsilon u / Gamma)``, where no two scores u of one row are
    further apart than Gamma, has ``epsilon``-bounded range.  That is ``epsilon``-DP,
    hence ``epsilon^2 / 2``-zCDP, which earlier papers charge; but it is also
    ``epsilon^2 / 8``-zCDP (Cesar and Rogers 2021).

    >>> selection_epsilon(0.5, "pure"), selection_epsilon(0.5, "bounded")
    (1.0, 2.0)
    """
    return math.sqrt((8 if rule == "bounded" else 2) * rho)


def concentrated_rho(budget: Budget) -> float:
    """Return ``(sqrt(L + epsilon) - sqrt(L))^2`` with ``L = log(1/delta)``.

    The largest rho whose zCDP implies the budget by ``rho + 2 sqrt(rho L)``, Bun and
    Steinke (2016), Proposition 1.3.

    >>> round(concentrated_rho(Budget(epsilon=0.8, delta=1e-8)), 9)
    0.008502247
    """
    length = -math.log(budget.delta)
    root = math.sqrt(length + budget.epsilon) + math.sqrt(length)
    return (budget.epsilon / root) ** 2


def affordable_epsilon(
    budget: Budget, schedule: Callable[[float], Plan], start: float
) -> float:
    """Return the largest epsilon of a draw with which a whole schedule fits.

    Parameters
    ----------
    budget : Budget
        The guarantee of the whole.
    schedule : callable
        The charges of a run whose draws have a given epsilon; more of it costs more.
    start : float
        A first guess.
    """

    def excess(log_epsilon: float) -> float:
        cost, _ = planned_epsilon(schedule(math.exp(log_epsilon)), budget.delta)
        return math.log(max(cost, 1e-12) / budget.epsilon)

    low = high = math.log(start)
    while excess(low) > 0:
        low -= 0.7
    while excess(high) <= 0:
        high += 0.7
    solved = float(brentq(excess, low, high, xtol=_LOG_TOLERANCE))
    while excess(solved) > -1e-9:  # keep the budget, whatever the order of a sum
        solved -= _LOG_TOLERANCE
    return math.exp(solved)


@dataclass(frozen=True, kw_only=True)
class StepBudget:
    """Budgets of one line-search step: gradient rho and search epsilon."""

    gradient_rho: float
    search_epsilon: float


@lru_cache(maxsize=256, typed=True)
def line_search_budget(
    budget: Budget,
    *,
    sampling_prob: float,
    steps: int,
    search: Callable[[float], Mechanism] = AboveThreshold.laplace,
) -> StepBudget:
    """Return the per-step budgets that let ``steps`` line-search steps fit exactly.

    Gradient and search share a batch and are charged jointly; the search, made by
    ``search(search_epsilon)``, gets ``search_epsilon = sqrt(2 gradient_rho)``, the
    split of Chen and Lee.
    """
    _validate.sampling_prob(sampling_prob=sampling_prob)
    _validate.at_least(1, steps=steps)

    noise = renyi_noise_for_plan(
        budget, lambda z: [(step_mechanism(sampling_prob, z, search(1 / z)), steps)]
    )
    return StepBudget(gradient_rho=0.5 / noise**2, search_epsilon=1 / noise)
