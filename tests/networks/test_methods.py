# SPDX-License-Identifier: Apache-2.0
"""Network methods: plain descent without noise, and budgets that are used up."""

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import dp_accounting as dpa
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from armijo._noise import PoissonRows
from armijo.accounting.budget import Budget
from armijo.data.gate import PrivateDataset
from armijo.data.sources import TensorRows
from armijo.methods.base import StepRecord, minimize
from armijo.methods.sgd import DPSGD
from armijo.objectives.module import ModuleObjective
from armijo.randomness import Randomness
from tests.data.gate_doubles import FreeAccountant
from tests.networks.network_doubles import (
    BUDGET,
    CROSS_ENTROPY,
    RATE,
    ROWS,
    SAMPLED,
    STEPS,
    calibrated_method,
    examples,
    network,
    prepared,
)

PRIVATE = [name for name in SAMPLED if name != "nonprivate"]
SEED, HUGE = 4, 1e6
# In float32 the last bit of a product depends on the processor's own order of sums;
# six steps of it stay below twenty units in the last place.
TOLERANCE = {torch.float32: 20 * 2.0**-23, torch.float64: 1e-12}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
# So much that searches fail for their criterion and not for their noise.
AMPLE = Budget(epsilon=60.0, delta=1e-5)
FAILING = {"initial_step": 1e4, "max_tries": 1, "slope": 0.99}


def batches(sampling_prob: float, steps: int) -> list[Tensor]:
    """Draw the batches of a seeded run again."""
    if sampling_prob == 1:
        return [torch.arange(ROWS)] * steps
    run = Randomness(seed=SEED, insecure_deterministic=True)
    drawn = [run.for_charge(step).row_bits() for step in range(steps)]
    return [
        torch.from_numpy(PoissonRows(sampling_prob, bits).chosen(0, ROWS))
        for bits in drawn
    ]


def run(
    method: Any, dtype: torch.dtype, *, l2: float, steps: int
) -> tuple[list[Tensor], list[StepRecord]]:
    """Run a method without noise through the gate."""
    objective = ModuleObjective(network(dtype), CROSS_ENTROPY, l2=l2)
    data = PrivateDataset(
        TensorRows(*examples(dtype)),
        n_rows=ROWS,
        accountant=FreeAccountant(),
        randomness=Randomness(seed=SEED, insecure_deterministic=True),
    )
    state = method.init(objective.start())
    found = list(minimize(objective, data, method, state, max_batches=steps))
    return [state.w for state, _ in found], [record for _, record in found]


@cache
def without_noise(*, sampling_prob: float = 1.0, **settings: Any) -> Any:
    built = calibrated_method(
        "blsgd", BUDGET, sampling_prob=sampling_prob, steps=5, options=settings
    )
    return replace(built, gradient_rho=math.inf, search_epsilon=math.inf)


class Plain:
    """The same descent by a loop over examples with torch's own gradients."""

    def __init__(self, dtype: torch.dtype, *, l2: float, size: float) -> None:
        self.module, self.l2, self.size = network(dtype), l2, size
        self.X, self.y = examples(dtype)
        self.w = parameters_to_vector(self.module.parameters()).detach()

    def losses(self, w: Tensor, rows: Tensor) -> Tensor:
        vector_to_parameters(w, self.module.parameters())
        with torch.no_grad():
            return CROSS_ENTROPY(self.module(self.X[rows]), self.y[rows])

    def direction(self, rows: Tensor, clip: float) -> Tensor:
        vector_to_parameters(self.w, self.module.parameters())
        total = torch.zeros_like(self.w)
        for row in rows:
            self.module.zero_grad()
            output = self.module(self.X[row : row + 1])
            nn.functional.cross_entropy(output, self.y[row : row + 1]).backward()
            g = torch.cat([p.grad.reshape(-1) for p in self.module.parameters()])
            total += g * min(1.0, clip / float(g.norm()))
        return total / self.size + self.l2 * self.w

    def step_size(
        self, rows: Tensor, g: Tensor, initial_step: float, clip: float
    ) -> tuple[float, int]:
        here, energy = self.losses(self.w, rows).double(), float(g @ g)
        eta = initial_step
        for tries in range(1, 21):
            there = self.losses(self.w - eta * g, rows).double()
            most = eta * clip * math.sqrt(energy)
            drop = float((here - there).clamp(-most, most).sum())
            linear = float(self.w @ g)
            drop += self.size * self.l2 * eta * (linear - 0.5 * eta * energy)
            if drop >= 0.6 * eta * self.size * energy:
                return eta, tries
            eta *= 0.8
        return eta, 20


