# SPDX-License-Identifier: Apache-2.0
"""Digests of what every method releases under a fixed seed, for changes of structure.

``python -m tests.golden`` writes ``golden.json``.  A change that is to leave results as
they are must leave the file as it is; a commit that changes a number on purpose writes
it anew, alone, and says why.  Sums are exact, but slopes and kernels may differ between
processors in the last bit, so the file names the machine on which it was written and is
compared only there.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy
import torch

from armijo import PrivateClassifier, PrivateRegressor
from armijo.accounting.budget import Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.data.feature_rows import FeatureRows
from armijo.data.integer_rows import FEATURE_BITS
from armijo.estimators import solve
from armijo.methods.base import StepRecord
from armijo.methods.whitened import Whitened
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.registry import make_method
from armijo.training.run import Run, RunFiles
from tests.methods.test_contract import BUDGET, NAMES, ROWS, options_of, rows_of
from tests.networks.network_doubles import SAMPLED, flat, network, prepared

PATH = Path(__file__).with_name("golden.json")
LOSSES = ("logistic", "hinge", "huber", "softmax")
SEED = 20


def fingerprint() -> dict[str, Any]:
    """Return what the last bit of a number may depend on."""
    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "versions": [np.__version__, scipy.__version__, torch.__version__],
    }


def _processor() -> str:
    """Return family, model and stepping of the processor, where they can be read."""
    path = Path("/proc/cpuinfo")
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping")
    if not path.exists():
        return platform.processor()
    lines = [
        line.partition(":") for line in path.read_text().split("\n\n")[0].split("\n")
    ]
    return ", ".join(rest.strip() for name, _, rest in lines if name.strip() in wanted)


def digest(value: Any) -> str:
    """Return a short digest of plain values; floats count to the last bit."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _entry(w: Any, records: Any, ledger: Path) -> dict[str, str]:
    """Return the digests of one run."""
    return {
        "w": digest(np.asarray(w).tolist()),
        "records": digest([astuple(record) for record in records]),
        "charges": digest([charge.cost for charge in read_ledger(ledger).charges]),
    }


def _linear(name: str, loss: str, ledger: Path) -> dict[str, str]:
    """Run a method on a small table; ``huber`` takes the place of a kink it refuses."""
    X, y = rows_of()
    if loss == "softmax":
        y = (2 * X[:, 1]).astype(int) + (y > 0)
    found = solve(
        X,
        y,
        method=make_method(name, options_of(name)),
        budget=BUDGET,
        loss=loss,
        n_classes=3 if loss == "softmax" else 2,
        n_rows=ROWS,
        seed=SEED,
        ledger=ledger,
    )
    return _entry(found.w, found.records, ledger)


def _network(name: str, ledger: Path) -> dict[str, str]:
    """Train the tiny network."""
    module = network()
    run = prepared(module, method=name, seed=SEED, ledger=ledger).run()
    return _entry(flat(module), run.records, ledger)


def _table(loss: str, pairs: bool, ledger: Path) -> dict[str, str]:
    """Fit a model of a table with numbers, a category and missing cells."""
    draw = np.random.default_rng(SEED)
    kind = PrivateRegressor if loss == "squared" else PrivateClassifier
    age, place = draw.normal(40, 12, ROWS), draw.choice(["a", "b", "c"], ROWS)
    frame = pd.DataFrame({"age": age, "place": pd.array(place, dtype="str")})
    frame["income"] = np.where(draw.random(ROWS) < 0.1, np.nan, np.exp(age / 20))
    y = age + 10 * (place == "a") + draw.normal(0, 5, ROWS)
    given: dict[str, Any] = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
    if loss != "squared":
        y = np.digitize(y, [40] if loss == "logistic" else [35, 45])
        given["classes"] = np.unique(y).tolist()
    model = kind(**given, pairs=pairs, random_state=SEED, ledger=ledger, n_rows=ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, y)
    scores = getattr(model, "decision_function", model.predict)(frame)
    records = [StepRecord(**row) for row in model.history_.to_dict("records")]
    return _entry(scores, records, ledger)


def _whitened(ledger: Path) -> dict[str, str]:
    """Run the method of images on rows of norm one."""
    draw = np.random.default_rng(SEED)
    rows, y = draw.normal(size=(ROWS, 12)), draw.integers(0, 3, ROWS)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    steps = np.rint(rows * 2**FEATURE_BITS).astype(np.int16)
    run = Run(
        LinearObjective(loss=SOFTMAX, n_features=12, n_classes=3, l2=0.0),
        FeatureRows.of(steps, y, np.ones(ROWS, dtype=bool)),
        Whitened(steps=6),
        BUDGET,
        n_rows=ROWS,
        relation=Neighboring.ZERO_OUT,
        seed=SEED,
        files=RunFiles(ledger=ledger),
    ).complete()
    return _entry(run.state.w, run.records, ledger)


def entries() -> Iterator[tuple[str, dict[str, str]]]:
    """Run every method with every loss that it takes; one that is refused says so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                for loss in LOSSES:
                    try:
                        found = _linear(name, loss, Path(folder, f"{name}-{loss}"))
                    except ValueError as refusal:
                        found = {"refused": type(refusal).__name__}
                    yield f"{name} {loss}", found
            for loss, pairs in product(("logistic", "softmax", "squared"), (0, 1)):
                name = f"table {loss}{' with products' * pairs}"
                yield name, _table(loss, bool(pairs), Path(folder, f"t-{loss}-{pairs}"))
            yield "whitened", _whitened(Path(folder, "whitened"))
            for name in SAMPLED:
                yield f"network {name}", _network(name, Path(folder, f"n-{name}"))
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Write the file; standard output shows what changed."""
    before = json.loads(PATH.read_text())["runs"] if PATH.exists() else {}
    runs = dict(entries())
    for name in sorted({*before, *runs}):
        old, new = before.get(name, {}), runs.get(name, {})
        changed = [key for key in {*old, *new} if old.get(key) != new.get(key)]
        if changed:
            print(f"{name}: {', '.join(sorted(changed))}", file=sys.stdout)
    document = {"machine": fingerprint(), "runs": runs}
    PATH.write_text(json.dumps(document, indent=1) + os.linesep, encoding="utf-8")


if __name__ == "__main__":
    main()
