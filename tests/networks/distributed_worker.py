# SPDX-License-Identifier: Apache-2.0
"""What each process does in test_distributed.py: ``worker.py FOLDER SCENARIO ...``.

A scenario runs in one process (called by the test itself) or as one rank of several,
and returns plain values and tensors, which a rank saves for the test to compare.
"""

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from scipy import sparse
from sklearn.base import clone
from torch import Tensor, nn
from torch.utils.data import Subset

import armijo
from armijo import (
    Budget,
    PrivateClassifier,
    PrivateLogisticRegression,
    PrivateRegressor,
)
from armijo.accounting.accountants import PlannedAccountant
from armijo.accounting.budget import Neighboring
from armijo.accounting.mechanisms import Gaussian
from armijo.baselines import OutpertGD
from armijo.data.certified import FINEST_BITS
from armijo.data.distributed import TorchProcessGroup
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.data.query import Rows
from armijo.data.sources import TensorRows
from armijo.errors import ArmijoError, ModelWarning
from armijo.objectives.module import ModuleObjective
from tests.known import know

ROWS, FEATURES, CLASSES = 120, 4, 3
BUDGET = Budget(epsilon=2.0, delta=1e-5)
Result = dict[str, Any]


class Place:
    """Which rank of how many, and where files go."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        self.folder, self.rank, self.size = folder, rank, size

    def path(self, name: str) -> Path:
        """Return the path of a file that all ranks name alike."""
        return self.folder / f"{name}.of{self.size}"

    def rows(self, kind: str = "strided") -> tuple[Tensor, Tensor]:
        """Return this rank's share of the same rows."""
        bits = torch.Generator().manual_seed(5)
        X = torch.randn(ROWS, FEATURES, generator=bits, dtype=torch.float64)
        y = (X @ torch.randn(FEATURES, CLASSES, generator=bits).double()).argmax(1)
        last = self.rank == self.size - 1
        if kind == "strided" or self.size == 1:
            mine = slice(self.rank, None, self.size)
        elif kind == "unequal":  # seven rows each, the rest to the last
            mine = slice(7 * self.rank, None if last else 7 * (self.rank + 1))
        else:  # nothing for the last
            mine = slice(ROWS, None) if last else slice(self.rank, None, self.size - 1)
        return X[mine], y[mine]

    def shuffled(self) -> list[int]:
        """Return half of all row numbers, in an order of this rank's own."""
        bits = torch.Generator().manual_seed(self.rank)
        return torch.randperm(ROWS // 2, generator=bits).tolist()

    def turned(self) -> tuple[Tensor, Tensor]:
        """Return all rows, in an order of this rank's own."""
        X, y = Place(self.folder).rows()
        return X.roll(self.rank, 0), y.roll(self.rank, 0)


class Watched:
    """A map-style dataset that writes down which rows are read."""

    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y, self.read = X, y, list[int]()

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        self.read.append(number)
        return self.X[number], self.y[number]


def network(seed: int = 1) -> nn.Module:
    """Return a small perceptron with its start."""
    torch.manual_seed(seed)
    layers = nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES)
    return nn.Sequential(*layers).double()


def training(model: nn.Module, data: Any, **settings: Any) -> Any:
    """Prepare a run with short defaults."""
    common: dict[str, Any] = {"sampling_prob": 1.0, "steps": 8, "n_rows": ROWS}
    common["distributed"] = dist.is_initialized()
    watched = data.dataset if isinstance(data, Subset) else data
    if isinstance(watched, Watched):
        common["example"] = tuple(
            torch.zeros_like(one[0]) for one in (watched.X, watched.y)
        )
    return armijo.Trainer(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        data,
        BUDGET,
        **(common | settings),
    )