def assert_same_path(found: list[Tensor], plain: list[Tensor], dtype: Any) -> None:
    assert float((plain[-1] - plain[0]).abs().max()) > 0.01
    for ours, theirs in zip(found, plain, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize("sampling_prob", [1.0, RATE])
class TestNoiseOff:
    @pytest.mark.parametrize("clip", [0.7, HUGE])
    def test_sgd(self, dtype, sampling_prob, clip):
        method = DPSGD(
            sampling_prob=sampling_prob,
            steps=8,
            step_size=0.2,
            max_grad_norm=clip,
            noise_multiplier=0.0,
        )
        found, records = run(method, dtype, l2=0.05, steps=8)
        plain, path = Plain(dtype, l2=0.05, size=sampling_prob * ROWS), []
        for rows in batches(sampling_prob, 8):
            plain.w = plain.w - 0.2 * plain.direction(rows, clip)
            path.append(plain.w)
        assert_same_path(found, path, dtype)
        assert {record.max_grad_norm for record in records} == {clip}

    @pytest.mark.parametrize(("clip", "initial_step"), [(0.6, 6.0), (HUGE, 4.0)])
    def test_blsgd(self, dtype, sampling_prob, clip, initial_step):
        method = without_noise(
            sampling_prob=sampling_prob,
            max_grad_norm=clip,
            initial_step=initial_step,
            slope=0.6,
            reset_every=4,
        )
        found, records = run(method, dtype, l2=0.3, steps=5)
        plain, path, chosen = Plain(dtype, l2=0.3, size=sampling_prob * ROWS), [], []
        for update, rows in enumerate(batches(sampling_prob, 5), start=1):
            g = plain.direction(rows, clip)
            chosen.append(plain.step_size(rows, g, initial_step, clip))
            plain.w = plain.w - chosen[-1][0] * g
            path.append(plain.w)
            if update == 4:
                initial_step = min(initial_step, 1.2 * max(eta for eta, _ in chosen))
        assert [record.tries for record in records] == [tries for _, tries in chosen]
        assert max(record.tries for record in records) > 1
        assert_same_path(found, path, dtype)


@every_dtype
def test_nonprivate_is_adam(dtype):
    module, torchs = network(dtype), network(dtype)
    training = prepared(
        module, method="nonprivate", seed=SEED, steps=8, dataset=examples(dtype)
    )
    optimizer = torch.optim.Adam(torchs.parameters(), lr=1e-3)
    (X, y), start = examples(dtype), parameters_to_vector(torchs.parameters()).detach()
    for rows in batches(RATE, 8):
        optimizer.zero_grad()
        (CROSS_ENTROPY(torchs(X[rows]), y[rows]).sum() / (RATE * ROWS)).backward()
        optimizer.step()
    training.run()
    found = parameters_to_vector(module.parameters()).detach()
    expected = parameters_to_vector(torchs.parameters()).detach()
    assert float((expected - start).abs().max()) > 5e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", PRIVATE)
def test_a_run_uses_its_budget_and_no_more(name):
    training = prepared(method=name).run()
    assert len(training.records) == STEPS
    spent = training.privacy.epsilon_spent
    assert 0.95 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    assert training.privacy.guarantee.holds
    last = training.method.plan(training.state)
    assert not training.accountant.affords(last.mechanism)
    assert training.privacy.epsilon_spent == training.records[-1].epsilon == spent


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("epsilon", "sampling_prob", "steps"), [(2.0, RATE, STEPS), (0.5, 1.0, 3)]
)
def test_noise_is_that_of_an_independent_accountant(
    name, epsilon, sampling_prob, steps
):
    budget = Budget(epsilon=epsilon, delta=1e-5)
    method = calibrated_method(name, budget, sampling_prob=sampling_prob, steps=steps)
    assert method.gradient.sensitivity == 1.0
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = dpa.GaussianDpEvent(method.gradient.noise_scale)
    accountant.compose(dpa.PoissonSampledDpEvent(sampling_prob, event), steps)
    # A grid of 1e-3 rounds each loss up.
    assert 0.95 * epsilon <= accountant.get_epsilon(1e-5) <= epsilon + 2e-3 * steps


