# SPDX-License-Identifier: Apache-2.0
"""Runs with a key: what a crash cut off is redone bit for bit, or paid again."""

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError, LedgerError, RechargeWarning
from armijo.objectives import LinearObjective
from armijo.registry import METHODS, make_method
from armijo.training import run as run_module
from armijo.training.replay import key_path
from tests.methods.test_contract import FEATURES, ROWS, options_of, rows_of
from tests.training.files import put_together, taken_apart
from tests.training.runs import RunSettings, train

ONE_RELEASE = """outpert-rsgd outpert-gd objpert objpert-kst objpert-pure amp sgd-tuned
majority nonprivate""".split()


def settings_of(folder: Path, name: str = "blsgd", **changes) -> RunSettings:
    settings = RunSettings(
        budget=Budget(epsilon=2.0, delta=1e-5),
        objective=LinearObjective(loss="logistic", n_features=FEATURES),
        method=make_method(name, options_of(name)),
        n_rows=ROWS,
        relation=Neighboring.ADD_REMOVE,
        ledger=folder / "run.ledger",
        checkpoint=folder / "run.json",
    )
    return dataclasses.replace(settings, **changes)


def crashed(folder: Path, name: str = "blsgd", *, batches=4, rows=None, **changes):
    """Return a whole run, and the settings of one that died when it had shown some.

    The dead one has the key and the first checkpoint of the whole one.
    """
    whole, dead = folder / "whole", folder / "dead"
    whole.mkdir()

    def die(record):
        if record.batch == batches - 1:
            shutil.copytree(whole, dead)

    rows = rows_of() if rows is None else rows
    found = train(*rows, settings_of(whole, name, **changes), callback=die)
    settings = settings_of(dead, name, **changes)
    assert len(read_ledger(settings.ledger).charges) == batches
    return found, settings


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch):
    """Leave the first checkpoint only, so that everything is redone."""
    monkeypatch.setattr(run_module, "_SAVE_EVERY", math.inf)


def assert_same(result, whole, settings):
    assert result.w.tobytes() == whole.w.tobytes()
    assert result.records == whole.records
    view = read_ledger(settings.ledger)
    assert len(view.charges) == whole.accountant.n_charges
    assert view.spent == tuple(whole.accountant.spent)
    assert not key_path(settings.checkpoint).exists()


SOLVED_LONG = ("hyfree", "sgd-tuned", "agd")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.slow] if one in SOLVED_LONG else [])
        for one in METHODS
    ],
)
def test_every_method_redoes_its_steps_bit_for_bit(tmp_path, name):
    whole, settings = crashed(tmp_path, name, batches=1 if name in ONE_RELEASE else 3)
    result = train(*rows_of(), settings, resume=True)
    assert_same(result, whole, settings)
    assert result.accountant.guarantee.holds == (name != "nonprivate")


@pytest.mark.parametrize(
    "kind", [sparse.csr_matrix, np.float32, np.asfortranarray, "memmap"]
)
def test_rows_of_every_kind_are_known_again(tmp_path, kind):
    X, y = rows_of()

    def rows():
        if kind == "memmap":
            np.save(tmp_path / "X.npy", X)
            return np.load(tmp_path / "X.npy", mmap_mode="r"), y
        return kind(X), y

    whole, settings = crashed(tmp_path, rows=rows(), max_batches=6)
    assert_same(train(*rows(), settings, resume=True), whole, settings)


def test_a_crash_while_redoing_changes_nothing(tmp_path):
    whole, settings = crashed(tmp_path, batches=6, max_batches=9)
    first = settings.checkpoint.read_bytes()

    def die_again(record):
        if record.batch == 2:
            raise MemoryError

    for _ in range(3):
        with pytest.raises(MemoryError):
            train(*rows_of(), settings, callback=die_again, resume=True)
        assert len(read_ledger(settings.ledger).charges) == 6
        assert taken_apart(settings.checkpoint.read_bytes())[0]["charges"] == 3
        settings.checkpoint.write_bytes(first)  # killed, it would not have been saved
    assert_same(train(*rows_of(), settings, resume=True), whole, settings)


def changed_rows():
    X, y = rows_of()
    X[17, 1] = np.nextafter(X[17, 1], 2.0)
    return X, y


