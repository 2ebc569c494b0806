# SPDX-License-Identifier: Apache-2.0
"""One DP-BLSGD step against a plain NumPy gradient and an Opacus step; memory of a fit.

All on one thread and on the shape of Adult: 48,842 rows, 124 columns, rate 0.1; steps
are measured in turns of ten.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.data.gate import PrivateDataset
from armijo.methods import BLSGD, Problem
from armijo.objectives import LinearObjective
from benchmarks import Row, at_most, times_faster, under
from benchmarks._timing import clock, in_turns

ROWS, COLUMNS, RATE = 48_842, 124, 0.1
ROUNDS, SECONDS_EACH, CALLS = 40, 8.0, 10


def census_like() -> tuple[np.ndarray, np.ndarray]:
    """Return random one-hot-like rows and labels -1, +1."""
    rng = np.random.default_rng(0)
    X = (rng.random((ROWS, COLUMNS)) < 0.11).astype(float)
    return X, rng.integers(0, 2, ROWS) * 2.0 - 1.0


def plain_step(
    X: np.ndarray, y: np.ndarray, *, take: bool = False
) -> Callable[[], object]:
    """Return a gradient step of logistic regression in plain NumPy.

    ``X[chosen]`` is how one writes it; ``take`` copies whole rows and is faster.
    """
    rng = np.random.default_rng(1)
    w = np.zeros(COLUMNS)

    def step() -> np.ndarray:
        chosen = np.flatnonzero(rng.random(ROWS) < RATE)
        rows = X.take(chosen, axis=0) if take else X[chosen]
        labels = y[chosen]
        margins = labels * (rows @ w)
        return w - 0.5 * (rows.T @ (-labels / (1 + np.exp(margins)))) / len(chosen)

    return step


def private_step(X: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """Return a DP-BLSGD step whose search evaluates all 20 candidates.

    The Armijo constant asks for more decrease than there is, so that (up to noise) no
    candidate passes and the search is as long as it can be.
    """
    accountant = PrivacyFilter(Budget(epsilon=4.0, delta=1e-8))
    data = PrivateDataset(X, y, n_rows=ROWS, accountant=accountant)
    objective = LinearObjective(
        loss="logistic", n_features=COLUMNS, fit_intercept=False
    )
    method = BLSGD(
        gradient_rho=1e-4,
        search_epsilon=0.5,
        slope=0.999,
        search_form="difference",
        sampling_prob=RATE,
    ).completed(Problem(objective=objective))
    state = method.init(torch.zeros(objective.size, dtype=torch.float64))

    def step() -> object:
        return method.step(data.open(method.plan(state)), objective, state)

    return step


def opacus_step(X: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """Return an Opacus hooks step with its own Poisson data loader."""
    from opacus import PrivacyEngine

    model = torch.nn.Linear(COLUMNS, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tensors = torch.from_numpy(X), torch.from_numpy((y + 1) / 2)[:, None]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*tensors), batch_size=round(ROWS * RATE)
    )
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=50.0,
        max_grad_norm=3.0,
    )
    batches = _endless(loader)
    loss = torch.nn.BCEWithLogitsLoss()

    def step() -> None:
        rows, labels = next(batches)
        optimizer.zero_grad()
        loss(model(rows), labels).backward()
        optimizer.step()

    return step


def _endless(loader):
    """Go through the loader again and again."""
    while True:
        yield from loader


_MEMORY_SCRIPT = """
import os, sys, threading, time, warnings
import numpy as np
from armijo.estimators import PrivateLogisticRegression
from armijo.registry import make_method
warnings.simplefilter("ignore")
path, rows, sampling_prob = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
X = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, 100))
y = (np.arange(rows) % 2).astype(np.int8)
times, peak, done = [], [0.0], threading.Event()
processor = os.environ.get("BENCH_CPU_TIME") == "1"
clock = time.process_time if processor else time.perf_counter
def note(record):
    times.append(clock())
def watch():
    while not done.wait(0.02):
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        peak[0] = max(peak[0], int(status["RssAnon"].split()[0]) / 2**20)
watcher = threading.Thread(target=watch)
watcher.start()
model = PrivateLogisticRegression(
    method=make_method("blsgd", {"sampling_prob": sampling_prob, "expected_steps": 30,
                                 "search_form": "difference"}),
    epsilon=1.0, delta=1e-8, classes=[0, 1], n_rows=rows, callback=note)
try:
    model.fit(X, y)
finally:
    done.set()
watcher.join()
print(peak[0], np.median(np.diff(times)))
"""


def memory_of_fit(rows: int, sampling_prob: float, folder: str) -> tuple[float, float]:
    """Return the peak of anonymous resident GiB in a fit, and seconds per step."""
    path = Path(folder) / f"rows-{rows}.float32"
    if not path.exists():
        with path.open("wb") as file:
            block = np.random.default_rng(0).random((100_000, 100), dtype=np.float32)
            for _ in range(rows // 100_000):
                file.write(block.tobytes())
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _MEMORY_SCRIPT,
            str(path),
            str(rows),
            str(sampling_prob),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    gib, seconds = map(float, done.stdout.split())
    return gib, seconds


def rows() -> list[Row]:
    """Measure everything side by side in this run."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, y = census_like()
    ours = private_step(X, y)
    plain = {"peer": plain_step(X, y), "take": plain_step(X, y, take=True)}
    near = _in_turns({**plain, "ours": ours})
    far = _in_turns({"peer": opacus_step(X, y), "ours": ours})
    title = "DP-BLSGD step against an Opacus hooks step"
    found: list[Row] = [
        at_most("DP-BLSGD step over a plain NumPy step", near["ours"], near["peer"], 3),
        at_most("the same, gathered by take", near["ours"], near["take"], 3),
        times_faster(title, far["ours"], far["peer"], 5.0),
    ]
    return found + _whole_fits(X, y)


def _in_turns(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Measure two steps in turns: what slows one slows the other."""
    return in_turns(steps, rounds=ROUNDS, seconds_each=SECONDS_EACH, calls=CALLS)


def _whole_fits(X: np.ndarray, y: np.ndarray) -> list[Row]:
    """Return rows for a whole fit, and for memory and time on memmaps."""
    from armijo.estimators import PrivateLogisticRegression

    start = clock()
    PrivateLogisticRegression(
        method="blsgd", epsilon=1.0, delta=1e-8, classes=[-1.0, 1.0], n_rows=ROWS
    ).fit(X, y)
    whole = clock() - start
    with tempfile.TemporaryDirectory() as folder:
        small = memory_of_fit(1_000_000, 0.001, folder)
        large = memory_of_fit(10_000_000, 0.001, folder)
    steps = large[1], small[1]
    return [
        under("whole fit on Adult's shape, paper's budgets (s)", whole, 60.0),
        under("peak anonymous GiB of a fit on 10M x 100 float32", large[0], 1.0),
        at_most("step on 10M rows over step on 1M, 10 times the batch", *steps, 10.0),
    ]
