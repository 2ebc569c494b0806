# SPDX-License-Identifier: Apache-2.0
"""One run of a network experiment: train, and write down the curve."""

import math
import time
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Mechanism
from armijo.accounting.paper import ORDERS, printed_epsilon
from armijo.accounting.planned import planned_epsilon
from armijo.accounting.subsampling import Subsampled
from armijo.errors import PrivacyLeakWarning
from armijo.methods.base import Schedule
from armijo.networks import models
from armijo.networks.progress import evaluating
from armijo.networks.train import Trainer
from armijo.objectives.ghost.params import flat_parameters
from armijo_reproduction import datasets
from armijo_reproduction.spec import Experiment, RunKey
from armijo_reproduction.synthetic import images_like

Images = tuple[Tensor, Tensor, Tensor, Tensor]
_CHUNK = 1_000
_MEASURED = 5_000  # training images by which the objective is measured


@lru_cache(maxsize=1)
def _images(name: str, rows: int | None, synthetic: bool) -> Images:
    """Return training and test images with their labels."""
    if synthetic:
        parts = images_like(name, rows)
    else:
        kept, test = datasets.load(name).published_split()
        parts = (kept.X[:rows], kept.y[:rows], test.X, test.y)
    return tuple(torch.from_numpy(part) for part in parts)  # type: ignore[return-value]


def run_network(
    experiment: Experiment, key: RunKey, options: Mapping[str, Any], *, synthetic: bool
) -> list[dict[str, Any]]:
    """Train one network and return a row for every evaluation.

    ``spent`` is the sound epsilon of the steps so far, ``printed`` the label that the
    paper's formulas, which know equal steps only, would put on them.
    """
    X, y, X_test, y_test = _images(key.dataset, experiment.rows, synthetic)
    torch.manual_seed(key.seed())
    model = getattr(models, key.model)()
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        run = Trainer(
            model,
            nn.CrossEntropyLoss(reduction="none"),
            (X, y),
            Budget(epsilon=key.epsilon, delta=experiment.delta),
            method=experiment.series_named(key.line).method,
            sampling_prob=experiment.sampling_prob,
            steps=experiment.steps,
            n_rows=len(y),
            options=options,
            seed=key.seed(),
        )
        return _curve(experiment, run, model, (X, y, X_test, y_test), begun)


def _curve(
    experiment: Experiment, run: Trainer, model: nn.Module, data: Images, begun: float
) -> list[dict[str, Any]]:
    """Make the steps and measure every so many of them."""
    X, y, X_test, y_test = data
    schedule = _schedule(run, model, experiment.steps)
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(run, start=1):
        if number % experiment.evaluate_every and number != experiment.steps:
            continue
        seconds = time.process_time() - begun
        accuracy, _ = _measured(model, X_test, y_test)
        _, objective = _measured(model, X[:_MEASURED], y[:_MEASURED])
        spent, printed = _epsilons(_begun(schedule, number), experiment.delta)
        rows.append(
            {
                "iteration": number,
                "accuracy": round(accuracy, 5),
                "objective": round(objective, 5),
                "spent": spent,
                "printed": printed,
                "step_size": record.step_size,
                "seconds": round(seconds, 3),
            }
        )
    return rows


def _schedule(run: Trainer, model: nn.Module, steps: int) -> Schedule:
    """Return what is charged, in order; steps are alike if no method says otherwise."""
    first = run.method.plan(run.method.init(flat_parameters(model))).mechanism
    return run.method.schedule() or ((first, steps),)


def _begun(schedule: Schedule, steps: int) -> Schedule:
    """Return the charges of the first steps of a schedule.

    >>> _begun((("search", 1), ("plain", 3), ("search", 1)), 3)
    (('search', 1), ('plain', 2))
    """
    charges: list[tuple[Mechanism, int]] = []
    for mechanism, count in schedule:
        if steps > 0:
            charges.append((mechanism, min(count, steps)))
        steps -= count
    return tuple(charges)


@lru_cache(maxsize=256)
def _epsilons(charges: Schedule, delta: float) -> tuple[float | None, float | None]:
    """Return the sound epsilon of some charges, and the printed label of equal ones."""
    for mechanism, _ in charges:
        if not isinstance(mechanism, Subsampled):
            return None, None
        if not math.isfinite(mechanism.rdp(ORDERS[:1])[0]):
            return None, None
    sound = round(planned_epsilon(charges, delta)[0], 5)
    if len(charges) > 1:
        return sound, None
    ((step, steps),) = charges
    return sound, round(printed_epsilon(step, steps, delta), 5)


@torch.no_grad()
def _measured(model: nn.Module, X: Tensor, y: Tensor) -> tuple[float, float]:
    """Return accuracy and mean loss, in eval mode and in chunks."""
    correct, loss = 0.0, 0.0
    with evaluating(model):
        for first in range(0, len(y), _CHUNK):
            part = slice(first, first + _CHUNK)
            scores = model(X[part])
            correct += float((scores.argmax(1) == y[part]).sum())
            loss += float(nn.functional.cross_entropy(scores, y[part], reduction="sum"))
    return correct / len(y), loss / len(y)
