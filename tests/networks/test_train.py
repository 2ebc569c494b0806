# SPDX-License-Identifier: Apache-2.0
"""``armijo.train``: what reaches the gate, what is refused before, what comes out."""

import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import armijo
from armijo.accounting.budget import Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.data import gate
from armijo.errors import BudgetExceeded
from armijo.methods import DPSGD, StepRecord
from armijo.registry import network_method
from tests.networks.network_doubles import (
    CLASSES,
    CROSS_ENTROPY,
    FEATURES,
    RATE,
    ROWS,
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


def spied(training: Any, events: list[Any]) -> Any:
    """Let the accountant of a training write down its charges."""
    charge = training.accountant.charge

    def noted(*given: Any, **named: Any) -> Any:
        index = charge(*given, **named)
        events.append("charge")
        return index

    training.accountant.charge = noted
    return training


class TestGate:
    @every_method
    def test_each_batch_is_paid_before_an_example_is_read(self, name):
        events: list[Any] = []
        training = prepared(method=name, dataset=Pairs(*examples(), events), seed=2)
        assert events == []  # shapes are public
        for number, _ in enumerate(spied(training, events), start=1):
            assert events[0] == "charge"
            assert events.count("charge") == 1
            assert events[1:] == sorted(set(events[1:]))
            assert training.accountant.n_charges == number
            events.clear()
        assert number == STEPS

    def test_a_batch_that_is_not_paid_for_is_not_read(self):
        pairs = Pairs(*examples())
        training = prepared(method="sgd", dataset=pairs)

        def refuses(*given: Any, **named: Any) -> int:
            raise BudgetExceeded("no")

        training.accountant.charge = refuses
        pairs.events.clear()
        assert list(training) == [] and pairs.events == []

    @every_method
    def test_an_empty_batch_is_a_batch_like_any_other(self, name, monkeypatch):
        pairs = Pairs(*examples())
        training = prepared(method=name, dataset=pairs)
        nobody = np.zeros(0, dtype=np.int64)
        monkeypatch.setattr(gate.PoissonRows, "chosen", lambda *given: nobody)
        before = flat(training.objective.module)
        pairs.events.clear()
        training.run()
        assert pairs.events == []
        assert len(training.records) == training.accountant.n_charges == STEPS
        after = flat(training.objective.module)
        assert bool(torch.isfinite(after).all())
        assert torch.equal(before, after) == (name == "nonprivate")

    def test_a_dataset_that_changes_its_length_is_refused_before_it_is_paid(self):
        pairs = Pairs(*examples())
        training = prepared(method="sgd", dataset=pairs)
        steps = iter(training)
        next(steps)
        pairs.length -= 1
        pairs.events.clear()
        with pytest.raises(ValueError, match="unchanged length") as error:
            next(steps)
        # How many rows there are is private.
        assert not any(mark.isdigit() for mark in str(error.value))
        assert training.accountant.n_charges == 1 and pairs.events == []

    @every_method
    def test_a_dataset_and_its_tensors_give_the_same_run(self, name):
        first, second = network(), network()
        given = {"method": name, "seed": 6}
        tensors = prepared(first, **given).run()
        pairs = prepared(second, dataset=Pairs(*examples()), **given).run()
        assert torch.equal(flat(first), flat(second))
        assert not torch.equal(flat(first), flat(network()))
        assert tensors.records == pairs.records

    @pytest.mark.parametrize("name", ["blsgd", "hyfree"])
    def test_several_inputs_and_targets(self, name):
        X, y = examples()
        weights = torch.linspace(0.5, 1.5, ROWS)

        def weighted(scores, targets):
            return CROSS_ENTROPY(scores, targets[0]) * targets[1]

        given = {"method": name, "seed": 6, "loss": weighted}
        first, second = two_inputs(), two_inputs()
        prepared(first, dataset=((X, words()), (y, weights)), **given).run()
        rows = [
            ((X[i], words()[i]), (y[i], weights[i]))  # as a user's list would be
            for i in range(ROWS)
        ]
        given["example"] = rows[0]
        prepared(second, dataset=rows, **given).run()
        assert torch.equal(flat(first), flat(second))
        assert not torch.equal(first.words.weight, two_inputs().words.weight)

    def test_the_systems_randomness_does_not_repeat(self):
        first, second = network(), network()
        for module in (first, second):
            prepared(module, method="sgd").run()
        assert not torch.equal(flat(first), flat(second))


@every_method
def test_frozen_layers_stay_as_they_are(name):
    module = network()
    module[0].requires_grad_(False)
    before, head = flat(module[0]), flat(module[2])
    training = prepared(module, method=name).run()
    assert torch.equal(before, flat(module[0]))
    assert not torch.equal(head, flat(module[2]))
    assert training.objective.size == head.numel()


def test_dropout_masks_repeat_within_a_batch_and_differ_between_batches():
    module = network(dropout=0.5)
    masks: list[torch.Tensor] = []
    module[2].register_forward_hook(lambda *call: masks.append(call[2] == 0))
    training = prepared(
        module,
        method="blsgd",
        sampling_prob=1.0,
        seed=1,
        options={"initial_step": 50.0},
    )
    masks.clear()
    seen = []
    for record in training:
        assert len(masks) == 1 + record.tries
        assert all(torch.equal(mask, masks[0]) for mask in masks)
        seen.append(masks[0])
        masks.clear()
    assert max(record.tries for record in training.records) > 1
    assert 0.2 < seen[0].float().mean() < 0.8
    assert all(not torch.equal(one, other) for one, other in pairwise(seen))


class TestRefused:
    """Nothing is spent: the ledger is not even begun."""

    def test_layers_that_mix_examples(self, refused):
        module = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5))
        refused(r"Layer 1 is a BatchNorm1d.*GroupNorm", module)

    def test_a_batch_norm_that_is_fixed_is_taken(self):
        module = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
        module[0].eval().requires_grad_(False)
        statistics = module[0].running_mean.clone()
        prepared(module, method="sgd", evaluate=lambda _: 0.0, evaluate_every=1).run()
        assert torch.equal(module[0].running_mean, statistics)
        assert not module[0].training and module[1].training

    @pytest.mark.parametrize(
        ("loss", "found"),
        [
            (lambda s, y: CROSS_ENTROPY(s, y)[:, None], r"\(2, 1\)"),
            (lambda s, y: CROSS_ENTROPY(s, y).mean(), r"\(\)"),
            (lambda s, y: 1.0, "float"),
            (nn.CrossEntropyLoss(), r"\(\)"),
        ],
    )
    def test_a_loss_that_is_not_one_number_for_each_example(self, refused, loss, found):
        refused(f"one loss for each example.*got {found}", loss=loss)

    def test_nothing_to_train(self, refused):
        refused("parameters to train", network().requires_grad_(False))
        refused("parameters to train", nn.Flatten())

    @pytest.mark.parametrize(
        ("dataset", "match"),
        [
            ((torch.zeros(0, FEATURES), torch.zeros(0).long()), "at least one example"),
            (list(zip(*examples(), strict=True)), "example="),
            (iter([1, 2]), "pair of tensors or a dataset"),
            ((examples()[0], examples()[1][:7]), "as many targets as inputs"),
            ((examples()[0].numpy(), examples()[1]), "got ndarray"),
        ],
    )
    def test_data_that_are_no_examples(self, refused, dataset, match):
        refused(match, dataset=dataset)

    @pytest.mark.parametrize(
        ("more", "match"),
        [
            ({"sampling_prob": 0.0}, "sampling_prob"),
            ({"sampling_prob": 2.0}, "sampling_prob"),
            ({"steps": 0}, "steps"),
            ({"l2": -1.0}, "l2"),
            ({"checkpoint_every": 0}, "checkpoint_every"),
            ({"evaluate_every": 0}, "evaluate_every"),
            ({"method": "adagrad"}, "adagrad"),
            ({"method": "sgd", "options": {"momentum": 1}}, "momentum.*was spent"),
            ({"seed": -1}, "seed"),
            ({"resume": True}, "checkpoint to resume from"),
        ],
    )
    def test_bad_settings(self, tmp_path, more, match):
        path = tmp_path / "run.ledger"
        with pytest.raises(ValueError, match=match):
            prepared(ledger=path, **more)
        assert not path.exists() or read_ledger(path).charges == ()

    def test_a_checkpoint_that_could_not_be_written(self, refused, tmp_path):
        refused("folder that exists", checkpoint=tmp_path / "no" / "run.pt")

    def test_a_budget_that_is_used_up(self, tmp_path):
        given = {"method": "sgd", "ledger": tmp_path / "run.ledger"}
        prepared(**given).run()
        pairs = Pairs(*examples())
        with pytest.raises(BudgetExceeded, match=rf"{STEPS} charges.*Nothing more"):
            prepared(dataset=pairs, **given)
        assert pairs.events == []
        assert len(read_ledger(given["ledger"]).charges) == STEPS


