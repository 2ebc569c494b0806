# SPDX-License-Identifier: Apache-2.0
"""The planned accountant: tighter than a filter, and only what was planned."""

import functools
import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import SEEDED, PlannedAccountant
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    best_order,
    planned_epsilon,
    rdp_limit,
    rdp_to_epsilon,
)
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    PureDP,
    Repeated,
    Subsampled,
    gaussian_delta,
)
from armijo.errors import BudgetExceeded, LedgerError, UnchargedAccess
from tests.accounting.accounts import (
    BUDGET,
    STEP,
    Laplace,
    gaussian_epsilon,
    on_file,
    snapshot,
)

FIRST = Subsampled(Gaussian(noise_scale=9.0), 0.1)
SECOND = Subsampled(Gaussian(noise_scale=12.0), 0.1)


def pld_epsilon(
    sampling_prob: float, noise: float, steps: int, delta: float, width: float = 1e-4
) -> float:
    """Epsilon of a sampled Gaussian by the privacy loss distribution."""
    event = dpa.GaussianDpEvent(noise)
    if sampling_prob < 1:
        event = dpa.PoissonSampledDpEvent(sampling_prob, event)
    accountant = PLDAccountant(value_discretization_interval=width)
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def sampled(sampling_prob: float, *noises: float) -> Subsampled:
    """Gaussians on one batch."""
    parts = tuple(Gaussian(noise_scale=noise) for noise in noises)
    return Subsampled(parts[0] if len(parts) == 1 else Composed(parts), sampling_prob)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=5))
def test_gaussians_fold_into_one(noises):
    parts = tuple(Gaussian(noise_scale=2 * s, sensitivity=2.0) for s in noises)
    folded = Composed(parts).as_gaussian()
    assert isinstance(folded, Gaussian)
    expected = sum(noise**-2 for noise in noises) ** -0.5
    assert folded.noise_multiplier == pytest.approx(expected, rel=1e-12, abs=0.0)
    orders = np.array([2.0, 30.0])
    np.testing.assert_allclose(folded.rdp(orders), Composed(parts).rdp(orders))


def test_nested_gaussians_fold_and_others_stay():
    gaussian, pure = Gaussian(noise_scale=2.0), PureDP(0.1)
    nested = Composed((Composed((gaussian, gaussian)), gaussian))
    assert nested.as_gaussian().rho == pytest.approx(
        3 * gaussian.rho, rel=1e-14, abs=0.0
    )
    assert gaussian.as_gaussian() is gaussian
    assert pure.as_gaussian() is None
    assert Composed((Composed((gaussian, gaussian)), pure)).as_gaussian() is None
    silent = Composed((gaussian, Gaussian(noise_scale=0.0)))
    assert silent.as_gaussian().noise_scale == 0.0


# sampling_prob, noise of gradient and search, steps; Renyi and PLD at delta 1e-8.
PUBLISHED = [
    (0.1, 10.0, 20.0, 200, 0.865442, 0.814999),
    (1 / 200, 0.8, 2.4, 2000, 4.773304, 3.988471),
]


@pytest.mark.parametrize(
    ("sampling_prob", "first", "second", "steps", "rdp", "pld"), PUBLISHED
)
def test_published_gaussian_search(sampling_prob, first, second, steps, rdp, pld):
    step = sampled(sampling_prob, first, second)
    found, name = planned_epsilon([(step, steps)], 1e-8)
    assert name == "planned-pld"
    # A finer discretization than the published one saves a little.
    assert found == pytest.approx(pld, rel=5e-3, abs=0.0)
    assert found <= pld
    orders = np.arange(2.0, 200.0)
    by_renyi = rdp_to_epsilon(orders, steps * step.rdp(orders), 1e-8).min()
    assert by_renyi == pytest.approx(rdp, rel=2e-6, abs=0.0)


