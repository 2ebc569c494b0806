# SPDX-License-Identifier: Apache-2.0
"""What the paper's text claims, what the result files say, and a verdict by rule.

Two lines are compared in a *cell*: a data set, a loss and a budget.  Their difference
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

import pandas as pd

from armijo_reproduction.summary import Gap, Mean, Part, gap_of, summarized

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


Judge = Callable[[Sequence[Part]], Finding | None]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper's text and how it is judged.

    Attributes
    ----------
    section : str
        The section of the paper.
    text : str
        The claim in our words.
    groups : str
        The experiments' groups whose results decide.
    judge : callable
        From results to a finding; None without the results it needs.
    """

    section: str
    text: str
    groups: tuple[str, ...]
    judge: Judge


def found_of(claim: Claim, parts: Sequence[Part]) -> Finding:
    """Return the finding on a claim, "not run yet" without results."""
    own = [part for part in parts if part.experiment.group in claim.groups]
    return (claim.judge(own) if own else None) or Finding("", NOT_RUN)


@dataclass(frozen=True)
class Tally:
    """In how many cells the first line is above, level with or below the second.

    The error of the mean difference is that of the fold means: cells share their runs.

    >>> steady, shaky = {0: 0.02, 1: 0.03}, {0: 0.05, 1: -0.05}
    >>> Tally.of([gap_of(steady), gap_of(shaky)])
    Tally(above=1, level=1, below=0, mean=0.0125, error=0.0225)
    """

    above: int
    level: int
    below: int
    mean: float
    error: float

    @classmethod
    def of(cls, gaps: Iterable[Gap]) -> "Tally":
        """Count differences that are above, level and below."""
        known = [gap for gap in gaps if gap.runs]
        above = sum(gap.value > 2 * gap.error for gap in known)
        below = sum(gap.value < -2 * gap.error for gap in known)
        by_fold: dict[int, list[float]] = {}
        for gap in known:
            for fold, value in gap.folds.items():
                by_fold.setdefault(fold, []).append(value)
        return cls(
            above=above,
            level=len(known) - above - below,
            below=below,
            mean=fmean(gap.value for gap in known) if known else math.nan,
            error=gap_of({fold: fmean(each) for fold, each in by_fold.items()}).error,
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

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.4f}"
        return (
            f"above in {self.above} of {self.cells} cells, level in {self.level}, "
            f"below in {self.below}; mean difference {self.mean:+.4f}{error}"
        )


def gaps_between(
    parts: Iterable[Part], first: str, second: str, most: float = math.inf
) -> list[Gap]:
    """Return the difference of two lines in each cell, up to a budget."""
    gaps: list[Gap] = []
    for part in parts:
        table = part.accuracies
        if first in table and second in table:
            folds = (table[first] - table[second]).to_dict("index")
            gaps += [
                gap_of(gap) for (*_, epsilon), gap in folds.items() if epsilon <= most
            ]
    return [gap for gap in gaps if gap.runs]


def both_accountings(sound: Sequence[Gap], printed: Sequence[Gap]) -> Finding | None:
    """Judge an ordering, and the same ordering under the printed analysis."""
    if not sound:
        return None
    tally, label = Tally.of(sound), Tally.of(printed)
    verdict = tally.verdict()
    if verdict != HOLDS and printed and label.verdict() == HOLDS:
        verdict = ONLY_PRINTED
    beside = f". Printed accounting: {label}" if printed else ""
    return Finding(f"{tally}{beside}", verdict)


def at(rows: pd.DataFrame, epsilon: float, setting: str | None = None) -> pd.DataFrame:
    """Return the rows of a budget, and of a setting."""
    kept = rows[rows["epsilon"] == epsilon]
    return kept if setting is None else kept[kept["setting"] == setting]


def means_by_setting(part: Part, epsilon: float) -> dict[str, Mean]:
    """Return the accuracy of every setting that has run, in the order of the values."""
    rows = summarized(at(part.table, epsilon), "accuracy", ["setting"])
    found = {
        setting: Mean(value, error, runs)
        for setting, value, error, runs in rows.itertuples(index=False, name=None)
    }
    return {each: found[each] for each in part.experiment.settings() if each in found}


_SYMBOLS = {"slope": "alpha", "shrink": "beta", "rate": "q", "clip_decay": "zeta"}


def in_symbols(setting: str) -> str:
    """Return a setting as the paper writes it.

    >>> in_symbols("slope=0.5")
    'alpha = 0.5'
    """
    name, _, value = setting.partition("=")
    return f"{_SYMBOLS.get(name, name)} = {value}"