class TestDefaults:
    def test_batches_and_passes(self):
        training = armijo.Trainer(
            network(), CROSS_ENTROPY, examples(), prepared().accountant.budget
        )
        assert (training.method.sampling_prob, training.method.steps) == (1.0, 100)
        assert type(training.method).__name__ == "AutoNetwork"
        budget = training.accountant.budget
        for rows, sampling_prob, steps in ((1_000_000, 0.01, 1_000), (2_560, 0.1, 100)):
            for method in ("sgd", DPSGD()):
                found, most = network_method(method, budget, n_rows=rows)
                assert (found.sampling_prob, found.steps) == (sampling_prob, steps)
                assert most == steps

    def test_a_blank_keeps_its_place_unless_examples_are_isolated(self):
        given = {"method": "sgd"}
        for n_rows in (None, ROWS):
            privacy = prepared(n_rows=n_rows, **given).privacy
            assert privacy.relation is Neighboring.ZERO_OUT
            assert "row-wise kernels: tested" in str(privacy)
        alone = {**given, "isolate": True, "relation": "add-remove"}
        isolated = prepared(**alone).run().privacy
        assert isolated.relation is Neighboring.ADD_REMOVE
        assert isolated.guarantee.assumptions == () and isolated.guarantee.holds
        for more in ({"isolate": False}, {"n_rows": None}):
            with pytest.raises(ValueError, match=r"isolate=True and n_rows.*Nothing"):
                prepared(**(alone | more))

    def test_the_device_is_where_the_model_goes(self):
        module = network()
        training = prepared(module, method="sgd", device="cpu", seed=3).run()
        again = network()
        prepared(again, method="sgd", device=torch.device("cpu"), seed=3).run()
        assert torch.equal(flat(module), flat(again))
        assert training.objective.device == torch.device("cpu")

    def test_examples_go_where_the_model_is(self):
        """Another device that every machine has: one that nothing can leave.

        Left there, the examples would meet the model with another message of torch.
        """
        elsewhere = tuple(one.to("meta") for one in examples())
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            prepared(dataset=elsewhere, method="sgd").run()


