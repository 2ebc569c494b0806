# SPDX-License-Identifier: Apache-2.0
"""How time and memory of the private classifier of images grow.

    python -m benchmarks.image_growth

Fits random rows of several numbers and widths, each in a process of its own, and draws
processor time and peak memory of the private part to ``docs/figures/image-growth.svg``;
the numbers go to ``docs/results/image_growth.csv``.  Images and their features are not
in it: time of features is the same for every image, and rows are held as they come.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.feature_rows import FeatureRows
from armijo.data.integer_rows import FEATURE_BITS
from armijo.methods.whitened import Whitened
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.training.run import Run

DOCS = Path(__file__).parents[1] / "docs"
ROWS, FEATURES = (7_500, 15_000, 30_000, 60_000), (625, 1_250, 2_500)
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def measure(rows: int, features: int) -> None:
    """Fit random rows of norm one, and print seconds and GiB."""
    draws = np.random.default_rng(0)
    steps = np.empty((rows, features), dtype=np.int16)
    for part in np.array_split(steps, max(rows // 1000, 1)):  # views
        block = draws.standard_normal(part.shape)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
        part[:] = np.rint(block * 2**FEATURE_BITS)
    labels = draws.integers(10, size=rows)
    objective = LinearObjective(loss=SOFTMAX, n_features=features, n_classes=10, l2=0.0)
    begun = time.process_time()
    Run(
        objective,
        FeatureRows(steps, labels, np.ones(rows, dtype=bool)),
        Whitened(),
        BUDGET,
        n_rows=rows,
        relation=Neighboring.ZERO_OUT,
    ).complete()
    seconds = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stdout.write(f"{seconds:.1f} {memory:.2f}\n")


def draw(table: pd.DataFrame) -> None:
    """Draw time and memory over the number of rows, a line for each width."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    names = {"seconds": "processor time (s)", "gib": "peak memory (GiB)"}
    for axis, (column, name) in zip(axes, names.items(), strict=True):
        for features, part in table.groupby("features"):
            axis.plot(
                part["rows"], part[column], marker="o", label=f"{features} features"
            )
        axis.set(xlabel="images", ylabel=name, xlim=(0, None), ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(DOCS / "figures" / "image-growth.svg")


def main() -> None:
    """Measure every size, and draw what came out."""
    if len(sys.argv) > 1:
        measure(*map(int, sys.argv[1:]))
        return
    lines = []
    for features in FEATURES:
        for rows in ROWS:
            asked = (sys.executable, "-m", __spec__.name, str(rows), str(features))
            told = subprocess.run(asked, capture_output=True, text=True, check=True)
            seconds, gib = map(float, told.stdout.split())
            lines.append((features, rows, seconds, gib))
    table = pd.DataFrame(lines, columns=["features", "rows", "seconds", "gib"])
    table.to_csv(DOCS / "results" / "image_growth.csv", index=False)
    draw(table)


if __name__ == "__main__":
    main()
