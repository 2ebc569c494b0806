# SPDX-License-Identifier: Apache-2.0
"""How a claim of the paper is judged: what the result files say, and a rule.

Two series are compared in a *cell*: a data set, a loss and a budget.  Their difference
is paired by folds.  It counts as *above* or *below* if it is more than two of its
standard errors from zero, and as *level* otherwise.  The rules:

* An ordering **holds** if the first is above in more than half of the cells; it is
  **within noise** if at least half of them are level; otherwise it **does not hold**.
* If an ordering does not hold, or is within noise, while the same methods under the
  printed analysis are above in more than half of the cells, it **holds only under the
  printed accounting**, which gives no guarantee.
* A value is the best one if no other has a higher mean; within noise, if the best is
  level with it.
* A method is robust to a parameter if its best and worst value differ by no more than
  0.02; two results are similar if they differ by no more than 0.01.
* Networks have one published split, so that a difference of less than 0.01 in accuracy,
  or of 0.02 in the objective, counts as noise.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from armijo_reproduction.summary import (
    PairedDiff,
    Part,
    by_accounting,
    paired_diff,
)

HOLDS = "holds"
FAILS = "does not hold"
NOISE = "within noise"
ONLY_PRINTED = "holds only under the printed accounting"
NOT_RUN = "not run yet"
ROBUST, SIMILAR = 0.02, 0.01


@dataclass(frozen=True)
class Finding:
    """What was measured, in words, and the verdict."""

    measured: str
    verdict: str


Verdict = Callable[[Sequence[Part]], Finding | None]
"""From results to a finding; None without the results it needs."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper's text and how it is judged.

    Attributes
    ----------
    section : str
        The section of the paper.
    text : str
        The claim in our words.
    groups : tuple of str
        The experiments' groups whose results decide.
    verdict : callable
        The rule by which it is judged.
    """

    section: str
    text: str
    groups: tuple[str, ...]
    verdict: Verdict

    def finding(self, parts: Sequence[Part]) -> Finding:
        """Return the finding on the claim, "not run yet" without results."""
        own = [part for part in parts if part.experiment.group in self.groups]
        return (self.verdict(own) if own else None) or Finding("", NOT_RUN)


@dataclass(frozen=True)
class WinCount:
    """In how many cells the first series is above, level with or below the second.

    The error of the mean difference is that of the fold means: cells share their runs.

    >>> steady, shaky = {0: 0.02, 1: 0.03}, {0: 0.05, 1: -0.05}
    >>> WinCount.of([paired_diff(steady), paired_diff(shaky)])
    WinCount(above=1, level=1, below=0, mean=0.0125, error=0.0225)
    """

    above: int
    level: int
    below: int
    mean: float
    error: float

    @classmethod
    def of(cls, diffs: Iterable[PairedDiff]) -> "WinCount":
        """Count differences that are above, level and below."""
        known = [diff for diff in diffs if diff.runs]
        above = sum(diff.value > 2 * diff.error for diff in known)
        below = sum(diff.value < -2 * diff.error for diff in known)
        by_fold: dict[int, list[float]] = {}
        for diff in known:
            for fold, value in diff.folds.items():
                by_fold.setdefault(fold, []).append(value)
        means = {fold: fmean(values) for fold, values in by_fold.items()}
        return cls(
            above=above,
            level=len(known) - above - below,
            below=below,
            mean=fmean(diff.value for diff in known) if known else math.nan,
            error=paired_diff(means).error,
        )

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return self.above + self.level + self.below

    def verdict(self) -> str:
        """Return the verdict on "the first is above the second"."""
        if self.above > self.cells / 2:
            return HOLDS
        return NOISE if self.level >= self.cells / 2 else FAILS

    def finding(self) -> Finding | None:
        """Return the count in words with its verdict; None if nothing was compared."""
        return Finding(str(self), self.verdict()) if self.cells else None

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.4f}"
        return (
            f"above in {self.above} of {self.cells} cells, level in {self.level}, "
            f"below in {self.below}; mean difference {self.mean:+.4f}{error}"
        )


def paired_diffs(
    parts: Iterable[Part], first: str, second: str, most: float = math.inf
) -> list[PairedDiff]:
    """Return the difference of two series in each cell, up to a budget."""
    diffs: list[PairedDiff] = []
    for part in parts:
        table = part.accuracies
        if first in table and second in table:
            folds = (table[first] - table[second]).to_dict("index")
            diffs += [
                paired_diff(by_fold)
                for (*_, epsilon), by_fold in folds.items()
                if epsilon <= most
            ]
    return [diff for diff in diffs if diff.runs]


def both(sound: Finding | None, printed: Finding | None) -> Finding | None:
    """Return the finding under sound accounting, and what the printed one shows."""
    if sound is None or printed is None:
        return sound
    only = sound.verdict != HOLDS and printed.verdict == HOLDS
    return Finding(
        f"{sound.measured}. Printed accounting: {printed.measured}",
        ONLY_PRINTED if only else sound.verdict,
    )


def under_both(verdict: Verdict) -> Verdict:
    """Judge the sound series, and say what those under the printed analysis show."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        sound, printed = (
            verdict(some) if (some := by_accounting(parts, printed=flag)) else None
            for flag in (False, True)
        )
        return both(sound, printed)

    return judge
