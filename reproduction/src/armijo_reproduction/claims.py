# SPDX-License-Identifier: Apache-2.0
"""Claims of the sections on hyper-parameters and on convex optimization."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pandas as pd

from armijo_reproduction.figures_convex import OWN
from armijo_reproduction.figures_style import MODELS, PRINTED, dataset_name
from armijo_reproduction.spec import experiment
from armijo_reproduction.summary import (
    Mean,
    PairedDiff,
    Part,
    difference,
    mean_of,
    summarized,
)
from armijo_reproduction.verdicts import (
    FAILS,
    HOLDS,
    NOISE,
    ONLY_PRINTED,
    ROBUST,
    SIMILAR,
    Claim,
    Finding,
    Verdict,
    WinCount,
    both,
    paired_diffs,
    under_both,
)

LOW, HIGH = 0.05, 0.2
"""The two budgets of the experiments on hyper-parameters."""
SMALL = 0.1
"""Up to here a budget counts as small."""
BASELINES = ("DP-AGD", "DP-SGD", "Outpert-RSGD", "Outpert-GD", "ObjPert", "PrivGene")
"""The paper's private baselines; majority and non-private frame the figures."""
_SYMBOLS = {
    "slope": "alpha",
    "shrink": "beta",
    "sampling_prob": "q",
    "clip_decay": "zeta",
}


def in_symbols(setting: str) -> str:
    """Return a setting as the paper writes it.

    >>> in_symbols("slope=0.5")
    'alpha = 0.5'
    """
    name, _, value = setting.partition("=")
    return f"{_SYMBOLS.get(name, name)} = {value}"


def at(part: Part, epsilon: float, setting: str | None = None) -> pd.DataFrame:
    """Return the rows of a budget, and of a setting."""
    kept = part.table[part.table["epsilon"] == epsilon]
    return kept if setting is None else kept[kept["setting"] == setting]


def _means(part: Part, epsilon: float) -> dict[str, Mean]:
    """Return the accuracy of every setting that has run, in the order of the values."""
    rows = summarized(at(part, epsilon), "accuracy", ["setting"])
    means = {
        setting: Mean(value, error, runs)
        for setting, value, error, runs in rows.itertuples(index=False, name=None)
    }
    return {name: means[name] for name in part.experiment.settings() if name in means}


def _best(means: dict[str, Mean]) -> str:
    """Return the setting with the highest mean."""
    return max(means, key=lambda setting: means[setting].value)


def _lead(part: Part, epsilon: float, first: str, second: str) -> PairedDiff:
    """Return the accuracy of a setting minus that of another."""
    ours, theirs = (at(part, epsilon, setting) for setting in (first, second))
    return difference(ours, theirs, "accuracy")


def robust(part: Part) -> Finding | None:
    """Judge whether best and worst value of a parameter are close at epsilon 0.2."""
    means = _means(part, HIGH)
    if len(means) < 2:
        return None
    low, *_, high = sorted(means, key=lambda setting: means[setting].value)
    spread = means[high].value - means[low].value
    text = (
        f"{spread:.4f} between {in_symbols(high)} ({means[high]}) and "
        f"{in_symbols(low)} ({means[low]}) at epsilon {HIGH:g}"
    )
    return Finding(text, HOLDS if spread <= ROBUST else FAILS)


def best_at(setting: str, *epsilons: float) -> Callable[[Part], Finding | None]:
    """Judge whether a value is the best one at some budgets."""

    def judge(part: Part) -> Finding | None:
        texts, verdicts = [], set()
        for epsilon in epsilons:
            means = _means(part, epsilon)
            if setting not in means or len(means) < 2:
                return None
            best = _best(means)
            lead = WinCount.of([_lead(part, epsilon, best, setting)])
            verdicts.add(HOLDS if best == setting else FAILS if lead.above else NOISE)
            texts.append(
                f"at epsilon {epsilon:g} {in_symbols(best)} is best with "
                f"{means[best]}; {in_symbols(setting)} has {means[setting]}"
            )
        worst = next(each for each in (FAILS, NOISE, HOLDS) if each in verdicts)
        return Finding("; ".join(texts), worst)

    return judge


def above_others(first: str, *others: str) -> Callable[[Part], Finding | None]:
    """Judge whether a value is above others, over all budgets."""

    def judge(part: Part) -> Finding | None:
        return WinCount.of(
            _lead(part, epsilon, first, other)
            for epsilon in part.experiment.epsilons
            for other in others
        ).finding()

    return judge


def small_batches_lose(part: Part) -> Finding | None:
    """Judge whether the smallest sampling ratio is below the best at epsilon 0.05."""
    means = _means(part, LOW)
    if len(means) < 2:
        return None
    smallest, best = next(iter(means)), _best(means)
    lead = WinCount.of([_lead(part, LOW, best, smallest)])
    verdict = FAILS if best == smallest else HOLDS if lead.above else NOISE
    text = (
        f"{in_symbols(smallest)} has {means[smallest]}, {in_symbols(best)} is best "
        f"with {means[best]}"
    )
    return Finding(text, verdict)


