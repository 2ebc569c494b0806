# SPDX-License-Identifier: Apache-2.0
"""The claims of the paper's text, judged by rule from the result files.

Two series are compared in a *setting*: a data set, a loss and a budget.  Their
difference is paired by folds.  It counts as *above* or *below* if it is more than two
of its standard errors from zero, and as *tied* otherwise.  The rules:

* An ordering **holds** if the first is above in more than half of the settings; it is
  **within noise** if at least half of them are tied; otherwise it **does not hold**.
* If an ordering does not hold, or is within noise, while the same methods under the
  analysis as published are above in more than half of the settings, it **holds only
  under the published accounting**, which gives no guarantee.
* A value is the best one if no other has a higher mean; within noise, if the best is
  tied with it.
* A method is robust to a parameter if its best and worst value differ by no more than
  0.02; two results are similar if they differ by no more than 0.01.
* Networks have one published split, so that a difference of less than 0.01 in accuracy,
  or of 0.02 in the objective, counts as noise.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from statistics import fmean
from typing import Any

import pandas as pd

from armijo_reproduction.results import (
    Mean,
    PairedDiff,
    Part,
    by_accounting,
    difference,
    in_group,
    mean_of,
    paired_diff,
    summarized,
)
from armijo_reproduction.spec import MODELS, PUBLISHED, dataset_name, shown

HOLDS = "holds"
FAILS = "does not hold"
NOISE = "within noise"
ONLY_PUBLISHED = "holds only under the published accounting"
NOT_RUN = "not run yet"
ROBUST, SIMILAR, SIMILAR_OBJECTIVE = 0.02, 0.01, 0.02
LOW, HIGH = 0.05, 0.2
"""The two budgets of the experiments on hyper-parameters."""
LAST = 3
"""The final value of a curve is the mean of its last evaluations."""
HIGH_ACCURACY = 0.95
"""High accuracy is this part of the best final accuracy of the private methods."""
PROPOSED = ("DP-BLSGD", "DP-BLSGD-AC", "DP-BLGD")
"""The three methods of the paper."""
BASELINES = ("DP-AGD", "DP-SGD", "Outpert-RSGD", "Outpert-GD", "ObjPert", "PrivGene")
"""The paper's private baselines; majority and non-private frame the figures."""
TENTH_AND_ALL = ("sampling_prob=0.1", "sampling_prob=1.0")
_SYMBOLS = {
    "slope": "alpha",
    "shrink": "beta",
    "sampling_prob": "q",
    "clip_decay": "zeta",
}


class MissingResults(Exception):
    """A rule lacks results that it needs."""


@dataclass(frozen=True)
class Finding:
    """What was measured, in words, and the verdict."""

    measured: str
    verdict: str


Rule = Callable[..., Finding]
"""From results and the claim's arguments to a finding."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim in our words and its rule, from ``claims.toml``."""

    section: str
    text: str
    groups: tuple[str, ...]
    rule: str
    args: tuple[Any, ...] = ()
    experiments: tuple[str, ...] | None = None
    sound_only: bool = False

    def finding(self, parts: Sequence[Part]) -> Finding:
        """Return the finding on the claim, "not run yet" without results."""
        deciding = [
            part
            for part in in_group(parts, *self.groups)
            if self.experiments is None or part.experiment.name in self.experiments
        ]
        sound = self._judged(by_accounting(deciding, published=False))
        published = None if self.sound_only else self._judged(_as_published(deciding))
        if sound is None or published is None:
            return sound or Finding("", NOT_RUN)
        only = sound.verdict != HOLDS and published.verdict == HOLDS
        return Finding(
            f"{sound.measured}. Published accounting: {published.measured}",
            ONLY_PUBLISHED if only else sound.verdict,
        )

    def _judged(self, parts: Sequence[Part]) -> Finding | None:
        rule: Rule = globals()[self.rule]
        try:
            return rule(parts, *self.args) if parts else None
        except MissingResults:
            return None