def test_the_search_has_a_tenth_of_each_step():
    method = calibrated_method("blsgd", BUDGET, sampling_prob=RATE, steps=STEPS)
    for_search = method.search_epsilon**2 / 2
    assert for_search / (for_search + method.gradient_rho) == pytest.approx(0.1)
    assert method.line_search.kind == "gaussian"
    half = calibrated_method(
        "blsgd", BUDGET, sampling_prob=RATE, steps=STEPS, options={"search_share": 0.5}
    )
    assert half.search_epsilon**2 / 2 == pytest.approx(half.gradient_rho)
    assert half.gradient_rho < method.gradient_rho


def test_a_search_without_success_takes_the_fallback_step():
    settings = {
        "max_grad_norm": HUGE,
        "initial_step": 50.0,
        "max_tries": 2,
        "slope": 0.99,
    }
    path, records = run(without_noise(**settings), torch.float64, l2=0.0, steps=2)
    assert [record.step_size for record in records] == [50.0 * 0.8**2] * 2
    assert [record.tries for record in records] == [2, 2]
    assert not torch.equal(path[0], path[1])
    still, records = run(
        without_noise(**settings, fallback=False), torch.float64, l2=0.0, steps=2
    )
    assert [record.step_size for record in records] == [0.0, 0.0]
    assert torch.equal(still[0], still[1])


def test_budgets_do_not_grow_in_network_mode():
    training = prepared(method="blsgd", seed=1, budget=AMPLE, options=FAILING).run()
    fallbacks = [r for r in training.records if r.step_size == r.initial_step * 0.8]
    assert len(fallbacks) >= 3
    (rho,) = {record.gradient_rho for record in training.records}
    assert rho == pytest.approx(training.method.gradient_rho)
    (epsilon,) = {record.search_epsilon for record in training.records}
    assert epsilon == training.method.search_epsilon


def test_adaptation_is_an_option_and_stops_in_time():
    options = {**FAILING, "adapt": "always", "fallback": False, "budget_growth": 2.0}
    training = prepared(method="blsgd", seed=1, budget=AMPLE, options=options).run()
    rhos = [record.gradient_rho for record in training.records]
    assert rhos == sorted(rhos) and rhos[-1] > rhos[0]
    assert len(rhos) < STEPS
    assert 0 < training.privacy.epsilon_spent <= AMPLE.epsilon
    assert len(training.privacy.ledger) == len(rhos)


@pytest.mark.parametrize("adapt", ["angle", "always"])
def test_adaptation_asks_for_searches_that_can_fail(adapt):
    with pytest.raises(ValueError, match=r"fallback=False.*Nothing was spent"):
        options = {"adapt": adapt}
        calibrated_method(
            "blsgd", BUDGET, sampling_prob=RATE, steps=STEPS, options=options
        )


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *product(SAMPLED, ["momentum"]),
        ("sgd", "loss_clip"),
        ("adam", "search_share"),
        ("blsgd", "step_size"),
        ("hyfree", "max_grad_norm"),
        ("nonprivate", "max_grad_norm"),
        ("nonprivate", "noise_multiplier"),
    ],
)
def test_a_foreign_option_is_refused_by_name(name, option):
    with pytest.raises(ValueError, match=rf"{name}.*{option}.*Nothing was spent"):
        calibrated_method(
            name, BUDGET, sampling_prob=RATE, steps=STEPS, options={option: 1}
        )


def test_a_given_step_size_is_taken():
    for name in ("sgd", "adam", "nonprivate"):
        training = prepared(method=name, options={"step_size": 0.125}).run()
        assert {record.step_size for record in training.records} == {0.125}


def test_a_nonprivate_run_says_so():
    training = prepared(method="nonprivate").run()
    assert not training.privacy.guarantee.holds
    assert "not private" in str(training.privacy)
    assert training.privacy.accountant == "none"
