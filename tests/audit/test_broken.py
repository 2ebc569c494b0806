# SPDX-License-Identifier: Apache-2.0
"""Deliberately broken gates are caught; the same games pass for the sound one.

A game is one for which the mistake matters, with so many trials that a repeat with
another seed gives the same verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from armijo.accounting.accountants import PlannedAccountant, PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Composed, Gaussian, Subsampled
from armijo.audit.games import Claim, Game, Outcome, play_game
from armijo.audit.targets import GAMES, run_game
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.randomness import Randomness
from tests.audit import broken
from tests.baselines.one_shot_doubles import noise_p_value
from tests.data.gate_doubles import features
from tests.marks import slow

CONFIDENCE = 0.95


def whole() -> Game:
    """One step of DP-SGD on all rows, which is one Gaussian release."""
    budget = Budget(epsilon=1.0, delta=0.05)
    return replace(
        run_game("sgd", budget, {"sampling_prob": 1.0, "steps": 1}), gaussian=True
    )


def alone() -> Game:
    """Two sampled steps on one row or none: without it all sums are the same."""
    return run_game("sgd", Budget(epsilon=2.0, delta=0.05))


class Rare:
    """Sixteen sums over small batches, most of which lack the only row."""

    name = "rare"
    sums, plan = (
        16,
        BatchPlan(mechanisms=(Gaussian(noise_scale=1.0),), sampling_prob=0.1),
    )
    claim = Claim(1.2, 0.01)

    def __init__(self):
        self.budget = Budget(epsilon=self.claim.epsilon, delta=self.claim.delta)
        self.schedule = [(self.plan.mechanism, self.sums)]

    def play(self, present, randomness):
        data = PrivateDataset(
            np.ones((int(present), 1)),
            n_rows=1,
            accountant=PlannedAccountant(self.budget, self.schedule),
            randomness=randomness,
        )
        batches = (data.open(self.plan) for _ in range(self.sums))
        noisy = [b.noisy_sum(features(), self.plan.mechanisms[0])[0] for b in batches]
        return np.array([np.sum(noisy)])


def output() -> Game:
    """The end of a descent with noise, which is one Gaussian release."""
    return GAMES["outpert-gd"](Budget(epsilon=2.0, delta=0.05))


def search() -> Game:
    return GAMES["search-gaussian"](Budget(epsilon=1.0, delta=0.05))


def support() -> Game:
    """A sum of which both exact ones are known, hidden well."""
    return GAMES["support"](Budget(epsilon=0.01, delta=1e-5))


def person() -> Game:
    """A person with many rows, who weighs as much as one with one row."""
    return GAMES["person"](Budget(epsilon=1.0, delta=0.05))


def images() -> Game:
    """An image that moves mean, second moments and gradients of the classifier."""
    return GAMES["images"](Budget(epsilon=1.0, delta=0.05))


def network(name: str) -> Callable[[], Game]:
    return partial(GAMES[f"network-{name}"], Budget(epsilon=1.0, delta=1e-5))


NORMS, CANCELLING, CONTENTS = map(network, ("norms", "cancelling", "contents"))


@dataclass(frozen=True)
class Mistake:
    """What is broken, in which game it shows, and after how many trials."""

    breaks: Callable[[Any], None]
    game: Callable[[], Game]
    trials: int


MISTAKES = {
    "noise halved": Mistake(broken.noise_halved, whole, 400),
    "divided by the actual batch size": Mistake(
        broken.divided_by_actual_size, whole, 400
    ),
    "clip after sum": Mistake(broken.clip_after_sum, whole, 400),
    "angles in single precision": Mistake(
        broken.angles_in_single_precision, support, 40
    ),
    "ghost norms decide": Mistake(broken.ghost_norms_decide, NORMS, 60),
    "raw terms added": Mistake(broken.raw_terms_added, CANCELLING, 60),
    "the batch decides": Mistake(broken.batch_decides, CONTENTS, 60),
    "gradients of images unclipped": Mistake(broken.coefficients_unclipped, images, 40),
}
SLOW_MISTAKES = {
    "persons unweighted": Mistake(broken.persons_unweighted, person, 60),
    "noise on an answer halved": Mistake(broken.vector_noise_halved, output, 400),
    "charge skipped": Mistake(broken.charge_skipped, whole, 80),
    "noise reused": Mistake(broken.noise_reused, alone, 300),
    "same batch amplified again": Mistake(broken.batch_amplified_again, Rare, 1500),
    "noise of the search halved": Mistake(broken.noise_halved, search, 4000),
}


@cache
def built(make: Callable[[], Game]) -> Game:
    """Return a game, its noise solved once."""
    return make()


def audited(make: Callable[[], Game], trials: int) -> Outcome:
    return play_game(built(make), trials=trials, confidence=CONFIDENCE, seed=1)


@cache
def sound(make: Callable[[], Game], trials: int) -> Outcome:
    """Audit the gate as it is; games that several mistakes share are played once."""
    return audited(make, trials)


def check(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sound(mistake.game, mistake.trials).exceeds
    mistake.breaks(monkeypatch)
    assert audited(mistake.game, mistake.trials).exceeds


@pytest.mark.parametrize("name", [*MISTAKES, *slow(SLOW_MISTAKES)])
def test_the_audit_catches(name, monkeypatch):
    check((MISTAKES | SLOW_MISTAKES)[name], monkeypatch)


@pytest.mark.parametrize(
    "method", "outpert-rsgd outpert-gd objpert objpert-kst objpert-pure amp".split()
)
def test_the_law_of_the_noise_catches_half_of_it(method, monkeypatch):
    """Also where the game of the method has too little power to."""
    assert noise_p_value(method) > 1e-4
    broken.vector_noise_halved(monkeypatch)
    assert noise_p_value(method) < 1e-4


FIRST, SECOND = Gaussian(noise_scale=6.0), Gaussian(noise_scale=8.0)
RATE = 0.25


def gate(rows: int = 200) -> PrivateDataset:
    accountant = PrivacyFilter(Budget(epsilon=4.0, delta=1e-5))
    X = np.arange(float(rows))[:, None]
    return PrivateDataset(X, n_rows=rows, accountant=accountant)


def charges_every_batch() -> bool:
    """Say whether each opened batch is in the ledger."""
    data = gate()
    for _ in range(3):
        data.open(BatchPlan(mechanisms=(FIRST,), sampling_prob=RATE))
    return len(data.accountant.ledger.charges) == 3


def samples_every_batch() -> bool:
    """Say whether a batch is drawn anew: equal ones of 200 rows have no chance."""
    data, plan = gate(), BatchPlan(mechanisms=(FIRST,), sampling_prob=RATE)

    def drawn() -> list[float]:
        return data.open(plan).release(lambda rows, _: rows.X[:, 0].tolist(), FIRST)

    return drawn() != drawn()


def charges_what_a_batch_releases() -> bool:
    """Say whether two answers on one batch are charged as the Gaussian they are.

    Together they are one Gaussian, whose amplified curve is exact: less is too little.
    """
    data = gate()
    data.open(BatchPlan(mechanisms=(FIRST, SECOND), sampling_prob=RATE))
    together = Gaussian.from_rho(FIRST.rho + SECOND.rho)
    released = Subsampled(together, RATE).rdp(np.array([float(data.accountant.order)]))
    return bool(np.all(data.accountant.spent >= released * (1 - 1e-9)))


def parts_amplified_apart(monkeypatch):
    """Gradient and search of one batch, each amplified as if it had its own."""

    def apart(self):
        return Composed(
            tuple(Subsampled(one, self.sampling_prob) for one in self.mechanisms)
        )

    monkeypatch.setattr(BatchPlan, "mechanism", property(apart))


@pytest.mark.parametrize(
    ("contract", "breaks"),
    [
        (charges_every_batch, broken.charge_skipped),
        (samples_every_batch, broken.batch_amplified_again),
        (charges_what_a_batch_releases, parts_amplified_apart),
    ],
)
def test_the_contract_of_the_gate_catches(contract, breaks, monkeypatch):
    assert contract()
    breaks(monkeypatch)
    assert not contract()


def test_a_run_that_is_never_refused_is_cut(monkeypatch):
    """Else an audit of a gate that charges nothing would not end."""
    game = whole()
    length = 6  # where the number of batches stands, after those of two steps
    assert game.play(True, Randomness())[length] == 1
    broken.charge_skipped(monkeypatch)
    assert game.play(True, Randomness())[length] == game.most_batches