def _claims() -> tuple[Claim, ...]:
    path = files("armijo_reproduction") / "claims.toml"
    claims = []
    for name, section in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for claim in section["claims"]:
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in (section["all"] | claim).items()
            }
            claims.append(Claim(section=name, **values))
    return tuple(claims)


CLAIMS = _claims()
"""All claims, in the order of the paper."""


@dataclass(frozen=True)
class WinCount:
    """In how many settings the first series is above, tied with or below the second.

    The error of the mean difference is that of the fold means: settings share runs.

    >>> steady, shaky = {0: 0.02, 1: 0.03}, {0: 0.05, 1: -0.05}
    >>> WinCount.of([paired_diff(steady), paired_diff(shaky)])
    WinCount(above=1, tied=1, below=0, mean=0.0125, error=0.0225)
    """

    above: int
    tied: int
    below: int
    mean: float
    error: float

    @classmethod
    def of(cls, diffs: Iterable[PairedDiff]) -> "WinCount":
        """Count differences that are above, tied and below."""
        known = [diff for diff in diffs if diff.runs]
        above = sum(diff.value > 2 * diff.error for diff in known)
        below = sum(diff.value < -2 * diff.error for diff in known)
        mean = fmean(diff.value for diff in known) if known else math.nan
        by_fold = pd.DataFrame([diff.folds for diff in known]).mean().to_dict()
        tied = len(known) - above - below
        return cls(above, tied, below, mean, paired_diff(by_fold).error)

    @property
    def settings(self) -> int:
        """Return the number of settings."""
        return self.above + self.tied + self.below

    def verdict(self) -> str:
        """Return the verdict on "the first is above the second"."""
        verdicts = {HOLDS: self.above, NOISE: self.tied, FAILS: self.below}
        return _majority([name for name, n in verdicts.items() for _ in range(n)])

    def finding(self) -> Finding:
        """Return the count in words with its verdict."""
        if not self.settings:
            raise MissingResults
        return Finding(str(self), self.verdict())

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.4f}"
        return (
            f"above in {self.above} of {self.settings} settings, tied in {self.tied}, "
            f"below in {self.below}; mean difference {self.mean:+.4f}{error}"
        )


def _majority(verdicts: Sequence[str]) -> str:
    """Return what holds for more than half, noise if at least half are noise."""
    if verdicts.count(HOLDS) > len(verdicts) / 2:
        return HOLDS
    return NOISE if verdicts.count(NOISE) >= len(verdicts) / 2 else FAILS


def _as_published(parts: Sequence[Part]) -> list[Part]:
    """Return results whose sound series give way to the same ones as published."""
    replaced = []
    for part in parts:
        lines = part.table["line"]
        plain = lines.str.removesuffix(PUBLISHED)
        published = lines != plain
        if published.any():
            kept = published | ~lines.isin(set(plain[published]))
            table = part.table.assign(line=plain)[kept]
            replaced.append(Part(experiment=part.experiment, table=table))
    return replaced


def diffs_of(
    parts: Iterable[Part],
    firsts: Iterable[str],
    seconds: Sequence[str],
    most: float = math.inf,
) -> list[PairedDiff]:
    """Return the differences of some series to others by setting, up to a budget."""
    diffs = []
    for first, second, part in product(firsts, seconds, parts):
        table = part.accuracies
        if first in table and second in table:
            by_place = (table[first] - table[second]).to_dict("index").items()
            diffs += [
                paired_diff(folds) for (*_, eps), folds in by_place if eps <= most
            ]
    return diffs


def in_symbols(setting: str) -> str:
    """Return a setting as the paper writes it.

    >>> in_symbols("slope=0.5")
    'alpha = 0.5'
    """
    name, _, value = setting.partition("=")
    return f"{_SYMBOLS.get(name, name)} = {value}"


