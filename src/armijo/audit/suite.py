# SPDX-License-Identifier: Apache-2.0
"""A whole audit: several games under one confidence, and its files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from armijo import _validate
from armijo.accounting.budget import Budget
from armijo.audit.games import FEWEST_TRIALS, Outcome, play_game
from armijo.audit.one_run import DELTA, TRAINERS, OneRun
from armijo.audit.targets import GAMES
from armijo.plotting import BLUE, GRAY, ORANGE

AUDITS = (*GAMES, *(f"one-run-{model}" for model in TRAINERS))
"""Names of all audits."""

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
        return tuple(outcome.name for outcome in self.outcomes if outcome.exceeds)

    def to_dict(self) -> dict[str, object]:
        """Return the audit as JSON values."""
        return {
            "passed": not self.refuted,
            "refuted": list(self.refuted),
            "confidence": self.confidence,
            "seed": self.seed,
            "games": [
                {
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
                for outcome in self.outcomes
            ],
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
        From :data:`AUDITS`.
    budget : Budget
        The guarantee of the audited runs.  A large delta needs far fewer trials, since
        less of the evidence lies in rare events.  The model of a one-run audit has the
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
    if not names:
        raise ValueError("Expected at least one audit, got none; name one.")
    for name in names:
        _validate.choice(AUDITS, audit=name)
    names = tuple(dict.fromkeys(names))
    _validate.at_least(FEWEST_TRIALS, trials=trials)
    _validate.open_unit(confidence=confidence)
    share = 1 - (1 - confidence) / len(names)

    def played(name: str) -> Outcome:
        progress(name, 0, 2 * trials)
        if name in GAMES:
            return play_game(
                GAMES[name](budget),
                trials=trials,
                confidence=share,
                seed=seed,
                progress=lambda done: progress(name, done, 2 * trials),
            )
        model = name.removeprefix("one-run-")
        one_run = OneRun(model, Budget(epsilon=budget.epsilon, delta=DELTA))
        return one_run.play(
            canaries=CANARIES_PER_TRIAL * trials, confidence=share, seed=seed
        )

    return Audit(confidence, seed, tuple(map(played, names)))


def write_audit(folder: Path, audit: Audit) -> None:
    """Write ``audit.json``, ``audit.png`` and ``audit.svg``, making the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(audit.to_dict(), allow_nan=False, indent=1)
    (folder / "audit.json").write_text(text + "\n", encoding="utf-8")
    figure = draw_audit(audit)
    figure.savefig(folder / "audit.png", dpi=150)
    figure.savefig(folder / "audit.svg", metadata={"Date": None})


def draw_audit(audit: Audit) -> Figure:
    """Draw a bar to each audited epsilon, and a mark at its claim."""
    outcomes = audit.outcomes[::-1]  # the first on top
    figure = Figure(figsize=(7.0, 1.4 + 0.3 * len(outcomes)), layout="constrained")
    ax: Any = figure.subplots()
    for refuted, color, label in (
        (False, BLUE, "audited: epsilon is at least this"),
        (True, ORANGE, "audited: the claim is refuted"),
    ):
        at = [i for i, outcome in enumerate(outcomes) if outcome.exceeds == refuted]
        if at:
            lengths = [outcomes[i].epsilon for i in at]
            bars = ax.barh(at, lengths, height=0.55, color=color, label=label)
            ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    claims, places = [o.claim.epsilon for o in outcomes], range(len(outcomes))
    ax.plot(claims, places, "k|", ms=13, mew=2, label="claimed: at most")
    ax.set_yticks(places, [f"{o.name}  (delta {o.claim.delta:g})" for o in outcomes])
    ax.set_xlabel(
        f"epsilon (all bounds together hold with confidence {audit.confidence:g})"
    )
    ax.set_xlim(left=0)
    ax.set_ylim(-0.7, len(outcomes) - 0.3)
    ax.tick_params(axis="y", length=0, labelsize=8, labelcolor=GRAY)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
