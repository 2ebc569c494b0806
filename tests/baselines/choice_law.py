# SPDX-License-Identifier: Apache-2.0
"""The exact law of a private selection, as the gate hands it to its sampler."""

import numpy as np
import torch
from scipy.special import log_softmax

import armijo.data.gate as gate
from armijo.accounting.budget import Budget, Neighboring
from armijo.data.gate import PrivateDataset
from armijo.objectives import LinearObjective
from armijo.registry import make_method
from tests.data.gate_doubles import FreeAccountant
from tests.training.runs import RunSettings, train


def opened(method, state, X, y, *, relation=Neighboring.ADD_REMOVE, n_rows=None):
    """Return the batch of a method's next plan."""
    data = PrivateDataset(
        X, y, n_rows=n_rows or max(len(X), 1), accountant=FreeAccountant(relation)
    )
    return data.open(method.plan(state))


def log_laws(monkeypatch, method, state, X, y, objective, **more):
    """Return log probabilities of each draw of one step; index 0 is what is drawn."""
    laws = []

    def capture(gaps, scale, bits):
        laws.append(log_softmax([-gap / scale for gap in gaps]))
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(gate, "exponential_choice", capture)
        batch = opened(method, state, X, y, **more)
        method.step(batch, objective, state)
    return laws


def zeros(objective):
    """Return the start of a run."""
    return torch.zeros(objective.size, dtype=torch.float64)


def run(method, X, y, *, epsilon=1.0, delta=1e-6, objective=None, **more):
    """Train with a seed; keywords that are settings of a run go there."""
    names = ("max_batches", "checkpoint", "n_rows", "fingerprint")
    outer = {name: more.pop(name) for name in names if name in more}
    objective = objective or LinearObjective(loss="logistic", n_features=X.shape[1])
    settings = RunSettings(
        budget=Budget(epsilon=epsilon, delta=delta),
        objective=objective,
        method=make_method(method, more),
        seed=3,
        **{"relation": Neighboring.ADD_REMOVE, "n_rows": max(len(X), 1), **outer},
    )
    return train(X, y, settings)


def blobs(rows=400, features=3, seed=0):
    """Return features in [0, 1] and labels that the first feature tells."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, features))
    return X, np.where(X[:, 0] + 0.2 * rng.normal(size=rows) > 0.5, 1.0, -1.0)