def _means(part: Part, epsilon: float) -> tuple[dict[str, Mean], str]:
    """Return the accuracy by setting, in the order of the values, and the best one."""
    rows = summarized(part.of(epsilon=epsilon), "accuracy", ["setting"])
    means = {
        setting: Mean(value, error, runs)
        for setting, value, error, runs in rows.itertuples(index=False, name=None)
    }
    means = {name: means[name] for name in part.experiment.settings() if name in means}
    if len(means) < 2:
        raise MissingResults
    return means, max(means, key=lambda setting: means[setting].value)


def _lead(part: Part, epsilon: float, first: str, second: str) -> PairedDiff:
    """Return the accuracy of a setting minus that of another."""
    ours, theirs = (part.of(epsilon=epsilon, setting=s) for s in (first, second))
    return difference(ours, theirs, "accuracy")


def robust(parts: Sequence[Part]) -> Finding:
    """Judge whether best and worst value of a parameter are close at epsilon 0.2."""
    means, best = _means(parts[0], HIGH)
    worst = min(means, key=lambda setting: means[setting].value)
    spread = means[best].value - means[worst].value
    text = (
        f"{spread:.4f} between {in_symbols(best)} ({means[best]}) and "
        f"{in_symbols(worst)} ({means[worst]}) at epsilon {HIGH:g}"
    )
    return Finding(text, HOLDS if spread <= ROBUST else FAILS)


def best_at(parts: Sequence[Part], setting: str, *epsilons: float) -> Finding:
    """Judge whether a value is the best one at some budgets."""
    texts, verdicts = [], set()
    for epsilon in epsilons:
        means, best = _means(parts[0], epsilon)
        if setting not in means:
            raise MissingResults
        lead = WinCount.of([_lead(parts[0], epsilon, best, setting)])
        verdicts.add(HOLDS if best == setting else FAILS if lead.above else NOISE)
        texts.append(
            f"at epsilon {epsilon:g} {in_symbols(best)} is best with "
            f"{means[best]}; {in_symbols(setting)} has {means[setting]}"
        )
    worst = next(verdict for verdict in (FAILS, NOISE, HOLDS) if verdict in verdicts)
    return Finding("; ".join(texts), worst)


def above_others(parts: Sequence[Part], first: str, *others: str) -> Finding:
    """Judge whether a value is above others, over all budgets."""
    return WinCount.of(
        _lead(parts[0], epsilon, first, other)
        for epsilon, other in product(parts[0].experiment.epsilons, others)
    ).finding()


def small_batches_lose(parts: Sequence[Part]) -> Finding:
    """Judge whether the smallest sampling ratio is below the best at epsilon 0.05."""
    means, best = _means(parts[0], LOW)
    smallest = next(iter(means))
    lead = WinCount.of([_lead(parts[0], LOW, best, smallest)])
    text = (
        f"{in_symbols(smallest)} has {means[smallest]}, {in_symbols(best)} is best "
        f"with {means[best]}"
    )
    verdict = FAILS if best == smallest else HOLDS if lead.above else NOISE
    return Finding(text, verdict)


def _by_budget(diffs: dict[float, PairedDiff]) -> str:
    if not all(diff.runs for diff in diffs.values()):
        raise MissingResults
    return "; ".join(f"{diff} at epsilon {eps:g}" for eps, diff in diffs.items())


def full_batch_is_similar(parts: Sequence[Part]) -> Finding:
    """Judge whether batches of a tenth are as accurate as all rows."""
    epsilons = parts[0].experiment.epsilons
    diffs = {eps: _lead(parts[0], eps, *TENTH_AND_ALL) for eps in epsilons}
    text = f"q = 0.1 minus q = 1: {_by_budget(diffs)}"
    close = all(abs(diff.value) <= SIMILAR for diff in diffs.values())
    return Finding(text, HOLDS if close else FAILS)