def flat(model: nn.Module) -> Tensor:
    """Return all parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def told(run: Any, model: nn.Module) -> Result:
    """Return what there is to compare of a finished run."""
    return {
        "w": flat(model),
        "records": [asdict(record) for record in run.records],
        "charges": len(run.privacy.ledger),
        "spent": run.privacy.epsilon_spent,
        "writes": run.privacy.ledger_path is not None,
    }


def refusal(prepare: Callable[[], object]) -> str:
    """Return the error that something raises, by type and text."""
    try:
        prepare()
    except (ArmijoError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def silent(place: Place, kind: str = "strided") -> Result:
    """Train without noise on all rows."""
    model = network()
    run = training(model, place.rows(kind), method="nonprivate").run()
    return told(run, model)


def silent_unequal(place: Place) -> Result:
    """Do so with shards of different sizes."""
    return silent(place, "unequal")


def silent_empty(place: Place) -> Result:
    """Do so with a rank that holds no row."""
    return silent(place, "empty")


def seeded(place: Place) -> Result:
    """Train with searches and the lead's noise from a seed."""
    return _seeded(place, "blsgd")


def seeded_others(place: Place) -> Result:
    """Do so by the methods that release gradients alone, or losses as well."""
    return _seeded(place, "sgd", "adam", "hyfree")


def _seeded(place: Place, *methods: str) -> Result:
    """Train by each method."""
    found: Result = {}
    for method in methods:
        model = network()
        settings: dict[str, Any] = {"method": method, "seed": 3, "l2": 0.01}
        run = training(model, place.rows(), steps=6, **settings)
        found[method] = told(run.run(), model)
    return found


def noisy(place: Place) -> Result:
    """Train with noise of the system, from a start of its own and a ledger."""
    model = network(seed=place.rank)
    ledger = place.path(f"noisy.{place.rank}.ledger")
    data = place.rows("unequal")
    run = training(model, data, sampling_prob=0.5, ledger=ledger)
    return told(run.run(), model)


def sampled(place: Place) -> Result:
    """Watch which rows a seeded run reads, twice, and once with another seed."""
    found: Result = {}
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        model, data = network(), Watched(*place.rows())
        run = training(model, data, method="nonprivate", sampling_prob=0.3, seed=seed)
        data.read.clear()  # what the shapes were taken from
        found[name] = {**told(run.run(), model), "read": data.read}
    return found


def budget(place: Place) -> Result:
    """Stop after three steps; a second run on the same ledger has the rest."""
    model, ledger = network(), place.path("budget.ledger")
    for name in ("first", "second"):
        run = training(model, place.rows(), sampling_prob=0.5, ledger=ledger)
        for record in run:
            if name == "first" and record.batch == 2:
                break
        if name == "first":
            del run  # frees the ledger
    return told(run, model)


def resumed(place: Place) -> Result:
    """Stop a seeded run after each of two steps and resume it; also not at all."""
    model, whole = network(), network()
    settings: dict[str, Any] = {"sampling_prob": 0.5, "seed": 9}
    data = place.rows("unequal")
    path, ledger = place.path("resumed.pt"), place.path("resumed.ledger")
    for stop in (2, 5, None):
        run = training(
            model if stop == 2 else network(seed=4),
            data,
            checkpoint=path,
            ledger=ledger,
            resume=stop != 2,
            **settings,
        )
        for record in run:
            if record.batch == stop:
                break
        found = told(run, run.objective.module)
        del run
    return {
        "resumed": found,
        "whole": told(training(whole, data, **settings).run(), whole),
    }


