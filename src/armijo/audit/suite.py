# SPDX-License-Identifier: Apache-2.0
"""A whole audit: several games under one confidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from armijo import _validate
from armijo.accounting.budget import Budget
from armijo.audit.catalog import AUDITS, GAMES, one_run
from armijo.audit.games import FEWEST_TRIALS, Outcome, play_game

TRIALS, FAST_TRIALS = 2000, 300
"""Releases on each data set of a game."""

CANARIES_PER_TRIAL = 10
"""A canary costs far less than a release."""


@dataclass(frozen=True)
class Audit:
    """The outcomes of all games, which hold together with the confidence."""

    confidence: float
    seed: int | None
    outcomes: tuple[Outcome, ...]

    @property
    def refuted(self) -> tuple[str, ...]:
        """Names of the games whose bound exceeds the claim."""
        return tuple(one.name for one in self.outcomes if one.exceeds)

    def to_dict(self) -> dict[str, object]:
        """Return the audit as JSON values."""
        return {
            "passed": not self.refuted,
            "refuted": list(self.refuted),
            "confidence": self.confidence,
            "seed": self.seed,
            "games": [_described(one) for one in self.outcomes],
        }


def _described(outcome: Outcome) -> dict[str, object]:
    """Return one outcome as JSON values."""
    return {
        "name": outcome.name,
        "claimed_epsilon": outcome.claim.epsilon,
        "audited_epsilon": outcome.epsilon,
        "delta": outcome.claim.delta,
        "bound": outcome.bound,
        "confidence": outcome.confidence,
        "trials": outcome.trials,
        **outcome.detail,
        "exceeds": outcome.exceeds,
    }


Progress = Callable[[str, int, int], object]
"""Called with the name of a game, the releases made, and all that it makes."""


def run_audit(
    names: Sequence[str] = AUDITS,
    *,
    budget: Budget,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Audit:
    """Audit what the names say.

    Parameters
    ----------
    names : sequence of str
        From :data:`armijo.audit.catalog.AUDITS`.
    budget : Budget
        What the audited runs promise.  A large delta needs far fewer trials, since less
        of the evidence lies in rare events.  The model of a one-run audit promises the
        same epsilon at delta 1e-5.
    trials : int
        Releases on each of the two data sets of a game; a one-run audit has ten times
        as many canaries.
    confidence : float
        With which *all* bounds hold: its complement is shared out evenly.
    seed : int or None
        Repeats the audit; None draws from the operating system, as a real run does.
    progress : callable
        Called after each release.

    Examples
    --------
    >>> budget = Budget(epsilon=2.0, delta=0.05)
    >>> run_audit(["majority"], budget=budget, trials=20, seed=0).refuted
    ()
    """
    names = _known(names)
    _validate.at_least(FEWEST_TRIALS, trials=trials)
    _validate.open_unit(confidence=confidence)
    share = 1 - (1 - confidence) / len(names)
    outcomes = []
    for name in names:
        progress(name, 0, 2 * trials)
        outcomes.append(_played(name, budget, trials, share, seed, progress))
    return Audit(confidence, seed, tuple(outcomes))


def _played(
    name: str,
    budget: Budget,
    trials: int,
    confidence: float,
    seed: int | None,
    progress: Progress,
) -> Outcome:
    """Play one game, or train one model."""
    if name not in GAMES:
        return one_run(name, budget.epsilon).play(
            canaries=CANARIES_PER_TRIAL * trials, confidence=confidence, seed=seed
        )
    return play_game(
        GAMES[name](budget),
        trials=trials,
        confidence=confidence,
        seed=seed,
        progress=lambda done: progress(name, done, 2 * trials),
    )


def _known(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once, refusing those that are none."""
    if not names:
        raise ValueError("Expected at least one audit, got none; name one.")
    for name in names:
        _validate.choice(AUDITS, audit=name)
    return tuple(dict.fromkeys(names))