def _by_budget(diffs: dict[float, PairedDiff]) -> str | None:
    """Return differences in words; None if one of them has no runs."""
    if not all(diff.runs for diff in diffs.values()):
        return None
    return "; ".join(f"{diff} at epsilon {eps:g}" for eps, diff in diffs.items())


def full_batch_is_similar(part: Part) -> Finding | None:
    """Judge whether batches of a tenth are as accurate as all rows."""
    epsilons = part.experiment.epsilons
    diffs = {
        each: _lead(part, each, "sampling_prob=0.1", "sampling_prob=1.0")
        for each in epsilons
    }
    if (text := _by_budget(diffs)) is None:
        return None
    close = all(abs(diff.value) <= SIMILAR for diff in diffs.values())
    return Finding(f"q = 0.1 minus q = 1: {text}", HOLDS if close else FAILS)


def fewer_evaluations(part: Part) -> Finding | None:
    """Judge whether batches of a tenth need half of the passes over all rows."""
    epsilon = part.experiment.epsilons[0]
    texts, ratios = [], []
    for column in ("gradients", "objectives"):
        rows = [
            at(part, epsilon, f"sampling_prob={sampling_prob}")
            for sampling_prob in (0.1, 1.0)
        ]
        if any(some.empty for some in rows):
            return None
        tenth, every = (mean_of(some, column).value for some in rows)
        ratios.append(0.1 * tenth / every)
        texts.append(
            f"{column}: {tenth:.0f} batches of a tenth ({0.1 * tenth:.0f} passes) "
            f"against {every:.0f} passes at q = 1"
        )
    return Finding("; ".join(texts), HOLDS if max(ratios) <= 0.5 else FAILS)


def decay_helps_only_at_low_budget(part: Part) -> Finding | None:
    """Judge whether a decaying clip helps at epsilon 0.05 and does not at 0.2."""
    diffs = {}
    for epsilon in (LOW, HIGH):
        rows = at(part, epsilon)
        constant = rows["setting"] == "clip_decay=0.0"
        diffs[epsilon] = difference(rows[~constant], rows[constant], "accuracy")
    if (text := _by_budget(diffs)) is None:
        return None
    low, high = (WinCount.of([diff]) for diff in diffs.values())
    verdict = NOISE if low.level else HOLDS if low.above and not high.above else FAILS
    return Finding(f"mean of all zeta above 0 minus zeta = 0: {text}", verdict)


def _parameter_claim(
    text: str, name: str, judge: Callable[[Part], Finding | None]
) -> Claim:
    """Return a claim on one experiment, judged under both accountings."""

    def verdict(parts: Sequence[Part]) -> Finding | None:
        named = [part for part in parts if part.experiment.name == name]
        return judge(named[0]) if named else None

    return Claim(
        section="Effect of Hyperparameters",
        text=text,
        groups=(experiment(name).group,),
        verdict=under_both(verdict),
    )


def _diffs(
    parts: Sequence[Part],
    own: Iterable[str],
    baselines: Sequence[str],
    most: float = math.inf,
) -> list[PairedDiff]:
    """Return the differences of each of some methods to each of some baselines."""
    return [
        diff
        for first in own
        for second in baselines
        for diff in paired_diffs(parts, first, second, most)
    ]


def _printed(own: Iterable[str]) -> list[str]:
    """Return the series of the same methods under the printed analysis."""
    return [label + PRINTED for label in own]