@pytest.mark.parametrize(
    ("rows", "changes", "reason"),
    [(changed_rows, {}, "the rows"), (rows_of, {"max_batches": 5}, "the settings")],
)
def test_other_rows_or_settings_are_paid_again_with_a_fresh_key(
    tmp_path, rows, changes, reason
):
    """With the key of the run they would get the noise of other values."""
    _, settings = crashed(tmp_path, max_batches=6)
    settings = dataclasses.replace(settings, **changes)
    names = {one.key for one in read_ledger(settings.ledger).charges}
    with pytest.warns(RechargeWarning, match=rf"\(4\) are lost.*{reason}"):
        result = train(*rows(), settings, resume=True)
    charges = read_ledger(settings.ledger).charges
    assert [one.batch for one in result.records] == list(range(4, len(charges)))
    assert {one.key for one in charges[:4]} == names
    assert {one.key for one in charges[4:]}.isdisjoint(names)


def test_another_machine_is_paid_again(tmp_path, monkeypatch):
    _, settings = crashed(tmp_path, max_batches=6)
    monkeypatch.setenv("OMP_NUM_THREADS", "63")
    with pytest.warns(RechargeWarning, match="libraries, threads or machine"):
        train(*rows_of(), settings, resume=True)


def test_a_checkpoint_whose_numbers_were_changed_is_paid_again(tmp_path):
    _, settings = crashed(tmp_path, max_batches=6)
    document, vectors = taken_apart(settings.checkpoint.read_bytes())
    vectors["w"][0] += 1e-9
    settings.checkpoint.write_bytes(put_together(document, vectors))
    with pytest.warns(RechargeWarning, match="not one of this run key"):
        train(*rows_of(), settings, resume=True)


def test_arithmetic_that_does_not_repeat_is_found_before_anything_is_seen(
    tmp_path, monkeypatch
):
    _, settings = crashed(tmp_path, max_batches=6)
    minimize = run_module.minimize

    def shaky(*given, **named):
        for state, record in minimize(*given, **named):
            w = state.w.clone()
            w[0] = math.nextafter(float(w[0]), math.inf)
            yield dataclasses.replace(state, w=w), record

    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "minimize", shaky)
        with pytest.raises(ArmijoError, match=r"Step 0, redone.*Remove .*\.json\.key"):
            train(*rows_of(), settings, callback=seen.append, resume=True)
    assert not seen
    key_path(settings.checkpoint).unlink()
    with pytest.warns(RechargeWarning, match=r"\(4\) are lost"):
        result = train(*rows_of(), settings, resume=True)
    assert [one.batch for one in result.records] == list(range(4, 10))


def test_a_refused_resume_leaves_key_and_checkpoint(tmp_path):
    crashed(tmp_path, max_batches=6)
    other = settings_of(tmp_path / "dead", max_batches=6, ledger=tmp_path / "other")
    train(*rows_of(), dataclasses.replace(other, checkpoint=None))
    before = {p.name: p.read_bytes() for p in (tmp_path / "dead").iterdir()}
    with pytest.raises(LedgerError, match="belongs to the ledger"):
        train(*rows_of(), other, resume=True)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "dead").iterdir()}


def test_without_a_checkpoint_there_is_no_key(tmp_path):
    settings = settings_of(tmp_path, max_batches=2)

    def look(record):
        assert not list(tmp_path.glob("*.key"))

    train(*rows_of(), dataclasses.replace(settings, checkpoint=None), callback=look)


def test_a_checkpoint_without_a_named_ledger_gets_one_and_a_key(tmp_path):
    settings = settings_of(tmp_path, max_batches=2)
    names = set()

    def look(record):
        names.update(path.name for path in tmp_path.iterdir())

    train(*rows_of(), dataclasses.replace(settings, ledger=None), callback=look)
    assert {"run.json", "run.json.key", "run.json.ledger"} <= names


def test_the_key_is_there_before_the_first_charge_and_gone_after_the_last(tmp_path):
    settings = settings_of(tmp_path, max_batches=3)
    names = set()

    def look(record):
        names.update(path.name for path in tmp_path.glob("*.key"))

    train(*rows_of(), settings, callback=look)
    assert names == {"run.json.key"}
    assert not list(tmp_path.glob("*.key"))
