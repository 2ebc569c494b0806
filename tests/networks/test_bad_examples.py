# SPDX-License-Identifier: Apache-2.0
"""What must not leak, and what must not stop a run that is paid for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from armijo.errors import UnsupportedModule
from armijo.networks.methods import NETWORK_METHODS
from tests.networks.network_doubles import (
    CLASSES,
    CROSS_ENTROPY,
    FEATURES,
    ROWS,
    STEPS,
    Pairs,
    examples,
    flat,
    network,
    prepared,
    two_inputs,
    words,
)

every_method = pytest.mark.parametrize("name", NETWORK_METHODS)


@pytest.fixture
def refused(tmp_path: Path) -> Any:
    """Return a check that a training is refused before its ledger is begun."""

    def refused(match: str, module: nn.Module | None = None, **more: Any) -> None:
        path = tmp_path / "run.ledger"
        with pytest.raises(ValueError, match=match):
            prepared(module, ledger=path, **more)
        assert not path.exists()

    return refused


def one_wrong(value: int, tensor: Tensor) -> Tensor:
    """Return a copy with one entry that is another."""
    changed = tensor.clone()
    changed[17] = value
    return changed


class TestIntegers:
    @pytest.mark.parametrize("value", [CLASSES, -1, 7])
    def test_a_class_that_the_loss_does_not_have(self, refused, value):
        X, y = examples()
        ends = rf"target 0 from {min(value, 0)} to {max(value, CLASSES - 1)}"
        match = f"{ends}.*IndexError.*Nothing was spent"
        refused(match, dataset=(X, one_wrong(value, y)))
        slow = nn.Sequential(network(), nn.PReLU())
        refused(match, slow, dataset=(X, one_wrong(value, y)))

    @pytest.mark.parametrize("value", [6, -1])
    def test_a_word_that_the_table_does_not_have(self, refused, value):
        X, y = examples()
        inputs = (X, one_wrong(value, words()))
        match = rf"input 1 from {min(value, 0)} to .*target 0 from 0 to {CLASSES - 1}"
        refused(match, two_inputs(), dataset=(inputs, y))

    @pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.int32])
    def test_all_kinds_of_integers_are_looked_at(self, refused, kind):
        X, y = examples()

        def loss(scores: Tensor, target: Tensor) -> Tensor:
            return CROSS_ENTROPY(scores, target.long())

        refused("from 0 to 9", dataset=(X, one_wrong(9, y).to(kind)), loss=loss)
        prepared(dataset=(X, y.to(kind)), loss=loss)

    def test_a_class_that_the_loss_ignores_is_taken(self):
        X, y = examples()
        prepared(dataset=(X, one_wrong(-100, y)), method="sgd").run()


class TestRowsThatRaise:
    @every_method
    def test_they_do_not_stop_a_run(self, name):
        X, y = examples()
        module = network()
        training = prepared(
            module, dataset=Pairs(X, one_wrong(7, y)), method=name, rate=1.0
        ).run()
        assert len(training.records) == training.accountant.n_charges == STEPS
        assert bool(torch.isfinite(flat(module)).all())

    def test_they_add_nothing(self):
        """The other examples are those of a run without them."""
        X, y = examples()
        keep = torch.arange(ROWS) != 17
        modules = [network(), network()]
        for module, data in zip(
            modules,
            (Pairs(X, one_wrong(7, y)), Pairs(X[keep], y[keep])),
            strict=True,
        ):
            prepared(module, dataset=data, method="sgd", rate=1.0, seed=4).run()
        assert torch.equal(flat(modules[0]), flat(modules[1]))


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
        module = nn.Sequential(Largest(100.0), network())
        prepared(module, dataset=(X, y), method=name, rate=1.0).run()
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
