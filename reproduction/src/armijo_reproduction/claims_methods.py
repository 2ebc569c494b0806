# SPDX-License-Identifier: Apache-2.0
"""Claims of the section "Performance of Convex Optimization"."""

from collections.abc import Iterable, Sequence

from armijo_reproduction.claims import (
    FAILS,
    HOLDS,
    ONLY_PRINTED,
    ROBUST,
    Claim,
    Finding,
    Judge,
    Tally,
    both_accountings,
    gaps_between,
)
from armijo_reproduction.figures_convex import OWN
from armijo_reproduction.figures_style import MODELS, PRINTED, dataset_name
from armijo_reproduction.summary import Gap, Mean, Part, mean_of

SECTION = "Performance of Convex Optimization"
BASELINES = ("DP-AGD", "DP-SGD", "Outpert-RSGD", "Outpert-GD", "ObjPert", "PrivGene")
"""The paper's private baselines; majority and non-private frame the figures."""
SMALL = 0.1
"""Up to here a budget counts as small."""


def _gaps(
    parts: Iterable[Part],
    own: Iterable[str],
    baselines: Iterable[str],
    most: float = float("inf"),
) -> list[Gap]:
    """Return the differences of each of some methods to each of some baselines."""
    parts, baselines = list(parts), list(baselines)
    return [
        gap
        for first in own
        for second in baselines
        for gap in gaps_between(parts, first, second, most)
    ]


def _printed(own: Iterable[str]) -> list[str]:
    """Return the lines of the same methods under the printed analysis."""
    return [label + PRINTED for label in own]


def beats(
    own: Sequence[str], baselines: Sequence[str], most: float = float("inf")
) -> Judge:
    """Judge whether methods are above baselines in most cells."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        return both_accountings(
            _gaps(parts, own, baselines, most),
            _gaps(parts, _printed(own), baselines, most),
        )

    return judge


def _by_dataset(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the parts of each data set."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.experiment.datasets[0], []).append(part)
    return found


def beats_output_perturbation(parts: Sequence[Part]) -> Finding | None:
    """Judge whether the three are above Outpert-RSGD on three data sets of four."""

    def told(own: Sequence[str]) -> tuple[int, str]:
        tallies = {
            dataset: Tally.of(_gaps(some, own, ["Outpert-RSGD"]))
            for dataset, some in _by_dataset(parts).items()
        }
        tallies = {dataset: each for dataset, each in tallies.items() if each.cells}
        texts = (
            f"{dataset_name(dataset)}: above in {each.above} of {each.cells} cells, "
            f"below in {each.below}"
            for dataset, each in tallies.items()
        )
        won = sum(each.verdict() == HOLDS for each in tallies.values())
        return (won if len(tallies) > 2 else -1), "; ".join(texts)

    won, text = told(OWN)
    if won < 0:
        return None
    won_printed, beside = told(_printed(OWN))
    sound = HOLDS if won >= 3 else FAILS
    verdict = ONLY_PRINTED if sound == FAILS and won_printed >= 3 else sound
    return Finding(f"{text}. Printed accounting: {beside}" if beside else text, verdict)


def bank_is_an_exception(parts: Sequence[Part]) -> Finding | None:
    """Judge whether Outpert-RSGD is above the three on Bank."""
    bank = _by_dataset(parts).get("bank", [])
    tally = Tally.of(
        gap for own in OWN for gap in gaps_between(bank, "Outpert-RSGD", own)
    )
    return Finding(str(tally), tally.verdict()) if tally.cells else None


def bank_has_a_small_range(parts: Sequence[Part]) -> Finding | None:
    """Judge whether majority and non-private are close on Bank."""
    ranges = []
    for part in _by_dataset(parts).get("bank", []):
        rows = [
            part.table[part.table["line"] == e] for e in ("non-private", "majority")
        ]
        if all(len(each) for each in rows):
            best, least = (mean_of(each, "accuracy").value for each in rows)
            model = MODELS[part.experiment.models[0]]
            ranges.append((best - least, f"{best - least:.4f} with {model}"))
    if not ranges:
        return None
    text = "; ".join(text for _, text in ranges)
    close = max(size for size, _ in ranges) <= ROBUST
    return Finding(f"non-private minus majority: {text}", HOLDS if close else FAILS)


def adaptive_clip_helps_somewhere(parts: Sequence[Part]) -> Finding | None:
    """Judge whether DP-BLSGD-AC is above DP-BLSGD over all budgets of a data set."""
    gaps = {}
    for part in parts:
        tally = Tally.of(gaps_between([part], "DP-BLSGD-AC", "DP-BLSGD"))
        if tally.cells:
            wanted = part.experiment
            name = f"{dataset_name(wanted.datasets[0])}, {MODELS[wanted.models[0]]}"
            gaps[name] = Mean(tally.mean, tally.error, tally.cells)
    if not gaps:
        return None
    text = "; ".join(f"{name}: {gap}" for name, gap in gaps.items())
    helped = any(gap.value > 2 * gap.error for gap in gaps.values())
    return Finding(f"mean over all budgets: {text}", HOLDS if helped else FAILS)


def _claim(text: str, judge: Judge) -> Claim:
    """Return a claim of this section."""
    return Claim(section=SECTION, text=text, groups=("logistic", "svm"), judge=judge)


CLAIMS = (
    *(
        _claim(f"{own} outperforms the private baselines in most cases", judge)
        for own in OWN
        for judge in [beats([own], BASELINES)]
    ),
    *(_claim(f"{own} outperforms DP-AGD", beats([own], ["DP-AGD"])) for own in OWN),
    _claim(
        "The three outperform Outpert-RSGD on 3 of 4 data sets",
        beats_output_perturbation,
    ),
    _claim("On Bank Outpert-RSGD outperforms the three", bank_is_an_exception),
    _claim("On Bank majority and non-private are very close", bank_has_a_small_range),
    *(
        _claim(
            f"{baseline} is low at small epsilon (here {SMALL:g} and less): the three "
            "are above it",
            beats(OWN, [baseline], SMALL),
        )
        for baseline in ("ObjPert", "DP-SGD")
    ),
    _claim(
        "An adaptive clip (DP-BLSGD-AC) helps slightly on some data sets",
        adaptive_clip_helps_somewhere,
    ),
)
