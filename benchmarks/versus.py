# SPDX-License-Identifier: Apache-2.0
"""Steps of this checkout beside those of another one, in turns within one run.

``python -m benchmarks.versus OTHER`` takes the folder of another commit's checkout.
Each checkout has a process of its own that imports its own package and benchmarks; the
processes take turns, one call each, so that a busy machine slows both.  Medians.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

TURNS = 25
LIMIT = 1.05
HERE = Path(__file__).parents[1]


def steps() -> dict[str, Callable[[], object]]:
    """Return what is measured, made from the benchmarks of the checkout that runs."""
    import torch

    from armijo import PrivateLogisticRegression
    from benchmarks import networks, training

    torch.set_num_threads(2)
    X, y = training.census_like()

    def fit() -> object:
        model = PrivateLogisticRegression(
            epsilon=0.2, delta=1e-8, classes=[-1.0, 1.0], n_rows=len(X)
        )
        return model.fit(X, y)

    named: dict[str, Callable[[], object]] = {
        f"{name}, {way}": networks.WAYS[way](*networks.made(name))
        for name in ("mlp_1000", "mlp_256", "cnn_small")
        for way in ("gate", "loss")
    }
    return {**named, "DP-BLSGD step": training.private_step(X, y), "auto, fit": fit}


def work() -> None:
    """Make the named step and print its seconds, for each line of standard input."""
    from benchmarks._timing import clock

    calls = steps()
    print(json.dumps(list(calls)), flush=True)
    for line in sys.stdin:
        start = clock()
        calls[line.strip()]()
        print(clock() - start, flush=True)


def _worker(folder: Path) -> subprocess.Popen[str]:
    # The other checkout may not have this file, so it is loaded by its path.
    code = (
        "import runpy, sys; sys.argv = ['versus']; "
        f"runpy.run_path({str(Path(__file__).resolve())!r})['work']()"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{folder / 'src'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main(other: str) -> int:
    """Print old and new seconds of each step, and the quotient."""
    workers = [_worker(folder) for folder in (Path(other).resolve(), HERE)]
    names = [json.loads(_answer(worker)) for worker in workers]
    slower = 0
    for name in names[1]:
        times: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for worker, seconds in zip(workers, times, strict=True):
                print(name, file=worker.stdin, flush=True)
                seconds.append(float(_answer(worker)))
        old, new = (statistics.median(seconds[1:]) for seconds in times)
        slower += new > LIMIT * old
        print(f"{name:24} {old * 1e3:9.2f} ms {new * 1e3:9.2f} ms  {new / old:.3f}")
    for worker in workers:
        worker.communicate()
    return int(slower > 0)


def _answer(worker: "subprocess.Popen[str]") -> str:
    line = worker.stdout.readline() if worker.stdout else ""
    if not line:
        raise SystemExit("A worker ended; run its benchmarks by themselves to see why.")
    return line


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
