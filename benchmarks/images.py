# SPDX-License-Identifier: Apache-2.0
"""Accuracy, time and memory of the private classifier of images, on files of images.

    python -m benchmarks.images train-images-idx3-ubyte.gz t10k-images-idx3-ubyte.gz

Prints one line for the public filters and basis, which are made once, and one for each
budget and draw.
"""

import argparse
import resource
import sys
import time

import numpy as np

from armijo import PrivateImageClassifier
from armijo.images.features import feature_map
from armijo.images.reading import Pictures, load_images


def main() -> None:
    """Fit each budget, and print what it reached and took."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("train")
    arguments.add_argument("test")
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    arguments.add_argument("--draws", type=int, default=1)
    arguments.add_argument("--rows", type=int, default=None)
    arguments.add_argument("--test-rows", type=int, default=None)
    arguments.add_argument("--cache", default=None)
    asked = arguments.parse_args()
    train, test = load_images(asked.train), load_images(asked.test)
    X, y = train.images[: asked.rows], train.labels[: asked.rows]
    X_test, y_test = test.images[: asked.test_rows], test.labels[: asked.test_rows]
    classes = np.unique(test.labels).tolist()
    settings = PrivateImageClassifier()._settings(Pictures(X))
    start = time.perf_counter()
    feature_map(settings)
    _say(f"filters and basis: {time.perf_counter() - start:.0f} s")
    for epsilon in asked.epsilon:
        for draw in range(asked.draws):
            start = time.perf_counter()
            model = PrivateImageClassifier(
                epsilon=epsilon, classes=classes, cache=asked.cache
            ).fit(X, y)
            took = time.perf_counter() - start
            accuracy = model.score(X_test, y_test)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            _say(
                f"epsilon {epsilon:g}, draw {draw}: accuracy {accuracy:.4f}, fit "
                f"{took:.0f} s, peak memory {memory:.1f} GiB"
            )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