def refused(place: Place) -> Result:
    """Ask for what all processes must refuse together."""
    ledger = place.path("refused.ledger")

    def ask(data: Any = None, model: nn.Module | None = None, **settings: Any) -> str:
        rows = place.rows() if data is None else data
        settings = {"ledger": ledger} | settings
        return refusal(lambda: training(model or network(), rows, **settings))

    X, y = place.rows()
    everything = Place(place.folder).rows()
    other = nn.Linear(FEATURES, CLASSES + place.rank).double()
    broken = place.path("broken.ledger")
    broken.write_text("not a ledger")
    resumes: dict[str, Any] = {"seed": 9, "sampling_prob": 0.5, "resume": True}
    resumes["checkpoint"] = place.path("resumed.pt")
    return {
        "steps": ask(steps=8 + place.rank),
        "seed": ask(seed=place.rank),
        "module": ask(model=other),
        "no rows": ask(data=(X[:0], y[:0])),
        "same rows": ask(data=Place(place.folder).rows()),
        # The number of rows fits, which is not what a refusal rests on.
        "same rows, n_rows fits": ask(
            data=Place(place.folder).rows(), n_rows=place.size * ROWS
        ),
        "same rows turned": ask(data=place.turned()),
        "same examples": ask(data=Watched(*Place(place.folder).rows())),
        "same indices": ask(data=Subset(Watched(*everything), place.shuffled())),
        "n_rows": ask(n_rows=None),
        "no pair": ask(data=3 if place.rank == 1 else None),
        "ledger": ask(ledger=broken),
        "resume": ask(resume=True, checkpoint=place.path("missing.pt")),
        "lost ledger": ask(data=place.rows("unequal"), **resumes),
        "plans": _other_plans(place),
        "written": ledger.exists(),
    }


def _other_plans(place: Place) -> str:
    """Ask the gate for batches with different noise; nothing may be charged."""
    noises = [Gaussian(noise_scale=9.0 + rank) for rank in range(place.size)]
    plans = [BatchPlan(mechanisms=(noise,), sampling_prob=0.5) for noise in noises]
    schedule = [(plan.mechanism, 1) for plan in plans]
    relation = Neighboring.ADD_REMOVE
    accountant = PlannedAccountant(BUDGET, schedule, relation=relation)
    data = PrivateDataset(
        TensorRows(*place.rows()),
        n_rows=ROWS,
        accountant=accountant,
        group=TorchProcessGroup(),
    )
    return f"{refusal(lambda: data.open(plans[place.rank]))} {accountant.n_charges=}"


def sums(place: Place) -> Result:
    """Add up one batch with a row of the first shard, with a blank, and it alone."""
    X, y = place.rows()
    blank = torch.zeros(len(y), dtype=torch.bool)
    blank[7] = place.rank == 0
    only = ~blank if place.rank == 0 else torch.ones_like(blank)
    objective = ModuleObjective(network(), nn.CrossEntropyLoss(reduction="none"))
    query = objective.gradient_sum(objective.start(), clip=0.3)

    def total(blank: Tensor) -> Tensor:
        parts = query.contributions(Rows(X, y, blank=blank))
        return TorchProcessGroup().total(parts.integers(FINEST_BITS).long())

    return {"whole": total(blank & False), "without": total(blank), "row": total(only)}


def killed(place: Place) -> Result:
    """Let the last rank die after the charge of its fifth batch."""
    return _failing(place, place.size - 1)


def killed_lead(place: Place) -> Result:
    """Let the lead die there."""
    return _failing(place, 0)


def _failing(place: Place, victim: int) -> Result:
    """Train on rows that end the process when they are read in the fifth batch."""

    class Fatal(Watched):
        def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
            if place.rank == victim and len(self.read) >= 4 * len(self):
                os._exit(7)
            return super().__getitem__(number)

    model, data = network(), Fatal(*place.rows())
    run = training(
        model,
        data,
        method="sgd",
        ledger=place.path("killed.ledger"),
        checkpoint=place.path("killed.pt"),
        checkpoint_every=3,
    )
    data.read.clear()
    error = refusal(run.run)
    return {**told(run, model), "error": error}


def recovered(place: Place) -> Result:
    """Go on after such a death, from other starts than the dead run's."""
    model = network(seed=10 + place.rank)
    run = training(
        model,
        place.rows(),
        method="sgd",
        ledger=place.path("killed.ledger"),
        checkpoint=place.path("killed.pt"),
        resume=True,
    )
    return told(run.run(), model)


