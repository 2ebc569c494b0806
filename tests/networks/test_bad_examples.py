# SPDX-License-Identifier: Apache-2.0
"""What must not leak, and what must not stop a run that is paid for."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import armijo
from armijo.errors import UnsupportedModule
from tests.networks.network_doubles import (
    CLASSES,
    CROSS_ENTROPY,
    FEATURES,
    SAMPLED,
    STEPS,
    Pairs,
    examples,
    flat,
    network,
    prepared,
    two_inputs,
    words,
)

every_method = pytest.mark.parametrize("name", SAMPLED)


def one_wrong(value: int, tensor: Tensor) -> Tensor:
    """Return a copy with one entry that is another."""
    changed = tensor.clone()
    changed[17] = value
    return changed


BAD = 17


def spoiled(kind: str) -> tuple[Any, Any]:
    """Return examples of which one cannot be used."""
    X, y = examples()
    if kind in ("nan", "inf"):
        X[BAD, 1] = float(kind)
    else:
        y[BAD] = {"no class": CLASSES, "negative": -1}[kind]
    return X, y


class TestBlanks:
    """One row's content never raises, warns or tells; it adds nothing."""

    @every_method
    @pytest.mark.parametrize("kind", ["nan", "no class"])
    def test_they_do_not_stop_a_run(self, name, kind):
        module = network()
        training = prepared(
            module, dataset=spoiled(kind), method=name, sampling_prob=1.0
        ).run()
        assert len(training.records) == training.accountant.n_charges == STEPS
        assert bool(torch.isfinite(flat(module)).all())

    @pytest.mark.parametrize("kind", ["nan", "inf", "no class", "negative"])
    def test_all_kinds_of_blanks_are_the_same(self, kind):
        modules = [network(), network()]
        for module, bad in zip(modules, ("no class", kind), strict=True):
            data = spoiled(bad)
            prepared(
                module, dataset=data, method="blsgd", sampling_prob=1.0, seed=4
            ).run()
        assert torch.equal(flat(modules[0]), flat(modules[1]))

    def test_words_that_the_table_does_not_have(self):
        X, y = examples()
        inputs = (X, one_wrong(6, words()))
        prepared(two_inputs(), dataset=(inputs, y), method="sgd").run()

    @pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
    def test_other_kinds_of_integers(self, kind):
        X, y = examples()

        def loss(scores: Tensor, target: Tensor) -> Tensor:
            return CROSS_ENTROPY(scores, target.long())

        data = (X, one_wrong(9, y).to(kind))
        prepared(dataset=data, loss=loss, method="sgd").run()

    def test_examples_that_cannot_be_read_or_have_another_shape(self):
        class Broken(Pairs):
            def __getitem__(self, number: int) -> Any:
                x, y = super().__getitem__(number)
                if number == 3:
                    raise OSError("a corrupt file, named after a person")
                return {5: (x[:2], y), 7: (x.double(), y), 9: (x, y, 1)}.get(
                    number, (x, y)
                )

        runs = []
        for data in (Broken(*examples()), Pairs(*examples())):
            X = data.X.clone()
            if type(data) is Pairs:
                X[[3, 5, 7, 9]] = torch.nan
                data.X = X
            module = network()
            prepared(
                module, dataset=data, method="sgd", sampling_prob=1.0, seed=4
            ).run()
            runs.append(flat(module))
        assert torch.equal(*runs)

    def test_their_owner_is_told_by_name(self):
        X, y = examples()
        X[2, 0], y[BAD] = torch.nan, CLASSES
        assert armijo.blank_rows(network(), CROSS_ENTROPY, (X, y)) == [2, BAD]
        pairs = Pairs(X, y)
        found = armijo.blank_rows(
            network(), CROSS_ENTROPY, pairs, example=pairs.example()
        )
        assert found == [2, BAD]


class Largest(nn.Module):
    """Keeps the largest input it saw beyond all that is made up."""

    def __init__(self, beyond: float) -> None:
        super().__init__()
        self.beyond = beyond
        self.register_buffer("value", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > self.beyond:
            self.value.copy_(torch.maximum(self.value, x.detach().max()))
        return x


class TestBuffers:
    def test_a_layer_that_keeps_an_exact_value_is_refused(self, refused):
        refused(r"buffers 0\.value", nn.Sequential(Largest(0.0), network()))

    @every_method
    def test_nothing_is_kept_of_an_example(self, name):
        X, y = examples()
        X[5] = 1e4
        module = nn.Sequential(Largest(math.inf), network())
        training = prepared(module, dataset=(X, y), method=name, sampling_prob=1.0)
        module[0].beyond = 100.0  # after the probe, which would have seen it
        training.run()
        assert module[0].value == 0


class TestLosses:
    def test_a_loss_that_mixes_examples_is_refused(self, refused):
        def contrast(scores: Tensor, target: Tensor) -> Tensor:
            places = torch.arange(len(scores))
            return functional.cross_entropy(scores @ target.T, places, reduction="none")

        X, _ = examples()
        refused("loss mixes examples", dataset=(X, X[:, :CLASSES]), loss=contrast)
        refused("loss mixes examples", dataset=Pairs(X, X[:, :CLASSES]), loss=contrast)

    def test_the_refusal_is_of_its_own_kind(self):
        def mean(scores: Tensor, target: Tensor) -> Tensor:
            return CROSS_ENTROPY(scores, target) / len(scores)

        with pytest.raises(UnsupportedModule):
            prepared(nn.Linear(FEATURES, CLASSES), loss=mean)
