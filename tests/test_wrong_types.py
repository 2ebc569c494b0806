# SPDX-License-Identifier: Apache-2.0
"""A value of a wrong type for any public parameter is refused in words of ours."""

import inspect
import math
import os

import numpy as np
import pytest
import torch

import armijo
from armijo import Budget, PrivateLinearSVC, solve, train

X = np.random.default_rng(0).uniform(size=(60, 2))
LABELS = (X[:, 0] > 0.5).astype(int)
WRONG = ("2000", 0, -1, 1.5, math.nan, None, [1], object())
SHARED = {
    "n_rows": 60,
    "epsilon": 1.0,
    "delta": 1e-5,
    "method": armijo.DPSGD(steps=2, sampling_prob=0.5),
}


def fitted(**given):
    fine = {**SHARED, "classes": [0, 1], "random_state": 1}
    PrivateLinearSVC(**{**fine, **given}).fit(X, LABELS)


def solved(**given):
    rows = {"X": X, "y": 2.0 * LABELS - 1}
    solve(**{**SHARED, **rows, "seed": 1, **given})


def trained(**given):
    torch.manual_seed(0)  # equal modules are probed once
    fine = {
        "model": torch.nn.Linear(2, 2),
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
        "dataset": (torch.from_numpy(X).float(), torch.from_numpy(LABELS)),
        "seed": 1,
        "evaluate_every": 1,
    }
    train(**{**SHARED, **fine, **given})


def spendable(**given):
    Budget(**{"epsilon": 1.0, "delta": 1e-5, **given})


CALLS = {fitted: PrivateLinearSVC, solved: solve, trained: train, spendable: Budget}
PARAMETERS = [
    (call, name)
    for call, subject in CALLS.items()
    for name in inspect.signature(subject).parameters
]


@pytest.mark.filterwarnings("ignore::armijo.PrivacyLeakWarning")
@pytest.mark.parametrize(("call", "name"), PARAMETERS)
def test_a_wrong_value_works_or_is_refused_in_words(call, name, tmp_path, monkeypatch):
    refused = 0
    for number, wrong in enumerate(WRONG):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            call(**{name: wrong})
        except (ValueError, armijo.ArmijoError) as refusal:
            refused += 1
            assert "Expected" in str(refusal), f"{name}={wrong!r}: {refusal}"
            assert not os.listdir(folder), f"{name}={wrong!r} left a file"
    assert refused or name == "example"  # which tensors do not need


def test_arrays_in_place_of_tensors_are_named():
    with pytest.raises(ValueError, match=r"got ndarray; convert.*torch\.from_numpy"):
        trained(dataset=(X, LABELS))