GRID = [
    (0.001, 2.0, 1000),
    (0.02, 1.5, 40),
    (0.02, 8.0, 1000),
    (0.3, 3.0, 1),
    (0.3, 30.0, 1000),
    (1.0, 20.0, 40),
]
LARGE_GRID = list(
    itertools.product([0.001, 0.01, 0.1], [1.0, 1.5, 10.0], [1, 100, 1000])
)


@pytest.mark.parametrize(
    ("sampling_prob", "noise", "steps"),
    [*GRID, *(pytest.param(*each, marks=pytest.mark.slow) for each in LARGE_GRID)],
)
def test_agrees_with_dp_accounting(sampling_prob, noise, steps):
    found, name = planned_epsilon([(sampled(sampling_prob, noise), steps)], 1e-6)
    assert name == ("planned-profile" if sampling_prob == 1 else "planned-pld")
    # Small epsilons need a finer discretization than the default of 1e-4.
    reference = pld_epsilon(sampling_prob, noise, steps, 1e-6, min(1e-4, found / 1000))
    assert found == pytest.approx(reference, rel=5e-3, abs=0.0)


@pytest.mark.parametrize("sampling_prob", [0.001, 0.05])
def test_small_epsilon_is_not_lost_to_the_discretization(sampling_prob):
    found, _ = planned_epsilon([(sampled(sampling_prob, 15.0), 20)], 1e-6)
    fine = pld_epsilon(sampling_prob, 15.0, 20, 1e-6, width=found / 5000)
    assert fine * (1 - 1e-6) <= found <= fine * 1.005


@pytest.mark.parametrize(("noise", "steps"), [(2.0, 1), (9.0, 12), (90.0, 12)])
def test_whole_data_agrees_with_the_exact_gaussian(noise, steps):
    exact = gaussian_epsilon(0.5 * steps / noise**2, 1e-7)
    for plan in (
        [(Gaussian(noise_scale=noise), steps)],
        [(sampled(1.0, noise), steps)],
        [(Composed((Gaussian(noise_scale=noise),) * steps), 1)],
    ):
        found, name = planned_epsilon(plan, 1e-7)
        assert name == "planned-profile"
        assert found == pytest.approx(exact, rel=1e-9, abs=0.0)


@given(
    noise=st.floats(0.02, 1e5), steps=st.integers(1, 50), delta=st.floats(1e-12, 0.1)
)
def test_gaussians_on_all_rows_keep_their_epsilon_and_no_smaller_one(
    noise, steps, delta
):
    step = Gaussian(noise_scale=noise * math.sqrt(steps))
    found, _ = planned_epsilon([(step, steps)], delta)
    assert gaussian_delta(found, noise) <= delta * (1 + 1e-9)
    assert found <= 1e-6 or gaussian_delta(found * (1 - 1e-8), noise) > delta


WITHOUT_PLD = [
    STEP,
    AboveThreshold.laplace(0.1),
    Subsampled(Composed((Gaussian(noise_scale=3.0), Laplace(1 / 3))), 0.1),
    ExponentialMechanism(0.1),
    PureDP(0.1),
    Repeated(Gaussian(noise_scale=30.0), 3),
]


@pytest.mark.parametrize("mechanism", WITHOUT_PLD, ids=repr)
def test_others_fall_back_to_renyi_curves(mechanism):
    plan = [(FIRST, 5), (mechanism, 4)]
    found, name = planned_epsilon(plan, 1e-6)
    assert name == "planned-rdp"
    orders = np.unique(np.rint(np.geomspace(2, 1500, 150)))
    total = 5 * FIRST.rdp(orders) + 4 * mechanism.rdp(orders)
    best = rdp_to_epsilon(orders, total, 1e-6).min()
    assert found == pytest.approx(best, rel=1e-3, abs=0.0)


def test_composition_on_all_rows_is_composed():
    both = Composed((Gaussian(noise_scale=5.0), sampled(0.1, 2.0)))
    together, name = planned_epsilon([(both, 3)], 1e-6)
    apart, _ = planned_epsilon([(part, 3) for part in both.mechanisms], 1e-6)
    assert name == "planned-pld"
    assert together == pytest.approx(apart, rel=1e-3, abs=0.0)


