# SPDX-License-Identifier: Apache-2.0
"""A damaged or malicious checkpoint is refused, and nothing in it is run."""

import io
import os
import pickle
import tempfile
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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

    def test_the_whole_file_is_taken(self):
        training, data = whole()
        found = self.load(training, data)
        assert found.records == training.records and found.charges == LEFT

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_a_truncated_file(self, data):
        training, complete = whole()
        length = data.draw(st.integers(0, len(complete) - 1))
        with pytest.raises(
            ArmijoError, match=r"is not a checkpoint.*nothing was spent"
        ):
            self.load(training, complete[:length])

    @settings(max_examples=40, deadline=None)
    @given(garbage=st.binary(max_size=200), like=st.sampled_from([b"", b"PK\x03\x04"]))
    def test_garbage(self, garbage, like):
        with pytest.raises(ArmijoError, match="is not a checkpoint"):
            self.load(whole()[0], like + garbage)

    @pytest.mark.parametrize("value", [[1], 3, "text", torch.zeros(3), {"a": 1}, None])
    def test_another_file_of_torch(self, value):
        file = io.BytesIO()
        torch.save(value, file)
        with pytest.raises(ArmijoError, match="is not a checkpoint"):
            self.load(whole()[0], file.getvalue())

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("version", 99),
            ("state", {}),
            ("state", None),
            ("records", [{"loss": 1.0}]),
            ("records", None),
            ("charges", "many"),
            ("evaluations", [1]),
        ],
    )
    def test_a_document_that_is_no_training(self, key, value):
        training, complete = whole()
        document, vectors = taken_apart(complete)
        with pytest.raises(ArmijoError, match="is not a checkpoint"):
            self.load(training, put_together(document | {key: value}, vectors))

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

    @pytest.mark.parametrize("write", [torch.save, pickle.dump])
    def test_a_file_that_would_run_code_does_not(self, tmp_path, write):
        marker = tmp_path / "executed"

        class Malicious:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(marker),)

        stopped(seeded("sgd", **files(tmp_path)), LEFT)
        checkpoint, ledger = files(tmp_path).values()
        before = ledger.read_bytes()
        with checkpoint.open("wb") as file:
            write({"format": "armijo-training", "run": Malicious()}, file)
        with pytest.raises(ArmijoError, match="is not a checkpoint"):
            seeded("sgd", resume=True, **files(tmp_path))
        assert not marker.exists() and ledger.read_bytes() == before
        if write is torch.save:  # the file does what it is feared for
            torch.load(checkpoint, weights_only=False)
            assert marker.exists()
