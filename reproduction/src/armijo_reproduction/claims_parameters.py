# SPDX-License-Identifier: Apache-2.0
"""Claims of the section "Effect of Hyperparameters"."""

from collections.abc import Sequence

from armijo_reproduction.claims import (
    FAILS,
    HOLDS,
    NOISE,
    ONLY_PRINTED,
    ROBUST,
    SIMILAR,
    Claim,
    Finding,
    Judge,
    Tally,
    at,
    in_symbols,
    means_by_setting,
)
from armijo_reproduction.summary import (
    Gap,
    Part,
    by_accounting,
    difference,
    mean_of,
)

SECTION = "Effect of Hyperparameters"
LOW, HIGH = 0.05, 0.2


def _named(parts: Sequence[Part], name: str) -> Part | None:
    """Return an experiment by name, if it has results."""
    return next((part for part in parts if part.experiment.name == name), None)


def _lead(part: Part, epsilon: float, first: str, second: str) -> Gap:
    """Return the accuracy of a setting minus that of another."""
    ours, theirs = (at(part.table, epsilon, each) for each in (first, second))
    return difference(ours, theirs, "accuracy")


def robust(name: str, epsilon: float = HIGH) -> Judge:
    """Judge whether best and worst value of a parameter are close."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        part = _named(parts, name)
        means = {} if part is None else means_by_setting(part, epsilon)
        if len(means) < 2:
            return None
        ordered = sorted(means, key=lambda each: means[each].value)
        low, high = ordered[0], ordered[-1]
        spread = means[high].value - means[low].value
        text = (
            f"{spread:.4f} between {in_symbols(high)} ({means[high]}) and "
            f"{in_symbols(low)} ({means[low]}) at "
            f"epsilon {epsilon:g}"
        )
        return Finding(text, HOLDS if spread <= ROBUST else FAILS)

    return judge


def best_at(name: str, setting: str, *epsilons: float) -> Judge:
    """Judge whether a value is the best one at some budgets."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        part = _named(parts, name)
        if part is None:
            return None
        texts, verdicts = [], set()
        for epsilon in epsilons:
            means = means_by_setting(part, epsilon)
            if setting not in means or len(means) < 2:
                return None
            best = max(means, key=lambda each: means[each].value)
            lead = Tally.of([_lead(part, epsilon, best, setting)])
            verdicts.add(HOLDS if best == setting else FAILS if lead.above else NOISE)
            texts.append(
                f"at epsilon {epsilon:g} {in_symbols(best)} is best with "
                f"{means[best]}; {in_symbols(setting)} has {means[setting]}"
            )
        return Finding("; ".join(texts), _worst(verdicts))

    return judge


def _worst(verdicts: set[str]) -> str:
    """Return the least favorable of some verdicts."""
    return next(each for each in (FAILS, NOISE, HOLDS) if each in verdicts)


