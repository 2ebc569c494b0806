# SPDX-License-Identifier: Apache-2.0
"""An interrupted training goes on bit for bit, and pays for each batch once."""

import os
import shutil
import subprocess
import sys
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
from armijo.errors import ArmijoError, Diverged, RechargeWarning
from armijo.methods.base import StepRecord
from armijo.training import run as accounts
from tests.networks.checkpoint_doubles import LEFT, SEED, files, seeded, stopped
from tests.networks.network_doubles import (
    BUDGET,
    FEATURES,
    RATE,
    SAMPLED,
    STEPS,
    Pairs,
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
@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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


def test_the_order_of_the_filter_is_that_of_the_first_step(tmp_path, monkeypatch):
    """An order that follows the grown budgets of a resumed run would be no filter."""
    asked: list[Any] = []
    order_of = accounts._order_of_filter

    def noted(budget: Budget, step: Any) -> int:
        asked.append(step)
        return order_of(budget, step)

    monkeypatch.setattr(accounts, "_order_of_filter", noted)
    stopped(seeded("blsgd", **files(tmp_path)), 5)
    again = seeded("blsgd", resume=True, **files(tmp_path))
    assert again.state.gradient_rho > again.method.gradient_rho
    assert asked[0] == asked[1]


@every_method
def test_a_finished_run_resumes_to_its_end(name, tmp_path):
    seeded(name, **files(tmp_path)).run()
    module = network(dropout=0.3)
    again = seeded(name, module, resume=True, **files(tmp_path)).run()
    assert torch.equal(flat(module), uninterrupted(name)[0])
    assert again.records == uninterrupted(name)[1]
    assert charges(tmp_path / "run.ledger") == len(again.records)


def test_a_run_of_the_systems_randomness_goes_on_with_its_ledger(tmp_path):
    given = {"method": "sgd", **files(tmp_path)}
    stopped(prepared(**given), 2)
    again = prepared(resume=True, **given).run()
    assert [record.batch for record in again.records] == list(range(STEPS))
    assert again.privacy.guarantee.holds
    assert 0.95 * BUDGET.epsilon <= again.privacy.epsilon_spent <= BUDGET.epsilon


def test_a_checkpoint_alone_gets_a_ledger_beside_it(tmp_path):
    given = {"method": "sgd", "checkpoint": tmp_path / "run.pt"}
    stopped(prepared(**given), 2)
    assert charges(tmp_path / "run.pt.ledger") == 2
    again = prepared(resume=True, **given).run()
    assert again.accountant.n_charges == STEPS
    assert {one.name for one in tmp_path.iterdir()} >= {"run.pt", "run.pt.ledger"}


@every_method
def test_checkpoints_are_written_on_the_way(name, tmp_path):
    paths = files(tmp_path)
    written = []
    for _ in seeded(name, checkpoint_every=2, **paths):
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


@every_method
@pytest.mark.parametrize("seed", [SEED, None])
def test_steps_whose_key_is_gone_are_paid_again(name, seed, tmp_path):
    paths = killed(name, tmp_path, seed=seed)
    (tmp_path / "run.pt.key").unlink()
    with pytest.warns(RechargeWarning, match=r"after the checkpoint \(1\) are lost"):
        again = seeded(name, resume=True, seed=seed, **paths)
    again.run()
    afforded = charges(paths["ledger"])
    assert [record.batch for record in again.records] == [0, 1, *range(LEFT, afforded)]
    assert again.privacy.epsilon_spent <= again.accountant.budget.epsilon


@every_method
def test_an_unseeded_step_that_was_lost_is_redone_with_the_same_noise(name, tmp_path):
    paths = files(tmp_path)
    training = iter(seeded(name, checkpoint_every=2, seed=None, **paths))
    lost = [next(training) for _ in range(LEFT)][-1]
    shutil.copytree(tmp_path, tmp_path / "killed")
    training.close()
    again = seeded(name, resume=True, seed=None, **files(tmp_path / "killed")).run()
    assert again.records[LEFT - 1] == lost
    assert charges(tmp_path / "killed" / "run.ledger") == len(again.records)
    assert again.privacy.guarantee.holds == (name != "nonprivate")


@pytest.mark.parametrize("name", ["blsgd", "sgd"])
def test_a_charge_that_was_torn_is_written_anew(name, tmp_path):
    """The machine died while a charge was written, after the last checkpoint."""
    paths = killed(name, tmp_path)
    os.truncate(paths["ledger"], paths["ledger"].stat().st_size - 7)
    again = seeded(name, resume=True, **paths).run()
    view = read_ledger(paths["ledger"])
    assert not view.torn
    assert again.records == uninterrupted(name)[1]
    assert len(view.charges) == len(again.records)


def test_a_step_that_comes_to_another_result_is_not_seen(tmp_path):
    """Code that changed since the crash is no file that could be compared."""
    paths = killed("sgd", tmp_path)

    class Other(nn.CrossEntropyLoss):
        def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
            return 0.5 * super().forward(scores, targets)

    other = Other(reduction="none")
    other.__class__.__name__ = other.__class__.__qualname__ = "CrossEntropyLoss"
    module = network(dropout=0.3)
    again = seeded("sgd", module, resume=True, loss=other, **paths)
    before = [record.batch for record in again.records]
    with pytest.raises(ArmijoError, match=r"Step 2, redone .* another result"):
        again.run()
    assert [record.batch for record in again.records] == before == [0, 1]
    assert charges(paths["ledger"]) == LEFT


KILLED = """
import os, sys
from pathlib import Path
from tests.networks.network_doubles import *

class Deadly(Pairs):
    def __getitem__(self, number):
        if number == 0 and len(self.events) >= 2 * len(self):
            os._exit(9)
        return super().__getitem__(number)

folder = Path(sys.argv[1])
prepared(
    method="sgd", sampling_prob=1.0, dataset=Deadly(*examples()), checkpoint_every=1,
    checkpoint=folder / "run.pt", ledger=folder / "run.ledger",
).run()
"""


def test_a_process_killed_between_charge_and_step_leaves_no_ledger_short(tmp_path):
    source = Path(sys.modules["armijo"].__file__).parents[1]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{root}"},
        cwd=root,
        timeout=120,
        check=False,
    )
    assert done.returncode == 9
    paths = files(tmp_path)
    assert charges(paths["ledger"]) == 3
    given = {
        "method": "sgd",
        "sampling_prob": 1.0,
        "dataset": Pairs(*examples()),
        **paths,
    }
    again = prepared(resume=True, **given)
    assert len(again.records) == 2
    again.run()
    assert [record.batch for record in again.records] == [0, 1, 3, 4, 5]
    assert charges(paths["ledger"]) == STEPS


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

    def test_no_checkpoint(self, paths, tmp_path):
        self.refused(paths, "is not a checkpoint", checkpoint=tmp_path / "none.pt")

    def test_a_ledger_of_another_run_with_the_same_settings(self, paths, tmp_path):
        other = tmp_path / "other.ledger"
        stopped(seeded("nonprivate", ledger=other), LEFT + 1)
        self.refused(paths, "belongs to the ledger", ledger=other)

    def test_an_old_copy_of_the_ledger(self, paths, tmp_path):
        copy = tmp_path / "copy.ledger"
        shutil.copy(paths["ledger"], copy)
        stopped(seeded("nonprivate", resume=True, **paths), 1)
        shutil.copy(copy, paths["ledger"])
        self.refused(paths, f"after {LEFT + 1} charges.*holds {LEFT}")

    def test_a_ledger_that_is_gone(self, paths, tmp_path):
        gone = tmp_path / "gone.ledger"
        self.refused(paths, "is not there", ledger=gone)
        assert not gone.exists()

    def test_the_ledger_is_free_again_after_a_refusal(self, paths, tmp_path):
        self.test_a_ledger_of_another_run_with_the_same_settings(paths, tmp_path)
        other = seeded("nonprivate", ledger=tmp_path / "other.ledger")
        assert other.accountant.n_charges == LEFT + 1


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