def accepted(place: Place) -> Result:
    """Train on shards that share single rows, or more rows than ``n_rows`` says."""
    X, y = place.rows()
    twins = (torch.cat([X, X.new_ones(1, FEATURES)]), torch.cat([y, y.new_zeros(1)]))
    whole = Watched(*Place(place.folder).rows())
    strided = Subset(whole, list(range(place.rank, ROWS, place.size)))
    usual: dict[str, Any] = {"method": "sgd", "steps": 1}
    cases = {"twins": (twins, ROWS), "many": ((X, y), ROWS // 4)}
    cases["subset"] = (strided, ROWS)
    return {
        name: refusal(lambda: training(network(), data, n_rows=rows, **usual).run())  # noqa: B023 (called at once)
        for name, (data, rows) in cases.items()
    }


def table(X: np.ndarray) -> pd.DataFrame:
    """Return features as a frame with numbers and a category."""
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(FEATURES)])
    frame["side"] = pd.Categorical.from_codes((X[:, 0] > 0).astype(int), ["a", "b"])
    return frame


def tables(place: Place) -> Result:
    """Fit estimators on shards of a table, and say what they refuse."""
    X, y = (one.numpy() for one in place.rows())
    whole, labels = (one.numpy() for one in Place(place.folder).rows())
    usual: dict[str, Any] = {"epsilon": 3.0, "n_rows": ROWS, "random_state": 4}
    usual["distributed"] = dist.is_initialized()
    usual_class = {"classes": range(CLASSES), **usual}
    linear = PrivateLogisticRegression(**usual_class)
    classes = PrivateClassifier(schema="from-dtypes", **usual_class)
    number = PrivateRegressor(schema="from-dtypes", **usual)
    found: Result = {
        "linear": linear.fit(X, y).decision_function(whole),
        "sparse": linear.fit(sparse.csr_matrix(X), y).decision_function(whole),
        "classes": classes.fit(table(X), y).decision_function(table(whole)),
        "number": number.fit(table(X), X[:, 1] + y).predict(table(whole)),
    }
    labelled = table(X).assign(label=y, weight=1 - np.abs(X[:, 0]) % 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # it is a small table
        line = clone(linear).fit(labelled.drop(columns="weight"), "label")
        weighted = clone(classes).fit(labelled, "label", sample_weight="weight")
    found["line"] = line.decision_function(table(whole))
    found["weighted"] = weighted.decision_function(table(whole))
    found = {name: torch.from_numpy(scores) for name, scores in found.items()}
    if place.size == 1:
        return found
    output = OutpertGD(data_norm=1.0)
    binary = clone(linear).set_params(method=output, classes=[0, 1])
    found["refused"] = [
        refusal(lambda: clone(linear).fit(whole, labels)),
        refusal(lambda: clone(linear).set_params(n_rows=None).fit(X, y)),
        refusal(lambda: clone(linear).set_params(classes=None).fit(X, y)),
        refusal(lambda: clone(classes).fit(table(X), y, person=np.arange(len(y)))),
        refusal(lambda: clone(linear).set_params(l2=0.1 * place.rank).fit(X, y)),
        refusal(lambda: clone(linear).fit(X[:, place.rank :], y)),
        refusal(lambda: clone(binary).fit(X, y)),
    ]
    return found


SCENARIOS: dict[str, Callable[[Place], Result]] = {
    one.__name__: one
    for one in (
        silent,
        silent_unequal,
        silent_empty,
        seeded,
        seeded_others,
        noisy,
        sampled,
        budget,
        resumed,
        refused,
        accepted,
        sums,
        tables,
        killed,
        killed_lead,
        recovered,
    )
}


def main(folder: str, *names: str) -> None:
    """Run the scenarios as one rank."""
    torch.set_num_threads(1)
    know()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    place = Place(Path(folder), dist.get_rank(), dist.get_world_size())
    for name in names:
        result = SCENARIOS[name](place)
        torch.save(result, place.path(f"{name}.{place.rank}"))
    if "killed" not in name:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
