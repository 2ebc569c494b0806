# SPDX-License-Identifier: Apache-2.0
"""DP-SGD on the paper's networks, tuned on the test images, for few images.

    python -m benchmarks.images_few fashion-mnist cnn_small --rows 6000

What the private classifier of images is compared with at the same rows
(``python -m benchmarks.images NAME TRAIN TEST --rows 6000``).  Every setting of the
grid is trained once; none of the looks at the test images is charged, in favor of
DP-SGD.  Lines are added to ``docs/results/images_few.csv``.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import pandas as pd
from torch import nn

import armijo
from armijo.methods.sgd import DPSGD
from benchmarks.network_accuracy import accuracy, module_of, parts

RESULTS = Path("docs", "results", "images_few.csv")
STEPS, STEP_SIZES, CLIPS = (100, 300), (0.3, 1.0, 3.0), (0.3, 1.0)
SAMPLING_PROB = 0.1


def main() -> None:
    """Train every setting at every budget, and append what it reached and took."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset")
    arguments.add_argument("network")
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    arguments.add_argument("--rows", type=int, default=6000)
    arguments.add_argument("--steps", type=int, nargs="+", default=STEPS)
    arguments.add_argument("--step-sizes", type=float, nargs="+", default=STEP_SIZES)
    arguments.add_argument("--clips", type=float, nargs="+", default=CLIPS)
    asked = arguments.parse_args()
    X, y, X_test, y_test = parts(asked.dataset, asked.rows, False)
    grid = product(asked.epsilon, asked.steps, asked.step_sizes, asked.clips)
    for epsilon, steps, step_size, clip in grid:
        module = module_of(asked.network, X.shape[1:], False)
        begun = time.process_time()
        armijo.train(
            module,
            nn.CrossEntropyLoss(reduction="none"),
            (X, y),
            epsilon=epsilon,
            delta=1e-5,
            method=DPSGD(
                steps=steps,
                sampling_prob=SAMPLING_PROB,
                step_size=step_size / clip,  # of a gradient in units of the clip
                max_grad_norm=clip,
            ),
        )
        row = {
            "dataset": asked.dataset,
            "network": asked.network,
            "epsilon": epsilon,
            "rows": len(y),
            "steps": steps,
            "step_size": step_size / clip,
            "max_grad_norm": clip,
            "accuracy": accuracy(module, X_test, y_test),
            "seconds": round(time.process_time() - begun),
        }
        new = not RESULTS.exists()
        pd.DataFrame([row]).to_csv(RESULTS, mode="a", header=new, index=False)


if __name__ == "__main__":
    main()
