# SPDX-License-Identifier: Apache-2.0
"""What the automatic method costs beside DP-SGD with settings it would be tuned to.

A fit in a process of its own, accounting included, as a user waits for it: Adult's
shape, the settings of DP-SGD that hindsight chooses most often; the paper's CNN on
images of MNIST's shape.
"""

import os
import statistics
import subprocess
import sys

from benchmarks import Row, at_most

ROUNDS = 3
LIMIT = 1.5

_FIT = """
import sys, warnings
from armijo import DPSGD, PrivateLogisticRegression
from benchmarks._timing import clock
from benchmarks.training import ROWS, census_like
warnings.simplefilter("ignore")
method = sys.argv[1]
chosen = DPSGD(steps=100, step_size=4.0, max_grad_norm=1.0)
X, y = census_like()
model = PrivateLogisticRegression(
    epsilon=0.2, delta=1e-8, method=chosen if method == "sgd" else method,
    classes=[-1.0, 1.0], n_rows=ROWS)
begun = clock()
model.fit(X, y)
print(clock() - begun)
"""

_TRAIN = """
import sys, warnings
import torch
import armijo
from armijo.networks import models
from benchmarks._timing import clock
warnings.simplefilter("ignore")
method = sys.argv[1]
torch.manual_seed(0)
images, labels = torch.rand(60_000, 1, 28, 28), torch.randint(0, 10, (60_000,))
loss = torch.nn.CrossEntropyLoss(reduction="none")
budget = armijo.Budget(epsilon=3.0, delta=1e-5)
if method == "sgd":
    method = armijo.DPSGD(step_size=1.0)
begun = clock()
armijo.train(models.cnn_small(), loss, (images, labels), budget,
             method=method, sampling_prob=0.01, steps=100)
print(clock() - begun)
"""


def _seconds(script: str, method: str) -> float:
    """Return the time of one run in a new process on one thread."""
    done = subprocess.run(
        [sys.executable, "-c", script, method],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return float(done.stdout.split()[-1])


def _beside(name: str, script: str) -> Row:
    """Measure both methods in turns."""
    times: dict[str, list[float]] = {"auto": [], "sgd": []}
    for _ in range(ROUNDS):
        for method, seconds in times.items():
            seconds.append(_seconds(script, method))
    ours, peer = (statistics.median(times[method]) for method in ("auto", "sgd"))
    return at_most(name, ours, peer, LIMIT)


def rows() -> list[Row]:
    """Measure a table and a network."""
    return [
        _beside("auto beside DP-SGD of 100 steps, Adult's shape, a whole fit", _FIT),
        _beside("auto beside DP-SGD, CNN 6-16, 100 steps of training", _TRAIN),
    ]