def beats(
    own: Sequence[str], baselines: Sequence[str], most: float = math.inf
) -> Verdict:
    """Judge whether methods are above baselines in most cells."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        compared = partial(_diffs, parts, baselines=baselines, most=most)
        sound, printed = (
            WinCount.of(compared(labels)).finding() for labels in (own, _printed(own))
        )
        return both(sound, printed)

    return judge


def _by_dataset(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the parts of each data set."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.experiment.datasets[0], []).append(part)
    return groups


def beats_output_perturbation(parts: Sequence[Part]) -> Finding | None:
    """Judge whether the three are above Outpert-RSGD on three data sets of four."""

    def summary(own: Sequence[str]) -> tuple[int, str]:
        counts = {
            dataset: WinCount.of(_diffs(some, own, ["Outpert-RSGD"]))
            for dataset, some in _by_dataset(parts).items()
        }
        counts = {dataset: count for dataset, count in counts.items() if count.cells}
        texts = (
            f"{dataset_name(dataset)}: above in {count.above} of {count.cells} cells, "
            f"below in {count.below}"
            for dataset, count in counts.items()
        )
        won = sum(count.verdict() == HOLDS for count in counts.values())
        return (won if len(counts) > 2 else -1), "; ".join(texts)

    won, text = summary(OWN)
    if won < 0:
        return None
    won_printed, beside = summary(_printed(OWN))
    sound = HOLDS if won >= 3 else FAILS
    verdict = ONLY_PRINTED if sound == FAILS and won_printed >= 3 else sound
    return Finding(f"{text}. Printed accounting: {beside}" if beside else text, verdict)


def bank_is_an_exception(parts: Sequence[Part]) -> Finding | None:
    """Judge whether Outpert-RSGD is above the three on Bank."""
    bank = _by_dataset(parts).get("bank", [])
    return WinCount.of(_diffs(bank, ["Outpert-RSGD"], OWN)).finding()


def bank_has_a_small_range(parts: Sequence[Part]) -> Finding | None:
    """Judge whether majority and non-private are close on Bank."""
    ranges = {}
    for part in _by_dataset(parts).get("bank", []):
        lines = part.table["line"]
        rows = [part.table[lines == label] for label in ("non-private", "majority")]
        if all(len(some) for some in rows):
            best, least = (mean_of(some, "accuracy").value for some in rows)
            ranges[MODELS[part.experiment.models[0]]] = best - least
    if not ranges:
        return None
    text = "; ".join(f"{size:.4f} with {model}" for model, size in ranges.items())
    close = max(ranges.values()) <= ROBUST
    return Finding(f"non-private minus majority: {text}", HOLDS if close else FAILS)


def adaptive_clip_helps_somewhere(parts: Sequence[Part]) -> Finding | None:
    """Judge whether DP-BLSGD-AC is above DP-BLSGD over all budgets of a data set."""
    diffs = {}
    for part in parts:
        count = WinCount.of(paired_diffs([part], "DP-BLSGD-AC", "DP-BLSGD"))
        if count.cells:
            wanted = part.experiment
            name = f"{dataset_name(wanted.datasets[0])}, {MODELS[wanted.models[0]]}"
            diffs[name] = Mean(count.mean, count.error, count.cells)
    if not diffs:
        return None
    text = "; ".join(f"{name}: {diff}" for name, diff in diffs.items())
    helped = any(diff.value > 2 * diff.error for diff in diffs.values())
    return Finding(f"mean over all budgets: {text}", HOLDS if helped else FAILS)


_method_claim = partial(
    Claim, section="Performance of Convex Optimization", groups=("logistic", "svm")
)
PARAMETER_CLAIMS = (
    ("Robust to alpha at epsilon 0.2", "armijo-slope", robust),
    ("Robust to beta at epsilon 0.2", "step-shrink", robust),
    (
        "At epsilon 0.05 alpha = 0.5 is best",
        "armijo-slope",
        best_at("slope=0.5", LOW),
    ),
    ("At epsilon 0.05 beta = 0.8 is best", "step-shrink", best_at("shrink=0.8", LOW)),
    (
        "beta = 0.8 is a suitable choice in general",
        "step-shrink",
        best_at("shrink=0.8", LOW, HIGH),
    ),
    (
        "Laplace noise in the search is slightly better than Gaussian noise",
        "search-noise",
        above_others("search=laplace", "search=gaussian"),
    ),
    ("Robust to the sampling ratio at epsilon 0.2", "sampling-ratio", robust),
    (
        "At epsilon 0.05 the sampling ratio must not be too small",
        "sampling-ratio",
        small_batches_lose,
    ),
    (
        "Batches are about as accurate as all rows",
        "sampling-ratio",
        full_batch_is_similar,
    ),
    (
        "Batches greatly reduce gradient and objective evaluations",
        "evaluations",
        fewer_evaluations,
    ),
    (
        "Budgets that follow the angle (adap) beat no and must",
        "budget-strategy",
        above_others("adapt=angle", "adapt=never", "adapt=always"),
    ),
    (
        "A decaying clip helps at epsilon 0.05 and not at 0.2",
        "clip-decay",
        decay_helps_only_at_low_budget,
    ),
)
METHOD_CLAIMS = {
    **{
        f"{own} outperforms the private baselines in most cases": beats(
            [own], BASELINES
        )
        for own in OWN
    },
    **{f"{own} outperforms DP-AGD": beats([own], ["DP-AGD"]) for own in OWN},
    "The three outperform Outpert-RSGD on 3 of 4 data sets": beats_output_perturbation,
    "On Bank Outpert-RSGD outperforms the three": bank_is_an_exception,
    "On Bank majority and non-private are very close": bank_has_a_small_range,
    **{
        f"{baseline} is low at small epsilon (here {SMALL:g} and less): the three "
        "are above it": beats(OWN, [baseline], SMALL)
        for baseline in ("ObjPert", "DP-SGD")
    },
    "An adaptive clip (DP-BLSGD-AC) helps slightly on some data sets": (
        adaptive_clip_helps_somewhere
    ),
}
CLAIMS = (
    *(_parameter_claim(*claim) for claim in PARAMETER_CLAIMS),
    *(_method_claim(text=text, verdict=rule) for text, rule in METHOD_CLAIMS.items()),
)