def fewer_evaluations(parts: Sequence[Part]) -> Finding:
    """Judge whether batches of a tenth need half of the passes over all rows."""
    epsilon = parts[0].experiment.epsilons[0]
    rows = [parts[0].of(epsilon=epsilon, setting=each) for each in TENTH_AND_ALL]
    if any(some.empty for some in rows):
        raise MissingResults
    texts, ratios = [], []
    for column in ("gradients", "objectives"):
        tenth, every = (mean_of(some, column).value for some in rows)
        ratios.append(0.1 * tenth / every)
        texts.append(
            f"{column}: {tenth:.0f} batches of a tenth ({0.1 * tenth:.0f} passes) "
            f"against {every:.0f} passes at q = 1"
        )
    return Finding("; ".join(texts), HOLDS if max(ratios) <= 0.5 else FAILS)


def decay_helps_only_at_low_budget(parts: Sequence[Part]) -> Finding:
    """Judge whether a decaying clip helps at epsilon 0.05 and does not at 0.2."""
    diffs = {}
    for epsilon in (LOW, HIGH):
        rows = parts[0].of(epsilon=epsilon)
        constant = rows["setting"] == "clip_decay=0.0"
        diffs[epsilon] = difference(rows[~constant], rows[constant], "accuracy")
    text = f"mean of all zeta above 0 minus zeta = 0: {_by_budget(diffs)}"
    low, high = (WinCount.of([diff]) for diff in diffs.values())
    verdict = NOISE if low.tied else HOLDS if low.above and not high.above else FAILS
    return Finding(text, verdict)


def beats(
    parts: Sequence[Part],
    firsts: Sequence[str] = PROPOSED,
    seconds: Sequence[str] = BASELINES,
    most: float = math.inf,
) -> Finding:
    """Judge whether methods are above baselines in most settings."""
    return WinCount.of(diffs_of(parts, firsts, seconds, most)).finding()


def beats_output_perturbation(parts: Sequence[Part]) -> Finding:
    """Judge whether the three are above Outpert-RSGD on three data sets of four."""
    texts, won = [], 0
    for dataset in dict.fromkeys(part.experiment.datasets[0] for part in parts):
        some = [part for part in parts if part.experiment.datasets[0] == dataset]
        count = WinCount.of(diffs_of(some, PROPOSED, ["Outpert-RSGD"]))
        if count.settings:
            won += count.verdict() == HOLDS
            texts.append(
                f"{dataset_name(dataset)}: above in {count.above} of {count.settings} "
                f"settings, below in {count.below}"
            )
    if len(texts) < 3:
        raise MissingResults
    return Finding("; ".join(texts), HOLDS if won >= 3 else FAILS)


def has_a_small_range(parts: Sequence[Part]) -> Finding:
    """Judge whether majority and non-private are close."""
    ranges = {}
    for part in parts:
        rows = [part.of(line=label) for label in ("non-private", "majority")]
        if all(len(some) for some in rows):
            best, least = (mean_of(some, "accuracy").value for some in rows)
            ranges[MODELS[part.experiment.models[0]]] = best - least
    if not ranges:
        raise MissingResults
    text = "; ".join(f"{size:.4f} with {model}" for model, size in ranges.items())
    close = max(ranges.values()) <= ROBUST
    return Finding(f"non-private minus majority: {text}", HOLDS if close else FAILS)


def adaptive_clip_helps_somewhere(parts: Sequence[Part]) -> Finding:
    """Judge whether DP-BLSGD-AC is above DP-BLSGD over all budgets of a data set."""
    diffs = {}
    for part in parts:
        count = WinCount.of(diffs_of([part], ["DP-BLSGD-AC"], ["DP-BLSGD"]))
        if count.settings:
            diffs[_place(part, ", ")] = Mean(count.mean, count.error, count.settings)
    if not diffs:
        raise MissingResults
    text = "; ".join(f"{name}: {diff}" for name, diff in diffs.items())
    helped = any(diff.value > 2 * diff.error for diff in diffs.values())
    return Finding(f"mean over all budgets: {text}", HOLDS if helped else FAILS)


def _place(part: Part, between: str) -> str:
    wanted = part.experiment
    return f"{dataset_name(wanted.datasets[0])}{between}{MODELS[wanted.models[0]]}"