@pytest.mark.parametrize(
    ("sampling_prob", "noise", "steps"), [(0.1, 4.0, 50), (0.01, 1.0, 500)]
)
def test_tighter_than_renyi(sampling_prob, noise, steps):
    step = sampled(sampling_prob, noise)
    orders = np.arange(2.0, 300.0)
    by_renyi = rdp_to_epsilon(orders, steps * step.rdp(orders), 1e-6).min()
    assert planned_epsilon([(step, steps)], 1e-6)[0] < 0.97 * by_renyi


def test_small_epsilon_is_not_lost_to_a_cap_on_the_order():
    budget = Budget(epsilon=0.01, delta=1e-10)
    order = best_order(budget)
    rho = float(rdp_limit(order, budget)) / order
    # A part without a loss distribution forces Renyi curves; it costs next to nothing.
    plan = [(Gaussian.from_rho(rho), 1), (PureDP(1e-9), 1)]
    found, name = planned_epsilon(plan, budget.delta)
    assert name == "planned-rdp"
    assert found == pytest.approx(0.01, rel=1e-3, abs=0.0)


def test_epsilon_too_large_for_a_loss_distribution_is_bounded_all_the_same():
    nothing = (sampled(1e-3, 1e3), 1)  # which has no profile with the others
    found, name = planned_epsilon([(Gaussian(noise_scale=0.05), 3), nothing], 1e-6)
    assert name == "planned-rdp"
    exact = gaussian_epsilon(0.5 * 3 / 0.05**2, 1e-6)
    assert exact <= found <= 2 * exact


def test_coarser_is_looser_and_never_smaller():
    plan = [(FIRST, 200)]
    fine, rough = (planned_epsilon(plan, 1e-6, coarseness=c)[0] for c in (1.0, 30.0))
    assert fine <= rough <= fine * 1.05


def test_plan_is_ticked_off_in_order():
    watch = PlannedAccountant(BUDGET, [(FIRST, 2), (SECOND, 1)])
    assert watch.guarantee.holds
    assert watch.guarantee.accountant == "planned-pld"
    assert watch.planned_epsilon < BUDGET.epsilon
    assert watch.epsilon_spent() == 0.0
    assert [watch.charge(m) for m in (FIRST, FIRST, SECOND)] == [0, 1, 2]
    assert watch.spent.tolist() == [3.0]
    assert watch.remaining().tolist() == [0.0]
    assert watch.epsilon_spent() <= BUDGET.epsilon


def test_what_is_not_in_the_plan_is_refused():
    watch = PlannedAccountant(BUDGET, [(FIRST, 2)])
    stranger = Subsampled(Gaussian(noise_scale=9.0), 0.11)
    before = snapshot(watch)
    for ask in (watch.charge, watch.affords, watch.cost):
        with pytest.raises(UnchargedAccess, match="not in the plan"):
            ask(stranger)
    assert snapshot(watch) == before


def test_another_order_costs_the_same_and_no_kind_more_than_planned():
    watch = PlannedAccountant(BUDGET, [(FIRST, 1), (SECOND, 1)])
    watch.charge(SECOND)
    before = snapshot(watch)
    assert not watch.affords(SECOND)
    with pytest.raises(BudgetExceeded, match="All 1 planned accesses"):
        watch.charge(SECOND)
    assert snapshot(watch) == before
    watch.charge(FIRST)
    assert watch.epsilon_spent() == watch.planned_epsilon


def hockey_stick(p: np.ndarray, q: np.ndarray, factor: float) -> float:
    """Delta of two finite laws where ``factor`` is the exponential of epsilon."""
    return float(np.maximum(p - factor * q, 0).sum())