def above_others(name: str, first: str, others: Sequence[str]) -> Judge:
    """Judge whether a value is above others, over all budgets."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        part = _named(parts, name)
        if part is None:
            return None
        gaps = [
            _lead(part, epsilon, first, other)
            for epsilon in part.experiment.epsilons
            for other in others
        ]
        tally = Tally.of(gaps)
        return Finding(str(tally), tally.verdict()) if tally.cells else None

    return judge


def small_batches_lose(parts: Sequence[Part]) -> Finding | None:
    """Judge whether the smallest sampling ratio is below the best at epsilon 0.05."""
    part = _named(parts, "sampling-ratio")
    means = {} if part is None else means_by_setting(part, LOW)
    if part is None or len(means) < 2:
        return None
    smallest = next(iter(means))
    best = max(means, key=lambda each: means[each].value)
    lead = Tally.of([_lead(part, LOW, best, smallest)])
    verdict = FAILS if best == smallest else HOLDS if lead.above else NOISE
    text = (
        f"{in_symbols(smallest)} has {means[smallest]}, {in_symbols(best)} is best "
        f"with {means[best]}"
    )
    return Finding(text, verdict)


def full_batch_is_similar(parts: Sequence[Part]) -> Finding | None:
    """Judge whether batches of a tenth are as accurate as all rows."""
    part = _named(parts, "sampling-ratio")
    if part is None:
        return None
    gaps = {
        epsilon: _lead(part, epsilon, "rate=0.1", "rate=1.0")
        for epsilon in part.experiment.epsilons
    }
    if not all(gap.runs for gap in gaps.values()):
        return None
    text = "; ".join(f"{gap} at epsilon {each:g}" for each, gap in gaps.items())
    close = all(abs(gap.value) <= SIMILAR for gap in gaps.values())
    return Finding(f"q = 0.1 minus q = 1: {text}", HOLDS if close else FAILS)


def fewer_evaluations(parts: Sequence[Part]) -> Finding | None:
    """Judge whether batches of a tenth need half of the passes over all rows."""
    part = parts[0]
    epsilon = part.experiment.epsilons[0]
    texts, ratios = [], []
    for column in ("gradients", "objectives"):
        rows = [at(part.table, epsilon, f"rate={each}") for each in (0.1, 1.0)]
        if any(each.empty for each in rows):
            return None
        some, every = (mean_of(each, column).value for each in rows)
        ratios.append(0.1 * some / every)
        texts.append(
            f"{column}: {some:.0f} batches of a tenth ({0.1 * some:.0f} passes) "
            f"against {every:.0f} passes at q = 1"
        )
    return Finding("; ".join(texts), HOLDS if max(ratios) <= 0.5 else FAILS)


def decay_helps_only_at_low_budget(parts: Sequence[Part]) -> Finding | None:
    """Judge whether a decaying clip helps at epsilon 0.05 and does not at 0.2."""
    part = _named(parts, "clip-decay")
    if part is None:
        return None
    gaps = {}
    for epsilon in (LOW, HIGH):
        rows = at(part.table, epsilon)
        constant = rows["setting"] == "clip_decay=0.0"
        gaps[epsilon] = difference(rows[~constant], rows[constant], "accuracy")
    if not all(gap.runs for gap in gaps.values()):
        return None
    low, high = (Tally.of([gap]) for gap in gaps.values())
    verdict = NOISE if low.level else HOLDS if low.above and not high.above else FAILS
    text = "; ".join(f"{gap} at epsilon {each:g}" for each, gap in gaps.items())
    return Finding(f"mean of all zeta above 0 minus zeta = 0: {text}", verdict)


def under_both(judge: Judge) -> Judge:
    """Judge the sound lines, and say what those under the printed analysis show."""

    def both(parts: Sequence[Part]) -> Finding | None:
        found, label = (
            judge(some) if (some := by_accounting(parts, printed=printed)) else None
            for printed in (False, True)
        )
        if found is None or label is None:
            return found
        only = found.verdict != HOLDS and label.verdict == HOLDS
        return Finding(
            f"{found.measured}. Printed accounting: {label.measured}",
            ONLY_PRINTED if only else found.verdict,
        )

    return both


def _claim(text: str, judge: Judge, group: str = "hyper-parameters") -> Claim:
    """Return a claim of this section."""
    groups = (group,)
    return Claim(section=SECTION, text=text, groups=groups, judge=under_both(judge))


CLAIMS = (
    _claim("Robust to alpha at epsilon 0.2", robust("armijo-slope")),
    _claim("Robust to beta at epsilon 0.2", robust("step-shrink")),
    _claim(
        "At epsilon 0.05 alpha = 0.5 is best", best_at("armijo-slope", "slope=0.5", LOW)
    ),
    _claim(
        "At epsilon 0.05 beta = 0.8 is best", best_at("step-shrink", "shrink=0.8", LOW)
    ),
    _claim(
        "beta = 0.8 is a suitable choice in general",
        best_at("step-shrink", "shrink=0.8", LOW, HIGH),
    ),
    _claim(
        "Laplace noise in the search is slightly better than Gaussian noise",
        above_others("search-noise", "search=laplace", ["search=gaussian"]),
    ),
    _claim("Robust to the sampling ratio at epsilon 0.2", robust("sampling-ratio")),
    _claim(
        "At epsilon 0.05 the sampling ratio must not be too small", small_batches_lose
    ),
    _claim("Batches are about as accurate as all rows", full_batch_is_similar),
    _claim(
        "Batches greatly reduce gradient and objective evaluations",
        fewer_evaluations,
        "evaluations",
    ),
    _claim(
        "Budgets that follow the angle (adap) beat no and must",
        above_others("budget-strategy", "adapt=angle", ["adapt=never", "adapt=always"]),
    ),
    _claim(
        "A decaying clip helps at epsilon 0.05 and not at 0.2",
        decay_helps_only_at_low_budget,
    ),
)
