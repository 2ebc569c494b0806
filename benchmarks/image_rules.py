# SPDX-License-Identifier: Apache-2.0
"""What decided blur and banks of the features of images: held-out training images.

    python -m benchmarks.image_rules fashion-mnist --variants fine-4 fine-5 --epsilon 3
    python -m benchmarks.image_rules digits --variants blur-1 blur-2 --quarter

Trains on the first images of a training set and measures on its last ones; no test
image is read.  ``digits`` are handwritten ones (MNIST), shifted by up to two pixels and
painted in random colors over soft photographs (CIFAR-10): color images whose objects
are in one place.  Adds lines to ``docs/results/image_rules.csv``.
"""

import argparse
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from armijo import PrivateImageClassifier
from armijo.images.features import BANKS, Bank, FeatureSettings, settings_for
from armijo.images.reading import Pictures
from armijo_reproduction import datasets

RESULTS = Path("docs", "results", "image_rules.csv")
GRIDS = {
    "fine-3": Bank(patch=3, filters=32, grid=7, weight=0.7),
    "fine-4": Bank(patch=4, filters=64, grid=7, weight=0.7),
    "fine-4-heavy": Bank(patch=4, filters=64, grid=7, weight=1.0),
    "fine-5": Bank(patch=5, filters=128, grid=7, weight=0.7),
    "fine-8": Bank(patch=8, filters=128, grid=7, weight=0.7),
}
VARIANTS = ("default", "two-banks", "blur-0.5", "blur-1", "blur-2", *GRIDS)


def images_of(name: str, count: int) -> tuple[Any, Any]:
    """Return as many training images and labels, the first and the last ones."""
    if name == "digits":
        return painted(count)
    train, _ = datasets.load(name).published_split()
    half = count // 2
    chosen = np.r_[:half, len(train.y) - (count - half) : len(train.y)]
    return np.rint(train.X[chosen] * 255).astype(np.uint8), train.y[chosen]


def painted(count: int) -> tuple[Any, Any]:
    """Return handwritten digits in color over photographs."""
    digits, _ = datasets.load("mnist").published_split()
    photographs, _ = datasets.load("cifar-10").published_split()
    draws = np.random.default_rng(0)
    chosen = draws.permutation(len(digits.y))[:count]
    shapes = np.pad(digits.X[chosen].reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2)))
    shifts = draws.integers(-2, 3, (count, 2))
    shapes = [np.roll(*each, (0, 1)) for each in zip(shapes, shifts, strict=True)]
    ink = np.stack(shapes)[:, None]
    ground = photographs.X[draws.permutation(len(photographs.y))[:count]]
    ground = (ground + ground.mean(axis=(2, 3), keepdims=True)) / 2
    color = draws.random((count, 3, 1, 1))
    painted = ground * (1 - ink) + color * ink
    return (painted * 255).astype(np.uint8), digits.y[chosen]


def settings_of(variant: str, rule: FeatureSettings, quarter: bool) -> FeatureSettings:
    """Return the rule with one thing changed, and perhaps fewer filters."""
    if variant == "two-banks":
        rule = replace(rule, banks=rule.banks[: len(BANKS)])
    elif variant.startswith("blur"):
        rule = replace(rule, blur=float(variant.removeprefix("blur-")))
    elif variant in GRIDS:
        rule = replace(rule, banks=(*rule.banks[: len(BANKS)], GRIDS[variant]))
    if quarter:
        coarse = [replace(b, filters=b.filters // 4) for b in rule.banks[: len(BANKS)]]
        banks = (*coarse, *rule.banks[len(BANKS) :])
        rule = replace(rule, banks=banks, components=1500, synthetic=4000)
    return rule


def main() -> None:
    """Fit every variant at each budget, and write what it reached."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset", help="digits, or a data set of images")
    arguments.add_argument("--variants", choices=VARIANTS, nargs="+", default=VARIANTS)
    arguments.add_argument("--rows", type=int, default=10_000)
    arguments.add_argument("--held-out", type=int, default=10_000)
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[3.0])
    arguments.add_argument("--draws", type=int, default=2)
    arguments.add_argument("--quarter", action="store_true", help="fewer filters")
    asked = arguments.parse_args()
    X, y = images_of(asked.dataset, asked.rows + asked.held_out)
    fitted, held = slice(asked.rows), slice(asked.rows, None)
    for variant in asked.variants:
        rule = settings_for(Pictures(X), None)
        settings = settings_of(variant, rule, asked.quarter)
        with tempfile.TemporaryDirectory() as cache:
            for epsilon, draw in product(asked.epsilon, range(asked.draws)):
                model = PrivateImageClassifier(
                    epsilon=epsilon,
                    classes=np.unique(y).tolist(),
                    features=settings,
                    cache=cache,
                ).fit(X[fitted], y[fitted])
                line = {
                    "dataset": asked.dataset,
                    "rows": asked.rows,
                    "quarter": asked.quarter,
                    "variant": variant,
                    "epsilon": epsilon,
                    "draw": draw,
                    "accuracy": round(model.score(X[held], y[held]), 4),
                }
                new = not RESULTS.exists()
                pd.DataFrame([line]).to_csv(RESULTS, mode="a", header=new, index=False)


if __name__ == "__main__":
    main()
