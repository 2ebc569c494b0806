# SPDX-License-Identifier: Apache-2.0
"""Slips of a user of ``armijo.train`` are told in our words, before any charge."""

import pytest
import torch
from torch import nn

import armijo
from armijo.errors import ArmijoError
from tests.networks.network_doubles import (
    BUDGET,
    CLASSES,
    CROSS_ENTROPY,
    FEATURES,
    ROWS,
    Pairs,
    examples,
    flat,
    network,
    prepared,
)

X, y = examples()


def told(make) -> str:
    """Return a refusal, which must be one of ours."""
    with pytest.raises(ValueError) as error:
        make()
    assert not isinstance(error.value, ArmijoError)
    return str(error.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n_rows": "2000"}, ("n_rows", "'2000'", "n_rows=2000")),
        ({"n_rows": 0}, ("n_rows", "got 0")),
        ({"n_rows": 40.0}, ("n_rows", "got 40.0")),
        ({"budget": 3.0}, ("budget", "armijo.Budget", "got 3.0")),
        ({"budget": (X, y)}, ("budget", "got tuple")),
        ({"budget": None}, ("budget", "epsilon", "delta")),
        ({"budget": None, "epsilon": 1.0}, ("epsilon=1.0 and delta=None",)),
        ({"epsilon": 1.0}, ("either a budget or epsilon",)),
        ({"dataset": (X.double(), y)}, ("float64", "inputs.to(torch.float32)")),
        ({"dataset": (X, y.float())}, ("float32 of shape (2,)", "labels.long()")),
        ({"dataset": (X, y.int())}, ("int32 of shape (2,)", "labels.long()")),
        ({"dataset": Pairs(X.double(), y)}, ("float64", "inputs.to(torch.float32)")),
        ({"dataset": Pairs(X, y.float())}, ("labels.long()",)),
        ({"device": "gpu"}, ("device", "'gpu'", "device='cpu'")),
        ({"seed": "1"}, ("seed", "got '1'")),
    ],
)
def test_a_slip_is_told_before_anything_is_spent(tmp_path, more, words):
    path, module = tmp_path / "run.ledger", network()
    before = flat(module)
    message = told(lambda: prepared(module, ledger=path, **more))
    assert message.endswith("Nothing was spent.")
    assert message.startswith("Expected ")
    assert all(word in message for word in words), message
    assert not path.exists() and torch.equal(before, flat(module))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(tmp_path):
    message = told(lambda: prepared(device="cuda", ledger=tmp_path / "run.ledger"))
    assert "device='cuda'" in message and "device='cpu'" in message
    assert message.endswith("Nothing was spent.")
    assert not (tmp_path / "run.ledger").exists()


@pytest.mark.parametrize("change", [torch.zeros_like, lambda one: one * torch.nan])
def test_a_wrong_type_is_told_without_looking_at_the_rows(change):
    """Nothing but public types decides: other values give the same words."""
    wrong = told(lambda: prepared(dataset=(X.double(), y)))
    assert told(lambda: prepared(dataset=(change(X.double()), y))) == wrong
    pairs = Pairs(X.double(), y)
    told(lambda: prepared(dataset=pairs, example=pairs.example()))
    assert pairs.events == []


def test_a_module_that_converts_its_inputs_is_taken():
    class Converts(nn.Linear):
        def forward(self, given):
            return super().forward(given.float())

    module = Converts(FEATURES, CLASSES)
    assert len(prepared(module, dataset=(X.double(), y), method="sgd").run().records)


def test_blank_rows_tell_of_a_wrong_type_too():
    message = told(lambda: armijo.blank_rows(network(), CROSS_ENTROPY, (X, y.float())))
    assert "labels.long()" in message


class TestTrain:
    def test_it_trains_and_returns_the_finished_run(self, capsys):
        module = network()
        before = flat(module)
        run = armijo.train(
            module,
            CROSS_ENTROPY,
            (X, y),
            BUDGET,
            method="sgd",
            steps=4,
            sampling_prob=0.5,
            evaluate=lambda _: 1.0,
            evaluate_every=2,
        )
        assert not torch.equal(before, flat(module))
        assert len(run.records) == len(run.privacy.ledger) == 4
        assert run.evaluations == [(2, 1.0), (4, 1.0)]
        assert (run.privacy.epsilon, run.privacy.delta) == (2.0, 1e-5)
        assert run.privacy.epsilon_spent == pytest.approx(2.0, rel=0.01)
        assert list(run) == []  # finished
        assert capsys.readouterr() == ("", "")

    def test_it_shows_a_bar_if_asked(self, capsys):
        armijo.train(
            network(),
            CROSS_ENTROPY,
            (X, y),
            BUDGET,
            method="sgd",
            steps=3,
            sampling_prob=0.5,
            progress=True,
        )
        assert "step 3 of 3" in capsys.readouterr().err

    def test_a_budget_is_one_object_or_two_numbers(self):
        modules = [network(), network()]
        prepared(modules[0], method="sgd", seed=3).run()
        two = {"budget": None, "epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
        run = prepared(modules[1], method="sgd", seed=3, **two).run()
        assert torch.equal(flat(modules[0]), flat(modules[1]))
        assert run.privacy.budget == BUDGET and run._named["n_rows"] == ROWS
