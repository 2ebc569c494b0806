# SPDX-License-Identifier: Apache-2.0
"""A damaged or malicious checkpoint is refused, and nothing in it is run."""

import tempfile
from functools import cache
from typing import Any

import pytest
import torch

from armijo.errors import ArmijoError
from armijo.networks.train import Trainer
from armijo.training.checkpoint import from_bytes
from tests.networks.checkpoint_doubles import LEFT, files, seeded, stopped
from tests.training.files import put_together, taken_apart


@cache
def whole() -> tuple[Trainer, bytes]:
    """Return a training and its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        training = stopped(seeded("adam", **files(folder)), LEFT)
        return training, files(folder)["checkpoint"].read_bytes()


class TestDamage:
    """Whatever the file holds, loading it raises one kind of error and runs nothing."""

    @staticmethod
    def load(training: Trainer, data: bytes) -> Any:
        start = training.method.init(training.objective.start())
        return from_bytes(data, path="run.pt", run=training._named, like=start)

    @pytest.mark.parametrize("field", ["w", "first_moment"])
    @pytest.mark.parametrize(
        "value",
        [
            torch.zeros(3),
            torch.zeros(43, dtype=torch.float64),
            torch.full((43,), float("nan")),
            "words",
        ],
    )
    def test_vectors_that_do_not_fit(self, field, value):
        training, complete = whole()
        document, vectors = taken_apart(complete)
        assert vectors[field].shape == (43,)
        if isinstance(value, str):
            document["state"][field] = value
        else:
            vectors[field] = value
        with pytest.raises(ArmijoError, match="is not a checkpoint"):
            self.load(training, put_together(document, vectors))
