# SPDX-License-Identifier: Apache-2.0
"""Small tables, whole runs, and the mathematics written again without the package."""

import math
from typing import Any

import numpy as np
import torch
from scipy import stats

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.data.query import Rows
from armijo.methods.base import Problem
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from armijo.registry import make_method
from tests.data.gate_doubles import FreeAccountant
from tests.data.lattice_doubles import on_lattice
from tests.training.runs import RunResult, RunSettings, train

BUDGET = Budget(epsilon=1.0, delta=1e-6)
FEATURES = 3


def table(n: int = 60, seed: int = 0, d: int = FEATURES) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.2, 2.0, size=(n, 1))
    y = np.where(X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    return on_lattice(X), y


def objective(loss: str = "logistic", d: int = FEATURES, **more: Any):
    return LinearObjective(**{"loss": loss, "n_features": d, "l2": 0.01} | more)


def built(method: str, n_rows: int, goal=None, budget: Budget = BUDGET, **asked: Any):
    asked = {"data_norm": 1.0} | asked
    problem = Problem(objective=goal or objective(), n_rows=n_rows)
    return make_method(method, asked).calibrate(budget, problem)


def fitted(method: str, X, y, goal=None, seed: int | None = 0, **more: Any):
    """Return the result of a whole run through accountant, gate and loop."""
    asked = {"data_norm": 1.0} | more.pop("asked", {})
    if method == "nonprivate":
        asked.pop("data_norm")
    settings = {
        "budget": BUDGET,
        "objective": goal or objective(d=X.shape[1]),
        "method": make_method(method, asked),
        "n_rows": max(X.shape[0], 1),
        "relation": Neighboring.ADD_REMOVE,
        "seed": seed,
    }
    result: RunResult = train(X, y, RunSettings(**settings | more))
    return result


def answered(algorithm, X, y, seed: int = 0):
    """Return what an algorithm releases through a gate that asks for no budget."""
    data = PrivateDataset(
        X,
        y,
        n_rows=max(X.shape[0], 1),
        accountant=FreeAccountant(),
        randomness=Randomness(seed=seed, insecure_deterministic=True),
    )
    plan = BatchPlan(mechanisms=(algorithm.mechanism,))
    w = torch.zeros(algorithm.objective.size, dtype=torch.float64)
    return algorithm.released(data.open(plan), w)[0]


def noise_p_value(method: str) -> float:
    """Compare what is released about no rows with the law that the proof asks for."""
    algorithm = built(method, 100)
    nothing = np.empty((0, FEATURES)), np.empty(0)
    draws = [answered(algorithm, *nothing, seed) for seed in range(150)]
    noise = math.sqrt(1 + 1) * np.array(draws)  # rows of norm one with their constant
    if method == "objpert-pure":
        law = stats.gamma(FEATURES + 1, scale=algorithm.noise_scale / algorithm.ridge)
        return float(stats.kstest(np.linalg.norm(noise, axis=1), law.cdf).pvalue)
    return float(
        stats.kstest(noise.ravel(), stats.norm(scale=scale_of(algorithm)).cdf).pvalue
    )


def scale_of(algorithm) -> float:
    """Return the deviation of each weight: of -b / ridge and noise, or of noise."""
    if not hasattr(algorithm, "ridge"):
        return float(algorithm.mechanism.noise_scale)
    linear = algorithm.noise_scale / algorithm.ridge
    return math.hypot(linear, algorithm.output_noise_scale)


def rows_of(X, y) -> Rows:
    return Rows(X, y)


def unit_rows(X, y, norm: float = 1.0, intercept: bool = True):
    """Clip, append the constant, scale and sign, one row after the other."""
    signed = []
    for x, label in zip(X, y, strict=True):
        length = np.sqrt((x**2).sum())
        x = x * min(1.0, norm / length) if length > 0 else x
        full = np.append(x, 1.0) if intercept else x
        signed.append(label * full / np.sqrt(norm**2 + intercept))
    return np.array(signed)


def slopes(loss: str, margins, width: float = 0.5):
    if loss == "logistic":
        return -1 / (1 + np.exp(margins))
    return -np.clip((1 + width - margins) / (2 * width), 0, 1)


def mean_gradient(w, Z, loss: str, l2: float, n: int):
    return Z.T @ slopes(loss, Z @ w) / n + l2 * w
