# SPDX-License-Identifier: Apache-2.0
"""Claims of the section "Performance of Neural Network models"."""

import math
from collections.abc import Callable, Sequence

import pandas as pd

from armijo_reproduction.figures_style import MODELS, dataset_name, shown
from armijo_reproduction.summary import Part
from armijo_reproduction.verdicts import (
    FAILS,
    HOLDS,
    NOISE,
    SIMILAR,
    Claim,
    Finding,
    Verdict,
)

OWN = "DP-BLSGD"
OTHERS = ("DP-SGD", "DP-Adam")
FREE = "Adam, non-private"
LAST = 3
"""The final value of a curve is the mean of its last evaluations."""
HIGH = 0.95
"""High accuracy is this part of the best final accuracy of the private methods."""
OBJECTIVE = 0.02
Curves = dict[str, pd.DataFrame]


def _curves(part: Part) -> Curves:
    """Return the mean curve of each series, by the name it is shown with."""
    return {
        shown(label): rows.groupby("iteration").mean(numeric_only=True)
        for label, rows in part.table.groupby("line", sort=False)
    }


def _final(curve: pd.DataFrame, column: str) -> float:
    """Return the mean of the last evaluations."""
    return float(curve[column].iloc[-LAST:].mean())


def _over(names: Sequence[str], judge: Callable[[Curves], tuple[str, str]]) -> Verdict:
    """Judge networks one by one; the claim holds if it does for more than half."""

    def verdict(parts: Sequence[Part]) -> Finding | None:
        texts, verdicts = [], []
        for part in parts:
            curves = _curves(part)
            whole = all(name in curves for name in (OWN, *OTHERS))
            if part.experiment.name in names and whole:
                text, single = judge(curves)
                where = dataset_name(part.experiment.datasets[0])
                texts.append(f"{where} {MODELS[part.experiment.models[0]]}: {text}")
                verdicts.append(single)
        return Finding("; ".join(texts), _majority(verdicts)) if texts else None

    return verdict


def _majority(verdicts: Sequence[str]) -> str:
    """Return what holds for more than half, noise if at least half are noise."""
    if verdicts.count(HOLDS) > len(verdicts) / 2:
        return HOLDS
    return NOISE if verdicts.count(NOISE) >= len(verdicts) / 2 else FAILS


def steps_fall(curves: Curves) -> tuple[str, str]:
    """Compare the mean step size of the first and the last third."""
    steps = curves[OWN]["step_size"].dropna()
    third = max(1, len(steps) // 3)
    first, last = float(steps.iloc[:third].mean()), float(steps.iloc[-third:].mean())
    return f"{first:.3f}, then {last:.3f}", HOLDS if last < first else FAILS


def reaches_sooner(curves: Curves) -> tuple[str, str]:
    """Compare the iterations until high accuracy; the evaluations are a grid."""
    level = HIGH * max(_final(curves[name], "accuracy") for name in (OWN, *OTHERS))
    first = {}
    for name in (OWN, *OTHERS):
        reached = curves[name].index[curves[name]["accuracy"] >= level]
        first[name] = float(reached[0]) if len(reached) else math.inf
    rival = min(first[name] for name in OTHERS)
    verdict = HOLDS if first[OWN] < rival else NOISE if first[OWN] == rival else FAILS
    summary = ", ".join(
        f"{name} " + ("never" if math.isinf(when) else f"{when:.0f}")
        for name, when in first.items()
    )
    return f"iterations until {level:.3f}: {summary}", verdict


def _ends(
    column: str, verdict: Callable[[list[float]], str]
) -> Callable[[Curves], tuple[str, str]]:
    """Judge the final value, by ours minus each of the others."""

    def judge(curves: Curves) -> tuple[str, str]:
        final = {name: _final(curves[name], column) for name in (OWN, *OTHERS)}
        summary = ", ".join(f"{name} {value:.3f}" for name, value in final.items())
        return summary, verdict([final[OWN] - final[name] for name in OTHERS])

    return judge


def _sign(lead: float, noise: float) -> str:
    """Return the verdict on a lead."""
    return NOISE if abs(lead) < noise else HOLDS if lead > 0 else FAILS


ends_similar = _ends("accuracy", lambda d: HOLDS if min(d) >= -SIMILAR else FAILS)
ends_higher = _ends("accuracy", lambda d: _sign(min(d), SIMILAR))
ends_lower = _ends("objective", lambda d: _sign(-max(d), OBJECTIVE))


def cifar_has_the_largest_gap(parts: Sequence[Part]) -> Finding | None:
    """Judge whether privacy costs most accuracy on CIFAR-10."""
    costs = {}
    for part in parts:
        curves = _curves(part)
        if OWN in curves and FREE in curves:
            free, own = (_final(curves[name], "accuracy") for name in (FREE, OWN))
            costs[part.experiment.name] = free - own
    if "cifar-cnn" not in costs or len(costs) < 2:
        return None
    text = ", ".join(f"{name} {cost:.3f}" for name, cost in costs.items())
    largest = max(costs, key=lambda name: costs[name]) == "cifar-cnn"
    return Finding(f"non-private minus {OWN}: {text}", HOLDS if largest else FAILS)


MLP, CNN = ("mnist-mlp", "fashion-mlp"), ("mnist-cnn", "fashion-cnn")
CIFAR = ("cifar-cnn",)
RULES = {
    "The chosen step size falls during training": _over(
        (*MLP, *CNN, *CIFAR), steps_fall
    ),
    "MLP: high accuracy in fewer iterations": _over(MLP, reaches_sooner),
    "MLP: final accuracy similar to the others": _over(MLP, ends_similar),
    "CNN on MNIST and Fashion-MNIST: converges faster": _over(CNN, reaches_sooner),
    "CNN on MNIST and Fashion-MNIST: lower objective": _over(CNN, ends_lower),
    "CIFAR-10: the gap to non-private is larger": cifar_has_the_largest_gap,
    "CIFAR-10: high accuracy in fewer iterations": _over(CIFAR, reaches_sooner),
    "CIFAR-10: better final accuracy": _over(CIFAR, ends_higher),
    "CIFAR-10: lower objective": _over(CIFAR, ends_lower),
}
CLAIMS = tuple(
    Claim(
        section="Performance of Neural Network models",
        text=text,
        groups=("networks",),
        verdict=rule,
    )
    for text, rule in RULES.items()
)
