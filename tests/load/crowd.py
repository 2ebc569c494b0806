# SPDX-License-Identifier: Apache-2.0
"""Many fits at once: forked processes with many threads each, a ledger for every fit.

``python -m tests.load.crowd FOLDER FITS PROCESSES THREADS`` leaves one JSON file for
each process: what its fits released, which keys and words they drew, how much memory
there was on the way.  One fit is made before the processes are forked, so that they
would share whatever that fit left behind.
"""

import gc
import hashlib
import json
import multiprocessing
import os
import resource
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from armijo import randomness
from armijo.accounting.ledger import Ledger
from armijo.estimators import PrivateLogisticRegression
from armijo.methods import BLSGD, DPSGD, Auto
from armijo.training import replay as run_key

METHODS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"method": BLSGD(sampling_prob=0.5), "max_batches": 4}, 4),
    ({"method": DPSGD(sampling_prob=0.5, steps=3)}, 3),
    ({"method": "blgd", "max_batches": 2}, 2),
    ({"method": Auto(steps=2)}, 5),
)
"""Parameters of a fit, and how many charges it makes."""
ROWS = np.random.default_rng(2).random((30, 3))
LABELS = (ROWS[:, 0] > 0.5).astype(int)


class Witness:
    """Writes down what is drawn and what is charged, by whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.run_keys: list[str] = []
        self.stream_keys: list[str] = []
        self.system_words: list[str] = []
        self.charges = 0

    def watch(self) -> None:
        """Stand in for the functions that draw and charge."""
        run_key.fresh_key = self._noting(run_key.fresh_key, self.run_keys)
        system: Any = randomness.SystemBits
        system._bytes = self._noting(system._bytes, self.system_words)
        keyed: Any = randomness.KeyedBits
        keyed.__init__ = self._noting_key(keyed.__init__)
        append = Ledger.append

        def counted(ledger: Ledger, charge: Any) -> None:
            append(ledger, charge)
            with self._lock:
                self.charges += 1

        Ledger.append = counted  # type: ignore[method-assign]

    def _noting(self, draw: Callable[..., bytes], seen: list[str]) -> Any:
        """Note what a function draws, unless it may be equal by chance."""

        def call(*given: Any) -> bytes:
            drawn = draw(*given)
            if len(drawn) >= 16:
                seen.append(_digest(drawn))
            return drawn

        return call

    def _noting_key(self, begin: Callable[[Any, bytes], None]) -> Any:
        """Note the key of every stream."""

        def call(bits: Any, key: bytes) -> None:
            self.stream_keys.append(_digest(key))
            begin(bits, key)

        return call


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def fit(folder: Path, number: int) -> dict[str, Any]:
    """Make one fit with files of its own, and return what it released."""
    turn, kind = divmod(number, len(METHODS))
    parameters, charges = METHODS[kind]
    ledger = folder / f"{number}.ledger"
    # Of each method, every other fit has a run key; the rest draw from the system.
    checkpoint = folder / f"{number}.json" if turn % 2 else None
    model = PrivateLogisticRegression(
        epsilon=1.0,
        delta=1e-5,
        classes=[0, 1],
        n_rows=len(ROWS),
        ledger=ledger,
        **parameters,
    ).fit_resumable(ROWS, LABELS, checkpoint=checkpoint)
    weights = np.append(model.coef_, model.intercept_)
    # The first batches of some methods have no direction.
    directions = model.history_["direction_norm"].dropna().to_numpy(dtype=np.float64)
    return {
        "ledger": ledger.name,
        "charges": charges,
        "batches": model.n_iter_,
        "moved": bool(weights.any()),
        "weights": _digest(weights.tobytes()),
        "directions": [_digest(norm.tobytes()) for norm in directions],
        "epsilon_spent": model.privacy_.epsilon_spent,
    }


def _memory() -> dict[str, int]:
    """Return what the process holds: bytes of memory, and objects of Python."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"bytes": pages * resource.getpagesize(), "objects": len(gc.get_objects())}


def work(folder: Path, numbers: range, threads: int) -> None:
    """Make the fits of one process: a tenth of them, a look at the memory, the rest."""
    warnings.simplefilter("error")
    witness = Witness()
    witness.watch()
    tenth = max(len(numbers) // 10, threads)

    def noted(number: int) -> str:
        """Return a text, which is none of the objects that are counted."""
        return json.dumps(fit(folder, number))

    with ThreadPoolExecutor(threads) as pool:
        fits = list(pool.map(noted, numbers[:tenth]))
        early = _memory()
        fits += pool.map(noted, numbers[tenth:])
        late = _memory()
    found = {
        "fits": [json.loads(one) for one in fits],
        "appended": witness.charges,
        "run_keys": witness.run_keys,
        "stream_keys": witness.stream_keys,
        "system_words": witness.system_words,
        "early": early,
        "late": late,
    }
    (folder / f"process-{os.getpid()}.json").write_text(json.dumps(found))


def main(folder: Path, fits: int, processes: int, threads: int) -> None:
    """Fork the processes and wait for them."""
    fit(folder, fits)
    context = multiprocessing.get_context("fork")
    share = fits // processes
    children = [
        context.Process(
            target=work, args=(folder, range(first, first + share), threads)
        )
        for first in range(0, share * processes, share)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode or 0) for child in children))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