NETWORK, PEERS, FREE = "DP-BLSGD", ("DP-SGD", "DP-Adam"), "Adam, non-private"
Curves = dict[str, pd.DataFrame]


def _curves(part: Part) -> Curves:
    """Return the mean curve of each series, by the name it is shown with."""
    return {
        shown(label): rows.groupby("iteration").mean(numeric_only=True)
        for label, rows in part.table.groupby("line", sort=False)
    }


def _final(curve: pd.DataFrame, column: str) -> float:
    return float(curve[column].iloc[-LAST:].mean())


def by_network(judge: Callable[..., tuple[str, str]]) -> Rule:
    """Judge networks one by one; the claim holds if it does for more than half."""

    def judged(parts: Sequence[Part], *args: str) -> Finding:
        texts, verdicts = [], []
        for part in parts:
            curves = _curves(part)
            if all(name in curves for name in (NETWORK, *PEERS)):
                text, verdict = judge(curves, *args)
                texts.append(f"{_place(part, ' ')}: {text}")
                verdicts.append(verdict)
        if not texts:
            raise MissingResults
        return Finding("; ".join(texts), _majority(verdicts))

    return judged


@by_network
def steps_fall(curves: Curves) -> tuple[str, str]:
    """Compare the mean step size of the first and the last third."""
    steps = curves[NETWORK]["step_size"].dropna()
    third = max(1, len(steps) // 3)
    first, last = float(steps.iloc[:third].mean()), float(steps.iloc[-third:].mean())
    return f"{first:.3f}, then {last:.3f}", HOLDS if last < first else FAILS


@by_network
def reaches_sooner(curves: Curves) -> tuple[str, str]:
    """Compare the iterations until high accuracy; the evaluations are a grid."""
    finals = (_final(curves[name], "accuracy") for name in (NETWORK, *PEERS))
    goal, texts, first = HIGH_ACCURACY * max(finals), [], {}
    for name in (NETWORK, *PEERS):
        reached = curves[name].index[curves[name]["accuracy"] >= goal]
        first[name] = float(reached[0]) if len(reached) else math.inf
        texts.append(f"{name} {f'{first[name]:.0f}' if len(reached) else 'never'}")
    lead = min(first[name] for name in PEERS) - first[NETWORK]
    verdict = HOLDS if lead > 0 else FAILS if lead < 0 else NOISE
    return f"iterations until {goal:.3f}: {', '.join(texts)}", verdict


@by_network
def ends(curves: Curves, how: str, column: str) -> tuple[str, str]:
    """Judge whether a final value is "similar", "higher" or "lower"."""
    final = {name: _final(curves[name], column) for name in (NETWORK, *PEERS)}
    summary = ", ".join(f"{name} {value:.3f}" for name, value in final.items())
    leads = [final[NETWORK] - final[name] for name in PEERS]
    if how == "similar":
        return summary, HOLDS if min(leads) >= -SIMILAR else FAILS
    lead = min(leads) if how == "higher" else -max(leads)
    noise = SIMILAR if column == "accuracy" else SIMILAR_OBJECTIVE
    return summary, NOISE if abs(lead) < noise else HOLDS if lead > 0 else FAILS


def cifar_has_the_largest_gap(parts: Sequence[Part]) -> Finding:
    """Judge whether privacy costs most accuracy on CIFAR-10."""
    costs = {}
    for part in parts:
        curves = _curves(part)
        if NETWORK in curves and FREE in curves:
            free, own = (_final(curves[name], "accuracy") for name in (FREE, NETWORK))
            costs[part.experiment.name] = free - own
    if "cifar-cnn" not in costs or len(costs) < 2:
        raise MissingResults
    text = ", ".join(f"{name} {cost:.3f}" for name, cost in costs.items())
    largest = max(costs, key=lambda name: costs[name]) == "cifar-cnn"
    return Finding(f"non-private minus {NETWORK}: {text}", HOLDS if largest else FAILS)
