# SPDX-License-Identifier: Apache-2.0
"""An interrupted training goes on bit for bit, and pays for each batch once."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from armijo.accounting.budget import Budget
from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError, Diverged
from armijo.methods.base import StepRecord
from tests.networks.checkpoint_doubles import LEFT, SEED, files, seeded, stopped
from tests.networks.network_doubles import (
    FEATURES,
    RATE,
    SAMPLED,
    STEPS,
    examples,
    flat,
    network,
    prepared,
)
from tests.training.files import taken_apart

every_method = pytest.mark.parametrize("name", SAMPLED)


@cache
def uninterrupted(name: str) -> tuple[Tensor, list[StepRecord], list[Any]]:
    training = seeded(
        name, evaluate=lambda module: float(flat(module).sum()), evaluate_every=2
    ).run()
    return flat(training.objective.module), training.records, training.evaluations


def half_frozen() -> nn.Module:
    module = network(dropout=0.3)
    module[0].bias.requires_grad_(False)
    return module


def charges(ledger: Path) -> int:
    view = read_ledger(ledger)
    assert [charge.index for charge in view.charges] == list(range(len(view.charges)))
    return len(view.charges)


@every_method
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.sets(st.integers(1, STEPS), min_size=1, max_size=2).map(sorted))
def test_a_run_that_was_stopped_ends_where_it_would_have(name, stops):
    w, records, evaluations = uninterrupted(name)
    hook = {"evaluate": lambda m: float(flat(m).sum()), "evaluate_every": 2}
    with tempfile.TemporaryDirectory() as folder:
        paths, done = files(folder), 0
        for stop in stops:
            if stop > len(records):  # an adapted run ends earlier
                break
            part = seeded(name, resume=done > 0, **hook, **paths)
            stopped(part, stop - done)
            assert charges(paths["ledger"]) == len(part.records) == stop
            done = stop
        module = network(dropout=0.3)
        again = seeded(name, module, resume=done > 0, **hook, **paths).run()
        assert torch.equal(flat(module), w)
        assert again.records == records
        assert again.evaluations == evaluations
        assert charges(paths["ledger"]) == len(records)


def test_the_adapted_run_did_adapt():
    _, records, _ = uninterrupted("blsgd")
    assert records[-1].gradient_rho > records[0].gradient_rho
    assert any(record.step_size == 0 for record in records[:-1])


def test_checkpoints_are_written_on_the_way(tmp_path):
    paths = files(tmp_path)
    written = []
    for _ in seeded("sgd", checkpoint_every=2, **paths):
        found = paths["checkpoint"]
        written.append(
            len(taken_apart(found.read_bytes())[0]["records"]) if found.exists() else 0
        )
    assert written[:5] == [0, 2, 2, 4, 4]


def killed(name: str, folder: Path, **more: Any) -> dict[str, Path]:
    """Leave the files of a process that died after paying: the checkpoint is older."""
    paths = files(folder)
    training = iter(seeded(name, checkpoint_every=2, **paths, **more))
    for _ in range(LEFT):
        next(training)
    shutil.copy(paths["checkpoint"], folder / "older.pt")
    training.close()
    shutil.copy(folder / "older.pt", paths["checkpoint"])
    return paths


@every_method
def test_steps_that_were_lost_are_redone_and_not_paid_again(name, tmp_path):
    paths = killed(name, tmp_path)
    module = network(dropout=0.3)
    again = seeded(name, module, resume=True, **paths).run()
    w, records, _ = uninterrupted(name)
    assert torch.equal(flat(module), w)
    assert again.records == records
    assert charges(paths["ledger"]) == len(records)
    assert not list(tmp_path.glob("*.key"))


class TestRefused:
    """Another run's files are refused, and the ledger is left as it is.

    The method is the one whose noise need not be solved.
    """

    @pytest.fixture
    def paths(self, tmp_path: Path) -> dict[str, Path]:
        stopped(seeded("nonprivate", **files(tmp_path)), LEFT)
        return files(tmp_path)

    @staticmethod
    def refused(paths: dict[str, Path], match: str, *given: Any, **more: Any) -> None:
        before = paths["ledger"].read_bytes()
        more = {"name": "nonprivate", "resume": True} | paths | more
        with pytest.raises((ArmijoError, ValueError), match=match) as error:
            seeded(more.pop("name"), *given, **more)
        assert "othing was spent" in str(error.value)
        assert paths["ledger"].read_bytes() == before

    @pytest.mark.parametrize(
        "module",
        [
            nn.Linear(FEATURES, 4),
            nn.Sequential(nn.Identity(), *network(dropout=0.3)),  # as many parameters
            half_frozen(),
        ],
    )
    def test_another_model(self, paths, module):
        self.refused(paths, "another run: model is", module)

    def test_another_type_of_numbers(self, paths):
        double = network(torch.float64, dropout=0.3)
        given = {"dataset": examples(torch.float64)}
        self.refused(paths, "another run: model is", double, **given)

    def test_another_frozen_layer(self, tmp_path):
        modules = []
        for shift in (0.0, 1.0):
            module = network()
            module[0].requires_grad_(False).weight.data += shift
            modules.append(module)
        paths = files(tmp_path)
        stopped(seeded("nonprivate", modules[0], **paths), LEFT)
        self.refused(paths, "another run: model is", modules[1])

    @pytest.mark.parametrize(
        ("more", "match"),
        [
            ({"name": "adam"}, "method is 'nonprivate' there and 'adam' here"),
            ({"steps": STEPS + 1}, "steps is"),
            ({"sampling_prob": RATE / 2}, "sampling_prob is"),
            ({"budget": Budget(epsilon=3.0, delta=1e-5)}, "epsilon is"),
            ({"budget": Budget(epsilon=2.0, delta=1e-6)}, "delta is"),
            ({"options": {"step_size": 0.5}}, "method is"),
            ({"l2": 0.1}, "l2 is"),
            ({"n_rows": 41}, "n_rows is"),
            ({"isolate": True}, "arithmetic is"),
            ({"seed": SEED + 1}, "seed is"),
            ({"seed": None}, "seed is"),
        ],
    )
    def test_other_settings(self, paths, more, match):
        self.refused(paths, match, **more)


def huge_network() -> nn.Module:
    """Return a network whose parameters are near the end of their type."""
    module = network()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(3e38)
    return module


def test_a_run_that_diverges_ends_and_leaves_its_ledger_only(tmp_path):
    training = prepared(
        huge_network(), method="sgd", options={"step_size": 3e38}, **files(tmp_path)
    )
    with pytest.raises(Diverged, match=r"\d charges .* stay spent"):
        training.run()
    charged = len(read_ledger(files(tmp_path)["ledger"]).charges)
    assert 0 < charged == training.accountant.n_charges < STEPS
    assert set(os.listdir(tmp_path)) == {"run.ledger", "run.ledger.lock"}
    assert torch.isfinite(flat(training.objective.module)).all()


def test_parameters_whose_sum_is_too_large_are_no_divergence():
    training = prepared(huge_network(), method="sgd").run()
    assert len(training.records) == STEPS
