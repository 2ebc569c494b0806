# SPDX-License-Identifier: Apache-2.0
"""Accuracy, time and memory of the private classifier of images, on files of images.

    python -m benchmarks.images fashion-mnist \
        train-images-idx3-ubyte.gz t10k-images-idx3-ubyte.gz --draws 3
    python -m benchmarks.images cifar10 FOLDER FOLDER/test_batch.bin --variant no-search

Adds a line for each budget and draw to ``docs/results/images.csv``; features are made
before, once unless ``--cache`` has them, and have their own seconds, of this process
and its threads (``cpu``).
"""

import argparse
import csv
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from armijo import Budget, PrivateImageClassifier
from armijo.accounting.calibration import gaussian_noise
from armijo.images import features
from armijo.images.features import (
    BANKS,
    FeatureSettings,
    feature_map,
    settings_for,
)
from armijo.images.reading import Pictures, load_images
from armijo.methods.whitened import Whitened

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "images.csv"
COLUMNS = (
    "dataset,rows,variant,epsilon,draw,accuracy,feature_cpu,fit_cpu,fit_seconds,gib"
).split(",")

METHODS: dict[str, Whitened] = {
    "default": Whitened(),
    "no-search": Whitened(search_share=0.0),
    # A share so small that noise drowns the matrix: the whitening is the identity.
    "no-moments": Whitened(moment_share=1e-9),
}
DOUBLED = tuple(replace(bank, filters=2 * bank.filters) for bank in BANKS)
FEATURES: dict[str, dict[str, Any]] = {
    "few-filters": {"banks": BANKS},
    "no-fine": {"banks": BANKS},
    "many-filters": {"banks": DOUBLED},
    "few-components": {"components": 2500},
    "many-components": {"components": 3500},
    "one-bank": {"banks": BANKS[:1]},
    "mirror": {"mirror": True},
    "no-mirror": {"mirror": False},
    "no-blur": {"blur": 0.0},
    "half-blur": {"blur": 0.5},
    "wide-blur": {"blur": 2.0},
}
CONSTANTS = {
    # Responses are as much smaller as the root of that, and so is their threshold.
    "no-whitening": {"WHITENING": 1e3, "THRESHOLD": features.THRESHOLD / 1e3**0.5},
    "no-scaling": {"BASIS": 1e3},
}
"""Parts of the method, by what an ablation leaves out or adds: variances of patches,
or of features along the basis, are nothing beside such a constant."""


def main() -> None:
    """Fit each budget, and write what it reached and took."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset")
    arguments.add_argument("train")
    arguments.add_argument("test")
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    arguments.add_argument("--draws", type=int, default=1)
    arguments.add_argument("--rows", type=int, default=None)
    arguments.add_argument(
        "--variant", choices=(*METHODS, *FEATURES, *CONSTANTS), default="default"
    )
    arguments.add_argument("--cache", default=None)
    arguments.add_argument("--out", type=Path, default=RESULTS)
    asked = arguments.parse_args()
    for name, value in CONSTANTS.get(asked.variant, {}).items():
        setattr(features, name, value)
    train, test = load_images(asked.train), load_images(asked.test)
    X, y = train.images[: asked.rows], train.labels[: asked.rows]
    classes = np.unique(test.labels).tolist()
    kind = type("Variant", (PrivateImageClassifier,), {})
    kind._method = METHODS.get(asked.variant, Whitened())
    once = tempfile.TemporaryDirectory()
    given = {"classes": classes, "cache": asked.cache or once.name}
    for epsilon in asked.epsilon:
        signal = len(y) / gaussian_noise(Budget(epsilon=epsilon, delta=1e-5))
        known = vars(settings_for(Pictures(X), None, signal))
        settings = FeatureSettings(**{**known, **FEATURES.get(asked.variant, {})})
        start = time.process_time()
        model = kind(epsilon=epsilon, **given, features=settings)
        model._features(feature_map(settings), Pictures(X))
        making = time.process_time() - start
        for draw in range(asked.draws):
            wall, start = time.perf_counter(), time.process_time()
            model.fit(X, y)
            wall, cpu = time.perf_counter() - wall, time.process_time() - start
            accuracy = model.score(test.images, test.labels)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            took = f"{making:.0f} {cpu:.0f} {wall:.0f} {memory:.1f}".split()
            line = (asked.dataset, len(y), asked.variant, epsilon, draw)
            _write(asked.out, [*line, f"{accuracy:.4f}", *took])


def _write(path: Path, line: list[Any]) -> None:
    """Add a line to the file, which begins with the names of its columns."""
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerow(line)
    sys.stdout.write(",".join(map(str, line)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