def test_training_a_network_does_without_scikit_learn():
    code = "import armijo, sys; armijo.train; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("seed", [None, 1])
def test_a_seeded_run_has_no_guarantee_and_says_so(seed):
    trainer = prepared(method="sgd", seed=seed)
    assert trainer.privacy.guarantee.holds is (seed is None)
    assert ("NO GUARANTEE" in repr(trainer)) is (seed is not None)


class TestRecords:
    @every_method
    def test_only_what_was_released(self, name):
        """Another dataset changes nothing but what the mechanisms answered."""
        X, y = examples()
        other = (X.flip(1) * 3, (y + 1) % CLASSES)
        runs = [
            prepared(method=name, dataset=data, seed=5, sampling_prob=1.0).run()
            for data in ((X, y), other)
        ]
        names = {field.name for field in fields(StepRecord)}
        for first, second in zip(*(run.records for run in runs), strict=True):
            changed = {
                key for key in names if getattr(first, key) != getattr(second, key)
            }
            answered = {"direction_norm"}
            if name in ("blsgd", "hyfree"):
                answered |= {"step_size", "tries", "initial_step", "loss_clip", "angle"}
            assert changed <= answered
        assert any(a != b for a, b in zip(*(run.records for run in runs), strict=True))

    def test_the_norm_is_that_of_the_released_direction(self):
        module = network()
        before = flat(module)
        for record in prepared(module, method="sgd", sampling_prob=RATE):
            moved = (flat(module) - before).norm() / record.step_size
            assert record.direction_norm == pytest.approx(float(moved), rel=1e-4)
            before = flat(module)

    def test_batches_and_updates_are_counted(self):
        records = prepared(method="hyfree").run().records
        assert [r.batch for r in records] == [r.update for r in records]
        assert [r.batch for r in records] == list(range(STEPS))
        spent = [r.epsilon for r in records]
        assert spent == sorted(spent) and spent[0] > 0


class TestWatching:
    def test_the_hook_sees_the_latest_parameters_in_eval_mode(self):
        module = network(dropout=0.5)
        seen: list[tuple[bool, torch.Tensor]] = []

        def hook(given: nn.Module) -> float:
            assert given is module
            seen.append((any(one.training for one in given.modules()), flat(given)))
            return float(len(seen))

        training = prepared(module, method="sgd", evaluate=hook, evaluate_every=2)
        path = [flat(module) for _ in training]
        assert training.evaluations == [(2, 1.0), (4, 2.0), (6, 3.0)]
        assert [mode for mode, _ in seen] == [False] * 3
        for (_, found), expected in zip(seen, path[1::2], strict=True):
            assert torch.equal(found, expected)
        assert not torch.equal(path[0], path[1])
        assert all(one.training for one in module.modules())

    def test_a_hook_that_leaves_eval_mode_behind_changes_nothing(self):
        modules = [network(dropout=0.5) for _ in range(2)]
        for module, hook in zip(modules, (None, lambda m: m.eval() and 0), strict=True):
            prepared(
                module, method="sgd", seed=1, evaluate=hook, evaluate_every=1
            ).run()
        assert torch.equal(flat(modules[0]), flat(modules[1]))

    def test_a_bar_on_standard_error(self, capsys):
        prepared(method="sgd", progress=True).run()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"step {STEPS} of {STEPS}" in shown.err
        assert "step size 0.2, epsilon 2" in shown.err
        prepared(method="sgd").run()
        assert capsys.readouterr() == ("", "")
