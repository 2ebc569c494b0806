# SPDX-License-Identifier: Apache-2.0
"""Claims of the section "Performance of Neural Network models"."""

import math
from collections.abc import Callable, Sequence

import pandas as pd

from armijo_reproduction.claims import (
    FAILS,
    HOLDS,
    NOISE,
    SIMILAR,
    Claim,
    Finding,
    Judge,
)
from armijo_reproduction.figures_style import MODELS, dataset_name, shown
from armijo_reproduction.summary import Part

SECTION = "Performance of Neural Network models"
OWN = "DP-BLSGD"
OTHERS = ("DP-SGD", "DP-Adam")
FREE = "Adam, non-private"
LAST = 3
"""The final value of a curve is the mean of its last evaluations."""
HIGH = 0.95
"""High accuracy is this part of the best final accuracy of the private methods."""
OBJECTIVE = 0.02


def _curves(part: Part) -> dict[str, pd.DataFrame]:
    """Return the mean curve of each line, by the name it is shown with."""
    return {
        shown(label): rows.groupby("iteration").mean(numeric_only=True)
        for label, rows in part.table.groupby("line", sort=False)
    }


def _final(curve: pd.DataFrame, column: str) -> float:
    """Return the mean of the last evaluations."""
    return float(curve[column].iloc[-LAST:].mean())


def _over(
    kinds: Sequence[str], told: Callable[[dict[str, pd.DataFrame]], tuple[str, str]]
) -> Judge:
    """Judge networks one by one; the claim holds if it does for more than half."""

    def judge(parts: Sequence[Part]) -> Finding | None:
        texts, verdicts = [], []
        for part in parts:
            curves = _curves(part)
            whole = all(each in curves for each in (OWN, *OTHERS))
            if part.experiment.name in kinds and whole:
                text, verdict = told(curves)
                where = dataset_name(part.experiment.datasets[0])
                texts.append(f"{where} {MODELS[part.experiment.models[0]]}: {text}")
                verdicts.append(verdict)
        return Finding("; ".join(texts), _majority(verdicts)) if texts else None

    return judge


def _majority(verdicts: Sequence[str]) -> str:
    """Return what holds for more than half, noise if at least half are noise."""
    if verdicts.count(HOLDS) > len(verdicts) / 2:
        return HOLDS
    return NOISE if verdicts.count(NOISE) >= len(verdicts) / 2 else FAILS


def steps_fall(curves: dict[str, pd.DataFrame]) -> tuple[str, str]:
    """Compare the mean step size of the first and the last third."""
    steps = curves[OWN]["step_size"].dropna()
    third = max(1, len(steps) // 3)
    first, last = float(steps.iloc[:third].mean()), float(steps.iloc[-third:].mean())
    return f"{first:.3f}, then {last:.3f}", HOLDS if last < first else FAILS


def reaches_sooner(curves: dict[str, pd.DataFrame]) -> tuple[str, str]:
    """Compare the iterations until high accuracy; the evaluations are a grid."""
    level = HIGH * max(_final(curves[each], "accuracy") for each in (OWN, *OTHERS))
    first = {}
    for name in (OWN, *OTHERS):
        reached = curves[name].index[curves[name]["accuracy"] >= level]
        first[name] = float(reached[0]) if len(reached) else math.inf
    rival = min(first[each] for each in OTHERS)
    verdict = HOLDS if first[OWN] < rival else NOISE if first[OWN] == rival else FAILS
    told = ", ".join(
        f"{name} " + ("never" if math.isinf(when) else f"{when:.0f}")
        for name, when in first.items()
    )
    return f"iterations until {level:.3f}: {told}", verdict


def _gaps(curves: dict[str, pd.DataFrame], column: str) -> tuple[str, list[float]]:
    """Return the final values in words, and ours minus each of the others."""
    final = {name: _final(curves[name], column) for name in (OWN, *OTHERS)}
    told = ", ".join(f"{name} {value:.3f}" for name, value in final.items())
    return told, [final[OWN] - final[each] for each in OTHERS]


def ends_similar(curves: dict[str, pd.DataFrame]) -> tuple[str, str]:
    """Compare the final accuracy with the best of the others."""
    told, gaps = _gaps(curves, "accuracy")
    return told, HOLDS if min(gaps) >= -SIMILAR else FAILS


def ends_higher(curves: dict[str, pd.DataFrame]) -> tuple[str, str]:
    """Judge whether the final accuracy is above both others."""
    told, gaps = _gaps(curves, "accuracy")
    return told, _sign(min(gaps), SIMILAR)


def ends_lower(curves: dict[str, pd.DataFrame]) -> tuple[str, str]:
    """Judge whether the final objective is below both others."""
    told, gaps = _gaps(curves, "objective")
    return told, _sign(-max(gaps), OBJECTIVE)


def _sign(lead: float, noise: float) -> str:
    """Return the verdict on a lead."""
    return NOISE if abs(lead) < noise else HOLDS if lead > 0 else FAILS


def cifar_has_the_largest_gap(parts: Sequence[Part]) -> Finding | None:
    """Judge whether privacy costs most accuracy on CIFAR-10."""
    gaps = {}
    for part in parts:
        curves = _curves(part)
        if OWN in curves and FREE in curves:
            free, own = (_final(curves[each], "accuracy") for each in (FREE, OWN))
            gaps[part.experiment.name] = free - own
    if "cifar-cnn" not in gaps or len(gaps) < 2:
        return None
    text = ", ".join(f"{name} {gap:.3f}" for name, gap in gaps.items())
    largest = max(gaps, key=lambda name: gaps[name]) == "cifar-cnn"
    return Finding(f"non-private minus {OWN}: {text}", HOLDS if largest else FAILS)


def _claim(text: str, judge: Judge) -> Claim:
    """Return a claim of this section."""
    return Claim(section=SECTION, text=text, groups=("networks",), judge=judge)


MLP, CNN, CIFAR = (
    ("mnist-mlp", "fashion-mlp"),
    ("mnist-cnn", "fashion-cnn"),
    "cifar-cnn",
)
CLAIMS = (
    _claim(
        "The chosen step size falls during training",
        _over((*MLP, *CNN, CIFAR), steps_fall),
    ),
    _claim("MLP: high accuracy in fewer iterations", _over(MLP, reaches_sooner)),
    _claim("MLP: final accuracy similar to the others", _over(MLP, ends_similar)),
    _claim(
        "CNN on MNIST and Fashion-MNIST: converges faster", _over(CNN, reaches_sooner)
    ),
    _claim("CNN on MNIST and Fashion-MNIST: lower objective", _over(CNN, ends_lower)),
    _claim("CIFAR-10: the gap to non-private is larger", cifar_has_the_largest_gap),
    _claim(
        "CIFAR-10: high accuracy in fewer iterations", _over([CIFAR], reaches_sooner)
    ),
    _claim("CIFAR-10: better final accuracy", _over([CIFAR], ends_higher)),
    _claim("CIFAR-10: lower objective", _over([CIFAR], ends_lower)),
)