def worst_order(pairs: tuple[tuple[np.ndarray, np.ndarray], ...], factor: float):
    """Delta of the best adversary, who chooses what is next after every answer."""
    values = [max(1 - factor, 0.0)]  # it stops here
    for k, (p, q) in enumerate(pairs):
        rest = pairs[:k] + pairs[k + 1 :]
        answers = zip(p, q, strict=True)
        values.append(sum(a * worst_order(rest, factor * b / a) for a, b in answers))
    return max(values)


laws = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2).map(
    lambda weights: np.array(weights) / sum(weights)
)


@given(
    pairs=st.lists(st.tuples(laws, laws), min_size=1, max_size=3).map(tuple),
    factor=st.floats(0.0, 5.0),
)
def test_no_order_chosen_by_the_answers_is_worse_than_the_product(pairs, factor):
    """See docs/proofs.md, planned charges in any order."""
    first, second = (
        functools.reduce(np.outer, side).ravel() for side in zip(*pairs, strict=True)
    )
    expected = hockey_stick(first, second, factor)
    assert worst_order(pairs, factor) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_a_ledger_holds_counts_by_kind(tmp_path):
    """A run that was killed after a charge makes that step again, and ends earlier."""
    path = tmp_path / "ledger.jsonl"

    def opened():
        return on_file(PlannedAccountant(BUDGET, [(FIRST, 2), (SECOND, 1)]), path)

    watch = opened()
    watch.charge(FIRST)
    watch.charge(SECOND)
    watch.ledger.close()
    again = opened()
    assert again.affords(FIRST)
    assert not again.affords(SECOND)
    again.charge(FIRST)
    assert not again.affords(FIRST)
    again.ledger.close()


def test_a_mechanism_may_come_twice():
    watch = PlannedAccountant(BUDGET, [(FIRST, 1), (SECOND, 1), (FIRST, 1)])
    for mechanism in (FIRST, SECOND, FIRST):
        watch.charge(mechanism)
    assert watch.n_charges == 3


def test_plan_over_budget_is_refused_at_once():
    with pytest.raises(BudgetExceeded, match=r"costs epsilon .*, the budget is 1;"):
        PlannedAccountant(BUDGET, [(FIRST, 20_000)])
    with pytest.raises(BudgetExceeded, match="epsilon inf"):
        PlannedAccountant(BUDGET, [(Gaussian(noise_scale=0.0), 1)])


def test_seeded_randomness_voids_the_promise():
    watch = PlannedAccountant(BUDGET, [(FIRST, 1)], insecure_deterministic=True)
    assert watch.guarantee.broken_premises == (SEEDED,)


def test_reopened_plan_goes_on_where_it_was(tmp_path):
    def opened(plan):
        return on_file(PlannedAccountant(BUDGET, plan), tmp_path / "run.ledger")

    plan = [(FIRST, 1), (SECOND, 2)]
    watch = opened(plan)
    watch.charge(FIRST)
    state = snapshot(watch)
    watch.ledger.close()
    again = opened(plan)
    assert snapshot(again) == state
    with pytest.raises(BudgetExceeded):
        again.charge(FIRST)
    again.charge(SECOND)
    again.ledger.close()
    with pytest.raises(LedgerError, match="limits"):
        opened([(FIRST, 1), (SECOND, 3)])


def test_ledger_of_another_plan_of_the_same_length_is_refused(tmp_path):
    def opened(plan):
        return on_file(PlannedAccountant(BUDGET, plan), tmp_path / "run.ledger")

    watch = opened([(FIRST, 1), (SECOND, 1)])
    watch.charge(FIRST)
    watch.ledger.close()
    with pytest.raises(LedgerError):
        opened([(SECOND, 1), (FIRST, 1)])


def test_an_interrupt_behind_the_write_leaves_no_charge_uncounted(monkeypatch):
    watch = PlannedAccountant(BUDGET, [(FIRST, 1), (SECOND, 1)])
    append = watch.ledger.append

    def interrupted(*given, **named):
        append(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.ledger, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch.charge(FIRST)
    monkeypatch.undo()
    with pytest.raises(BudgetExceeded):
        watch.charge(FIRST)
